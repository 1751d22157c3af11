//! Greetings of ranks: `init`, `initack` and `fullinit`. Through `PMI_PORT` they are also the claim of a rank.

use std::mem;

use super::action::Action;
use super::collectives::Collectives;
use super::node::JobNode;
use super::settings::Restarts;
use crate::claim::ClaimKeys;
use crate::connections::ConnectionId;
use crate::conversation::Contest;
use crate::ids::{JobId, LocalRank, Rank};
use crate::report::{EndReason, Phase};
use crate::wire::request::{Message, Request, RequestError, Version};
use crate::wire::{ErrorCode, Response};

/// Greetings of ranks.
#[derive(Default)]
pub(super) struct Greetings {
    /// Keys that ranks must present for a claim; without keys, the rank number is enough.
    pub(super) keys: Option<ClaimKeys>,
}

impl Greetings {
    /// Handles a greeting, and refuses requests that come too early. Returns the rank of another request. The error is the answer, or
    /// `None` if it follows later or never.
    pub(super) fn handle<'s>(
        &self,
        node: &'s mut JobNode,
        collectives: &mut Collectives,
        connection: ConnectionId,
        request: &Request<'_>,
        message: &Message<'_>,
    ) -> Result<LocalRank, Option<Response<'s>>> {
        let conversation = &node.conversations[connection];
        if let Some(refusal) = conversation.refusal(request) {
            return Err(Some(refusal));
        }
        match request {
            Request::Init(version) => Err(init(node, collectives, connection, *version, message)),
            Request::InitAck { id } => {
                let rank = self.claim(node, collectives, connection, *id)?;
                Err(Some(Response::InitAck { rank, size: node.job.size() }))
            }
            Request::FullInit { id } => Err(self.full_init(node, collectives, connection, *id)),
            _ => conversation.rank.ok_or(None),
        }
    }

    /// Assigns the rank of `id` to a connection through `PMI_PORT`, unless another connection has it. The error is `None` if the other
    /// connection must be read first.
    fn claim(
        &self,
        node: &mut JobNode,
        collectives: &mut Collectives,
        connection: ConnectionId,
        id: u32,
    ) -> Result<Rank, Option<Response<'static>>> {
        let refusal = |text: String| Some(Response::Error { code: ErrorCode::NotThere, text: text.into() });
        let local = match &self.keys {
            Some(keys) => keys.rank_of(id),
            None => node.ranks.local(Rank(id)),
        };
        let Some(local) = local else {
            // The answer omits the key, because it may be shown to another user.
            let what = if self.keys.is_some() { "this PMI_ID".to_owned() } else { format!("rank {id}") };
            return Err(refusal(format!("{what} is not on this node")));
        };
        let rank = node.ranks[local].rank;
        if let Some(former) = node.ranks[local].former_connection()
            && former != connection
            && node.conversations[former].claimed
        {
            disconnect(node, collectives, former);
            node.actions.push_back(Action::Close { connection: former });
        }
        let conversation = &mut node.conversations[connection];
        let contest = mem::take(&mut conversation.contest);
        match node.ranks[local].connection {
            Some(owner) if owner != connection => {
                // The other connection may have ended without the server having handled its end.
                if node.settings.restarts != Restarts::Unexpected && contest == Contest::None {
                    conversation.contest = Contest::Opened;
                    node.actions.push_back(Action::ReadOut { connection: owner });
                    return Err(None);
                }
                node.note_second(local, None);
                Err(refusal(format!("rank {rank} is claimed already")))
            }
            _ if conversation.rank.is_some_and(|claimed| claimed != local) => {
                Err(refusal(format!("this connection has claimed another rank than {rank}")))
            }
            _ => {
                let is_new = conversation.rank.replace(local).is_none();
                conversation.claimed = true;
                let is_greeted = conversation.is_greeted();
                node.ranks[local].connection = Some(connection);
                if is_greeted && is_new {
                    collectives.speak(node, local);
                }
                Ok(rank)
            }
        }
    }

    /// Handles PMI-2's second greeting; on a connection from `PMI_PORT` it is also the claim.
    fn full_init<'s>(
        &self,
        node: &'s mut JobNode,
        collectives: &mut Collectives,
        connection: ConnectionId,
        id: Option<u32>,
    ) -> Option<Response<'s>> {
        if node.conversations[connection].rank.is_none()
            && let Some(Err(refusal)) = id.map(|id| self.claim(node, collectives, connection, id))
        {
            return refusal;
        }
        let Some(local) = node.conversations[connection].rank else {
            return Some(malformed(&RequestError::MissingField { name: "pmirank" }));
        };
        if node.ranks[local].phase != Phase::Open {
            collectives.speak(node, local);
        }
        let rank = node.ranks[local].rank;
        let (size, appnum) = (node.job.size(), node.job.appnum(rank));
        let spawner = node.job.spawner.as_ref().map(JobId::as_str);
        Some(Response::FullInit { rank, size, appnum, spawner })
    }
}

/// Agrees with the client on a version.
fn init(
    node: &mut JobNode,
    collectives: &mut Collectives,
    connection: ConnectionId,
    version: Version,
    message: &Message<'_>,
) -> Option<Response<'static>> {
    let conversation = &mut node.conversations[connection];
    let greeting = conversation.greet(version, node.settings.offer);
    let Some(local) = conversation.rank else { return Some(greeting) };
    // A client that sends an unknown version may retry with a known one.
    if matches!((&greeting, version.major), (Response::Error { .. }, 1 | 2)) {
        node.send(connection, greeting.encode(message.dialect, message.command, None).into());
        let rank = node.ranks[local].rank;
        node.end(EndReason::NotOffered { rank, version });
        return None;
    }
    if matches!(greeting, Response::Init(_)) {
        node.ask_for_sender(connection, local);
        collectives.speak(node, local);
    }
    Some(greeting)
}

/// A connection has ended.
pub(super) fn disconnect(node: &mut JobNode, collectives: &Collectives, connection: ConnectionId) {
    let Some(conversation) = node.conversations.get_mut(connection) else { return };
    conversation.frames = Default::default();
    let Some(local) = conversation.rank else { return node.conversations.release(connection) };
    let state = &mut node.ranks[local];
    // A claim without further messages is void, and so is the claim of a finalized program: the rank itself may still connect, or the
    // next program of its script. Where ranks may restart, every claim is void.
    let may_return = state.phase != Phase::Open || node.settings.restarts != Restarts::Unexpected;
    let is_void = conversation.claimed && may_return && state.connection == Some(connection);
    if is_void {
        state.connection = None;
    }
    // A pending answer must not reach a connection of another rank.
    if is_void && state.quota.questions() == 0 && !collectives.include(connection) {
        node.conversations.release(connection);
    } else {
        node.conversations.close(connection);
    }
}

/// The answer to a request with an error.
pub(super) fn malformed(error: &RequestError) -> Response<'static> {
    let code = match error {
        RequestError::UnknownCommand => ErrorCode::Other,
        RequestError::MissingField { .. } | RequestError::BadField { .. } => ErrorCode::InvalidArgument,
    };
    Response::Error { code, text: error.to_string().into() }
}

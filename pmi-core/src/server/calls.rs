//! Questions of ranks to the host, until their answers: names, spawns, and steps of resources.

use std::collections::HashMap;

use bytes::Bytes;

use super::action::{Action, Ticket};
use super::node::{JobNode, Origin};
use crate::connections::ConnectionId;
use crate::ids::LocalRank;
use crate::roster::Quota;
use crate::services::{Call, Lifetime, NameCall, NameError, NameRange, Publisher};
use crate::wire::request::Request;
use crate::wire::response::Address;
use crate::wire::{ErrorCode, PairError, Response, check_preput};

/// The questions to the host without an answer so far.
#[derive(Default)]
pub(super) struct Calls {
    pending: HashMap<Ticket, PendingCall>,
    next_ticket: u64,
}

/// A question without an answer so far.
#[derive(Debug)]
pub(super) struct PendingCall {
    pub(super) local: LocalRank,
    pub(super) connection: ConnectionId,
    pub(super) address: Address,
    /// Number of questions that it counts for.
    questions: usize,
}

impl Calls {
    /// Passes a request about a name or a spawn to the host, as [`Calls::ask`] does.
    pub(super) fn handle(
        &mut self,
        node: &mut JobNode,
        origin: Origin<'_>,
        request: &Request<'_>,
    ) -> Option<Response<'static>> {
        match question(request) {
            Ok(call) => self.ask(node, origin, call?),
            Err(error) => Some(error.into()),
        }
    }

    /// Passes a question to the host. Returns a refusal, or `None` if the answer follows later.
    pub(super) fn ask(&mut self, node: &mut JobNode, origin: Origin<'_>, call: Call) -> Option<Response<'static>> {
        let Origin { connection, local, .. } = origin;
        let questions = Quota::questions_of(waiting_bytes(&call));
        if let Some(refusal) = node.refuse_questions(local, questions) {
            return Some(refusal);
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.pending.insert(ticket, PendingCall { local, connection, address: origin.address(), questions });
        let rank = node.ranks[local].rank;
        node.actions.push_back(Action::Call { ticket, rank, call });
        None
    }

    /// Removes an answered question. Returns `None` for a ticket without a question.
    pub(super) fn take(&mut self, node: &mut JobNode, ticket: Ticket) -> Option<PendingCall> {
        let call = self.pending.remove(&ticket)?;
        node.ranks[call.local].quota.answered_many(call.questions);
        Some(call)
    }
}

/// Returns the question of a request about a name or a spawn. Fails for a spawn whose pairs cannot be stored.
fn question(request: &Request<'_>) -> Result<Option<Call>, PairError> {
    let owned = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
    Ok(Some(match request {
        Request::Publish { service, port } => {
            let (lifetime, range) = (Lifetime::Withdrawn, NameRange::User);
            Call::Name(NameCall::Publish { service: owned(service), port: owned(port), lifetime, range })
        }
        Request::Lookup { service } => {
            Call::Name(NameCall::Lookup { service: owned(service), timeout: None, range: NameRange::User })
        }
        Request::Unpublish { service } => {
            Call::Name(NameCall::Unpublish { service: owned(service), publisher: Publisher::AnyOfLaunch })
        }
        Request::Spawn(request) => {
            check_preput(request)?;
            Call::Spawn(request.clone())
        }
        _ => return Ok(None),
    }))
}

/// Bytes of a question that are stored until it is answered.
fn waiting_bytes(call: &Call) -> usize {
    match call {
        Call::Name(NameCall::Publish { service, port, .. }) => service.len() + port.len(),
        Call::Name(NameCall::Lookup { service, .. } | NameCall::Unpublish { service, .. }) => service.len(),
        Call::Name(NameCall::Leave) => 0,
        Call::Spawn(request) => Quota::bytes_of_spawn(request),
        Call::Resource(_) => 0,
    }
}

/// Keeps the texts that clients expect from other servers.
pub(super) fn name_error(error: &NameError) -> Response<'static> {
    let text = match error {
        NameError::AlreadyPublished { .. } => "key_already_present".into(),
        NameError::NotFound => "service_not_found".into(),
        other => other.to_string().into(),
    };
    Response::Error { code: ErrorCode::NotThere, text }
}

//! Answers of a server to the requests of its ranks.

use std::mem;

use bytes::Bytes;

use super::spaces::Space;
use super::{Action, PendingCall, Restarts, Server, Ticket, Waiter, universe_size};
use crate::connections::ConnectionId;
use crate::conversation::Contest;
use crate::ids::{LocalRank, Rank};
use crate::report::{EndReason, Phase};
use crate::roster::Quota;
use crate::services::{Call, Lifetime, NameCall, NameRange, Publisher};
use crate::wire::request::{Message, Request, RequestError};
use crate::wire::response::Address;
use crate::wire::{ErrorCode, LIMITS_ANNOUNCED, Response, check_pair, check_preput};

/// The longest command in reports; every real command is shorter.
const COMMAND_SHOWN: usize = 32;

impl Server {
    /// Answers one message, or stores the request until the answer is known.
    pub(super) fn handle_message(&mut self, connection: ConnectionId, message: Message<'_>) {
        self.note_command(connection, message.command);
        let answer = match &message.request {
            Ok(request) => self.handle_request(connection, request, &message),
            Err(error) => Some(malformed(error)),
        };
        if let Some(answer) = answer {
            let bytes = answer.encode(message.dialect, message.command, message.thread);
            match self.restart.take_arrival() {
                Some(local) => self.wait_for_restart(local, Waiter { connection, answer: bytes.into() }),
                None => self.send(connection, bytes.into()),
            }
        }
    }

    fn note_command(&mut self, connection: ConnectionId, command: &str) {
        let Some(local) = self.conversations[connection].rank else { return };
        let state = &mut self.ranks[local];
        if state.last_command.as_deref() != Some(command) {
            let shown = command.char_indices().nth(COMMAND_SHOWN).map_or(command, |(end, _)| &command[..end]);
            state.last_command = Some(shown.to_owned().into());
        }
    }

    /// Returns the answer, or `None` if it follows later or never.
    fn handle_request<'s>(
        &'s mut self,
        connection: ConnectionId,
        request: &Request<'_>,
        message: &Message<'_>,
    ) -> Option<Response<'s>> {
        let conversation = &mut self.conversations[connection];
        if let Some(refusal) = conversation.refusal(request) {
            return Some(refusal);
        }
        match request {
            Request::Init(version) => {
                let greeting = conversation.greet(*version, self.settings.offer);
                let Some(local) = conversation.rank else { return Some(greeting) };
                // A client that sends an unknown version may retry with a known one.
                if matches!((&greeting, version.major), (Response::Error { .. }, 1 | 2)) {
                    self.send(connection, greeting.encode(message.dialect, message.command, None).into());
                    let rank = self.ranks[local].rank;
                    self.end(EndReason::NotOffered { rank, version: *version });
                    return None;
                }
                if matches!(greeting, Response::Init(_)) {
                    self.ask_for_sender(connection, local);
                    self.speaks(local);
                }
                return Some(greeting);
            }
            Request::InitAck { id } => return self.initack(connection, *id),
            Request::FullInit { id } => return self.full_init(connection, *id),
            _ => {}
        }
        let local = conversation.rank?;
        self.handle_ranks_request(connection, local, request, message)
    }

    /// Handles the requests that require a known rank.
    fn handle_ranks_request<'s>(
        &'s mut self,
        connection: ConnectionId,
        local: LocalRank,
        request: &Request<'_>,
        message: &Message<'_>,
    ) -> Option<Response<'s>> {
        Some(match request {
            Request::Init(_) | Request::InitAck { .. } | Request::FullInit { .. } => return None,
            Request::Adopted(version) => {
                Response::Adopted { served: version.major == 1 && self.settings.offer.pmi1, job: self.job.id.as_str() }
            }
            Request::Maxes => Response::Maxes,
            Request::AppNum => Response::AppNum(self.job.appnum(self.ranks[local].rank)),
            Request::JobId => Response::JobId(self.job.id.as_str()),
            Request::UniverseSize => Response::UniverseSize(universe_size(&self.job)),
            Request::Put { job, key, value } => match self.space(*job) {
                Some(space) => self.put(local, space, key, value),
                None => unknown_job(),
            },
            Request::Get { job, key } => match self.space(*job) {
                Some(space) => return Some(self.get(local, space, key)),
                None => unknown_job(),
            },
            Request::GetByIndex { job, index } => match self.space(*job) {
                Some(space) => return Some(self.indexed(space, *index)),
                None => unknown_job(),
            },
            Request::CreateSpace => self.create_space(local),
            Request::DestroySpace { name } => self.destroy_space(name),
            Request::Resource(request) => return self.handle_resource(connection, local, request, message),
            Request::JobAttribute { key } => return Some(self.get_attribute(local, key)),
            Request::PutNodeAttribute { key, value } => return self.put_node_attribute(local, key, value),
            Request::GetNodeAttribute { key, wait } => {
                return self.get_node_attribute(connection, local, key, *wait, message);
            }
            Request::Fence => return self.arrive(connection, local, message),
            Request::GroupFence { group, tag, name } => {
                return self.arrive_in_group(connection, local, group, *tag, name, message);
            }
            Request::Ring(value) => return self.arrive_in_ring(connection, local, value, message),
            Request::Publish { service, port } => {
                let (service, port) = (owned(service), owned(port));
                let (lifetime, range) = (Lifetime::Withdrawn, NameRange::User);
                let call = NameCall::Publish { service, port, lifetime, range };
                return self.call(connection, local, Call::Name(call), message);
            }
            Request::Lookup { service } => {
                let call = NameCall::Lookup { service: owned(service), timeout: None, range: NameRange::User };
                return self.call(connection, local, Call::Name(call), message);
            }
            Request::Unpublish { service } => {
                let call = NameCall::Unpublish { service: owned(service), publisher: Publisher::AnyOfLaunch };
                return self.call(connection, local, Call::Name(call), message);
            }
            Request::Spawn(request) => {
                if let Err(error) = check_preput(request) {
                    return Some(error.into());
                }
                return self.call(connection, local, Call::Spawn(request.clone()), message);
            }
            Request::Abort { code, whole_job, message } => {
                let rank = self.ranks[local].rank;
                let message = String::from_utf8_lossy(message).into_owned();
                self.end(EndReason::Abort { rank, code: *code, whole_job: *whole_job, message });
                return None;
            }
            Request::Finalize => {
                self.ranks[local].phase = Phase::Finalized;
                self.look_for_deserters();
                Response::Done
            }
            Request::Unimplemented => Response::Error { code: ErrorCode::Other, text: "not_implemented".into() },
        })
    }

    /// Handles an `init` of the rank.
    fn speaks(&mut self, local: LocalRank) {
        if self.settings.restarts != Restarts::Unexpected && self.ranks[local].phase != Phase::Silent {
            return self.begin_again(local);
        }
        if self.ranks[local].speak() {
            self.look_for_deserters();
        }
    }

    /// Assigns the rank of `id` to a connection through `PMI_PORT`, unless another connection has it.
    fn initack(&mut self, connection: ConnectionId, id: u32) -> Option<Response<'static>> {
        match self.claim(connection, id) {
            Ok(rank) => Some(Response::InitAck { rank, size: self.job.size() }),
            Err(refusal) => refusal,
        }
    }

    /// Assigns the rank of `id`. The error is `None` if the other connection must be read first.
    fn claim(&mut self, connection: ConnectionId, id: u32) -> Result<Rank, Option<Response<'static>>> {
        let refusal = |text: String| Some(Response::Error { code: ErrorCode::NotThere, text: text.into() });
        let local = match &self.keys {
            Some(keys) => keys.rank_of(id),
            None => self.ranks.local(Rank(id)),
        };
        let Some(local) = local else {
            // The answer omits the key, because it may be shown to another user.
            let what = if self.keys.is_some() { "this PMI_ID".to_owned() } else { format!("rank {id}") };
            return Err(refusal(format!("{what} is not on this node")));
        };
        let rank = self.ranks[local].rank;
        if let Some(former) = self.ranks[local].former_connection()
            && former != connection
            && self.conversations[former].claimed
        {
            self.handle_disconnect(former);
            self.actions.push_back(Action::Close { connection: former });
        }
        let conversation = &mut self.conversations[connection];
        let contest = mem::take(&mut conversation.contest);
        match self.ranks[local].connection {
            Some(owner) if owner != connection => {
                // The other connection may have ended without the server having handled its end.
                if self.settings.restarts != Restarts::Unexpected && contest == Contest::None {
                    conversation.contest = Contest::Opened;
                    self.actions.push_back(Action::ReadOut { connection: owner });
                    return Err(None);
                }
                self.note_second(local, None);
                Err(refusal(format!("rank {rank} is claimed already")))
            }
            _ if conversation.rank.is_some_and(|claimed| claimed != local) => {
                Err(refusal(format!("this connection has claimed another rank than {rank}")))
            }
            _ => {
                let is_new = conversation.rank.replace(local).is_none();
                conversation.claimed = true;
                let is_greeted = conversation.is_greeted();
                self.ranks[local].connection = Some(connection);
                if is_greeted && is_new {
                    self.speaks(local);
                }
                Ok(rank)
            }
        }
    }

    /// Handles PMI-2's second greeting; on a connection from `PMI_PORT` it is also the claim.
    fn full_init(&mut self, connection: ConnectionId, id: Option<u32>) -> Option<Response<'_>> {
        if self.conversations[connection].rank.is_none()
            && let Some(Err(refusal)) = id.map(|id| self.claim(connection, id))
        {
            return refusal;
        }
        let Some(local) = self.conversations[connection].rank else {
            return Some(malformed(&RequestError::MissingField { name: "pmirank" }));
        };
        if self.ranks[local].phase != Phase::Open {
            self.speaks(local);
        }
        let rank = self.ranks[local].rank;
        let (size, appnum) = (self.job.size(), self.job.appnum(rank));
        let spawner = self.job.spawner.as_ref().map(crate::ids::JobId::as_str);
        Some(Response::FullInit { rank, size, appnum, spawner })
    }

    fn put(&mut self, local: LocalRank, space: Space<'_>, key: &[u8], value: &[u8]) -> Response<'static> {
        let invalid = |text: &'static str| Response::Error { code: ErrorCode::InvalidArgument, text: text.into() };
        if space == Space::Job && is_reserved(key) {
            return invalid("keys with PMI_ are reserved");
        }
        if key.contains(&0) {
            return invalid("a key has no NUL");
        }
        if let Some(refusal) = self.refuse_pair(local, key, value) {
            return refusal;
        }
        match space {
            Space::Job => self.kvs.put(key, value),
            Space::Made(_) => self.kvs.put(&space.stored(key), value),
        }
        Response::Done
    }

    /// Returns the refusal of a pair that cannot be stored; otherwise counts the pair as stored.
    pub(super) fn refuse_pair(&mut self, local: LocalRank, key: &[u8], value: &[u8]) -> Option<Response<'static>> {
        if let Err(error) = check_pair(key, value) {
            return Some(error.into());
        }
        let (quota, limit) = (&mut self.ranks[local].quota, self.settings.bytes_per_rank);
        if quota.take_pair(key.len(), value.len(), limit) {
            return None;
        }
        let text = format!("this rank has put {} bytes; the limit is {limit}", quota.bytes());
        Some(Response::Error { code: ErrorCode::NoMemory, text: text.into() })
    }

    /// PMI-1 has one `get` for pairs and for facts about the job; the names of facts are reserved.
    fn get(&self, local: LocalRank, space: Space<'_>, key: &[u8]) -> Response<'_> {
        if key.contains(&0) || (space != Space::Job && key.is_empty()) {
            return Response::Value(None);
        }
        match (space, self.kvs.get(key)) {
            (Space::Made(_), _) => Response::Value(self.kvs.get(&space.stored(key))),
            (Space::Job, Some(value)) if !is_reserved(key) => Response::Value(Some(value)),
            (Space::Job, _) => self.get_attribute(local, key),
        }
    }

    /// Facts about the job. An unknown fact is not found: every client has a fallback.
    fn get_attribute(&self, local: LocalRank, key: &[u8]) -> Response<'_> {
        let value = str::from_utf8(key).ok().and_then(|name| match name {
            "lattice.topo" => self.places.of(local.index()),
            name => self.job_attribute(name),
        });
        Response::Value(value.map(str::as_bytes))
    }

    /// The value of one of [`super::JOB_ATTRIBUTES`], or of a variable fact.
    pub(super) fn job_attribute(&self, name: &str) -> Option<&str> {
        match name {
            "PMI_process_mapping" => self.mapping.as_deref(),
            "lattice.limits" => Some(LIMITS_ANNOUNCED),
            "PMI_hwloc_xmlfile" => self.topology_file.as_deref(),
            "universeSize" => Some(&self.universe_size_text),
            "hasNameServ" => Some(if self.has_names { "TRUE" } else { "FALSE" }),
            // Requests for which other servers end the job. Clients check this attribute before they send them.
            "lattice.ext" if self.settings.resources => Some("getbyidx,create_kvs,topo,memory,barrier_group,resource"),
            "lattice.ext" => Some("getbyidx,create_kvs,topo,memory,barrier_group"),
            // MPICH reads it with `get` in PMI-1 and with `kvs-get` in PMI-2.
            "PMI_dead_processes" => self.deaths.text(),
            "lattice.memory" => self.node_memory.as_deref(),
            name => self.places.job_attribute(name),
        }
    }

    /// Passes a question to the host.
    pub(super) fn call(
        &mut self,
        connection: ConnectionId,
        local: LocalRank,
        call: Call,
        message: &Message<'_>,
    ) -> Option<Response<'static>> {
        let questions = Quota::questions_of(waiting_bytes(&call));
        if let Some(refusal) = self.refuse_questions(local, questions) {
            return Some(refusal);
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.calls.insert(ticket, PendingCall { local, connection, address: address_of(message), questions });
        let rank = self.ranks[local].rank;
        self.actions.push_back(Action::Call { ticket, rank, call });
        None
    }

    /// Returns the refusal of `questions` more unanswered questions; otherwise counts them.
    pub(super) fn refuse_questions(&mut self, local: LocalRank, questions: usize) -> Option<Response<'static>> {
        let quota = &mut self.ranks[local].quota;
        if quota.ask_many(questions, self.settings.questions_per_rank) {
            return None;
        }
        let text = format!("{} questions of this rank wait for an answer", quota.questions());
        Some(Response::Error { code: ErrorCode::NoMemory, text: text.into() })
    }
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

/// Returns true if the key is reserved for a fact about the job; Hydra also refuses puts of such keys.
fn is_reserved(key: &[u8]) -> bool {
    key.starts_with(b"PMI_")
}

fn owned(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

pub(super) fn address_of(message: &Message<'_>) -> Address {
    Address { dialect: message.dialect, command: message.command.into(), thread: message.thread.map(Into::into) }
}

fn unknown_job() -> Response<'static> {
    Response::Error { code: ErrorCode::Failed, text: "unknown kvsname".into() }
}

fn malformed(error: &RequestError) -> Response<'static> {
    let code = match error {
        RequestError::UnknownCommand => ErrorCode::Other,
        RequestError::MissingField { .. } | RequestError::BadField { .. } => ErrorCode::InvalidArgument,
    };
    Response::Error { code, text: error.to_string().into() }
}

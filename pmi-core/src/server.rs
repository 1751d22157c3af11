//! The PMI server of one job's ranks on one node, as a state machine without I/O, clock, lock or task.
//!
//! Input arrives through the `handle_*` methods; [`Server::poll_action`] returns the resulting actions. The driver of a server (see
//! [`crate::driver`]) repeats these steps until the job ends:
//!
//! 1. read from a rank's connection and call [`Server::handle_bytes`], or call another `handle_*` for another event: a fence is complete,
//!    a host service has answered, a rank's process has ended, a connection has closed;
//! 2. take every [`Action`] with `poll_action` and carry it out. Actions that take time ([`Action::Fence`], [`Action::Call`]) end later
//!    with `handle_fence` and `handle_answer`; meanwhile everything else continues.
//!
//! The order of calls is the order of events; no other input affects a server.
//!
//! A server is a router. It passes each request of a rank to the part that owns the state, and lends the job's state on this node to it:
//!
//! ```text
//!            ┌── Greetings     init, claims: the rank of a connection        ┐
//!            ├── Collectives   fences, rings, restarts, and their data       │
//! Server ────┼── Facts         facts about the job                           ├── JobNode: ranks, connections, actions
//!            ├── Calls         questions to the host                         │
//!            └── Resources     registered resources                          ┘
//! ```

mod action;
mod attributes;
mod calls;
mod collectives;
mod facts;
mod fences;
mod greetings;
mod mortality;
mod node;
mod places;
mod resources;
mod restarts;
mod ring;
mod settings;
mod spaces;

use std::sync::Arc;

use bytes::Bytes;

pub use self::action::{Action, ReleaseTimer, Ticket};
use self::calls::Calls;
use self::collectives::Collectives;
use self::facts::{Facts, universe_size};
use self::greetings::{Greetings, disconnect, malformed};
pub use self::mortality::missed;
pub use self::node::ConnectError;
use self::node::{JobNode, Origin};
pub use self::places::RankDomains;
pub use self::resources::RESOURCES_MAX;
use self::resources::Resources;
pub use self::settings::{Restarts, Settings};
use crate::claim::ClaimKeys;
pub use crate::connections::ConnectionId;
use crate::deaths::{Death, DeathKind};
use crate::fence::{FenceError, FenceId, Merged};
use crate::ids::{LocalRank, NodeIndex, Rank};
use crate::job::Job;
use crate::report::Phase;
pub use crate::report::{EndReason, FenceStatus, Offence, Progress, Sender, Trace};
use crate::services::Answer;
use crate::wire::request::{Message, Request};
use crate::wire::response::ADOPTION;
use crate::wire::{ErrorCode, Response};

/// The PMI server of one job's ranks on one node. See the [module](self) for how to drive it.
pub struct Server {
    node: JobNode,
    greetings: Greetings,
    collectives: Collectives,
    facts: Facts,
    calls: Calls,
    resources: Resources,
}

impl Server {
    /// Creates the server of the ranks of `job` on `node`.
    pub fn new(job: Job, node: NodeIndex, settings: Settings) -> Self {
        let node = JobNode::new(job, node, settings);
        Self {
            greetings: Greetings::default(),
            collectives: Collectives::new(&node),
            facts: Facts::new(&node.job, node.index, node.ranks.len()),
            calls: Calls::default(),
            resources: Resources::default(),
            node,
        }
    }

    /// The served job.
    pub fn job(&self) -> &Job {
        &self.node.job
    }

    /// The served ranks, by local rank.
    pub fn ranks(&self) -> impl ExactSizeIterator<Item = Rank> + '_ {
        self.node.ranks.iter().map(|(_, state)| state.rank)
    }

    /// State of a rank's dialogue; `None` if the node has no such rank.
    pub fn progress(&self, local: LocalRank) -> Option<Progress> {
        self.node.ranks.progress(local, self.node.fences)
    }

    /// The fences in which ranks of this node wait.
    pub fn pending_fences(&self) -> Vec<FenceStatus> {
        self.collectives.pending(&self.node)
    }

    /// Constant facts about the job that ranks can request by name, as far as they are known.
    pub fn job_attributes(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.facts.constant(&self.node)
    }

    /// All pairs that ranks of this node can read now.
    pub fn pairs(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        let kvs = &self.collectives.spaces.kvs;
        (0..kvs.len()).map(|index| kvs.nth(index).unwrap_or_default())
    }

    /// The value of a key that ranks of this node can read now.
    pub fn value(&self, key: &[u8]) -> Option<&[u8]> {
        self.collectives.spaces.kvs.get(key)
    }

    /// Requests an [`Action::Merged`] for each later fence.
    pub fn report_merged(&mut self) {
        self.collectives.fences.reports_merged = true;
    }

    /// From now on ranks that connect through `PMI_PORT` must present their key as `PMI_ID`, and not their number.
    pub fn require_keys(&mut self, keys: ClaimKeys) {
        self.greetings.keys = Some(keys);
    }

    /// Offers ranks a file with the description of the node, for hwloc. Ignores a name that PMI-1 cannot transfer, because it is too long
    /// or has a space.
    pub fn offer_topology(&mut self, file: &str) {
        self.facts.offer_topology(file);
    }

    /// Sets the parts of the node that each rank runs in, by local rank. Ranks can request them.
    pub fn tell_domains(&mut self, domains: &[RankDomains]) {
        self.facts.places.tell(domains);
    }

    /// Sets the descriptor of the memory that the ranks of this node share. Ranks can request it.
    pub fn tell_node_memory(&mut self, descriptor: i32) {
        let descriptor = descriptor.to_string();
        self.collectives.attributes.set_memory(&self.node.ranks, &descriptor);
        self.facts.memory = Some(descriptor);
    }

    /// From now on the server reports to ranks that names cannot be published.
    pub fn offer_no_names(&mut self) {
        self.facts.has_names = false;
    }

    /// The rank's process returned status 0. The host evaluates any other end of a process; see [`Server::handle_borne_failure`].
    pub fn handle_exit(&mut self, local: LocalRank) {
        let Some(state) = self.node.ranks.get_mut(local) else { return };
        state.exited = true;
        let rank = state.rank;
        match state.phase {
            Phase::Open => self.node.end(EndReason::LeftWithoutFinalize { rank }),
            Phase::Silent | Phase::Finalized => self.collectives.end_if_rank_has_left(&mut self.node),
        }
    }

    /// A fence of an [`Action::Fence`] is complete or has failed.
    pub fn handle_fence(&mut self, id: &FenceId, result: Result<Merged, FenceError>) {
        if self.node.has_ended() {
            return;
        }
        match result {
            Ok(merged) => self.collectives.leave(&mut self.node, id, merged),
            Err(error) => self.node.end(EndReason::Fence(Arc::new(error))),
        }
    }

    /// The host answered an [`Action::Call`].
    pub fn handle_answer(&mut self, ticket: Ticket, answer: &Answer) {
        let Some(call) = self.calls.take(&mut self.node, ticket) else { return };
        let response = match answer {
            Answer::Named(Ok(())) => Response::Done,
            Answer::Port(Ok(port)) => Response::Port(port),
            Answer::Spawned(Ok(job)) => Response::Spawned { job: job.as_str() },
            Answer::Named(Err(error)) | Answer::Port(Err(error)) => calls::name_error(error),
            Answer::Spawned(Err(error)) => Response::Error { code: ErrorCode::Failed, text: error.to_string().into() },
            Answer::Resource(change, result) => self.resources.handle_answer(call.local, change, result),
        };
        self.node.send(call.connection, response.encode_to(&call.address).into());
    }

    /// Returns the next action, in order; `None` until the next input.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.node.actions.pop_front()
    }

    /// Memory of keys and values with their index, in bytes.
    pub fn memory(&self) -> usize {
        self.collectives.spaces.kvs.memory()
    }
}

/// Restarts.
impl Server {
    /// Number of restarts of all ranks.
    pub fn generation(&self) -> u32 {
        self.collectives.restart.generation
    }
}

/// Deaths of ranks.
impl Server {
    /// The rank's process failed, and the host lets the other ranks continue. The job ends if ranks wait for it during the initialization
    /// of MPI. Otherwise they continue without it, and the server emits an [`Action::Died`].
    pub fn handle_borne_failure(&mut self, local: LocalRank, kind: DeathKind) {
        let Some(state) = self.node.ranks.get_mut(local) else { return };
        state.fail(kind);
        if self.node.has_ended() {
            return;
        }
        self.node.report_deaths();
        self.collectives.begin(&mut self.node);
    }

    /// Ranks of other nodes have died, and the other ranks continue. Reads of `PMI_dead_processes` include them from now on. The job ends
    /// if ranks of this node wait, during the initialization of MPI, for data of a node without living ranks.
    pub fn handle_deaths(&mut self, deaths: &[Death]) {
        for death in deaths {
            self.node.deaths.add(death.rank);
        }
        self.collectives.fences.end_if_node_is_missed(&mut self.node);
    }
}

/// Deadlines.
impl Server {
    /// The time of an [`Action::SetTimer`] has expired.
    pub fn handle_timer(&mut self, timer: ReleaseTimer) {
        self.resources.handle_timer(&mut self.node, timer);
    }
}

/// Connections and messages.
impl Server {
    /// Begins the conversation with a rank over a socket that no other process holds: the socket is the rank's identity.
    ///
    /// # Errors
    /// Refuses a rank that is not on the node, and one that has a connection.
    pub fn connect(&mut self, local: LocalRank) -> Result<ConnectionId, ConnectError> {
        self.node.connect(local)
    }

    /// Begins the conversation with a program that was started without a launcher and requests a server by `mpiexec -pmi_args`. The
    /// program listens, and the driver of this server connects to it. On this connection the server sends the first message.
    ///
    /// # Errors
    /// As [`Server::connect`].
    pub fn adopt(&mut self, local: LocalRank) -> Result<ConnectionId, ConnectError> {
        let connection = self.node.connect(local)?;
        self.node.send(connection, Bytes::from_static(ADOPTION));
        Ok(connection)
    }

    /// Begins a conversation with a process that connected through `PMI_PORT`. It must claim a rank without another connection
    /// (`initack`, or `fullinit` in PMI-2). The server has no clock: the driver closes the connection after a time limit.
    pub fn accept(&mut self) -> ConnectionId {
        self.node.conversations.open()
    }

    /// The rank of a connection, if known.
    pub fn rank_of(&self, connection: ConnectionId) -> Option<Rank> {
        self.node.rank_of(connection)
    }

    /// The connection of a rank, if any.
    pub fn connection_of(&self, local: LocalRank) -> Option<ConnectionId> {
        self.node.ranks.get(local)?.connection
    }

    /// A second process sends over the connection of a rank; the result of [`Action::AskForSender`].
    pub fn handle_second_sender(&mut self, connection: ConnectionId, pid: u32) {
        let Some(conversation) = self.node.conversations.get(connection) else { return };
        if let (Some(local), true) = (conversation.rank, conversation.is_repeated) {
            self.node.note_second(local, Some(pid));
        }
    }

    /// Handles bytes from a connection: any number of messages, split anywhere.
    pub fn handle_bytes(&mut self, connection: ConnectionId, bytes: &[u8]) {
        self.push_bytes(connection, bytes);
        while self.handle_next(connection) {}
    }

    /// Stores bytes from a connection, and leaves each message to a call of [`Server::handle_next`]. Between two messages, a host can
    /// check how much of the answers the rank has read.
    pub fn push_bytes(&mut self, connection: ConnectionId, bytes: &[u8]) {
        if self.node.reads_from(connection) {
            self.node.conversations[connection].frames.push(bytes);
        }
    }

    /// Handles the next message of a connection. Returns false if no message is complete, or no further message is allowed.
    pub fn handle_next(&mut self, connection: ConnectionId) -> bool {
        let Some(frames) = self.node.take_message(connection) else { return false };
        match Message::decode(frames.frame()) {
            Ok(message) => self.handle_message(connection, &message),
            Err(error) => self.node.offend(connection, error.into()),
        }
        self.node.put_back(connection, frames)
    }

    /// The rank has closed the connection, or it broke. That is not the end of the rank: child processes of a rank hold its socket open,
    /// and clients close it after `finalize`; see [`Server::handle_exit`].
    pub fn handle_disconnect(&mut self, connection: ConnectionId) {
        disconnect(&mut self.node, &self.collectives, connection);
    }

    /// Answers one message, or stores the request until the answer is known.
    fn handle_message(&mut self, connection: ConnectionId, message: &Message<'_>) {
        let Self { node, greetings, collectives, .. } = self;
        node.note_command(connection, message.command);
        let answer = match &message.request {
            Ok(request) => match greetings.handle(node, collectives, connection, request, message) {
                Ok(local) => self.handle_ranks_request(Origin { connection, local, message }, request),
                Err(answer) => answer,
            },
            Err(error) => Some(malformed(error)),
        };
        if let Some(answer) = answer {
            let bytes = answer.encode(message.dialect, message.command, message.thread);
            self.collectives.answer(&mut self.node, connection, bytes.into());
        }
    }

    /// Handles the requests that require a known rank. Returns the answer, or `None` if it follows later or never.
    fn handle_ranks_request<'s>(&'s mut self, origin: Origin<'_>, request: &Request<'_>) -> Option<Response<'s>> {
        let Self { node, collectives, facts, calls, resources, .. } = self;
        let local = origin.local;
        Some(match request {
            Request::Init(_) | Request::InitAck { .. } | Request::FullInit { .. } => return None,
            Request::Adopted(version) => {
                Response::Adopted { served: version.major == 1 && node.settings.offer.pmi1, job: node.job.id.as_str() }
            }
            Request::Maxes => Response::Maxes,
            Request::AppNum => Response::AppNum(node.job.appnum(node.ranks[local].rank)),
            Request::JobId => Response::JobId(node.job.id.as_str()),
            Request::UniverseSize => Response::UniverseSize(universe_size(&node.job)),
            Request::Put { job, key, value } => collectives.spaces.put(node, local, *job, key, value),
            Request::Get { job, key } => collectives.spaces.get(node, facts, local, *job, key),
            Request::GetByIndex { job, index } => collectives.spaces.indexed(&node.job, *job, *index),
            Request::CreateSpace => collectives.spaces.create(node, local),
            Request::DestroySpace { name } => collectives.spaces.destroy(&node.job, name),
            Request::JobAttribute { key } => facts.get(node, local, key),
            Request::PutNodeAttribute { key, value } => collectives.attributes.put(node, local, key, value),
            Request::GetNodeAttribute { key, wait } => {
                return collectives.get_attribute(node, origin, key, *wait);
            }
            Request::Fence | Request::GroupFence { .. } | Request::Ring(_) => {
                return collectives.arrive(node, origin, request);
            }
            Request::Resource(request) => return resources.handle(node, calls, origin, request),
            Request::Publish { .. } | Request::Lookup { .. } | Request::Unpublish { .. } | Request::Spawn(_) => {
                return calls.handle(node, origin, request);
            }
            Request::Abort { code, whole_job, message } => {
                let rank = node.ranks[local].rank;
                let message = String::from_utf8_lossy(message).into_owned();
                node.end(EndReason::Abort { rank, code: *code, whole_job: *whole_job, message });
                return None;
            }
            Request::Finalize => {
                node.ranks[local].phase = Phase::Finalized;
                collectives.end_if_rank_has_left(node);
                Response::Done
            }
            Request::Unimplemented => Response::Error { code: ErrorCode::Other, text: "not_implemented".into() },
        })
    }
}

//! The PMI server of one job's ranks on one node, as a state machine without I/O, clock, lock or task.
//!
//! Input goes in through the `handle_*` methods; what is to be done comes out of [`Server::poll_action`]. Whoever drives a
//! server (see [`crate::driver`]) repeats this until the job ends:
//!
//! 1. read from some rank's connection and call [`Server::handle_bytes`], or call another `handle_*` for what else
//!    happened: a fence was exchanged, a host service answered, a rank's process ended, a connection closed;
//! 2. take every [`Action`] with `poll_action` and carry it out. Those that take time ([`Action::Fence`], [`Action::Call`]) are
//!    answered later by `handle_fence` and `handle_answer`; meanwhile everything else goes on.
//!
//! The order of calls is the order of events; nothing else decides what a server does.

mod action;
mod fences;
mod requests;

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::Arc;

use bytes::Bytes;

pub use self::action::{Action, EndReason, Offence, Trace};
use self::fences::Waiter;
use crate::conversation::{Conversation, Offer, Phase};
use crate::fence::{FenceError, FenceId};
use crate::gathering::{Gathering, Groups};
use crate::ids::{Epoch, LocalRank, NodeIndex, Rank};
use crate::job::Job;
use crate::kvs::Kvs;
use crate::services::{Answer, NameError};
use crate::wire::request::{Message, RingValue};
use crate::wire::response::{ADOPTION, Address};
use crate::wire::{ErrorCode, Response};

/// Settings of a [`Server`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The protocol versions to serve.
    pub offer: Offer,
    /// How many bytes of keys and values one rank may put during the job.
    pub bytes_per_rank: usize,
    /// How many unanswered questions one rank may have (waiting reads, names, spawns).
    pub questions_per_rank: usize,
    /// Report every message as an [`Action::Trace`].
    pub trace: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { offer: Offer::default(), bytes_per_rank: 16 * 1024 * 1024, questions_per_rank: 64, trace: false }
    }
}

/// Names a connection to a server: a rank's socket, or one that came through `PMI_PORT`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u32);

/// Names a [`Call`](crate::services::Call) until its answer comes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket(u64);

/// What a server knows of one of its ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Which rank.
    pub rank: Rank,
    /// How far its dialogue has come.
    pub phase: Phase,
    /// The last command it sent, as written; shortened if it is longer than any real one.
    pub last_command: Option<String>,
}

/// A fence in which ranks of this node wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Tells this wait from all others of the job, together with `epoch`.
    pub name: Arc<str>,
    /// How many fences of that name came before.
    pub epoch: Epoch,
    /// Whether every rank of the job takes part.
    pub whole_job: bool,
    /// The ranks of this node that wait.
    pub waiting: Vec<LocalRank>,
    /// Those of this node that they wait for. When there are none, ranks of other nodes are missing, or the result is on its way.
    pub missing: Vec<LocalRank>,
}

impl Standing {
    /// How a gathering stands; `None` when nobody waits in it.
    fn of<W>(name: &Arc<str>, whole_job: bool, gathering: &Gathering<LocalRank, W>) -> Option<Self> {
        let (epoch, waiting, missing) = gathering.standing()?;
        Some(Self { name: Arc::clone(name), epoch, whole_job, waiting, missing })
    }
}

/// The PMI server of one job's ranks on one node. See the [module](self) for how to drive it.
pub struct Server {
    job: Job,
    node: NodeIndex,
    settings: Settings,
    /// `PMI_process_mapping`, printed once: every rank must read the same text.
    mapping: Option<String>,
    /// PMI-2's `universeSize`; -1 where it is not set, as Hydra answers.
    universe_size_text: String,
    /// By local rank.
    ranks: Vec<RankState>,
    /// By connection id.
    conversations: Vec<Conversation>,
    kvs: Kvs,
    node_attributes: HashMap<Vec<u8>, Bytes>,
    attribute_waits: Vec<AttributeWait>,
    world: Gathering<LocalRank, Waiter>,
    groups: Groups<LocalRank, Waiter>,
    ring: Ring,
    /// Questions to the host that are not answered yet.
    calls: HashMap<Ticket, PendingCall>,
    next_ticket: u64,
    ended: bool,
    actions: VecDeque<Action>,
}

#[derive(Debug)]
struct RankState {
    rank: Rank,
    phase: Phase,
    connection: Option<ConnectionId>,
    last_command: Option<Box<str>>,
    /// The process ended in good order.
    exited: bool,
    /// Bytes of keys and values put so far.
    bytes_put: usize,
    /// Unanswered questions.
    questions: usize,
}

/// A rank that waits for somebody to put a node attribute.
#[derive(Debug)]
struct AttributeWait {
    key: Vec<u8>,
    local: LocalRank,
    connection: ConnectionId,
    address: Address,
}

#[derive(Debug)]
struct PendingCall {
    local: LocalRank,
    connection: ConnectionId,
    address: Address,
}

/// The ring that is being gathered: who waits, and what each local rank brought.
#[derive(Debug)]
struct Ring {
    gathering: Gathering<LocalRank, Waiter>,
    brought: Vec<VecDeque<RingValue>>,
    /// Where the answers of the round under way go.
    addresses: Vec<VecDeque<Address>>,
}

impl Server {
    /// The server of the ranks of `job` that sit on `node`.
    pub fn new(job: Job, node: NodeIndex, settings: Settings) -> Self {
        let ranks: Vec<_> = job.placement.ranks_on(node).into_iter().map(RankState::new).collect();
        let locals = || (0..ranks.len() as u32).map(LocalRank);
        let mut kvs = Kvs::default();
        for (key, value) in &job.preput {
            kvs.put(key.as_bytes(), value.as_bytes());
        }
        Self {
            world: Gathering::new(locals()),
            ring: Ring {
                gathering: Gathering::new(locals()),
                brought: locals().map(|_| VecDeque::new()).collect(),
                addresses: locals().map(|_| VecDeque::new()).collect(),
            },
            mapping: job.placement.process_mapping(),
            universe_size_text: universe_size(&job).map_or(-1, i64::from).to_string(),
            job,
            node,
            settings,
            ranks,
            conversations: Vec::new(),
            kvs,
            node_attributes: HashMap::new(),
            attribute_waits: Vec::new(),
            groups: Groups::default(),
            calls: HashMap::new(),
            next_ticket: 0,
            ended: false,
            actions: VecDeque::new(),
        }
    }

    /// The job that is served.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The ranks served here, by local rank.
    pub fn ranks(&self) -> impl ExactSizeIterator<Item = Rank> + '_ {
        self.ranks.iter().map(|state| state.rank)
    }

    /// How far a rank's dialogue has come; `None` if the node has no such rank.
    pub fn progress(&self, local: LocalRank) -> Option<Progress> {
        self.ranks.get(local.index()).map(|state| Progress {
            rank: state.rank,
            phase: state.phase,
            last_command: state.last_command.as_deref().map(str::to_owned),
        })
    }

    /// The fences in which ranks of this node wait.
    pub fn standings(&self) -> Vec<Standing> {
        let whole = [("fence", &self.world), ("ring", &self.ring.gathering)];
        let whole = whole.into_iter().filter_map(|(name, gathering)| Standing::of(&name.into(), true, gathering));
        whole.chain(self.groups.named().filter_map(|(name, group)| Standing::of(name, false, group))).collect()
    }

    /// Begins the conversation with a rank over a socket that nobody else holds: the socket is the rank's identity.
    ///
    /// # Panics
    /// If the node has no such rank.
    pub fn connect(&mut self, local: LocalRank) -> ConnectionId {
        let connection = self.accept();
        self.conversations[connection.0 as usize].rank = Some(local);
        self.ranks[local.index()].connection = Some(connection);
        connection
    }

    /// Begins the conversation with a program that nobody launched, and that asked for a server by running `mpiexec -pmi_args`: it
    /// listens, whoever drives this server connects to it. On this connection the server speaks first.
    ///
    /// # Panics
    /// If the node has no such rank.
    pub fn adopt(&mut self, local: LocalRank) -> ConnectionId {
        let connection = self.connect(local);
        self.send(connection, Bytes::from_static(ADOPTION));
        connection
    }

    /// Begins a conversation with whoever came through `PMI_PORT`. It must claim a rank (`initack`, or `fullinit` in PMI-2) that
    /// nobody claimed before. The server has no clock: the driver closes it when it takes too long.
    pub fn accept(&mut self) -> ConnectionId {
        // Strangers come and go: a place that none of the ranks had is used again.
        let free = self.conversations.iter().position(|old| old.closed && old.rank.is_none());
        let place = free.unwrap_or(self.conversations.len());
        match free {
            Some(place) => self.conversations[place] = Conversation::default(),
            None => self.conversations.push(Conversation::default()),
        }
        ConnectionId(place as u32)
    }

    /// Whose connection this is, once known.
    pub fn rank_of(&self, connection: ConnectionId) -> Option<Rank> {
        let local = self.conversations.get(connection.0 as usize)?.rank?;
        Some(self.ranks[local.index()].rank)
    }

    /// The connection of a rank, once it has one.
    pub fn connection_of(&self, local: LocalRank) -> Option<ConnectionId> {
        self.ranks.get(local.index())?.connection
    }

    /// Takes what was read from a connection: any number of messages, cut anywhere.
    pub fn handle_bytes(&mut self, connection: ConnectionId, bytes: &[u8]) {
        let Some(conversation) = self.conversations.get_mut(connection.0 as usize) else { return };
        if conversation.closed || self.ended {
            return;
        }
        let mut frames = mem::take(&mut conversation.frames);
        frames.push(bytes);
        loop {
            match frames.advance() {
                Ok(true) => {}
                Ok(false) => break self.conversations[connection.0 as usize].frames = frames,
                Err(error) => return self.offend(connection, error.into()),
            }
            if self.settings.trace {
                self.trace(connection, true, Bytes::copy_from_slice(frames.raw()));
            }
            match Message::decode(frames.frame()) {
                Ok(message) => self.handle_message(connection, message),
                Err(error) => return self.offend(connection, error.into()),
            }
            if self.ended || self.conversations[connection.0 as usize].closed {
                return;
            }
        }
    }

    /// The connection was closed by its rank, or broke. It says nothing about the rank's end: children of a rank hold its
    /// socket open, and clients close it after `finalize`; see [`Server::handle_exit`].
    pub fn handle_disconnect(&mut self, connection: ConnectionId) {
        let Some(conversation) = self.conversations.get_mut(connection.0 as usize) else { return };
        conversation.closed = true;
        conversation.frames = Default::default();
        // A claim that nothing followed is void; the rank itself may still come.
        let Some(local) = conversation.rank else { return };
        let state = &mut self.ranks[local.index()];
        if conversation.claimed && state.phase == Phase::Silent && state.connection == Some(connection) {
            conversation.rank = None;
            state.connection = None;
        }
    }

    /// The rank's process returned status 0. (Any other end of a process is the host's to judge.)
    pub fn handle_exit(&mut self, local: LocalRank) {
        let Some(state) = self.ranks.get_mut(local.index()) else { return };
        state.exited = true;
        let rank = state.rank;
        match state.phase {
            Phase::Open => self.end(EndReason::LeftWithoutFinalize { rank }),
            Phase::Silent | Phase::Finalized => self.look_for_deserters(),
        }
    }

    /// A fence that an [`Action::Fence`] asked for is over.
    pub fn handle_fence(&mut self, id: &FenceId, result: Result<crate::fence::Merged, FenceError>) {
        if self.ended {
            return;
        }
        match result {
            Ok(merged) => self.leave_fence(id, merged),
            Err(error) => self.end(EndReason::Fence(Arc::new(error))),
        }
    }

    /// The host answered an [`Action::Call`].
    pub fn handle_answer(&mut self, ticket: Ticket, answer: &Answer) {
        let Some(PendingCall { local, connection, address }) = self.calls.remove(&ticket) else { return };
        self.ranks[local.index()].questions -= 1;
        let response = match answer {
            Answer::Named(Ok(())) => Response::Done,
            Answer::Port(Ok(port)) => Response::Port(port),
            Answer::Spawned(Ok(job)) => Response::Spawned { job: job.as_str() },
            Answer::Named(Err(error)) | Answer::Port(Err(error)) => name_error(error),
            Answer::Spawned(Err(error)) => Response::Error { code: ErrorCode::Failed, text: error.to_string().into() },
        };
        self.send(connection, response.encode_to(&address).into());
    }

    /// The next thing to do, in order; `None` until the next input.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Bytes held for keys and values, with their index.
    pub fn memory(&self) -> usize {
        self.kvs.memory()
    }

    fn send(&mut self, connection: ConnectionId, bytes: Bytes) {
        if self.ended {
            return;
        }
        if self.settings.trace {
            self.trace(connection, false, bytes.clone());
        }
        self.actions.push_back(Action::Send { connection, bytes });
    }

    fn trace(&mut self, connection: ConnectionId, from_client: bool, bytes: Bytes) {
        let rank = self.rank_of(connection);
        self.actions.push_back(Action::Trace(Trace { rank, from_client, bytes }));
    }

    fn end(&mut self, reason: EndReason) {
        if !mem::replace(&mut self.ended, true) {
            self.actions.push_back(Action::End(reason));
        }
    }

    /// Nothing more of this connection can be understood. A rank's job ends with it; a stranger's does not matter.
    fn offend(&mut self, connection: ConnectionId, offence: Offence) {
        self.conversations[connection.0 as usize].closed = true;
        self.actions.push_back(Action::Close { connection });
        if let Some(rank) = self.rank_of(connection) {
            self.end(EndReason::Offence { rank, offence });
        }
    }

    /// Ends the job when ranks wait for one that will never come.
    fn look_for_deserters(&mut self) {
        if !self.ranks.iter().any(|state| state.exited || state.phase == Phase::Finalized) {
            return;
        }
        let silent = self.ranks.iter().find(|state| state.exited && state.phase == Phase::Silent);
        if let Some(silent) = silent {
            let spoke = self.ranks.iter().filter(|state| state.phase != Phase::Silent);
            let others: Vec<_> = spoke.map(|state| state.rank).collect();
            if !others.is_empty() {
                let reason = EndReason::LeftBeforeInit { rank: silent.rank, others };
                return self.end(reason);
            }
        }
        let world_and_ring = [&self.world, &self.ring.gathering];
        let reason = world_and_ring.into_iter().chain(self.groups.iter()).find_map(|fence| self.deserter_of(fence));
        if let Some(reason) = reason {
            self.end(reason);
        }
    }

    fn deserter_of(&self, fence: &Gathering<LocalRank, Waiter>) -> Option<EndReason> {
        let (present, absent) = fence.split()?;
        let gone = absent.into_iter().find(|local| self.ranks[local.index()].phase == Phase::Finalized)?;
        let waiting = present.into_iter().map(|local| self.ranks[local.index()].rank).collect();
        Some(EndReason::LeftFence { rank: self.ranks[gone.index()].rank, waiting })
    }
}

impl RankState {
    fn new(rank: Rank) -> Self {
        Self {
            rank,
            phase: Phase::Silent,
            connection: None,
            last_command: None,
            exited: false,
            bytes_put: 0,
            questions: 0,
        }
    }
}

/// 0 would reach the program as its `MPI_UNIVERSE_SIZE`.
fn universe_size(job: &Job) -> Option<u32> {
    job.universe_size.filter(|&size| size > 0)
}

/// The texts that clients know from other servers stay as they are.
fn name_error(error: &NameError) -> Response<'static> {
    let text = match error {
        NameError::AlreadyPublished => "key_already_present".into(),
        NameError::NotFound => "service_not_found".into(),
        other => other.to_string().into(),
    };
    Response::Error { code: ErrorCode::NotThere, text }
}

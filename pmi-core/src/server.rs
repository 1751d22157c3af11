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
mod attributes;
mod connected;
mod fences;
mod mortality;
mod places;
mod requests;
mod resources;
mod restarts;
mod spaces;

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use self::action::{Action, ReleaseTimer};
pub use self::connected::ConnectError;
pub use self::mortality::missed;
use self::places::Places;
pub use self::places::RankDomains;
pub use self::resources::RESOURCES_MAX;
use self::resources::Table;
use self::restarts::Restart;
use self::spaces::Indices;
use crate::claim::ClaimKeys;
pub use crate::connections::ConnectionId;
use crate::connections::Connections;
use crate::conversation::{Conversation, Offer};
use crate::deaths::Deaths;
use crate::fence::{FenceError, FenceId};
use crate::gathering::{Gathering, Groups};
use crate::ids::{LocalRank, NodeIndex, Rank};
use crate::job::Job;
use crate::kvs::Kvs;
use crate::report::Phase;
pub use crate::report::{EndReason, FenceStatus, Offence, Progress, Sender, Trace};
use crate::roster::{Roster, left_fence};
use crate::services::{Answer, NameError};
use crate::wire::request::RingValue;
use crate::wire::response::Address;
use crate::wire::{ErrorCode, Response, VALUE_MAX_ANNOUNCED};

/// Settings of a [`Server`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The protocol versions to serve.
    pub offer: Offer,
    /// Bytes of keys and values that one rank may put during the job; each pair counts for 64 more.
    pub bytes_per_rank: usize,
    /// Unanswered questions that one rank may have (waiting reads, names, spawns).
    pub questions_per_rank: usize,
    /// Report every message as an [`Action::Trace`].
    pub trace: bool,
    /// Let ranks register resources. The host must answer [`Call::Resource`](crate::services::Call::Resource), keep the time of
    /// [`Action::SetTimer`], and remove what a rank leaves.
    pub resources: bool,
    /// Meaning of an `init` of a rank that has said it before.
    pub restarts: Restarts,
}

/// Meaning of an `init` of a rank that has said it before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Restarts {
    /// The rank goes on: it opens another MPI session, or runs its next program after `finalize`. One that came by its key, and whose
    /// connection ended before `finalize`, does not come again.
    #[default]
    Unexpected,
    /// All ranks begin again; each waits in its `init` for all others. Pairs that were put stay until they are put again.
    Keep,
    /// The same, with the pairs that the job had at its start.
    Fresh,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            offer: Offer::default(),
            bytes_per_rank: 16 * 1024 * 1024,
            questions_per_rank: 64,
            trace: false,
            resources: false,
            restarts: Restarts::default(),
        }
    }
}

/// Names a [`Call`](crate::services::Call) until its answer comes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket(u64);

/// The PMI server of one job's ranks on one node. See the [module](self) for how to drive it.
pub struct Server {
    job: Job,
    node: NodeIndex,
    settings: Settings,
    /// `PMI_process_mapping`, printed once: every rank must read the same text.
    mapping: Option<String>,
    /// PMI-2's `universeSize`; -1 where it is not set, as Hydra answers.
    universe_size_text: String,
    ranks: Roster,
    /// Ranks of all nodes that have died, and that the others do without.
    deaths: Deaths,
    conversations: Connections<Conversation>,
    /// File that describes the node, as hwloc reads it.
    topology_file: Option<String>,
    places: Places,
    /// Number of the descriptor by which ranks of this node share memory.
    node_memory: Option<String>,
    /// Keys that ranks must present to claim themselves; without, their number is enough.
    keys: Option<ClaimKeys>,
    kvs: Kvs,
    indices: Indices,
    node_attributes: HashMap<Vec<u8>, Bytes>,
    attribute_waits: Vec<AttributeWait>,
    /// True if the host publishes names.
    has_names: bool,
    /// Of those ranks that have registered any.
    resources: HashMap<LocalRank, Table>,
    world: Gathering<LocalRank, Waiter>,
    groups: Groups<LocalRank, Waiter>,
    ring: Ring,
    restart: Restart,
    /// Questions to the host that are not answered yet.
    calls: HashMap<Ticket, PendingCall>,
    next_ticket: u64,
    /// Number of fences of the whole job that are complete.
    fences: u64,
    /// True if the host wants to hear what fences bring.
    reports_merged: bool,
    ended: bool,
    actions: VecDeque<Action>,
}

/// A rank that waits for the end of a fence, with the answer it will get.
#[derive(Clone, Debug)]
struct Waiter {
    connection: ConnectionId,
    answer: Bytes,
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
    /// Number of questions as which it counts.
    questions: usize,
}

/// The ring that is being gathered: who waits, and what each local rank brought.
#[derive(Debug)]
struct Ring {
    gathering: Gathering<LocalRank, Waiter>,
    brought: Vec<VecDeque<RingValue>>,
    /// Addresses of the answers of the round under way.
    addresses: Vec<VecDeque<Address>>,
}

impl Server {
    /// The server of the ranks of `job` that sit on `node`.
    pub fn new(job: Job, node: NodeIndex, settings: Settings) -> Self {
        let ranks = Roster::new(job.placement.ranks_on(node));
        let locals = || ranks.locals();
        Self {
            world: Gathering::new(locals()),
            ring: Ring {
                gathering: Gathering::new(locals()),
                brought: locals().map(|_| VecDeque::new()).collect(),
                addresses: locals().map(|_| VecDeque::new()).collect(),
            },
            mapping: job.placement.process_mapping(),
            places: Places::new(&job, node, ranks.len()),
            universe_size_text: universe_size(&job).map_or(-1, i64::from).to_string(),
            restart: Restart::new(locals()),
            kvs: first_pairs(&job),
            node_attributes: first_attributes(&ranks, None),
            job,
            node,
            settings,
            ranks,
            deaths: Deaths::default(),
            conversations: Connections::default(),
            topology_file: None,
            node_memory: None,
            keys: None,
            indices: Indices::default(),
            attribute_waits: Vec::new(),
            has_names: true,
            resources: HashMap::new(),
            groups: Groups::default(),
            calls: HashMap::new(),
            next_ticket: 0,
            fences: 0,
            reports_merged: false,
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
        self.ranks.iter().map(|(_, state)| state.rank)
    }

    /// State of a rank's dialogue; `None` if the node has no such rank.
    pub fn progress(&self, local: LocalRank) -> Option<Progress> {
        self.ranks.progress(local, self.fences)
    }

    /// The fences in which ranks of this node wait.
    pub fn pending_fences(&self) -> Vec<FenceStatus> {
        let is_first = self.fences == 0;
        let whole = [
            ("fence", is_first, &self.world),
            ("ring", is_first, &self.ring.gathering),
            ("restart", true, self.restart.gathering()),
        ];
        let whole = whole.into_iter().map(|(name, at_start, gathering)| (name.into(), (true, at_start), gathering));
        let groups = self.groups.named().map(|(name, group)| (Arc::clone(name), (false, is_first), group));
        let is_dispensable = |local| self.can_do_without(local);
        let status = |(name, kind, gathering)| FenceStatus::of(&name, kind, gathering, is_dispensable);
        whole.chain(groups).filter_map(status).collect()
    }

    /// Facts about the job that ranks ask for by name and that never change, as far as they are known.
    pub fn job_attributes(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let known = |name| self.job_attribute(name).map(|value| (name, value));
        JOB_ATTRIBUTES.into_iter().filter_map(known)
    }

    /// All pairs that ranks of this node can read now.
    pub fn pairs(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        (0..self.kvs.len()).map(|index| self.kvs.nth(index).unwrap_or_default())
    }

    /// The value of a key that ranks of this node can read now.
    pub fn value(&self, key: &[u8]) -> Option<&[u8]> {
        self.kvs.get(key)
    }

    /// Asks for an [`Action::Merged`] for each fence from now on.
    pub fn report_merged(&mut self) {
        self.reports_merged = true;
    }

    /// From now on ranks that come through `PMI_PORT` must present their key as `PMI_ID`, and not their number.
    pub fn require_keys(&mut self, keys: ClaimKeys) {
        self.keys = Some(keys);
    }

    /// From now on ranks that ask are told of a file that describes the node, as hwloc reads it. A name that PMI-1 could not pass on, for
    /// it is too long or has a space, is as good as none.
    pub fn offer_topology(&mut self, file: &str) {
        let fits = file.len() < VALUE_MAX_ANNOUNCED && file.bytes().all(|byte| byte.is_ascii_graphic());
        self.topology_file = fits.then(|| file.to_owned());
    }

    /// From now on ranks that ask are told which parts of the node they are in; by local rank.
    pub fn tell_domains(&mut self, domains: &[RankDomains]) {
        self.places.tell(domains);
    }

    /// From now on ranks that ask are told that those of this node share memory, which each has as this descriptor.
    pub fn tell_node_memory(&mut self, descriptor: i32) {
        self.node_memory = Some(descriptor.to_string());
        self.node_attributes = first_attributes(&self.ranks, self.node_memory.as_deref());
    }

    /// From now on ranks that ask are told that nobody publishes names.
    pub fn offer_no_names(&mut self) {
        self.has_names = false;
    }

    /// The rank's process returned status 0. (Any other end of a process is the host's to judge; see
    /// [`Server::handle_borne_failure`].)
    pub fn handle_exit(&mut self, local: LocalRank) {
        let Some(state) = self.ranks.get_mut(local) else { return };
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
        let Some(PendingCall { local, connection, address, questions }) = self.calls.remove(&ticket) else { return };
        self.ranks[local].quota.answered_many(questions);
        let response = match answer {
            Answer::Named(Ok(())) => Response::Done,
            Answer::Port(Ok(port)) => Response::Port(port),
            Answer::Spawned(Ok(job)) => Response::Spawned { job: job.as_str() },
            Answer::Named(Err(error)) | Answer::Port(Err(error)) => name_error(error),
            Answer::Spawned(Err(error)) => Response::Error { code: ErrorCode::Failed, text: error.to_string().into() },
            Answer::Resource(change, result) => self.resource_answered(local, change, result),
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
            self.trace(connection, Sender::Server, bytes.clone());
        }
        self.actions.push_back(Action::Send { connection, bytes });
    }

    fn trace(&mut self, connection: ConnectionId, sender: Sender, bytes: Bytes) {
        let rank = self.rank_of(connection);
        self.actions.push_back(Action::Trace(Trace { rank, sender, bytes }));
    }

    fn end(&mut self, reason: EndReason) {
        if !mem::replace(&mut self.ended, true) {
            self.actions.push_back(Action::End(reason));
        }
    }

    /// What all ranks of the node gather in.
    fn whole_gatherings(&self) -> [&Gathering<LocalRank, Waiter>; 3] {
        [&self.world, &self.ring.gathering, self.restart.gathering()]
    }

    /// Ends the job when ranks wait for one that will never come.
    fn look_for_deserters(&mut self) {
        if !self.ranks.iter().any(|(_, state)| state.is_gone()) {
            return;
        }
        let fences = || self.whole_gatherings().into_iter().chain(self.groups.iter());
        let left = |fence| left_fence(fence, |local| &self.ranks[local], |local| self.can_do_without(local));
        let reason = self.ranks.left_before_init();
        if let Some(reason) = reason.or_else(|| fences().find_map(left).map(|(_, reason)| reason)) {
            return self.end(reason);
        }
        self.look_for_attributes_that_nobody_puts();
    }
}

/// Names of the facts about a job that never change.
///
/// The file of `PMI_hwloc_xmlfile` is read by MPICH 4.1 and later (`src/util/mpir_pmi.c`), which look for themselves where it cannot be.
const JOB_ATTRIBUTES: [&str; 5] =
    ["PMI_process_mapping", "PMI_hwloc_xmlfile", "universeSize", "hasNameServ", "lattice.limits"];

/// The space of a job whose ranks have put nothing.
fn first_pairs(job: &Job) -> Kvs {
    let mut kvs = Kvs::default();
    kvs.preput(job.preput.iter().map(|(key, value)| (key, value)));
    kvs
}

/// Attributes of a node whose ranks have put none.
fn first_attributes(ranks: &Roster, node_memory: Option<&str>) -> HashMap<Vec<u8>, Bytes> {
    let here: Vec<Rank> = ranks.iter().map(|(_, state)| state.rank).collect();
    let places = places::node_attributes(&here).map(|(name, value)| (name.into(), Bytes::from(value)));
    let memory = node_memory.map(|number| [("memPoolType", "anonmmap"), ("memAnonMMAPfd", number)]);
    let memory = memory.into_iter().flatten();
    let memory = memory.map(|(name, value)| (name.into(), Bytes::copy_from_slice(value.as_bytes())));
    places.chain(memory).collect()
}

/// 0 would reach the program as its `MPI_UNIVERSE_SIZE`.
fn universe_size(job: &Job) -> Option<u32> {
    job.universe_size.filter(|&size| size > 0)
}

/// The texts that clients know from other servers stay as they are.
fn name_error(error: &NameError) -> Response<'static> {
    let text = match error {
        NameError::AlreadyPublished { .. } => "key_already_present".into(),
        NameError::NotFound => "service_not_found".into(),
        other => other.to_string().into(),
    };
    Response::Error { code: ErrorCode::NotThere, text }
}

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
    /// Bytes of keys and values that one rank may put during the job; each pair counts 64 bytes more.
    pub bytes_per_rank: usize,
    /// Maximum number of unanswered questions of one rank (waiting reads, names, spawns).
    pub questions_per_rank: usize,
    /// Report every message as an [`Action::Trace`].
    pub trace: bool,
    /// Let ranks register resources. The host must answer [`Call::Resource`](crate::services::Call::Resource), run the timers of
    /// [`Action::SetTimer`], and remove the resources that a rank leaves.
    pub resources: bool,
    /// Meaning of a repeated `init` of a rank.
    pub restarts: Restarts,
}

/// Meaning of a repeated `init` of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Restarts {
    /// The rank continues: it opens another MPI session, or runs its next program after `finalize`. A rank that connected with its key
    /// cannot return if its connection ended before `finalize`.
    #[default]
    Unexpected,
    /// All ranks restart; each waits in its `init` for all other ranks. Pairs stay until they are put again.
    Keep,
    /// All ranks restart, with the initial pairs of the job.
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

/// Identifier of a [`Call`](crate::services::Call) until its answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket(u64);

/// The PMI server of one job's ranks on one node. See the [module](self) for how to drive it.
pub struct Server {
    job: Job,
    node: NodeIndex,
    settings: Settings,
    /// `PMI_process_mapping`, formatted once: every rank must read the same text.
    mapping: Option<String>,
    /// PMI-2's `universeSize`; -1 if unset, as in Hydra.
    universe_size_text: String,
    ranks: Roster,
    /// Dead ranks of all nodes, without which the other ranks continue.
    deaths: Deaths,
    conversations: Connections<Conversation>,
    /// File with the description of the node, for hwloc.
    topology_file: Option<String>,
    places: Places,
    /// Descriptor number of the memory that ranks of this node share.
    node_memory: Option<String>,
    /// Keys that ranks must present for a claim; without keys, the rank number is enough.
    keys: Option<ClaimKeys>,
    kvs: Kvs,
    indices: Indices,
    node_attributes: HashMap<Vec<u8>, Bytes>,
    attribute_waits: Vec<AttributeWait>,
    /// True if the host publishes names.
    has_names: bool,
    /// Tables of the ranks that have registered resources.
    resources: HashMap<LocalRank, Table>,
    world: Gathering<LocalRank, Waiter>,
    groups: Groups<LocalRank, Waiter>,
    ring: Ring,
    restart: Restart,
    /// Questions to the host without an answer so far.
    calls: HashMap<Ticket, PendingCall>,
    next_ticket: u64,
    /// Number of complete fences of the whole job.
    fences: u64,
    /// True if the host requests the results of fences.
    reports_merged: bool,
    ended: bool,
    actions: VecDeque<Action>,
}

/// A rank that waits for the end of a fence, with its answer.
#[derive(Clone, Debug)]
struct Waiter {
    connection: ConnectionId,
    answer: Bytes,
}

/// A rank that waits for the put of a node attribute.
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
    /// Number of questions that it counts for.
    questions: usize,
}

/// The ring in progress: its waiters, and the values of each local rank.
#[derive(Debug)]
struct Ring {
    gathering: Gathering<LocalRank, Waiter>,
    brought: Vec<VecDeque<RingValue>>,
    /// Addresses of the answers of the current round.
    addresses: Vec<VecDeque<Address>>,
}

impl Server {
    /// Creates the server of the ranks of `job` on `node`.
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

    /// The served job.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The served ranks, by local rank.
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

    /// Constant facts about the job that ranks can request by name, as far as they are known.
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

    /// Requests an [`Action::Merged`] for each later fence.
    pub fn report_merged(&mut self) {
        self.reports_merged = true;
    }

    /// From now on ranks that connect through `PMI_PORT` must present their key as `PMI_ID`, and not their number.
    pub fn require_keys(&mut self, keys: ClaimKeys) {
        self.keys = Some(keys);
    }

    /// Offers ranks a file with the description of the node, for hwloc. Ignores a name that PMI-1 cannot transfer, because it is too long
    /// or has a space.
    pub fn offer_topology(&mut self, file: &str) {
        let fits = file.len() < VALUE_MAX_ANNOUNCED && file.bytes().all(|byte| byte.is_ascii_graphic());
        self.topology_file = fits.then(|| file.to_owned());
    }

    /// Sets the parts of the node that each rank runs in, by local rank. Ranks can request them.
    pub fn tell_domains(&mut self, domains: &[RankDomains]) {
        self.places.tell(domains);
    }

    /// Sets the descriptor of the memory that the ranks of this node share. Ranks can request it.
    pub fn tell_node_memory(&mut self, descriptor: i32) {
        self.node_memory = Some(descriptor.to_string());
        self.node_attributes = first_attributes(&self.ranks, self.node_memory.as_deref());
    }

    /// From now on the server reports to ranks that names cannot be published.
    pub fn offer_no_names(&mut self) {
        self.has_names = false;
    }

    /// The rank's process returned status 0. The host evaluates any other end of a process; see [`Server::handle_borne_failure`].
    pub fn handle_exit(&mut self, local: LocalRank) {
        let Some(state) = self.ranks.get_mut(local) else { return };
        state.exited = true;
        let rank = state.rank;
        match state.phase {
            Phase::Open => self.end(EndReason::LeftWithoutFinalize { rank }),
            Phase::Silent | Phase::Finalized => self.look_for_deserters(),
        }
    }

    /// A fence of an [`Action::Fence`] is complete or has failed.
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

    /// Returns the next action, in order; `None` until the next input.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Memory of keys and values with their index, in bytes.
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

    /// The gatherings of all ranks of the node.
    fn whole_gatherings(&self) -> [&Gathering<LocalRank, Waiter>; 3] {
        [&self.world, &self.ring.gathering, self.restart.gathering()]
    }

    /// Ends the job when ranks wait for a rank that will never arrive.
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

/// Names of the constant facts about a job.
///
/// MPICH 4.1 and later read the file of `PMI_hwloc_xmlfile` (`src/util/mpir_pmi.c`). Without a readable file they discover the topology
/// themselves.
const JOB_ATTRIBUTES: [&str; 5] =
    ["PMI_process_mapping", "PMI_hwloc_xmlfile", "universeSize", "hasNameServ", "lattice.limits"];

/// The initial space of a job.
fn first_pairs(job: &Job) -> Kvs {
    let mut kvs = Kvs::default();
    kvs.preput(job.preput.iter().map(|(key, value)| (key, value)));
    kvs
}

/// The initial attributes of a node.
fn first_attributes(ranks: &Roster, node_memory: Option<&str>) -> HashMap<Vec<u8>, Bytes> {
    let here: Vec<Rank> = ranks.iter().map(|(_, state)| state.rank).collect();
    let places = places::node_attributes(&here).map(|(name, value)| (name.into(), Bytes::from(value)));
    let memory = node_memory.map(|number| [("memPoolType", "anonmmap"), ("memAnonMMAPfd", number)]);
    let memory = memory.into_iter().flatten();
    let memory = memory.map(|(name, value)| (name.into(), Bytes::copy_from_slice(value.as_bytes())));
    places.chain(memory).collect()
}

/// Unset for 0, because the program would read 0 as its `MPI_UNIVERSE_SIZE`.
fn universe_size(job: &Job) -> Option<u32> {
    job.universe_size.filter(|&size| size > 0)
}

/// Keeps the texts that clients expect from other servers.
fn name_error(error: &NameError) -> Response<'static> {
    let text = match error {
        NameError::AlreadyPublished { .. } => "key_already_present".into(),
        NameError::NotFound => "service_not_found".into(),
        other => other.to_string().into(),
    };
    Response::Error { code: ErrorCode::NotThere, text }
}

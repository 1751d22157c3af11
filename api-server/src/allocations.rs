//! Allocations: their owners, their nodes, and the effects of failed launches on them. This module is pure; the server makes every change
//! durable before the change takes effect.
//!
//! A node belongs to one allocation at a time, until the allocation is released. [`allocation`] defines the states. [`plan`] checks
//! requests for new allocations. The [`queue`] holds the allocations that wait for nodes.

pub(crate) mod allocation;
pub(crate) mod batch;
pub(crate) mod plan;
pub(crate) mod postponed;
pub(crate) mod queue;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use pmi_transport::identity::Caller;

pub(crate) use self::allocation::{Allocation, AllocationState};
use self::postponed::Postponed;
use self::queue::{Decision, FreeAt, Timetable, Wish};
use crate::nodes::Registry;
use crate::unclean_nodes::UncleanNodes;

/// The most allocations of the queue that are considered, from its head on. Allocations that wait for nodes which are not ready do not
/// count. Allocations beyond the limit wait.
const LOOKED_AT_MAX: usize = 200;

/// The nodes of the cluster at one time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodesNow<'a> {
    pub registry: &'a Registry,
    pub unclean: &'a UncleanNodes,
    /// Seconds since 1970.
    pub time: u64,
}

/// All allocations.
#[derive(Debug, Default)]
pub(crate) struct Allocations {
    all: BTreeMap<String, Allocation>,
    /// Id of the allocation to which each node belongs.
    owners: BTreeMap<String, String>,
    /// Batch jobs and nodes that are not tried again yet.
    pub postponed: Postponed,
}

/// Changes from one pass over the queue.
#[derive(Debug, Default)]
pub(crate) struct Served {
    /// Allocations that begin to run.
    pub begun: Vec<Allocation>,
    /// Ids of allocations that wait for another reason than before, and the new reason.
    pub waiting: Vec<(String, String)>,
}

/// Reason why an allocation cannot be used as requested.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AllocationError {
    #[error(
        "there is no allocation {id}, or it was released\ntry: lattice alloc list or lattice queue --all, which show yours; if LATTICE_ALLOC_ID names it still, unset that"
    )]
    Unknown { id: String },
    #[error("allocation {id} belongs to another user\ntry: one of yours; lattice alloc list shows them")]
    NotYours { id: String },
    #[error("allocation {id} is not the one that this node belongs to")]
    Elsewhere { id: String },
    #[error("allocation {id} is {}, not running{}", state.word(), because(state))]
    NotRunning { id: String, state: AllocationState },
}

/// The reason of a state, if it has one.
fn because(state: &AllocationState) -> String {
    state.reason().map_or_else(String::new, |reason| format!(": {reason}"))
}

impl Allocations {
    /// Takes over the stored allocations.
    pub(crate) fn new(kept: impl IntoIterator<Item = Allocation>) -> Self {
        let mut allocations = Self::default();
        kept.into_iter().for_each(|allocation| allocations.put(allocation));
        allocations
    }

    /// Stores the present state of an allocation. Released allocations are only in the store.
    pub(crate) fn put(&mut self, allocation: Allocation) {
        let id = allocation.id.clone();
        if allocation.state == AllocationState::Released {
            self.postponed.forget(&id);
            if let Some(before) = self.all.remove(&id) {
                before.nodes.iter().for_each(|node| drop(self.owners.remove(node)));
            }
            return;
        }
        let before = self.all.get(&id).map(|before| before.nodes.as_slice()).unwrap_or_default();
        if before != allocation.nodes {
            before.iter().for_each(|node| drop(self.owners.remove(node)));
            self.owners.extend(allocation.nodes.iter().map(|node| (node.clone(), id.clone())));
        }
        self.all.insert(id, allocation);
    }

    /// The allocations of the queue, in the order of their turns.
    pub(crate) fn queue(&self) -> Vec<&Allocation> {
        let mut queue: Vec<&Allocation> = self.all.values().filter(|allocation| allocation.is_queued()).collect();
        queue.sort_unstable_by_key(|allocation| allocation.turn);
        queue
    }

    /// The turn of an allocation that enters the queue now.
    fn next_turn(&self) -> u64 {
        self.all.values().map(|allocation| allocation.turn).max().map_or(0, |turn| turn.saturating_add(1))
    }

    /// Changes the reason why a queued allocation waits.
    pub(crate) fn wait(&mut self, id: &str, reason: String) {
        if let Some(waiting) = self.all.get_mut(id).filter(|allocation| allocation.is_queued()) {
            waiting.state = AllocationState::Pending { reason };
        }
    }

    /// Decides which allocations of the queue begin, and why the remaining ones wait.
    pub(crate) fn serve(&self, now: &NodesNow<'_>) -> Served {
        let mut served = Served::default();
        let (counts, mut head) = (self.count_free(now), None);
        let unavailable = |waiting: &Allocation| {
            let reason = self.available(&waiting.wanted, counts, now).err().map(|reason| reason.to_string());
            reason.unwrap_or_else(|| "its nodes go to those before it".to_owned())
        };
        for (waiting, decision) in self.decisions(&mut self.timetable(now), now) {
            let reason = match decision {
                Decision::Begins(nodes) => {
                    served.begun.push(waiting.begun_on(nodes, now.time));
                    continue;
                }
                Decision::Heads => {
                    head = Some(&waiting.id);
                    unavailable(waiting)
                }
                Decision::Lacks => unavailable(waiting),
                Decision::Waits => match head {
                    Some(head) => format!("waits behind allocation {head}"),
                    None => "waits for its turn".to_owned(),
                },
            };
            if waiting.state.reason() != Some(&reason) {
                served.waiting.push((waiting.id.clone(), reason));
            }
        }
        served
    }

    /// The decision on each allocation that waits in the queue, in the order of their turns. Afterwards the table lacks the nodes of
    /// allocations that begin.
    fn decisions(&self, table: &mut Timetable, now: &NodesNow<'_>) -> Vec<(&Allocation, Decision)> {
        let mut looked_at = 0;
        let mut decide = |waiting| {
            let decision = if looked_at < LOOKED_AT_MAX { table.decide(Wish::of(waiting)) } else { Decision::Waits };
            looked_at += usize::from(decision != Decision::Lacks);
            (waiting, decision)
        };
        let queue = self.queue().into_iter().filter(|waiting| !self.postponed.waits(&waiting.id, now.time));
        queue.map(&mut decide).collect()
    }

    /// The nodes that are ready or about to be, with the times at which they become free.
    fn timetable(&self, now: &NodesNow<'_>) -> Timetable {
        let free_at = |node: &String| match self.owner(node) {
            Some(owner) => owner.frees_at(now.time),
            None if now.unclean.has_any(node) => FreeAt::At(now.time + 1),
            None => self.postponed.avoided_until(node, now.time).map_or(FreeAt::Now, FreeAt::At),
        };
        let mut nodes = BTreeMap::new();
        nodes.extend(now.registry.all_ready().map(|node| (node.clone(), free_at(node))));
        // An allocation that waits for these nodes keeps its turn.
        nodes.extend(now.registry.all_coming().map(|node| (node.clone(), FreeAt::Unknown)));
        Timetable::new(now.time, nodes)
    }

    /// The allocation that a node belongs to.
    pub(crate) fn owner(&self, node: &str) -> Option<&Allocation> {
        self.owners.get(node).and_then(|id| self.all.get(id))
    }

    /// An allocation that has not been released.
    pub(crate) fn find(&self, id: &str) -> Option<&Allocation> {
        self.all.get(id)
    }

    /// All allocations that have not been released.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Allocation> {
        self.all.values()
    }

    /// An allocation of the caller; administrators own all.
    ///
    /// # Errors
    /// Fails if there is none with this id, or if it belongs to another user.
    pub(crate) fn of(&self, caller: &Caller, id: &str) -> Result<&Allocation, AllocationError> {
        let allocation = self.find(id).ok_or_else(|| AllocationError::Unknown { id: id.to_owned() })?;
        match (may_use(caller, allocation.uid, id), caller) {
            (true, _) => Ok(allocation),
            (false, Caller::UserIn { .. }) => Err(AllocationError::Elsewhere { id: id.to_owned() }),
            (false, _) => Err(AllocationError::NotYours { id: id.to_owned() }),
        }
    }

    /// An allocation of the caller in which a launch can begin.
    ///
    /// # Errors
    /// Fails as [`Self::of`] does, and if the allocation does not run.
    pub(crate) fn running(&self, caller: &Caller, id: &str) -> Result<&Allocation, AllocationError> {
        let allocation = self.of(caller, id)?;
        match &allocation.state {
            AllocationState::Running => Ok(allocation),
            state => Err(AllocationError::NotRunning { id: id.to_owned(), state: state.clone() }),
        }
    }
}

/// Returns true if a caller may use property of `owner` that is, or runs in, this allocation.
pub(crate) fn may_use(caller: &Caller, owner: u32, allocation: &str) -> bool {
    match caller {
        Caller::Admin(_) => true,
        Caller::User(uid) => *uid == owner,
        Caller::UserIn { uid, allocation: own } => *uid == owner && own == allocation,
        Caller::Agent(_) | Caller::Api => false,
    }
}

impl<'a> Wish<'a> {
    /// The nodes and the time limit that an allocation requests.
    fn of(allocation: &'a Allocation) -> Self {
        Self { nodes: &allocation.wanted, limit: allocation.time_limit.map(NonZeroU64::get) }
    }
}

impl Allocation {
    /// Time at which its nodes become free.
    fn frees_at(&self, now: u64) -> FreeAt {
        match self.state {
            AllocationState::Pending { .. } if self.batch.is_some() => FreeAt::At(now + 1),
            AllocationState::Releasing { .. } => FreeAt::At(now + 1),
            AllocationState::Released => FreeAt::Now,
            AllocationState::Running | AllocationState::Pending { .. } | AllocationState::Failed { .. } => {
                self.ends_at().map_or(FreeAt::Unknown, |end| FreeAt::At(end.max(now + 1)))
            }
        }
    }
}

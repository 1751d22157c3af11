//! Restart of all ranks together: their programs were killed and started again, or restored from a checkpoint.
//!
//! ```text
//!          a rank sends `init` again           all ranks have sent it               the begun fences are complete
//! running ──────────────────────────> waiting ────────────────────────> emptying ───────────────────────────────────────> running
//!          its answer is delayed               nodes compare how many               all are answered: the next generation
//!                                              fences each has begun
//! ```
//! So ranks of two generations never interact, whatever their state was when they were killed. If only some nodes had begun a fence, the
//! other nodes begin it too, without ranks. The ranks that waited for its end are gone. Then the space keeps its pairs, or is reset to
//! the initial pairs.

use super::action::Action;
use super::fences::Fences;
use super::node::{JobNode, Waiter};
use crate::fence::{FenceId, Merged, Scope};
use crate::gathering::Gathering;
use crate::ids::{Epoch, LocalRank};
use crate::kvs::Kvs;
use crate::roster::Roster;
use crate::segment::Segment;
use crate::wire::request::Group;

/// Progress of the ranks towards their next generation.
#[derive(Debug)]
pub(super) struct Restart {
    /// Ranks that have sent `init` again, and wait for its answer.
    pub(super) gathering: Gathering<LocalRank, Waiter>,
    /// Rank of the message in progress, if that is such an `init`.
    arrival: Option<LocalRank>,
    /// True from the agreement of all nodes until all fences that some nodes had begun are complete.
    is_agreed: bool,
    /// Number of restarts.
    pub(super) generation: u32,
}

/// Name of the fence by which nodes agree on a restart.
const NAME: &str = "PMI restart";

impl Restart {
    pub(super) fn new(ranks: &Roster) -> Self {
        Self { gathering: Gathering::new(ranks.locals()), arrival: None, is_agreed: false, generation: 0 }
    }

    /// Handles a repeated `init` of the rank.
    pub(super) fn begin_again(&mut self, node: &mut JobNode, local: LocalRank) {
        // The first generation is the first life.
        node.ranks[local].begin_again(self.generation.saturating_add(2));
        self.arrival = Some(local);
    }

    /// Returns the rank that must wait for its answer.
    pub(super) fn take_arrival(&mut self) -> Option<LocalRank> {
        self.arrival.take()
    }

    /// Delays the answer to its `init` until all ranks have restarted. Returns false if an earlier program of the rank has arrived.
    pub(super) fn arrive(&mut self, node: &JobNode, local: LocalRank, waiter: Waiter) -> bool {
        let is_its_own = |former: &&mut Waiter| node.conversations[former.connection].rank == Some(local);
        // A program that was replaced before its answer no longer waits.
        if let Some(former) = self.gathering.leaving_mut().iter_mut().find(is_its_own) {
            *former = waiter;
            return false;
        }
        if let Some(former) = self.gathering.waiter_mut(local) {
            *former = waiter;
            return false;
        }
        self.gathering.arrive(local, waiter)
    }

    /// Begins the agreement with the other nodes, if all needed ranks of this node wait.
    pub(super) fn begin(&mut self, node: &mut JobNode, fences: &Fences) -> bool {
        let Some(epoch) = self.gathering.begin(|local| node.is_dispensable(local)) else { return false };
        let scope = Scope::Foreign { name: NAME.into(), nodes: node.nodes_of(&Group::World).into() };
        node.exchange(FenceId { scope, epoch }, vec![fences.begun()].into());
        true
    }

    /// All ranks of all nodes wait: no rank of the earlier generation begins a fence any more. So this node also begins the fences that
    /// some nodes have begun.
    pub(super) fn agree(&mut self, node: &mut JobNode, fences: &mut Fences, kvs: &mut Kvs, merged: &Merged) {
        self.is_agreed = true;
        fences.dismiss();
        for (name, begun) in merged.segments.iter().flat_map(Segment::pairs) {
            if let Ok(begun) = begun.try_into()
                && !node.has_ended()
            {
                fences.catch_up(node, kvs, name, Epoch(u64::from_be_bytes(begun)));
            }
        }
    }

    /// Begins the next generation, if the nodes have agreed on it and no fence of the earlier generation is in exchange here. Returns true
    /// if it has begun.
    pub(super) fn end(&mut self, fences: &mut Fences) -> bool {
        let is_complete = self.is_agreed && !fences.are_exchanging();
        if is_complete {
            self.is_agreed = false;
            self.generation = self.generation.saturating_add(1);
            fences.restart();
        }
        is_complete
    }

    /// Sends the delayed answers to the ranks of the new generation.
    pub(super) fn release(&mut self, node: &mut JobNode) {
        node.actions.push_back(Action::Restarted { generation: self.generation });
        node.release(self.gathering.complete());
    }
}

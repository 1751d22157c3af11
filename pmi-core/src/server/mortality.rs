//! Ranks that die while other ranks of their job continue. The server notifies the other ranks, and their fences proceed without the
//! dead.
//!
//! ```text
//!       no put                          first fence of all ranks complete
//! dies ───────────────> dead, reported ────────────────────────────────> dead, reported, dispensable
//!   │                     │ a put, and a rank waits                          ^
//!   │ a put               v                                                  │
//!   └─────────────────> dead, needed ────────────────────────────────────────┘
//! ```
//! From the first put to the end of the first fence of all ranks, MPI is being initialized, and all ranks need each other's data. The job
//! then ends if ranks wait for a dead rank. If only dead ranks are missing in a fence, the puts so far decide: other ranks may put after
//! a rank has died. MPICH 5 puts nothing where all ranks share a node, and has no such fence.

use std::sync::Arc;

use super::{Action, Server};
use crate::deaths::{Death, DeathKind};
use crate::fence::FenceError;
use crate::ids::{Epoch, LocalRank, NodeIndex};
use crate::report::EndReason;
use crate::roster::Roster;
use crate::wire::request::Group;

impl Server {
    /// The rank's process failed, and the host lets the other ranks continue. The job ends if ranks wait for it during the initialization
    /// of MPI. Otherwise they continue without it, and the server emits an [`Action::Died`].
    pub fn handle_borne_failure(&mut self, local: LocalRank, kind: DeathKind) {
        let Some(state) = self.ranks.get_mut(local) else { return };
        state.fail(kind);
        if self.ended {
            return;
        }
        self.tell_deaths();
        self.begin_fences();
        self.look_for_deserters();
    }

    /// Ranks of other nodes have died, and the other ranks continue. Reads of `PMI_dead_processes` include them from now on. The job ends
    /// if ranks of this node wait, during the initialization of MPI, for data of a node without living ranks.
    pub fn handle_deaths(&mut self, deaths: &[Death]) {
        for death in deaths {
            self.deaths.add(death.rank);
        }
        self.look_for_missed_node();
    }

    /// Reports dead ranks of this node, unless their data is still needed.
    pub(super) fn tell_deaths(&mut self) {
        if self.misses_the_dead() || self.ended {
            return;
        }
        let new = self.ranks.deaths().filter(|death| self.deaths.add(death.rank));
        self.actions.extend(new.map(Action::Died));
    }

    /// Returns true while all ranks need each other's data.
    pub(super) fn misses_the_dead(&self) -> bool {
        misses_the_dead(&self.ranks, self.fences)
    }

    /// Returns true for a dead rank that fences do not wait for.
    pub(super) fn can_do_without(&self, local: LocalRank) -> bool {
        dispensable(&self.ranks, self.fences)(local)
    }

    /// Begins the exchange of the next fence of all ranks, if no needed rank is missing.
    pub(super) fn begin_world(&mut self) -> Option<Epoch> {
        self.world.begin(dispensable(&self.ranks, self.fences))
    }

    /// Begins the exchange of the next ring, if no needed rank is missing.
    pub(super) fn begin_next_ring(&mut self) -> Option<Epoch> {
        self.ring.gathering.begin(dispensable(&self.ranks, self.fences))
    }

    /// Begins the next restart, if all needed ranks wait for it.
    pub(super) fn begin_next_restart(&mut self) -> Option<Epoch> {
        self.restart.gathering_mut().begin(dispensable(&self.ranks, self.fences))
    }

    /// Begins the exchange of a group's next fence, if no needed rank is missing.
    pub(super) fn begin_group(&mut self, name: &str) -> Option<Epoch> {
        self.groups.get_mut(name)?.begin(dispensable(&self.ranks, self.fences))
    }

    /// Begins the fences that no longer wait for a rank of this node.
    fn begin_fences(&mut self) {
        if let Some(epoch) = self.begin_world() {
            self.exchange_world(epoch);
        }
        self.begin_ring();
        self.begin_restart();
        let names: Vec<_> = self.groups.names().cloned().collect();
        for name in names {
            if let Some(epoch) = self.begin_group(&name)
                && let Some((group, _)) = Group::parse(&name)
            {
                self.exchange_group(&name, &group, epoch);
            }
        }
    }

    /// Ends the job if all ranks of this node are in the first fence of all ranks, and a node without living ranks cannot contribute to
    /// it.
    pub(super) fn look_for_missed_node(&mut self) {
        if self.deaths.is_empty() || self.world.leaving().is_empty() || !self.misses_the_dead() {
            return;
        }
        if let Some(node) = self.deaths.dead_node(&self.job.placement, self.node) {
            self.end(missed(node));
        }
    }
}

/// Returns the predicate for dispensable ranks, after `fences` fences of all ranks. It checks puts only for dead ranks.
fn dispensable(ranks: &Roster, fences: u64) -> impl Fn(LocalRank) -> bool {
    move |local| ranks[local].died.is_some() && !misses_the_dead(ranks, fences)
}

/// Returns true if ranks of this node have put pairs, and no fence of all ranks is complete.
fn misses_the_dead(ranks: &Roster, fences: u64) -> bool {
    fences == 0 && ranks.iter().any(|(_, state)| state.quota.bytes() > 0)
}

/// Reason to end a job: its ranks wait in their first fence for the data of a node on which all ranks are dead.
pub fn missed(node: NodeIndex) -> EndReason {
    let reason = "its ranks died while others were in MPI_Init, which need what they were to put".to_owned();
    EndReason::Fence(Arc::new(FenceError::NodeLost { node, epoch: Epoch(0), reason }))
}

//! Ranks that die while the others of their job go on: these others are told, and their fences do without the dead.
//!
//! ```text
//!       nothing is put                 first fence of all ranks over
//! dies ───────────────> dead, told ────────────────────────────────────> dead, told, done without
//!   │                       │ something is put, somebody waits               ^
//!   │ something is put      v                                                │
//!   └───────────────> dead, missed ──────────────────────────────────────────┘
//! ```
//! From the first put to the end of the first fence of all ranks, MPI is being initialized, and nobody can do without what a rank was to
//! bring: those who wait for a dead one then end the job. A fence that only dead ranks are missing in decides by what was put until then:
//! others may put after a rank has died. MPICH 5 puts nothing where all ranks share a node, and has no such fence.

use std::sync::Arc;

use super::{Action, Server};
use crate::deaths::{Death, DeathKind};
use crate::fence::FenceError;
use crate::ids::{Epoch, LocalRank, NodeIndex};
use crate::report::EndReason;
use crate::roster::Roster;
use crate::wire::request::Group;

impl Server {
    /// The rank's process failed, and the host lets the others go on. The job ends if they wait for it while MPI is initialized; else they
    /// do without it, which an [`Action::Died`] tells.
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

    /// Ranks of other nodes have died, and the others are to go on. Ranks that ask for `PMI_dead_processes` read so from now on. The job
    /// ends if ranks of this node wait for what a node without living ranks was to bring while MPI is initialized.
    pub fn handle_deaths(&mut self, deaths: &[Death]) {
        for death in deaths {
            self.deaths.add(death.rank);
        }
        self.look_for_missed_node();
    }

    /// Tells of ranks of this node that have died, unless they are missed.
    pub(super) fn tell_deaths(&mut self) {
        if self.misses_the_dead() || self.ended {
            return;
        }
        let new = self.ranks.deaths().filter(|death| self.deaths.add(death.rank));
        self.actions.extend(new.map(Action::Died));
    }

    /// Returns true while nobody can do without what a rank was to bring.
    pub(super) fn misses_the_dead(&self) -> bool {
        misses_the_dead(&self.ranks, self.fences)
    }

    /// Returns true for a rank that fences go on without.
    pub(super) fn can_do_without(&self, local: LocalRank) -> bool {
        dispensable(&self.ranks, self.fences)(local)
    }

    /// Begins the exchange of the next fence of all ranks, if that is complete.
    pub(super) fn begin_world(&mut self) -> Option<Epoch> {
        self.world.begin(dispensable(&self.ranks, self.fences))
    }

    /// Begins the exchange of the next ring, if that is complete.
    pub(super) fn begin_next_ring(&mut self) -> Option<Epoch> {
        self.ring.gathering.begin(dispensable(&self.ranks, self.fences))
    }

    /// Begins the next restart, if all ranks that are needed wait for it.
    pub(super) fn begin_next_restart(&mut self) -> Option<Epoch> {
        self.restart.gathering_mut().begin(dispensable(&self.ranks, self.fences))
    }

    /// Begins the exchange of a group's next fence, if that is complete.
    pub(super) fn begin_group(&mut self, name: &str) -> Option<Epoch> {
        self.groups.get_mut(name)?.begin(dispensable(&self.ranks, self.fences))
    }

    /// Begins the fences that wait for nobody of this node any more.
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

    /// Ends the job if all ranks of this node are in the first fence of all, and a node without living ranks brings nothing to it.
    pub(super) fn look_for_missed_node(&mut self) {
        if self.deaths.is_empty() || self.world.leaving().is_empty() || !self.misses_the_dead() {
            return;
        }
        if let Some(node) = self.deaths.dead_node(&self.job.placement, self.node) {
            self.end(missed(node));
        }
    }
}

/// Tells the ranks that fences go on without, after so many fences of all ranks. What was put is looked at for dead ranks only.
fn dispensable(ranks: &Roster, fences: u64) -> impl Fn(LocalRank) -> bool {
    move |local| ranks[local].died.is_some() && !misses_the_dead(ranks, fences)
}

/// Returns true if ranks of this node have put something, and no fence of all ranks is over.
fn misses_the_dead(ranks: &Roster, fences: u64) -> bool {
    fences == 0 && ranks.iter().any(|(_, state)| state.quota.bytes() > 0)
}

/// Reason to end a job whose ranks wait in their first fence for what a node was to bring, and all ranks of that node are dead.
pub fn missed(node: NodeIndex) -> EndReason {
    let reason = "its ranks died while others were in MPI_Init, which need what they were to put".to_owned();
    EndReason::Fence(Arc::new(FenceError::NodeLost { node, epoch: Epoch(0), reason }))
}

//! Ranks that die while the other ranks continue: the other ranks receive events, and their collectives proceed without the dead.
//!
//! The rules are the same as in the PMI server ([`pmi_core::server`]). From the first commit until a job's first collective of all its
//! ranks is complete, all ranks are needed. Otherwise a collective ends without the dead, and its status reports that to its members.

use pmi_core::deaths::{Death, DeathKind};
use pmi_core::gathering::Gathering;
use pmi_core::ids::{Epoch, Rank};
use pmi_core::server::missed;

use super::collectives::Waiter;
use super::members::Members;
use super::{Action, Server};
use crate::namespace::{JobIndex, Seat};

impl Server {
    /// The rank's process failed, and the host lets the other ranks continue. The launch ends if ranks wait for it during the
    /// initialization of MPI. Otherwise they continue without it, and the server emits an [`Action::Died`].
    pub fn handle_borne_failure(&mut self, seat: Seat, kind: DeathKind) {
        let Some(state) = self.rank_mut(seat) else { return };
        state.fail(kind);
        let rank = state.rank;
        self.jobs[seat.job].has_left = true;
        self.end_publisher(seat);
        if self.ended {
            return;
        }
        self.give_up_on(seat.job, rank);
        self.tell_own_deaths(seat.job);
        self.begin_collectives();
        self.look_for_last_exits();
        self.look_for_deserters();
    }

    /// Ranks of a job on other nodes have died, and the other ranks continue. The launch ends if ranks of this node wait, during the
    /// initialization of MPI, for data of a node without living ranks.
    pub fn handle_deaths(&mut self, job: JobIndex, deaths: &[Death]) {
        let Some(state) = self.jobs.get_mut(job) else { return };
        let new: Vec<Death> = deaths.iter().copied().filter(|death| state.deaths.add(death.rank)).collect();
        self.tell_of_deaths(job, &new);
        self.look_for_missed_node(job);
    }

    /// A collective of all ranks of a job is complete.
    pub(super) fn count_fence(&mut self, job: JobIndex) {
        self.jobs[job].fences += 1;
        self.tell_own_deaths(job);
    }

    /// Reports dead ranks of this node, unless their data is still needed.
    fn tell_own_deaths(&mut self, job: JobIndex) {
        let state = &mut self.jobs[job];
        if state.misses_the_dead() || self.ended {
            return;
        }
        let new: Vec<Death> = state.ranks.deaths().filter(|death| state.deaths.add(death.rank)).collect();
        self.actions.extend(new.iter().map(|&death| Action::Died { job, death }));
        self.tell_of_deaths(job, &new);
    }

    /// Begins the exchange of a collective's next round, if no needed rank is missing.
    pub(super) fn begin_collective(&mut self, name: &str) -> Option<Epoch> {
        self.collectives.get_mut(name)?.begin(|seat| self.jobs[seat.job].can_do_without(seat.local))
    }

    /// Begins the collectives that no longer wait for a rank of this node.
    fn begin_collectives(&mut self) {
        let names: Vec<_> = self.collectives.names().cloned().collect();
        for name in names {
            if let Some(epoch) = self.begin_collective(&name) {
                self.exchange_round(name, epoch);
            }
        }
    }

    /// Ends the launch if all ranks of this node are in the first collective of all ranks of a job, and a node without living ranks
    /// cannot contribute to it.
    pub(super) fn look_for_missed_node(&mut self, job: JobIndex) {
        let state = &self.jobs[job];
        if state.deaths.is_empty() || !state.misses_the_dead() {
            return;
        }
        let leaves_whole = |gathering: &Gathering<Seat, Waiter>| {
            gathering.leaving().first().is_some_and(|waiter| waiter.takes_whole(job))
        };
        if let Some(node) = state.deaths.dead_node(&state.namespace.job.placement, state.namespace.node)
            && self.collectives.iter().any(leaves_whole)
        {
            self.end(job, missed(node));
        }
    }

    pub(super) fn is_dead(&self, job: JobIndex, rank: Rank) -> bool {
        self.jobs[job].deaths.include(rank)
    }

    /// Returns true if one of the members is known to be dead.
    pub(super) fn lacks_any(&self, members: &Members) -> bool {
        members.ours.iter().any(|(&job, ranks)| match ranks {
            None => !self.jobs[job].deaths.is_empty(),
            Some(ranks) => ranks.iter().any(|&rank| self.is_dead(job, rank)),
        })
    }
}

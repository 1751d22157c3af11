//! Missing ranks that other ranks wait for, and that will never arrive.

use pmi_core::gathering::Gathering;
use pmi_core::roster::left_fence;
use pmi_core::server::EndReason;

use super::Server;
use super::collectives::Waiter;
use crate::namespace::{JobIndex, JobState, Seat};

impl Server {
    /// Ends the launch when ranks wait for a rank that will never arrive.
    pub(super) fn look_for_deserters(&mut self) {
        let left_before_init = |(job, state): (JobIndex, &JobState)| Some((job, state.ranks.left_before_init()?));
        let before_init = self.jobs.indexed().find_map(left_before_init);
        let in_collective = || self.collectives.iter().find_map(|gathering| self.left_collective(gathering));
        if let Some((job, reason)) = before_init.or_else(in_collective) {
            self.end(job, reason);
        }
    }

    /// Ends the launch when ranks wait in this collective for a rank that will never arrive. While all ranks of its jobs are present,
    /// nothing is searched. That is the case for most of a launch, and this function runs at each arrival.
    pub(super) fn look_for_deserters_of(&mut self, name: &str) {
        let Some(gathering) = self.collectives.get(name) else { return };
        let Some(waiter) = gathering.waiters().next() else { return };
        if !waiter.members.ours.keys().any(|&job| self.jobs[job].has_left) {
            return;
        }
        if let Some((job, reason)) = self.left_collective(gathering) {
            self.end(job, reason);
        }
    }

    fn left_collective(&self, gathering: &Gathering<Seat, Waiter>) -> Option<(JobIndex, EndReason)> {
        let is_dispensable = |seat: Seat| self.jobs[seat.job].can_do_without(seat.local);
        let (gone, reason) = left_fence(gathering, |seat| self.rank(seat), is_dispensable)?;
        Some((gone.job, reason))
    }
}

//! Missing ranks that other ranks wait for, and that will never arrive.

use std::sync::Arc;

use pmi_core::gathering::Gathering;
use pmi_core::ids::LocalRank;
use pmi_core::report::{EndReason, FenceStatus};
use pmi_core::roster::left_fence;
use pmi_core::server::missed;

use super::collectives::{Collectives, Waiter};
use super::jobs::Jobs;
use super::launch::Launch;
use crate::namespace::{JobIndex, JobState, Seat};

impl Collectives {
    /// Ends the launch when ranks wait for a rank that will never arrive.
    pub(super) fn look_for_deserters(&self, launch: &mut Launch) {
        let left_before_init = |(job, state): (JobIndex, &JobState)| Some((job, state.ranks.left_before_init()?));
        let before_init = launch.jobs.indexed().find_map(left_before_init);
        let in_collective = || self.gatherings.iter().find_map(|gathering| left_collective(&launch.jobs, gathering));
        if let Some((job, reason)) = before_init.or_else(in_collective) {
            launch.end(job, reason);
        }
    }

    /// Ends the launch when ranks wait in this collective for a rank that will never arrive. While all ranks of its jobs are present,
    /// nothing is searched. That is the case for most of a launch, and this function runs at each arrival.
    pub(super) fn look_for_deserters_of(&self, launch: &mut Launch, name: &str) {
        let Some(gathering) = self.gatherings.get(name) else { return };
        let Some(waiter) = gathering.waiters().next() else { return };
        if !waiter.members.ours.keys().any(|&job| launch.jobs[job].has_left) {
            return;
        }
        if let Some((job, reason)) = left_collective(&launch.jobs, gathering) {
            launch.end(job, reason);
        }
    }

    /// Ends the launch if all ranks of this node are in the first collective of all ranks of a job, and a node without living ranks
    /// cannot contribute to it.
    pub(super) fn look_for_missed_node(&self, launch: &mut Launch, job: JobIndex) {
        let state = &launch.jobs[job];
        if state.deaths.is_empty() || !state.misses_the_dead() {
            return;
        }
        let leaves_whole = |gathering: &Gathering<Seat, Waiter>| {
            gathering.leaving().first().is_some_and(|waiter| waiter.takes_whole(job))
        };
        if let Some(node) = state.deaths.dead_node(&state.namespace.job.placement, state.namespace.node)
            && self.gatherings.iter().any(leaves_whole)
        {
            launch.end(job, missed(node));
        }
    }

    /// The collectives in which ranks of a job wait on this node, with the rank numbers of that job.
    pub(super) fn pending(&self, jobs: &Jobs, job: JobIndex) -> Vec<FenceStatus> {
        let state = &jobs[job];
        let of_job = |seats: Vec<Seat>| -> Vec<LocalRank> {
            let locals = seats.into_iter().filter(|seat| seat.job == job).map(|seat| seat.local);
            locals.filter(|&local| !state.can_do_without(local)).collect()
        };
        let status = |(name, gathering): (&Arc<str>, &Gathering<Seat, Waiter>)| {
            let (epoch, waiting, missing) = gathering.status()?;
            let (waiting, missing) = (of_job(waiting), of_job(missing));
            let whole_job = gathering.waiters().next()?.takes_whole(job);
            let takes_part = !waiting.is_empty() || !missing.is_empty();
            let (name, at_start) = (Arc::clone(name), state.fences == 0);
            takes_part.then_some(FenceStatus { name, epoch, whole_job, at_start, waiting, missing })
        };
        self.gatherings.named().filter_map(status).collect()
    }
}

fn left_collective(jobs: &Jobs, gathering: &Gathering<Seat, Waiter>) -> Option<(JobIndex, EndReason)> {
    let is_dispensable = |seat: Seat| jobs[seat.job].can_do_without(seat.local);
    let (gone, reason) = left_fence(gathering, |seat| jobs.rank(seat), is_dispensable)?;
    Some((gone.job, reason))
}

//! Ranks that die while the other ranks continue: the other ranks receive events, and their collectives proceed without the dead.
//!
//! The rules are the same as in the PMI server ([`pmi_core::server`]). From the first commit until a job's first collective of all its
//! ranks is complete, all ranks are needed. Otherwise a collective ends without the dead, and its status reports that to its members.

use pmi_core::deaths::Death;

use super::action::Action;
use super::events::report_deaths;
use super::launch::Launch;
use crate::namespace::JobIndex;

/// A collective of all ranks of a job is complete.
pub(super) fn count_fence(launch: &mut Launch, job: JobIndex) {
    launch.jobs[job].fences += 1;
    report_own_deaths(launch, job);
}

/// Reports dead ranks of this node, unless their data is still needed.
pub(super) fn report_own_deaths(launch: &mut Launch, job: JobIndex) {
    let state = &mut launch.jobs[job];
    if state.misses_the_dead() || launch.ended {
        return;
    }
    let new: Vec<Death> = state.ranks.deaths().filter(|death| state.deaths.add(death.rank)).collect();
    launch.actions.extend(new.iter().map(|&death| Action::Died { job, death }));
    report_deaths(launch, job, &new);
}

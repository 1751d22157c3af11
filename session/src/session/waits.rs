//! How long ranks have waited in which fence. Servers have no clock, so the session looks at them from time to time.
//!
//! Two things follow from a long wait: the launch is told when nobody of this node is missing, for only it can know who is; and it
//! ends when a fence takes longer than it may.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pmi_core::ids::{Epoch, LocalRank, Rank};
use pmi_core::server::FenceStatus;
use tokio::time::Instant;

use super::Session;
use crate::cause::CauseKind;
use crate::event::Event;
use crate::spec::SessionSpec;

/// How often servers are looked at, if there is something to look for.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// After which time a wait for other nodes is told.
const TELL_AFTER: Duration = Duration::from_millis(500);

/// The fences in which ranks wait.
#[derive(Debug)]
pub(super) struct Waits {
    /// The launch ends when a fence takes longer.
    limit: Option<Duration>,
    /// Whether the launch has other nodes, that could be waited for.
    several_nodes: bool,
    open: HashMap<FenceName, Wait>,
    next_look: Instant,
}

/// A job by its index, and one of its fences.
type FenceName = (usize, Arc<str>, Epoch);

/// One wait.
#[derive(Clone, Copy, Debug)]
struct Wait {
    /// When somebody was first seen waiting.
    since: Instant,
    /// When nobody of this node was first seen missing.
    complete: Option<Instant>,
    told: bool,
}

impl Waits {
    pub(super) fn new(spec: &SessionSpec, started: Instant) -> Self {
        let several_nodes = spec.hosts.len() > 1;
        Self { limit: spec.patience.fence, several_nodes, open: HashMap::new(), next_look: started + LOOK_EVERY }
    }

    /// When to look again.
    pub(super) fn next(&self) -> Option<Instant> {
        (self.several_nodes || self.limit.is_some()).then_some(self.next_look)
    }

    /// Takes in how the fences stand, and forgets those that are over.
    fn update(&mut self, standings: &[(usize, FenceStatus)], now: Instant) {
        let mut open = HashMap::with_capacity(standings.len());
        for (job, standing) in standings {
            let name = (*job, Arc::clone(&standing.name), standing.epoch);
            let mut wait = self.open.remove(&name).unwrap_or(Wait { since: now, complete: None, told: false });
            if standing.missing.is_empty() {
                wait.complete.get_or_insert(now);
            }
            open.insert(name, wait);
        }
        self.open = open;
    }

    /// Whether a wait for other nodes is to be told now; true once for each.
    fn is_to_be_told(&mut self, job: usize, standing: &FenceStatus, now: Instant) -> bool {
        let name = (job, Arc::clone(&standing.name), standing.epoch);
        let Some(wait) = self.open.get_mut(&name).filter(|_| self.several_nodes) else { return false };
        let long = wait.complete.is_some_and(|complete| now >= complete + TELL_AFTER);
        long && !std::mem::replace(&mut wait.told, true)
    }

    /// The limit, if this wait has reached it.
    fn exceeded(&self, job: usize, standing: &FenceStatus, now: Instant) -> Option<Duration> {
        let wait = self.open.get(&(job, Arc::clone(&standing.name), standing.epoch))?;
        self.limit.filter(|&limit| now >= wait.since + limit)
    }
}

impl Session {
    /// Looks at who waits, if it is time to.
    pub(super) fn look_at_waits(&mut self) {
        let now = Instant::now();
        if self.waits.next().is_none_or(|at| at > now) {
            return;
        }
        self.waits.next_look = now + LOOK_EVERY;
        let standings = self.standings();
        self.waits.update(&standings, now);
        for (job, standing) in &standings {
            if *job == 0 && standing.whole_job && self.waits.is_to_be_told(*job, standing, now) {
                let ranks = self.shown_ranks(*job, &standing.waiting);
                self.outbox.push_back(Event::Waiting { ranks });
            }
            if let Some(limit) = self.waits.exceeded(*job, standing, now) {
                let (waiting, missing) = (standing.waiting.len(), self.with_last_words(*job, &standing.missing));
                return self.fail(CauseKind::FenceTimeout { limit, waiting, missing });
            }
        }
    }

    /// The fences in which ranks of this node wait, each with the index of its job.
    pub(super) fn standings(&self) -> Vec<(usize, FenceStatus)> {
        let of_job = |(index, job): (usize, &super::JobAtWork)| {
            job.serving.standings().into_iter().map(move |standing| (index, standing))
        };
        self.jobs.iter().enumerate().filter(|(_, job)| !job.disowned).flat_map(of_job).collect()
    }

    fn shown_ranks(&self, job: usize, locals: &[LocalRank]) -> Vec<Rank> {
        let job = &self.jobs[job];
        let ranks = job.ranks_here();
        locals.iter().filter_map(|local| Some(job.shown(*ranks.get(local.index())?))).collect()
    }

    /// Ranks as they are shown, each with the last command that it sent.
    pub(super) fn with_last_words(&self, job: usize, locals: &[LocalRank]) -> Vec<(Rank, Option<String>)> {
        let job = &self.jobs[job];
        let progress = locals.iter().filter_map(|&local| job.serving.progress(local));
        progress.map(|progress| (job.shown(progress.rank), progress.last_command)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(epoch: u64, missing: &[u32]) -> (usize, FenceStatus) {
        let missing = missing.iter().copied().map(LocalRank).collect();
        let (name, epoch) = ("fence".into(), Epoch(epoch));
        (0, FenceStatus { name, epoch, whole_job: true, waiting: vec![LocalRank(0)], missing })
    }

    #[test]
    fn a_wait_begins_with_its_fence_and_is_told_once_nobody_here_has_been_missing_for_a_while() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut waits =
            Waits { limit: Some(Duration::from_secs(2)), several_nodes: true, open: HashMap::new(), next_look: start };
        let mut look = |standing: &(usize, FenceStatus), now| {
            waits.update(std::slice::from_ref(standing), now);
            (waits.is_to_be_told(0, &standing.1, now), waits.exceeded(0, &standing.1, now).is_some())
        };
        assert_eq!(look(&standing(0, &[1]), at(0)), (false, false));
        assert_eq!(look(&standing(0, &[1]), at(1000)), (false, false), "a rank of this node is missing");
        assert_eq!(look(&standing(0, &[]), at(1200)), (false, false), "its arrival may have completed the fence");
        assert_eq!(look(&standing(0, &[]), at(1700)), (true, false));
        assert_eq!(look(&standing(0, &[]), at(1999)), (false, false), "it was told");
        assert_eq!(look(&standing(0, &[]), at(2000)), (false, true), "the limit counts from the first who waits");
        assert_eq!(look(&standing(1, &[]), at(2100)), (false, false), "another fence");
        assert_eq!(look(&standing(1, &[]), at(2600)), (true, false));
    }
}

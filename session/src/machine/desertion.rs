//! Long waits in fences. PMI servers have no clock, so the machine requests a look at their fences from time to time.
//!
//! A long wait has two consequences. If no rank of this node is missing, the launch is notified: only the launch can see that the
//! missing rank has left another node. If a fence exceeds its time limit, the launch ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pmi_core::ids::{Epoch, LocalRank, Rank};

use super::jobs::JobNumber;
use crate::event::SpokenProtocol;

/// Interval between looks, if a look can have a consequence.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Time after which a wait for other nodes is reported.
const REPORT_AFTER: Duration = Duration::from_millis(500);

/// A fence in which ranks of this node wait, as its server reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FenceSeen {
    pub(crate) job: JobNumber,
    pub(crate) protocol: SpokenProtocol,
    pub(crate) name: Arc<str>,
    pub(crate) epoch: Epoch,
    /// True if every rank of the job takes part.
    pub(crate) whole_job: bool,
    /// True if its ranks are starting up: MPI ranks are in `MPI_Init`.
    pub(crate) at_start: bool,
    /// Waiting ranks of this node.
    pub(crate) waiting: Vec<LocalRank>,
    /// Missing ranks of this node, by the numbers in messages, each with the last command that it sent.
    pub(crate) missing: Vec<(Rank, Option<String>)>,
    /// Missing ranks that begin MPI by the other protocol alone, while the waiting ranks have spoken only this protocol.
    pub(crate) strangers: Vec<Rank>,
}

impl FenceSeen {
    /// Key that identifies this fence in the launch.
    pub(super) fn key(&self) -> FenceKey {
        (self.job, Arc::clone(&self.name), self.epoch)
    }
}

/// A consequence of a long wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LongWait {
    /// Ranks wait for other nodes; reported once for each fence.
    ForOtherNodes,
    /// The fence exceeds its time limit.
    Exceeded { limit: Duration },
}

/// Fences in which ranks wait, each with the start of its wait.
#[derive(Debug)]
pub(crate) struct FenceWaits {
    /// Time limit of a fence.
    limit: Option<Duration>,
    nodes: NodeCount,
    open: HashMap<FenceKey, Wait>,
    next_look: Instant,
}

/// Number of nodes of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeCount {
    /// Only this node.
    One,
    /// Several nodes, so that ranks here may wait for ranks of other nodes.
    Several,
}

/// Key of a fence of the launch.
pub(super) type FenceKey = (JobNumber, Arc<str>, Epoch);

#[derive(Clone, Copy, Debug)]
struct Wait {
    /// First time at which a rank was seen to wait.
    since: Instant,
    /// First time at which no rank of this node was missing.
    complete: Option<Instant>,
    reported: bool,
}

impl FenceWaits {
    pub(crate) fn new(limit: Option<Duration>, nodes: NodeCount, started: Instant) -> Self {
        Self { limit, nodes, open: HashMap::new(), next_look: started + LOOK_EVERY }
    }

    /// Returns the time of the next look; `None` if a look can have no consequence.
    pub(crate) fn next(&self) -> Option<Instant> {
        (self.nodes == NodeCount::Several || self.limit.is_some()).then_some(self.next_look)
    }

    /// Returns true if a look is due, and then schedules the next one.
    pub(crate) fn begin_look(&mut self, now: Instant) -> bool {
        let is_due = self.next().is_some_and(|at| at <= now);
        if is_due {
            self.next_look = now + LOOK_EVERY;
        }
        is_due
    }

    /// Updates the fences in which ranks wait, and removes finished fences. Returns the consequences, each with the index of its
    /// fence.
    pub(crate) fn look(&mut self, fences: &[FenceSeen], now: Instant) -> Vec<(usize, LongWait)> {
        let mut open = HashMap::with_capacity(fences.len());
        let mut long = Vec::new();
        for (index, fence) in fences.iter().enumerate() {
            let key = fence.key();
            let mut wait = self.open.remove(&key).unwrap_or(Wait { since: now, complete: None, reported: false });
            if fence.missing.is_empty() {
                wait.complete.get_or_insert(now);
            }
            let for_others = self.nodes == NodeCount::Several && fence.whole_job && !wait.reported;
            if for_others && wait.complete.is_some_and(|complete| now >= complete + REPORT_AFTER) {
                wait.reported = true;
                long.push((index, LongWait::ForOtherNodes));
            }
            if let Some(limit) = self.limit.filter(|&limit| now >= wait.since + limit) {
                long.push((index, LongWait::Exceeded { limit }));
            }
            open.insert(key, wait);
        }
        self.open = open;
        long
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(job: usize, epoch: u64, missing: &[u32]) -> FenceSeen {
        let missing = missing.iter().map(|&rank| (Rank(rank), None)).collect();
        let (name, epoch, waiting) = ("fence".into(), Epoch(epoch), vec![LocalRank(0)]);
        let protocol = SpokenProtocol::Pmi;
        FenceSeen {
            job: JobNumber(job),
            protocol,
            name,
            epoch,
            whole_job: true,
            at_start: epoch == Epoch(0),
            waiting,
            missing,
            strangers: Vec::new(),
        }
    }

    #[test]
    fn a_wait_begins_with_its_fence_and_is_reported_once_no_rank_here_has_been_missing_for_a_while() {
        let start = Instant::now();
        let limit = Duration::from_secs(2);
        let mut waits = FenceWaits::new(Some(limit), NodeCount::Several, start);
        let mut check = |fence: FenceSeen, millis, expected: &[LongWait], why| {
            let seen = waits.look(&[fence], start + Duration::from_millis(millis));
            assert_eq!(seen.iter().map(|&(_, wait)| wait).collect::<Vec<_>>(), expected, "at {millis} ms: {why}");
        };
        let exceeded = LongWait::Exceeded { limit };
        check(fence(0, 0, &[1]), 0, &[], "it has just begun");
        check(fence(0, 0, &[1]), 1000, &[], "a rank of this node is missing");
        check(fence(0, 0, &[]), 1200, &[], "its arrival may have completed the fence");
        check(fence(0, 0, &[]), 1700, &[LongWait::ForOtherNodes], "others are missing");
        check(fence(0, 0, &[]), 1999, &[], "it was reported");
        check(fence(0, 0, &[]), 2000, &[exceeded], "the limit counts from the first who waits");
        check(fence(0, 1, &[]), 2100, &[], "another fence");
        check(fence(0, 1, &[]), 2600, &[LongWait::ForOtherNodes], "others are missing again");
    }

    #[test]
    fn fences_of_spawned_jobs_are_reported_as_those_of_the_launched_one() {
        let start = Instant::now();
        let mut waits = FenceWaits::new(None, NodeCount::Several, start);
        let fences = [fence(0, 3, &[]), fence(1, 3, &[]), fence(2, 3, &[8]), fence(3, 0, &[])];
        let fences = fences.map(|fence| FenceSeen { whole_job: fence.job != JobNumber(3), ..fence });
        assert_eq!(waits.look(&fences, start), []);
        let seen = waits.look(&fences, start + REPORT_AFTER);
        assert_eq!(seen, [(0, LongWait::ForOtherNodes), (1, LongWait::ForOtherNodes)]);
        assert_eq!(waits.look(&fences, start + 2 * REPORT_AFTER), []);
    }

    #[test]
    fn a_launch_on_one_node_without_a_limit_is_not_looked_at() {
        let start = Instant::now();
        let check = |limit: Option<u64>, nodes, looks| {
            let mut waits = FenceWaits::new(limit.map(Duration::from_secs), nodes, start);
            assert_eq!(waits.next().is_some(), looks, "{limit:?} {nodes:?}");
            assert!(!waits.begin_look(start), "too early");
            assert_eq!(waits.begin_look(start + LOOK_EVERY), looks);
            assert!(!waits.begin_look(start + LOOK_EVERY), "taken already");
        };
        check(None, NodeCount::One, false);
        check(None, NodeCount::Several, true);
        check(Some(1), NodeCount::One, true);
    }
}

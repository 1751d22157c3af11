//! The state of a running launch that must outlive the server, and the times at which it is stored.
//!
//! ```text
//!           note             due                 stored
//! (clean) ───────> Dirty ─────────> writing ──────────────> (clean), or Dirty by later changes
//!                    ^                 └──failed: again after RETRY, each time twice as long──┐
//!                    └────────────────────────────────────────────────────────────────────────┘
//! ```
//! Each change has a number, and each write covers all changes up to a number. Some actions wait for a change to be durable: the end of the
//! stream of a node that has ended its part, and the orders to start a spawned job. They continue when their change is covered. A session keeps
//! its report until its stream ends. It sends a report that was not stored again to the next server.

use std::time::Duration;

use lattice_session::cause::Cause;
use lattice_session::ended_ranks::EndedRanks;
use lattice_session::event::{Usage, UsageRange};
use pmi_core::deaths::Death;
use pmi_core::ids::{JobId, NodeIndex};
use pmi_core::job::Placement;
use tokio::time::Instant;

use super::event::{RankEnd, SpawnAsked};

/// Time that a change waits for more changes.
const COLLECT: Duration = Duration::from_millis(200);
/// Pause after a failed attempt: the first one, and the maximum. It doubles each time.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The largest number of events that a server numbers before it stores its progress.
const UNWRITTEN_MAX: u64 = 1 << 40;

/// Progress of a launch that nodes do not report again to a server that resumes the launch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Progressed {
    /// The nodes that have ended their part.
    pub ended: Vec<NodeIndex>,
    /// The nodes that were lost.
    pub lost: Vec<NodeIndex>,
    /// True if a node itself was lost, and not only its part of the launch.
    pub has_lost_a_node: bool,
    /// Ends of ranks of known jobs.
    pub ends: Vec<RankEnd>,
    /// Ends of ranks of jobs that were removed.
    pub forgotten: EndedRanks,
    /// Dead ranks that the launch continues without.
    pub deaths: Vec<Death>,
    /// The first cause, if the launch is ending.
    pub cause: Option<Cause>,
    /// Resources that the ranks of the nodes in `ended` used.
    pub usage: Option<Usage>,
    /// The nodes in `ended` with the lowest and the highest usage.
    pub by_node: Option<UsageRange>,
    /// The spawned jobs that were not removed, in order.
    pub spawned: Vec<SpawnedJob>,
    /// Number of all spawned jobs.
    pub jobs_spawned: u32,
    /// Number of all ranks so far, including ranks of removed jobs.
    pub ranks_shown: u32,
    /// The number of the last event.
    pub last_event: u64,
}

impl Progressed {
    /// The number of the first event of a server that resumes the launch at this time, in seconds since 1970. It is greater than the numbers of
    /// all earlier servers: they may have numbered more events than they stored, and their clock may have been ahead.
    pub(crate) fn first_event(&self, unix: u64) -> u64 {
        (unix << 20).max(self.last_event.saturating_add(UNWRITTEN_MAX))
    }
}

/// A spawned job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SpawnedJob {
    pub id: JobId,
    /// Number under which its first rank is shown.
    pub first: u32,
    pub placement: Placement,
    pub outcome: SpawnOutcome,
    pub asked: SpawnAsked,
}

/// Answer to the rank that requested a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpawnOutcome {
    /// No answer yet, or the answer that the job does not run.
    Open,
    /// All nodes reported that the job runs.
    Runs,
}

/// Content of an attempt to write.
#[derive(Clone, Debug)]
pub(crate) enum Snapshot {
    /// A launch that runs or ends.
    Running(Box<Progressed>),
    /// A launch that is over, with the end in its completion.
    Over,
}

/// State of the durable record of a launch.
#[derive(Debug, Default)]
pub(crate) struct Checkpoint {
    /// The number of the latest change.
    latest: u64,
    /// The changes up to this number are durable.
    stored: u64,
    /// The changes up to this number are being written.
    writing: Option<u64>,
    /// The time at which the next attempt is to begin.
    due: Option<Instant>,
    /// Pause before the next attempt; `None` if the last attempt did not fail.
    retry: Option<Duration>,
    /// Nodes that have ended their part, each with the number of that change. The stream of a node ends when its change is durable.
    ended: Vec<(u64, NodeIndex)>,
}

/// Result of an attempt to store state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Durable,
    Failed,
}

/// Consequences of an attempt to write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// The last change that the attempt covered.
    pub through: u64,
    /// The nodes with streams that may end now.
    pub released: Vec<NodeIndex>,
}

impl Checkpoint {
    /// Records a change that is to be stored soon. Returns the number of the change.
    pub(crate) fn note(&mut self, now: Instant) -> u64 {
        self.latest += 1;
        self.due.get_or_insert(now + COLLECT);
        self.latest
    }

    /// Records a change for which a caller waits to be durable. Returns the number of the change.
    pub(crate) fn note_urgent(&mut self, now: Instant) -> u64 {
        self.latest += 1;
        // This applies even after a failure: a caller that waits receives the error at once.
        self.due = Some(now);
        self.latest
    }

    /// A node has ended its part.
    pub(crate) fn note_ended(&mut self, node: NodeIndex, now: Instant) {
        let change = self.note(now);
        self.ended.push((change, node));
    }

    /// Returns true if the node's stream must stay open because its report is not durable yet.
    pub(crate) fn holds(&self, node: NodeIndex) -> bool {
        self.ended.iter().any(|&(_, ended)| ended == node)
    }

    /// Returns true if all changes are durable.
    pub(crate) fn is_clean(&self) -> bool {
        self.stored == self.latest
    }

    /// Returns true if an attempt begins now. Then [`Self::on_stored`] must follow.
    pub(crate) fn begin(&mut self, now: Instant) -> bool {
        let begins = self.writing.is_none() && self.due.is_some_and(|due| now >= due);
        if begins {
            self.writing = Some(self.latest);
            self.due = None;
        }
        begins
    }

    /// The attempt has ended with this result.
    pub(crate) fn on_stored(&mut self, stored: Stored, now: Instant) -> Attempt {
        let through = self.writing.take().unwrap_or(self.stored);
        if stored == Stored::Failed {
            let retry = self.retry.map_or(RETRY_FIRST, |retry| RETRY_MAX.min(2 * retry));
            self.retry = Some(retry);
            self.due.get_or_insert(now + retry);
            return Attempt { through, released: Vec::new() };
        }
        self.retry = None;
        self.stored = through;
        let released = self.ended.extract_if(.., |(change, _)| *change <= through).map(|(_, node)| node).collect();
        Attempt { through, released }
    }

    /// Returns true if the last attempt failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.retry.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_written_together_after_a_while() {
        let (mut checkpoint, now) = (Checkpoint::default(), Instant::now());
        assert!(checkpoint.is_clean() && !checkpoint.begin(now));
        checkpoint.note(now);
        checkpoint.note_ended(NodeIndex(3), now + COLLECT / 2);
        assert!(!checkpoint.begin(now + COLLECT / 2) && checkpoint.holds(NodeIndex(3)));
        assert!(checkpoint.begin(now + COLLECT) && !checkpoint.begin(now + COLLECT), "one attempt at a time");
        assert_eq!(
            checkpoint.on_stored(Stored::Durable, now + COLLECT),
            Attempt { through: 2, released: vec![NodeIndex(3)] }
        );
        assert!(checkpoint.is_clean() && !checkpoint.holds(NodeIndex(3)));
    }

    #[test]
    fn events_are_numbered_on_whatever_the_clock_of_the_next_server_says() {
        let (told, year) = (1_800_000_000_u64 << 20, 365 * 86_400);
        let kept = Progressed { last_event: told + 5, ..Progressed::default() };
        assert_eq!(kept.first_event(1_800_000_000 + year), (1_800_000_000 + year) << 20);
        let set_back = kept.first_event(1_800_000_000 - year);
        assert!(set_back > kept.last_event + (1 << 30), "what was told and not written down counts as well");
        assert_eq!(Progressed::default().first_event(1_800_000_000), told);
    }

    #[test]
    fn what_comes_while_it_is_written_is_written_next() {
        let (mut checkpoint, now) = (Checkpoint::default(), Instant::now());
        let first = checkpoint.note_urgent(now);
        assert!(checkpoint.begin(now));
        checkpoint.note_ended(NodeIndex(0), now);
        assert_eq!(checkpoint.on_stored(Stored::Durable, now), Attempt { through: first, released: vec![] });
        assert!(!checkpoint.is_clean() && checkpoint.holds(NodeIndex(0)));
        assert!(checkpoint.begin(now + COLLECT));
        assert_eq!(checkpoint.on_stored(Stored::Durable, now + COLLECT).released, [NodeIndex(0)]);
    }

    #[test]
    fn a_report_is_held_until_it_is_durable_however_long_that_takes() {
        let (mut checkpoint, mut now) = (Checkpoint::default(), Instant::now());
        checkpoint.note_ended(NodeIndex(1), now);
        now += COLLECT;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            assert!(checkpoint.begin(now));
            checkpoint.on_stored(Stored::Failed, now);
            assert!(checkpoint.holds(NodeIndex(1)) && checkpoint.is_failing() && !checkpoint.is_clean());
            let since = now;
            while !checkpoint.begin(now) {
                now += Duration::from_millis(500);
            }
            checkpoint.on_stored(Stored::Failed, now);
            pauses.push((now - since).as_secs());
            now += RETRY_MAX;
        }
        assert_eq!((pauses[0], pauses[7]), (1, 30));
        assert!(checkpoint.begin(now));
        assert_eq!(checkpoint.on_stored(Stored::Durable, now).released, [NodeIndex(1)]);
        assert!(!checkpoint.is_failing());
    }

    #[test]
    fn what_somebody_waits_for_is_tried_at_once_even_after_a_failure() {
        let (mut checkpoint, now) = (Checkpoint::default(), Instant::now());
        checkpoint.note(now);
        assert!(checkpoint.begin(now + COLLECT));
        checkpoint.on_stored(Stored::Failed, now + COLLECT);
        assert!(!checkpoint.begin(now + COLLECT));
        checkpoint.note_urgent(now + COLLECT);
        assert!(checkpoint.begin(now + COLLECT));
    }
}

//! Knowledge that must outlive the server while a launch runs, and the times at which it is written down.
//!
//! ```text
//!           note             due                 stored
//! (clean) ───────> Dirty ─────────> writing ──────────────> (clean), or Dirty by what came meanwhile
//!                    ^                 └──failed: again after RETRY, each time twice as long──┐
//!                    └────────────────────────────────────────────────────────────────────────┘
//! ```
//! Every change has a number; what is stored covers the changes up to one. What waits for a change to be durable (the stream of a
//! node whose part is over, a spawned job that nodes are to be told of) goes on when that change is covered. A session keeps
//! its report until its stream ends, so what was not written yet is reported again to the next server.

use std::time::Duration;

use lattice_session::cause::Cause;
use lattice_session::ended_ranks::EndedRanks;
use lattice_session::event::{Usage, UsageRange};
use pmi_core::deaths::Death;
use pmi_core::ids::JobId;
use pmi_core::job::Placement;
use tokio::time::Instant;

use super::event::{RankEnd, SpawnAsked};

/// Time that a change waits for more.
const COLLECT: Duration = Duration::from_millis(200);
/// Pause after a failed attempt: first, and at most, each time twice as long.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Most events that a server numbers before it writes down how far it has come.
const UNWRITTEN_MAX: u64 = 1 << 40;

/// Progress of a launch that no node would report again to a server that takes the launch up.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Progressed {
    /// The nodes whose part is over.
    pub ended: Vec<u32>,
    /// The nodes that were lost.
    pub lost: Vec<u32>,
    /// One of them was lost itself, and not its part of the launch alone.
    pub has_lost_a_node: bool,
    /// Ends of ranks of jobs that are known.
    pub ends: Vec<RankEnd>,
    /// Ends of ranks of jobs that are forgotten.
    pub forgotten: EndedRanks,
    /// Ranks that others go on without.
    pub deaths: Vec<Death>,
    /// The first cause, if the launch is coming to its end.
    pub cause: Option<Cause>,
    /// Resources that the ranks of the nodes in `ended` used.
    pub usage: Option<Usage>,
    /// Those of them whose ranks used the least and the most.
    pub by_node: Option<UsageRange>,
    /// The jobs that were spawned and are not forgotten, in order.
    pub spawned: Vec<SpawnedJob>,
    /// Number of all jobs that were spawned.
    pub jobs_spawned: u32,
    /// Number of all ranks that there were.
    pub ranks_shown: u32,
    /// The number of the last event.
    pub last_event: u64,
}

impl Progressed {
    /// The number of the first event of a server that takes the launch up at this time, in seconds since 1970: greater than those of all
    /// servers before, which may have numbered more events than they had written down, and whose clock may have been ahead.
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

/// Answer to the rank that asked for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpawnOutcome {
    /// Nothing yet, or that it does not run.
    Open,
    /// All its nodes reported that it runs.
    Runs,
}

/// Contents of an attempt.
#[derive(Clone, Debug)]
pub(crate) enum Snapshot {
    /// A launch that runs, or ends.
    Running(Box<Progressed>),
    /// A launch that is over, as its completion says.
    Over,
}

/// The state of what is written down.
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
    /// Pause before the next attempt; `None` unless the last one failed.
    retry: Option<Duration>,
    /// Nodes whose part is over, each with the change that says so: their streams end when that is durable.
    ended: Vec<(u64, u32)>,
}

/// Result of an attempt to make something durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Durable,
    Failed,
}

/// Consequences of an attempt to write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// The last change that the attempt was about.
    pub through: u64,
    /// The nodes whose streams may end.
    pub released: Vec<u32>,
}

impl Checkpoint {
    /// Something changed that is to be written down soon. Returns the number of the change.
    pub(crate) fn note(&mut self, now: Instant) -> u64 {
        self.latest += 1;
        self.due.get_or_insert(now + COLLECT);
        self.latest
    }

    /// Something changed that somebody waits for to be durable. Returns the number of the change.
    pub(crate) fn note_urgent(&mut self, now: Instant) -> u64 {
        self.latest += 1;
        // After a failure, too: whoever waits is told at once that it cannot be written.
        self.due = Some(now);
        self.latest
    }

    /// A node's part is over.
    pub(crate) fn note_ended(&mut self, node: u32, now: Instant) {
        let change = self.note(now);
        self.ended.push((change, node));
    }

    /// Returns true if the node's stream must stay open, because its report is not durable yet.
    pub(crate) fn holds(&self, node: u32) -> bool {
        self.ended.iter().any(|&(_, ended)| ended == node)
    }

    /// Returns true if all that is known is durable.
    pub(crate) fn is_clean(&self) -> bool {
        self.stored == self.latest
    }

    /// Returns true if an attempt begins now; then [`Self::on_stored`] follows.
    pub(crate) fn begin(&mut self, now: Instant) -> bool {
        let begins = self.writing.is_none() && self.due.is_some_and(|due| now >= due);
        if begins {
            self.writing = Some(self.latest);
            self.due = None;
        }
        begins
    }

    /// The attempt has ended, well or not.
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
        checkpoint.note_ended(3, now + COLLECT / 2);
        assert!(!checkpoint.begin(now + COLLECT / 2) && checkpoint.holds(3));
        assert!(checkpoint.begin(now + COLLECT) && !checkpoint.begin(now + COLLECT), "one attempt at a time");
        assert_eq!(checkpoint.on_stored(Stored::Durable, now + COLLECT), Attempt { through: 2, released: vec![3] });
        assert!(checkpoint.is_clean() && !checkpoint.holds(3));
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
        checkpoint.note_ended(0, now);
        assert_eq!(checkpoint.on_stored(Stored::Durable, now), Attempt { through: first, released: vec![] });
        assert!(!checkpoint.is_clean() && checkpoint.holds(0));
        assert!(checkpoint.begin(now + COLLECT));
        assert_eq!(checkpoint.on_stored(Stored::Durable, now + COLLECT).released, [0]);
    }

    #[test]
    fn a_report_is_held_until_it_is_durable_however_long_that_takes() {
        let (mut checkpoint, mut now) = (Checkpoint::default(), Instant::now());
        checkpoint.note_ended(1, now);
        now += COLLECT;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            assert!(checkpoint.begin(now));
            checkpoint.on_stored(Stored::Failed, now);
            assert!(checkpoint.holds(1) && checkpoint.is_failing() && !checkpoint.is_clean());
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
        assert_eq!(checkpoint.on_stored(Stored::Durable, now).released, [1]);
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

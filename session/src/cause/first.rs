//! The first of the causes that nodes report. No clock is relied on: causes are told apart by what they can follow from
//! ([`Origin`]). Among causes of one origin the first one that is reported counts: an abort is reported before the connections of
//! its rank break.
//!
//! ```text
//!      one that cannot follow from another: killed, left without a word, a node lost, ...
//! None ─────────────────────────────────────────────────────────────────────────────────> Counts
//!   │                                                                                     ^   ^
//!   └──one that can: aborted, crashed, exited with an error, ...──> Held ──HOLD is over───┘   │
//!                                                                   │  ^└──one that cannot────┘
//!                                                                   └──┘  one that is likelier the first
//! ```

use std::time::Duration;

use tokio::time::Instant;

use super::{Cause, Origin};

/// Time that a cause waits for another one that it can follow from. News of what happened before it is on its way already;
/// a loaded machine needs tens of milliseconds to report it, and nobody notices them at the end of a launch.
pub const HOLD: Duration = Duration::from_millis(100);

/// The cause of a launch's end, as far as it is known.
#[derive(Debug, Default)]
pub enum FirstCause {
    /// None was reported.
    #[default]
    None,
    /// One that may follow from another, reported by `node`; the first one that was held came at `since`.
    Held {
        /// The likeliest so far.
        cause: Cause,
        /// Node that reported it.
        node: u32,
        /// Time of the first report.
        since: Instant,
    },
    /// This is it, whatever comes.
    Counts(Cause),
}

/// Result of a report of a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// The cause counts.
    Counts,
    /// The cause counts if none comes that is likelier the first.
    Held,
    /// The cause does not count.
    Follows,
}

impl FirstCause {
    /// The cause that counts.
    pub fn get(&self) -> Option<&Cause> {
        match self {
            Self::Counts(cause) => Some(cause),
            Self::None | Self::Held { .. } => None,
        }
    }

    /// Takes in a cause that a node reports.
    pub fn report(&mut self, node: u32, cause: Cause, now: Instant) -> Reported {
        let origin = cause.kind.origin();
        let since = match self {
            Self::Counts(_) => return Reported::Follows,
            Self::Held { cause: held, .. } if origin <= held.kind.origin() => return Reported::Follows,
            Self::Held { since, .. } => *since,
            Self::None => now,
        };
        if origin == Origin::Itself {
            *self = Self::Counts(cause);
            Reported::Counts
        } else {
            *self = Self::Held { cause, node, since };
            Reported::Held
        }
    }

    /// This is the cause, unless one counts already: then false.
    pub fn fail(&mut self, cause: Cause) -> bool {
        let open = self.get().is_none();
        if open {
            *self = Self::Counts(cause);
        }
        open
    }

    /// More is known of the cause that counts.
    pub fn complete(&mut self, cause: Cause) {
        *self = Self::Counts(cause);
    }

    /// No other cause is waited for any more. Returns the node whose cause counts from now on, if it was held until now.
    pub fn settle(&mut self) -> Option<u32> {
        match std::mem::take(self) {
            Self::Held { cause, node, .. } => {
                *self = Self::Counts(cause);
                Some(node)
            }
            other => {
                *self = other;
                None
            }
        }
    }

    /// The time from which a cause that is held counts; `None` if none is held.
    pub fn hold_ends(&self) -> Option<Instant> {
        match self {
            Self::Held { since, .. } => Some(*since + HOLD),
            Self::None | Self::Counts(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use pmi_core::ids::Rank;
    use rank_spawner::RankExit;

    use super::*;
    use crate::cause::CauseKind;

    fn at(host: &str, kind: CauseKind) -> Cause {
        Cause { host: host.to_owned(), kind }
    }

    fn aborted(code: i32) -> Cause {
        at("b", CauseKind::Aborted { rank: Rank(1), code, message: String::new() })
    }

    /// Codes with which MPI libraries abort when a peer is gone: Open MPI 5, MPICH 4 over TCP.
    const GIVEN_UP: [i32; 3] = [14, 741_985_807, 1_010_421_263];

    fn exited(code: i32) -> Cause {
        at("b", CauseKind::Failed { rank: Rank(1), exit: RankExit::Code(code) })
    }

    fn killed(signal: i32) -> Cause {
        at("a", CauseKind::Failed { rank: Rank(0), exit: RankExit::Signal { signal, core_dumped: false } })
    }

    fn fence() -> Cause {
        at("b", CauseKind::Fence { reason: "node a left".to_owned() })
    }

    fn lost() -> Cause {
        at("a", CauseKind::NodeLost { reason: "gone".to_owned() })
    }

    /// Node 0 reports `root`, node 1 `follows`, in both orders: what becomes of each, and that `root` is the cause.
    #[track_caller]
    fn check(root: &Cause, follows: &Cause, root_first: [Reported; 2], root_last: [Reported; 2], settled: Option<u32>) {
        let reports = [(0, root), (1, follows)];
        let now = Instant::now();
        for (order, expected) in [([0, 1], root_first), ([1, 0], root_last)] {
            let mut first = FirstCause::default();
            let became = order.map(|index| first.report(reports[index].0, reports[index].1.clone(), now));
            assert_eq!((became, first.settle()), (expected, settled), "{root:?} beside {follows:?}, {order:?}");
            assert_eq!(first.get(), Some(root), "beside {follows:?}");
        }
    }

    #[test]
    fn a_cause_beats_those_that_can_follow_from_it_in_any_order() {
        let roots = [killed(9), killed(15), at("a", CauseKind::LeftWithoutFinalize { rank: Rank(0) }), lost()];
        for root in roots {
            for follows in [aborted(42), exited(1), killed(11), fence()] {
                check(&root, &follows, [Reported::Counts, Reported::Follows], [Reported::Held, Reported::Counts], None);
            }
        }
    }

    #[test]
    fn a_crash_beats_the_abort_of_a_library_in_any_order() {
        for follows in GIVEN_UP.map(aborted).into_iter().chain([fence()]) {
            for root in [killed(11), exited(1), aborted(42)] {
                check(&root, &follows, [Reported::Held, Reported::Follows], [Reported::Held; 2], Some(0));
            }
        }
    }

    #[test]
    fn a_library_that_gives_up_alone_is_the_cause() {
        let mut first = FirstCause::default();
        assert_eq!(first.report(1, aborted(14), Instant::now()), Reported::Held);
        assert_eq!((first.settle(), first.get()), (Some(1), Some(&aborted(14))));
    }

    #[test]
    fn among_equals_the_one_that_was_reported_first_counts() {
        let (mut first, now) = (FirstCause::default(), Instant::now());
        // MPICH over UCX crashes when a peer is gone.
        let became = [first.report(1, aborted(42), now), first.report(0, killed(11), now)];
        assert_eq!(became, [Reported::Held, Reported::Follows]);
        assert_eq!(first.get(), None, "it is not passed on before it counts");
        assert_eq!((first.settle(), first.settle()), (Some(1), None));
        assert_eq!(first.get(), Some(&aborted(42)));
        assert_eq!(first.report(0, killed(9), now), Reported::Follows, "it comes too late");
    }

    #[test]
    fn what_is_seen_here_counts_at_once() {
        let mut first = FirstCause::default();
        first.report(1, aborted(42), Instant::now());
        assert!(first.fail(lost()));
        assert!(!first.fail(killed(9)));
        assert_eq!(first.get().map(|cause| cause.host.as_str()), Some("a"));
    }

    #[test]
    fn the_hold_begins_with_the_first_cause_that_is_held() {
        let (mut first, now) = (FirstCause::default(), Instant::now());
        assert_eq!(first.hold_ends(), None);
        first.report(1, aborted(14), now);
        first.report(0, killed(11), now + HOLD / 2);
        assert_eq!(first.hold_ends(), Some(now + HOLD));
        first.settle();
        assert_eq!(first.hold_ends(), None);
    }
}

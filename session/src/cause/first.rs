//! The first of the causes that nodes report. No clock decides the order. It depends on the events that a cause can follow from
//! ([`Origin`]). Among causes of one origin the first report counts: a rank's abort is reported before its connections break.
//!
//! A node can report that another node is lost. This can follow from any event that ended the session there. So such a report waits
//! for the lost node's own cause, which overrides it in either order.
//!
//! ```text
//!      a cause that cannot follow from another: killed, left without finalize, its own node lost, ...
//! None ─────────────────────────────────────────────────────────────────────────────────> Counts
//!   │                                                                                     ^   ^
//!   └──one that can: aborted, crashed, exited, another node lost ...─> Held ──HOLD is over───┘   │
//!                                                                   │  ^└──one that cannot────┘
//!                                                                   └──┘  a likelier first cause
//! ```

use std::time::Duration;

use pmi_core::ids::NodeIndex;
use tokio::time::Instant;

use super::{Cause, Origin};

/// Time that a cause is held for another cause that it can follow from. Reports of earlier events are already in transit. A loaded
/// machine needs tens of milliseconds to send them. At the end of a launch this delay is not noticeable.
pub const HOLD: Duration = Duration::from_millis(100);

/// Hold time of a cause that usually results from another one ([`Origin::Connection`], [`Subject::Another`]), and of each held cause without
/// an API server: the report of the other cause may then need a link that is not open yet, on a machine where all ranks end at once.
pub const HOLD_GIVEN_UP: Duration = Duration::from_secs(1);

/// The cause of a launch's end, as far as it is known.
#[derive(Debug, Default)]
pub enum FirstCause {
    /// No cause was reported.
    #[default]
    None,
    /// A cause that may follow from another one. The first of the held causes was reported at `since`.
    Held {
        /// The most likely first cause so far.
        cause: Cause,
        /// Node that reported it.
        node: NodeIndex,
        /// Node that the cause concerns, as seen from `node`.
        subject: Subject,
        /// Time of the first report.
        since: Instant,
    },
    /// The cause that counts, whatever is reported later.
    Counts(Cause),
}

/// Node that a cause concerns, as seen from the reporting node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// Another node. Its own report overrides this one.
    Another,
    /// The node itself.
    Itself,
}

/// Result of a report of a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// The cause counts.
    Counts,
    /// The cause counts unless a likelier first cause is reported.
    Held,
    /// The cause does not count.
    Follows,
}

impl FirstCause {
    /// Returns the cause that counts.
    pub fn get(&self) -> Option<&Cause> {
        match self {
            Self::Counts(cause) => Some(cause),
            Self::None | Self::Held { .. } => None,
        }
    }

    /// Processes a cause that a node reports.
    pub fn report(&mut self, node: NodeIndex, cause: Cause, subject: Subject, now: Instant) -> Reported {
        let since = match self {
            Self::Counts(_) => return Reported::Follows,
            Self::Held { cause: held, subject: known, since, .. } => {
                let is_likelier = match held.host == cause.host && *known != subject {
                    // The node's own report about its events is the most accurate.
                    true => subject == Subject::Itself,
                    false => (cause.kind.origin(), subject) > (held.kind.origin(), *known),
                };
                if !is_likelier {
                    return Reported::Follows;
                }
                *since
            }
            Self::None => now,
        };
        if subject == Subject::Itself && cause.kind.origin() == Origin::Itself {
            *self = Self::Counts(cause);
            Reported::Counts
        } else {
            *self = Self::Held { cause, node, subject, since };
            Reported::Held
        }
    }

    /// Sets the cause that counts. Returns false if one counts already.
    pub fn fail(&mut self, cause: Cause) -> bool {
        let open = self.get().is_none();
        if open {
            *self = Self::Counts(cause);
        }
        open
    }

    /// Replaces the cause that counts by a more complete one.
    pub fn complete(&mut self, cause: Cause) {
        *self = Self::Counts(cause);
    }

    /// Ends the hold. Returns the node of the held cause, which counts from now on; `None` if no cause was held.
    pub fn settle(&mut self) -> Option<NodeIndex> {
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

    /// Returns the time at which a held cause starts to count; `None` if no cause is held.
    pub fn hold_ends(&self) -> Option<Instant> {
        match self {
            Self::Held { since, cause, subject, .. } => Some(*since + hold(cause, *subject)),
            Self::None | Self::Counts(_) => None,
        }
    }

    /// Returns the node that reported the held cause, and the time of the first report; `None` if no cause is held.
    pub(crate) fn held(&self) -> Option<(NodeIndex, Instant)> {
        match self {
            Self::Held { node, since, .. } => Some((*node, *since)),
            Self::None | Self::Counts(_) => None,
        }
    }
}

fn hold(cause: &Cause, subject: Subject) -> Duration {
    match (cause.kind.origin(), subject) {
        (Origin::Connection, _) | (_, Subject::Another) => HOLD_GIVEN_UP,
        (Origin::Either | Origin::Itself, Subject::Itself) => HOLD,
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

    /// Reports a cause of the node itself.
    fn report(first: &mut FirstCause, node: u32, cause: Cause, now: Instant) -> Reported {
        first.report(NodeIndex(node), cause, Subject::Itself, now)
    }

    /// Node 0 reports `root`, node 1 reports `follows`, in both orders. Checks the result of each report, and that `root` is the
    /// cause.
    #[track_caller]
    fn check(root: &Cause, follows: &Cause, root_first: [Reported; 2], root_last: [Reported; 2], settled: Option<u32>) {
        let reports = [(0, root), (1, follows)];
        let now = Instant::now();
        for (order, expected) in [([0, 1], root_first), ([1, 0], root_last)] {
            let mut first = FirstCause::default();
            let became = order.map(|index| report(&mut first, reports[index].0, reports[index].1.clone(), now));
            assert_eq!(
                (became, first.settle()),
                (expected, settled.map(NodeIndex)),
                "{root:?} beside {follows:?}, {order:?}"
            );
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
        assert_eq!(report(&mut first, 1, aborted(14), Instant::now()), Reported::Held);
        assert_eq!((first.settle(), first.get()), (Some(NodeIndex(1)), Some(&aborted(14))));
    }

    #[test]
    fn among_equals_the_one_that_was_reported_first_counts() {
        let (mut first, now) = (FirstCause::default(), Instant::now());
        // MPICH over UCX crashes when a peer is gone.
        let became = [report(&mut first, 1, aborted(42), now), report(&mut first, 0, killed(11), now)];
        assert_eq!(became, [Reported::Held, Reported::Follows]);
        assert_eq!(first.get(), None, "it is not passed on before it counts");
        assert_eq!((first.settle(), first.settle()), (Some(NodeIndex(1)), None));
        assert_eq!(first.get(), Some(&aborted(42)));
        assert_eq!(report(&mut first, 0, killed(9), now), Reported::Follows, "it comes too late");
    }

    #[test]
    fn that_another_node_is_lost_follows_from_what_that_node_tells_in_any_order() {
        let now = Instant::now();
        let own = at("a", CauseKind::Failed { rank: Rank(0), exit: RankExit::Code(1) });
        let mut first = FirstCause::default();
        assert_eq!(first.report(NodeIndex(0), own.clone(), Subject::Itself, now), Reported::Held);
        assert_eq!(first.report(NodeIndex(1), lost(), Subject::Another, now), Reported::Follows);
        assert_eq!((first.settle(), first.get()), (Some(NodeIndex(0)), Some(&own)));
        let mut first = FirstCause::default();
        assert_eq!(first.report(NodeIndex(1), lost(), Subject::Another, now), Reported::Held);
        assert_eq!(
            first.report(NodeIndex(2), aborted(14), Subject::Itself, now),
            Reported::Follows,
            "its library gave up"
        );
        assert_eq!(first.report(NodeIndex(0), own.clone(), Subject::Itself, now), Reported::Held);
        assert_eq!((first.settle(), first.get()), (Some(NodeIndex(0)), Some(&own)));
    }

    #[test]
    fn that_another_node_is_lost_is_the_cause_if_that_node_tells_nothing() {
        let now = Instant::now();
        let mut first = FirstCause::default();
        report(&mut first, 1, aborted(14), now);
        assert_eq!(first.report(NodeIndex(2), lost(), Subject::Another, now), Reported::Held);
        // The agent of the node sees the end of the session later than a peer sees the end of the link.
        assert_eq!(first.hold_ends(), Some(now + HOLD_GIVEN_UP));
        assert_eq!((first.settle(), first.get()), (Some(NodeIndex(2)), Some(&lost())));
        let mut first = FirstCause::default();
        first.report(NodeIndex(2), lost(), Subject::Another, now);
        assert_eq!(report(&mut first, 0, lost(), now), Reported::Counts, "its agent says so");
    }

    #[test]
    fn what_is_seen_here_counts_at_once() {
        let mut first = FirstCause::default();
        report(&mut first, 1, aborted(42), Instant::now());
        assert!(first.fail(lost()));
        assert!(!first.fail(killed(9)));
        assert_eq!(first.get().map(|cause| cause.host.as_str()), Some("a"));
    }

    #[test]
    fn the_hold_begins_with_the_first_cause_that_is_held() {
        let (mut first, now) = (FirstCause::default(), Instant::now());
        assert_eq!(first.hold_ends(), None);
        report(&mut first, 1, aborted(42), now);
        report(&mut first, 0, killed(11), now + HOLD / 2);
        assert_eq!(first.hold_ends(), Some(now + HOLD));
        first.settle();
        assert_eq!(first.hold_ends(), None);
    }

    #[test]
    fn a_library_that_gives_up_waits_longer_until_one_comes_that_does_not() {
        let (mut first, now) = (FirstCause::default(), Instant::now());
        report(&mut first, 1, aborted(14), now);
        assert_eq!(first.hold_ends(), Some(now + HOLD_GIVEN_UP));
        report(&mut first, 0, exited(1), now + HOLD / 2);
        assert_eq!(first.hold_ends(), Some(now + HOLD));
    }
}

//! Which of the causes that nodes tell of came first.
//!
//! When a rank is gone, its peers on other nodes see their connections to it break, and give up within the same millisecond: they
//! abort, return an error, or crash over it. Which news gets here first is chance, and clocks of nodes do not settle it either: a
//! process closes its sockets before its end can be seen. So causes are told apart by whether they can follow from another one.
//! Among those that can, the first one that is heard of counts: an abort is told before the connections of its rank break.
//!
//! ```text
//!        cannot follow from another: killed, left without a word, a node lost, ...
//! none ────────────────────────────────────────────────────────────────────────────> counts
//!   └──can follow from another: aborted, exited with an error, ...──> held ──────────^
//!                                                                      └──a moment passes without one that cannot
//! ```

use std::time::Duration;

use nix::libc::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGPIPE, SIGSEGV, SIGSYS, SIGTRAP};
use pmi_transport::proto::v1::Cause;
use pmi_transport::proto::v1::cause::Kind;
use tokio::time::Instant;

use super::task::Launch;

/// How long a cause that can follow from another one waits for that one. News of what happened before it is on its way already;
/// a loaded machine needs tens of milliseconds to tell it, and nobody notices them at the end of a launch.
pub(super) const HOLD: Duration = Duration::from_millis(100);

/// The cause of a launch's end, as far as it is known.
#[derive(Debug, Default)]
pub(crate) enum FirstCause {
    #[default]
    None,
    /// One that may follow from another; `node` told of it.
    Held { cause: Cause, node: u32 },
    /// This is it, whatever comes.
    Counts(Cause),
}

/// What became of a cause that was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It counts.
    Counts,
    /// It counts if none comes from which it can follow.
    Held,
    /// It does not count.
    Follows,
}

impl FirstCause {
    /// The cause that counts.
    pub(crate) fn get(&self) -> Option<&Cause> {
        match self {
            Self::Counts(cause) => Some(cause),
            Self::None | Self::Held { .. } => None,
        }
    }

    /// A node tells of a cause.
    pub(crate) fn hear(&mut self, node: u32, cause: Cause) -> Heard {
        match self {
            Self::Counts(_) => Heard::Follows,
            _ if !can_follow(&cause) => {
                *self = Self::Counts(cause);
                Heard::Counts
            }
            Self::Held { .. } => Heard::Follows,
            Self::None => {
                *self = Self::Held { cause, node };
                Heard::Held
            }
        }
    }

    /// This is the cause, unless one counts already: then false.
    pub(crate) fn fail(&mut self, cause: Cause) -> bool {
        let open = self.get().is_none();
        if open {
            *self = Self::Counts(cause);
        }
        open
    }

    /// No more news is waited for. Returns the node whose cause counts from now on, if it was held until now.
    pub(crate) fn settle(&mut self) -> Option<u32> {
        match std::mem::take(self) {
            Self::Held { cause, node } => {
                *self = Self::Counts(cause);
                Some(node)
            }
            other => {
                *self = other;
                None
            }
        }
    }
}

/// Whether a rank, or its server, may have done this because a rank of another node was gone.
fn can_follow(cause: &Cause) -> bool {
    match &cause.kind {
        Some(Kind::Aborted(_) | Kind::Fence(_) | Kind::Offence(_)) => true,
        Some(Kind::Failed(exit)) => !exit.signaled || RAISED.contains(&exit.signal),
        _ => false,
    }
}

/// The signals by which a process ends over what it does itself. Others come from outside of it.
const RAISED: [i32; 8] = [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGPIPE, SIGSEGV, SIGSYS, SIGTRAP];

impl Launch {
    /// A node says what ends the launch there.
    pub(super) fn hear(&mut self, node: u32, cause: Cause) {
        match self.judge.hear(node, cause) {
            Heard::Counts => self.announce(Some(node)),
            // Nothing can have happened elsewhere.
            Heard::Held if self.nodes.len() == 1 => self.settle_cause(),
            Heard::Held => self.held_since = Some(Instant::now()),
            Heard::Follows => {}
        }
    }

    /// When a cause that is held counts. Not before it is known of every node whether it is lost: then that comes first.
    pub(super) fn hold_ends(&self) -> Option<Instant> {
        self.held_since.filter(|_| !self.misses_a_report()).map(|since| since + HOLD)
    }

    /// A cause that is held counts from now on.
    pub(super) fn settle_cause(&mut self) {
        self.held_since = None;
        if let Some(node) = self.judge.settle() {
            self.announce(Some(node));
        }
    }
}

#[cfg(test)]
mod tests {
    use pmi_transport::proto::v1::{Aborted, RankExitStatus};

    use super::*;

    fn at(host: &str, kind: Kind) -> Cause {
        Cause { host: host.to_owned(), kind: Some(kind) }
    }

    fn aborted() -> Cause {
        at("b", Kind::Aborted(Aborted { rank: 1, code: 14, message: String::new() }))
    }

    fn exited(exit_code: i32) -> Cause {
        at("b", Kind::Failed(RankExitStatus { rank: 1, exit_code, ..Default::default() }))
    }

    fn killed(signal: i32) -> Cause {
        at("a", Kind::Failed(RankExitStatus { signaled: true, signal, ..Default::default() }))
    }

    #[test]
    fn a_cause_beats_those_that_can_follow_from_it_in_any_order() {
        let roots =
            [killed(9), killed(15), at("a", Kind::LeftWithoutFinalize(0)), at("a", Kind::NodeLost("gone".to_owned()))];
        for root in roots {
            for follows in [aborted(), exited(1), killed(11), at("b", Kind::Fence("node a left".to_owned()))] {
                for root_first in [true, false] {
                    let mut first = FirstCause::default();
                    let heard = if root_first {
                        [first.hear(0, root.clone()), first.hear(1, follows.clone())]
                    } else {
                        [first.hear(1, follows.clone()), first.hear(0, root.clone())]
                    };
                    let expected =
                        if root_first { [Heard::Counts, Heard::Follows] } else { [Heard::Held, Heard::Counts] };
                    assert_eq!((heard, first.settle()), (expected, None));
                    assert_eq!(first.get(), Some(&root), "beside {follows:?}");
                }
            }
        }
    }

    #[test]
    fn among_equals_the_one_that_was_heard_first_counts() {
        let mut first = FirstCause::default();
        // MPICH over UCX crashes when a peer is gone.
        assert_eq!([first.hear(1, aborted()), first.hear(0, killed(11))], [Heard::Held, Heard::Follows]);
        assert_eq!(first.get(), None, "it is not told before it counts");
        assert_eq!((first.settle(), first.settle()), (Some(1), None));
        assert_eq!(first.get(), Some(&aborted()));
        assert_eq!(first.hear(0, killed(9)), Heard::Follows, "it comes too late");
    }

    #[test]
    fn what_is_seen_here_counts_at_once() {
        let mut first = FirstCause::default();
        first.hear(1, aborted());
        assert!(first.fail(at("a", Kind::NodeLost("3 heartbeats were missed".to_owned()))));
        assert!(!first.fail(killed(9)));
        assert_eq!(first.get().map(|cause| cause.host.as_str()), Some("a"));
    }
}

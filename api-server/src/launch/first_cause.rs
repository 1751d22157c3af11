//! Which of the causes that nodes tell of came first.
//!
//! When a rank is gone, its peers on other nodes see their connections to it break, and give up within the same millisecond: they
//! abort, return an error, or crash over it. Which news gets here first is chance, and clocks do not settle it, not even a common
//! one: a process closes its sockets before its end can be seen, and on a loaded node its end was seen up to 10 ms after its peers
//! had aborted. So causes are told apart by what they can be the result of ([`Origin`]), and no clock is relied on. Among causes of
//! one origin the first one that is heard of counts: an abort is told before the connections of its rank break.
//!
//! ```text
//!      one that cannot follow from another: killed, left without a word, a node lost, ...
//! none ─────────────────────────────────────────────────────────────────────────────────> counts
//!   │                                                                                     ^   ^
//!   └──one that can: aborted, crashed, exited with an error, ...──> held ──HOLD is over───┘   │
//!                                                                   │  ^└──one that cannot────┘
//!                                                                   └──┘  one that is likelier the first
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
    /// It counts if none comes that is likelier the first.
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
        let origin = Origin::of(&cause);
        match self {
            Self::Counts(_) => Heard::Follows,
            Self::Held { cause: held, .. } if origin <= Origin::of(held) => Heard::Follows,
            Self::None | Self::Held { .. } if origin == Origin::Itself => {
                *self = Self::Counts(cause);
                Heard::Counts
            }
            Self::None | Self::Held { .. } => {
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

/// What a cause may be the result of; the greater, the likelier it is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    /// Of another rank's end, as a rule: an MPI library or a server gave up over a connection.
    Connection,
    /// Of the rank's own doing, or of another rank's end.
    Either,
    /// Of no other rank's end.
    Itself,
}

impl Origin {
    fn of(cause: &Cause) -> Self {
        match &cause.kind {
            Some(Kind::Fence(_)) => Self::Connection,
            Some(Kind::Aborted(abort)) if is_of_connection(abort.code) => Self::Connection,
            Some(Kind::Aborted(_) | Kind::Offence(_)) => Self::Either,
            Some(Kind::Failed(exit)) if !exit.signaled || RAISED.contains(&exit.signal) => Self::Either,
            _ => Self::Itself,
        }
    }
}

/// Whether an MPI library aborts with this code when a connection breaks. Programs choose codes of their own, and these are
/// seldom among them; if one is, that matters only where another node tells of a failure at the same time.
fn is_of_connection(code: i32) -> bool {
    match code {
        // An error code of MPICH with the text of a specific error in its upper bits; its error class is in the lower seven.
        MPICH_SPECIFIC.. => MPICH_CLASSES.contains(&(code & 0x7f)),
        // Open MPI aborts with the error class alone.
        _ => OPEN_MPI_CLASSES.contains(&code),
    }
}

/// From here on, error codes of MPICH tell of a specific error (ERROR_SPECIFIC_INDEX in its errhan/mpir_errcodes.h).
const MPICH_SPECIFIC: i32 = 1 << 19;
/// MPI_ERR_UNKNOWN, MPI_ERR_OTHER, MPI_ERR_INTERN, MPI_ERR_PROC_ABORTED, MPIX_ERR_PROC_FAILED and _PENDING in mpi.h of MPICH.
const MPICH_CLASSES: [i32; 6] = [13, 15, 16, 76, 101, 102];
/// MPI_ERR_UNKNOWN, MPI_ERR_OTHER, MPI_ERR_INTERN, MPI_ERR_PROC_ABORTED, _FAILED and _FAILED_PENDING in mpi.h of Open MPI.
const OPEN_MPI_CLASSES: [i32; 6] = [14, 16, 17, 74, 75, 76];

/// The signals by which a process ends over what it does itself. Others come from outside of it.
const RAISED: [i32; 8] = [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGPIPE, SIGSEGV, SIGSYS, SIGTRAP];

impl Launch {
    /// A node says what ends the launch there.
    pub(super) fn hear(&mut self, node: u32, cause: Cause) {
        match self.judge.hear(node, cause) {
            Heard::Counts => self.announce(Some(node)),
            // Nothing can have happened elsewhere.
            Heard::Held if self.nodes.len() == 1 => self.settle_cause(),
            // The first one that was held began to wait.
            Heard::Held => self.held_since = self.held_since.or_else(|| Some(Instant::now())),
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

    fn aborted(code: i32) -> Cause {
        at("b", Kind::Aborted(Aborted { rank: 1, code, message: String::new() }))
    }

    /// What MPI libraries abort with when a peer is gone: Open MPI 5, MPICH 4 over TCP.
    const GIVEN_UP: [i32; 3] = [14, 741_985_807, 1_010_421_263];

    fn exited(exit_code: i32) -> Cause {
        at("b", Kind::Failed(RankExitStatus { rank: 1, exit_code, ..Default::default() }))
    }

    fn killed(signal: i32) -> Cause {
        at("a", Kind::Failed(RankExitStatus { signaled: true, signal, ..Default::default() }))
    }

    /// Node 0 tells of `root`, node 1 of `follows`, in both orders: what becomes of each, and that `root` is the cause.
    #[track_caller]
    fn check(root: &Cause, follows: &Cause, root_first: [Heard; 2], root_last: [Heard; 2], settled: Option<u32>) {
        let told = [(0, root), (1, follows)];
        for (order, expected) in [([0, 1], root_first), ([1, 0], root_last)] {
            let mut first = FirstCause::default();
            let heard = order.map(|index| first.hear(told[index].0, told[index].1.clone()));
            assert_eq!((heard, first.settle()), (expected, settled), "{root:?} beside {follows:?}, {order:?}");
            assert_eq!(first.get(), Some(root), "beside {follows:?}");
        }
    }

    #[test]
    fn a_cause_beats_those_that_can_follow_from_it_in_any_order() {
        let roots =
            [killed(9), killed(15), at("a", Kind::LeftWithoutFinalize(0)), at("a", Kind::NodeLost("gone".to_owned()))];
        for root in roots {
            for follows in [aborted(42), exited(1), killed(11), at("b", Kind::Fence("node a left".to_owned()))] {
                check(&root, &follows, [Heard::Counts, Heard::Follows], [Heard::Held, Heard::Counts], None);
            }
        }
    }

    #[test]
    fn a_crash_beats_the_abort_of_a_library_in_any_order() {
        for follows in GIVEN_UP.map(aborted).into_iter().chain([at("b", Kind::Fence("node a left".to_owned()))]) {
            for root in [killed(11), exited(1), aborted(42)] {
                check(&root, &follows, [Heard::Held, Heard::Follows], [Heard::Held; 2], Some(0));
            }
        }
    }

    #[test]
    fn a_library_that_gives_up_alone_is_the_cause() {
        let mut first = FirstCause::default();
        assert_eq!(first.hear(1, aborted(14)), Heard::Held);
        assert_eq!((first.settle(), first.get()), (Some(1), Some(&aborted(14))));
    }

    #[test]
    fn codes_of_programs_are_not_those_of_libraries() {
        let programs = [i32::MIN, -1, 0, 1, 2, 13, 15, 42, 127, 255, 271, MPICH_SPECIFIC + 6, i32::MAX - 1];
        assert_eq!(programs.map(is_of_connection), [false; 13]);
        assert_eq!(GIVEN_UP.map(is_of_connection), [true; 3]);
    }

    #[test]
    fn among_equals_the_one_that_was_heard_first_counts() {
        let mut first = FirstCause::default();
        // MPICH over UCX crashes when a peer is gone.
        assert_eq!([first.hear(1, aborted(42)), first.hear(0, killed(11))], [Heard::Held, Heard::Follows]);
        assert_eq!(first.get(), None, "it is not told before it counts");
        assert_eq!((first.settle(), first.settle()), (Some(1), None));
        assert_eq!(first.get(), Some(&aborted(42)));
        assert_eq!(first.hear(0, killed(9)), Heard::Follows, "it comes too late");
    }

    #[test]
    fn what_is_seen_here_counts_at_once() {
        let mut first = FirstCause::default();
        first.hear(1, aborted(42));
        assert!(first.fail(at("a", Kind::NodeLost("3 heartbeats were missed".to_owned()))));
        assert!(!first.fail(killed(9)));
        assert_eq!(first.get().map(|cause| cause.host.as_str()), Some("a"));
    }
}

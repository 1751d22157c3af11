//! Causes that can follow from other causes, ordered by how likely each one is the first cause.
//!
//! When a rank ends, its peers on other nodes see broken connections and give up within the same millisecond: they abort, return an
//! error or crash. Clocks do not show which event came first, not even a common clock. A process closes its sockets before its end
//! can be observed. On a loaded node, its end was observed up to 10 ms after its peers had aborted. So the order depends on the
//! events that a cause can result from, and on no clock.

use nix::libc::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGPIPE, SIGSEGV, SIGSYS, SIGTRAP};
use rank_spawner::RankExit;

use super::CauseKind;

/// Kind of event that a cause may result from. The greater value is more likely the first cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Usually another rank's end: an MPI library or a server gave up a connection.
    Connection,
    /// The rank's own action, or another rank's end.
    Either,
    /// No other rank's end.
    Itself,
}

impl CauseKind {
    /// Returns the kind of event that this cause may result from.
    pub fn origin(&self) -> Origin {
        match self {
            Self::Fence { .. } => Origin::Connection,
            Self::Aborted { code, .. } if is_of_connection(*code) => Origin::Connection,
            Self::Aborted { .. } | Self::Offence { .. } => Origin::Either,
            Self::Failed { exit: RankExit::Code(_), .. } => Origin::Either,
            Self::Failed { exit: RankExit::Signal { signal, .. }, .. } if RAISED.contains(signal) => Origin::Either,
            _ => Origin::Itself,
        }
    }
}

/// Returns true for a code with which an MPI library aborts when a connection breaks. Programs choose their own codes, and these
/// are seldom among them. If one is, it matters only if another node reports a failure at the same time.
fn is_of_connection(code: i32) -> bool {
    match code {
        // An MPICH error code: its upper bits hold the text of a specific error, its lower seven bits the error class.
        MPICH_SPECIFIC.. => MPICH_CLASSES.contains(&(code & 0x7f)),
        // Open MPI aborts with the error class alone.
        _ => OPEN_MPI_CLASSES.contains(&code),
    }
}

/// From this value on, MPICH error codes describe a specific error (ERROR_SPECIFIC_INDEX in its errhan/mpir_errcodes.h).
const MPICH_SPECIFIC: i32 = 1 << 19;
/// MPI_ERR_UNKNOWN, MPI_ERR_OTHER, MPI_ERR_INTERN, MPI_ERR_PROC_ABORTED, MPIX_ERR_PROC_FAILED and _PENDING in mpi.h of MPICH.
const MPICH_CLASSES: [i32; 6] = [13, 15, 16, 76, 101, 102];
/// MPI_ERR_UNKNOWN, MPI_ERR_OTHER, MPI_ERR_INTERN, MPI_ERR_PROC_ABORTED, _FAILED and _FAILED_PENDING in mpi.h of Open MPI.
const OPEN_MPI_CLASSES: [i32; 6] = [14, 16, 17, 74, 75, 76];

/// Signals that end a process because of its own actions. Other signals come from outside of the process.
const RAISED: [i32; 8] = [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGPIPE, SIGSEGV, SIGSYS, SIGTRAP];

#[cfg(test)]
mod tests {
    use pmi_core::ids::Rank;

    use super::*;

    const RANK: Rank = Rank(1);

    fn aborted(code: i32) -> CauseKind {
        CauseKind::Aborted { rank: RANK, code, message: String::new() }
    }

    /// Codes with which MPI libraries abort when a peer is gone: Open MPI 5, MPICH 4 over TCP.
    const GIVEN_UP: [i32; 3] = [14, 741_985_807, 1_010_421_263];

    #[test]
    fn codes_of_programs_are_not_those_of_libraries() {
        let programs = [i32::MIN, -1, 0, 1, 2, 13, 15, 42, 127, 255, 271, MPICH_SPECIFIC + 6, i32::MAX - 1];
        assert_eq!(programs.map(is_of_connection), [false; 13]);
        assert_eq!(GIVEN_UP.map(is_of_connection), [true; 3]);
    }

    #[test]
    fn causes_are_ordered_by_what_they_can_follow_from() {
        let failed = |exit| CauseKind::Failed { rank: RANK, exit };
        let killed = |signal| failed(RankExit::Signal { signal, core_dumped: false });
        let check = |kind: CauseKind, expected| assert_eq!(kind.origin(), expected, "{kind:?}");
        check(CauseKind::Fence { reason: "node a left".to_owned() }, Origin::Connection);
        GIVEN_UP.into_iter().for_each(|code| check(aborted(code), Origin::Connection));
        check(aborted(42), Origin::Either);
        check(CauseKind::Offence { rank: RANK, offence: "noise".to_owned() }, Origin::Either);
        check(failed(RankExit::Code(1)), Origin::Either);
        RAISED.into_iter().for_each(|signal| check(killed(signal), Origin::Either));
        [9, 15, 1, 2].into_iter().for_each(|signal| check(killed(signal), Origin::Itself));
        check(CauseKind::LeftWithoutFinalize { rank: RANK }, Origin::Itself);
        check(CauseKind::LeftFence { rank: RANK, waiting: Vec::new() }, Origin::Itself);
        check(CauseKind::NodeLost { reason: "gone".to_owned() }, Origin::Itself);
        check(CauseKind::Interrupted { signal: 2 }, Origin::Itself);
        assert!(Origin::Connection < Origin::Either && Origin::Either < Origin::Itself);
    }
}

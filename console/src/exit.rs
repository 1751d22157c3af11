//! Exit code of `lattice launch`. The first cause determines it.

mod codes;

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use lattice_session::cause::{Cause, CauseKind, StartClass};
use lattice_session::event::Report;
use nix::sys::signal::Signal;
use rank_spawner::{ProgramFailure, RankExit};

pub use self::codes::{ExitCode, FREQUENT, Meaning, TABLE, meanings, usual_action};

/// A probe of `lattice pmi` failed: PMI failed, or a value was wrong.
pub const PROBE_FAILED: u8 = 1;
/// `lattice doctor` or `lattice cxi` reports a fault, or an operation that could not be done.
pub const TROUBLE: u8 = 1;
/// The launch reached its time limit, or its time limit after the first exit. The code is that of `timeout`.
pub const TIMED_OUT: u8 = 124;
/// Lattice itself failed, or the request is impossible.
pub const OURS: u8 = 125;
/// The program cannot be executed.
pub const CANNOT_EXECUTE: u8 = 126;
/// The program does not exist.
pub const NOT_FOUND: u8 = 127;

/// The table of exit codes as text, for the end of `--help`.
pub fn help_text() -> String {
    let mut text = String::from("Exit codes:\n");
    for ExitCode { codes, cause, .. } in TABLE {
        text += &format!("  {codes:<8} {cause}\n");
    }
    text
}

/// Lost output of a launch. It is independent of the exits of the ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// The reader of the launcher's own output is gone.
    pub hung_up: bool,
    /// A place could not be written to.
    pub failed: bool,
}

/// Exit code of a launch: that of its first cause, otherwise that of lost output, otherwise 0.
pub fn code(cause: Option<&Cause>, losses: Losses) -> u8 {
    match (cause, losses) {
        (Some(cause), _) => of_cause(cause),
        (None, Losses { failed: true, .. }) => OURS,
        (None, Losses { hung_up: true, .. }) => by_signal(Signal::SIGPIPE as i32),
        (None, _) => 0,
    }
}

/// First cause of a launch that recovers from ranks killed by signals. These ranks do not count while another rank ends well (as in mpirun of
/// Open MPI 5.0.11 with `--with-ft ulfm`).
pub fn after_recovery(report: &Report) -> Option<Cause> {
    let cause = report.cause.as_ref()?;
    match &cause.kind {
        CauseKind::FailedRanks { failed } if report.exits.iter().any(|(_, exit)| exit.is_success()) => {
            let is_killed = |exit: &RankExit| matches!(exit, RankExit::Signal { .. });
            let failed: Vec<_> = failed.iter().filter(|(_, exit)| !is_killed(exit)).copied().collect();
            let kind = CauseKind::FailedRanks { failed: failed.clone() };
            (!failed.is_empty()).then(|| Cause { host: cause.host.clone(), kind })
        }
        _ => Some(cause.clone()),
    }
}

/// Exit code of a launch if its program cannot be started.
pub fn of_program(failure: ProgramFailure) -> u8 {
    match failure {
        ProgramFailure::NotFound => NOT_FOUND,
        ProgramFailure::CannotExecute => CANNOT_EXECUTE,
    }
}

/// Exit code of a command that the system did not execute, in the convention of a shell.
pub fn of_exec(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => CANNOT_EXECUTE,
    }
}

/// Exit code of a command that ended with `status`, in the convention of a shell.
pub fn of_status(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => low_byte(code),
        (None, Some(signal)) => by_signal(signal),
        (None, None) => OURS,
    }
}

fn of_cause(cause: &Cause) -> u8 {
    match &cause.kind {
        CauseKind::Failed { exit, .. } | CauseKind::LeftBeforeInit { exit, .. } => failed(low_byte(exit.shell_code())),
        CauseKind::LeftWithoutFinalize { .. } | CauseKind::LeftFence { .. } => 1,
        CauseKind::Offence { .. } | CauseKind::NotServed { .. } => 1,
        CauseKind::Aborted { code, .. } => failed(low_byte(*code)),
        CauseKind::NotStarted { class: StartClass::NotFound, .. } => NOT_FOUND,
        CauseKind::NotStarted { class, .. } if class.is_of_program() => CANNOT_EXECUTE,
        CauseKind::NotStarted { .. } | CauseKind::Fence { .. } => OURS,
        CauseKind::Interrupted { signal } => by_signal(*signal),
        CauseKind::Ended { .. } => by_signal(Signal::SIGTERM as i32),
        CauseKind::TimedOut { .. } | CauseKind::FirstExit { .. } => TIMED_OUT,
        CauseKind::FailedRanks { failed } => {
            let highest = failed.iter().map(|(_, exit)| low_byte(exit.shell_code())).max();
            self::failed(highest.unwrap_or_default())
        }
        // As with srun: 1 for the lost node, or the highest code of ranks on other nodes.
        CauseKind::LostNodes { failed, .. } => {
            let highest = failed.iter().map(|(_, exit)| low_byte(exit.shell_code())).max();
            self::failed(highest.unwrap_or_default())
        }
        _ => OURS,
    }
}

/// Exit code of a program. If a signal killed the program, ends this process by the same signal, so that its parent detects the signal.
pub fn like(status: ExitStatus) -> u8 {
    if let Some(signal) = status.signal() {
        // Returns only for a signal without a name, such as a real-time signal.
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
    of_status(status)
}

/// Exit code of a process that a signal ended, in the convention of a shell.
pub fn by_signal(signal: i32) -> u8 {
    low_byte(128 + signal)
}

/// Exit code of a failure, which is never 0.
fn failed(code: u8) -> u8 {
    code.max(1)
}

/// Lowest 8 bits of a code, as `exit(code)` leaves them on every Unix.
fn low_byte(code: i32) -> u8 {
    code.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pmi_core::ids::Rank;
    use rank_spawner::RankExit;

    use super::*;

    #[test]
    fn every_cause_has_its_code() {
        let check = |kind: CauseKind, expected: u8| {
            let cause = Cause { host: "node3".to_owned(), kind };
            assert_eq!(code(Some(&cause), Losses::default()), expected, "{cause}");
        };
        let rank = Rank(17);
        let killed = |signal| RankExit::Signal { signal, core_dumped: false };
        let aborted = |code| CauseKind::Aborted { rank, code, message: String::new() };
        let not_started = |class| CauseKind::NotStarted { reason: "gone".to_owned(), class };

        check(CauseKind::Failed { rank, exit: RankExit::Code(5) }, 5);
        check(CauseKind::Failed { rank, exit: RankExit::Code(255) }, 255);
        check(CauseKind::Failed { rank, exit: killed(11) }, 139);
        check(CauseKind::LeftWithoutFinalize { rank }, 1);
        check(CauseKind::LeftBeforeInit { rank, exit: RankExit::Code(0), others: vec![Rank(1)] }, 1);
        check(CauseKind::LeftBeforeInit { rank, exit: RankExit::Code(3), others: vec![Rank(1)] }, 3);
        check(CauseKind::LeftFence { rank, waiting: vec![Rank(1)] }, 1);
        check(CauseKind::Offence { rank, offence: "noise".to_owned() }, 1);
        check(aborted(7), 7);
        check(aborted(0), 1);
        check(aborted(256), 1);
        check(aborted(-1), 255);
        check(aborted(1000), 232);
        check(CauseKind::Fence { reason: "lost".to_owned() }, 125);
        check(not_started(StartClass::NotFound), 127);
        check(not_started(StartClass::CannotExecute), 126);
        check(not_started(StartClass::System), 125);
        check(CauseKind::Interrupted { signal: 2 }, 130);
        check(CauseKind::Interrupted { signal: 13 }, 141);
        check(CauseKind::Ended { who: "user 7".to_owned(), reason: String::new() }, 143);
        check(CauseKind::TimedOut { limit: Duration::from_secs(1) }, 124);
        check(CauseKind::FirstExit { rank, wait: Duration::from_secs(1) }, 124);
        let ranks = |exits: &[RankExit]| exits.iter().map(|&exit| (rank, exit)).collect();
        check(CauseKind::FailedRanks { failed: ranks(&[RankExit::Code(3), RankExit::Code(9), RankExit::Code(4)]) }, 9);
        check(CauseKind::FailedRanks { failed: ranks(&[RankExit::Code(3), killed(11)]) }, 139);
        check(CauseKind::FailedRanks { failed: ranks(&[RankExit::Code(256)]) }, 1);
        let nodes = || vec![("node3".to_owned(), "no heartbeat".to_owned())];
        check(CauseKind::LostNodes { nodes: nodes(), failed: Vec::new() }, 1);
        check(CauseKind::LostNodes { nodes: nodes(), failed: ranks(&[RankExit::Code(5)]) }, 5);
    }

    #[test]
    fn what_cannot_be_started_has_the_codes_of_a_shell() {
        assert_eq!(of_program(ProgramFailure::NotFound), 127);
        assert_eq!(of_program(ProgramFailure::CannotExecute), 126);
        assert_eq!(of_exec(&io::ErrorKind::NotFound.into()), 127);
        assert_eq!(of_exec(&io::ErrorKind::PermissionDenied.into()), 126);
        assert_eq!(of_status(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(of_status(ExitStatus::from_raw(9)), 137);
    }

    #[test]
    fn lost_output_counts_when_no_rank_failed() {
        let check = |hung_up, failed, expected| assert_eq!(code(None, Losses { hung_up, failed }), expected);
        check(false, false, 0);
        check(true, false, 141);
        check(false, true, 125);
        check(true, true, 125);
        let kind = CauseKind::Failed { rank: Rank(0), exit: RankExit::Code(3) };
        let cause = Cause { host: "node3".to_owned(), kind };
        assert_eq!(code(Some(&cause), Losses { hung_up: true, failed: true }), 3);
    }

    #[test]
    fn a_node_a_fence_or_a_protocol_that_fails_has_its_code() {
        let check = |kind: CauseKind, expected: u8| {
            let cause = Cause { host: "node3".to_owned(), kind };
            assert_eq!(code(Some(&cause), Losses::default()), expected, "{cause}");
        };
        check(CauseKind::NodeLost { reason: "no heartbeat".to_owned() }, 125);
        check(CauseKind::FenceTimeout { limit: Duration::from_secs(1), waiting: 1, missing: Vec::new() }, 125);
        check(CauseKind::NotServed { rank: Rank(0), protocol: "PMI-1".to_owned() }, 1);
        check(CauseKind::Interrupted { signal: 15 }, 143);
        check(CauseKind::Interrupted { signal: 1 }, 129);
    }

    #[test]
    fn the_help_lists_each_code_with_its_meaning() {
        let text = help_text();
        assert_eq!(text.lines().next(), Some("Exit codes:"));
        assert_eq!(text.lines().count(), 1 + TABLE.len());
        for code in [TIMED_OUT, OURS, CANNOT_EXECUTE, NOT_FOUND] {
            assert!(text.contains(&format!("\n  {code:<8} ")), "{text}");
        }
    }

    proptest::proptest! {
        /// A script that checks `$?` must not treat a failed launch as a success.
        #[test]
        fn no_failure_looks_like_success(number in proptest::num::i32::ANY, signal in 1_i32..=64, core_dumped: bool) {
            let rank = Rank(0);
            let aborted = CauseKind::Aborted { rank, code: number, message: String::new() };
            let killed = CauseKind::Failed { rank, exit: RankExit::Signal { signal, core_dumped } };
            let failed = CauseKind::Failed { rank, exit: RankExit::Code(number) };
            let early = CauseKind::LeftBeforeInit { rank, exit: RankExit::Code(number), others: vec![rank] };
            for kind in [aborted, killed, failed, early, CauseKind::Interrupted { signal }] {
                let cause = Cause { host: "node3".to_owned(), kind };
                proptest::prop_assert_ne!(code(Some(&cause), Losses::default()), 0, "{}", cause);
            }
        }

        #[test]
        fn a_rank_that_a_signal_killed_has_the_code_of_a_shell(signal in 1_i32..=64, core_dumped: bool) {
            let kind = CauseKind::Failed { rank: Rank(0), exit: RankExit::Signal { signal, core_dumped } };
            let cause = Cause { host: "node3".to_owned(), kind };
            proptest::prop_assert_eq!(i32::from(code(Some(&cause), Losses::default())), 128 + signal);
        }
    }
}

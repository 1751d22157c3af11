//! Exit of a process: status or signal.

use std::fmt;

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

/// Exit of a rank or session process; as text it follows a subject, such as "rank 3".
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum RankExit {
    /// Exit status, 0 to 255.
    Code(i32),
    /// The process was killed by a signal.
    Signal {
        /// Signal number, real-time signals included.
        signal: i32,
        /// True if the kernel wrote a core dump.
        core_dumped: bool,
    },
}

impl RankExit {
    /// Exit status in the form of a shell: the status, or 128 plus the signal number.
    pub fn shell_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal { signal, .. } => 128 + signal,
        }
    }

    /// True for status 0.
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }
}

/// `exited with status 3`; `was killed by signal 9 (SIGKILL)`, or in the [alternate form](fmt::Formatter::alternate), for several
/// ranks, `were killed by signal 9 (SIGKILL)`.
impl fmt::Display for RankExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "exited with status {code}"),
            Self::Signal { signal, core_dumped } => {
                write!(f, "{} killed by signal {signal}", if f.alternate() { "were" } else { "was" })?;
                if let Ok(known) = Signal::try_from(signal) {
                    write!(f, " ({known})")?;
                }
                f.write_str(if core_dumped { ", core dumped" } else { "" })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_in_words_and_as_shells_count() {
        let check = |exit: RankExit, words: &str, code: i32| {
            assert_eq!(exit.to_string(), words);
            assert_eq!(exit.shell_code(), code);
            assert_eq!(exit.is_success(), code == 0);
        };
        check(RankExit::Code(0), "exited with status 0", 0);
        check(RankExit::Code(3), "exited with status 3", 3);
        let dumped = RankExit::Signal { signal: 11, core_dumped: true };
        assert_eq!(format!("{dumped:#}"), "were killed by signal 11 (SIGSEGV), core dumped");
        check(dumped, "was killed by signal 11 (SIGSEGV), core dumped", 139);
        check(RankExit::Signal { signal: 9, core_dumped: false }, "was killed by signal 9 (SIGKILL)", 137);
        check(RankExit::Signal { signal: 40, core_dumped: false }, "was killed by signal 40", 168);
    }
}

//! Exit codes of `lattice-agent`: the only table, for the daemon and for its commands.

use std::process::ExitCode;

/// Exit code of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    /// 0: success; for an examination: no problem was found.
    Success,
    /// 1: the command ran, and found or left a problem.
    Findings,
    /// 125: the command or the agent could not run, as in `lattice`.
    Failure,
}

impl Exit {
    /// The code as a number.
    pub fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Findings => 1,
            Self::Failure => 125,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

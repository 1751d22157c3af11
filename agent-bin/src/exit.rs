//! Exit codes of `lattice-agent`: the one table, for the daemon and for its commands.

use std::process::ExitCode;

/// Exit code of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    /// 0: done; for an examination: nothing is wrong.
    Success,
    /// 1: the command did its work, and found or left something wrong.
    Findings,
    /// 125: the command could not be carried out, or the agent could not run, as in `lattice`.
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

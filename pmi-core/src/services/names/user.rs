//! Processes that use names.

use std::fmt;

/// Identity of a program, to recognise two launches of the same program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Program {
    /// Hash of the last part of its path.
    pub name: u64,
    /// Hash of its path and its arguments.
    pub line: u64,
}

/// A process that publishes, looks up or withdraws a name.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct NameUser {
    /// Id of its launch.
    pub launch: String,
    /// Id of its job.
    pub job: String,
    /// Its rank in the job.
    pub rank: u32,
    /// Name of its node.
    pub host: String,
    /// Its program; for a spawned process, the first program of the launch.
    pub program: Program,
}

impl NameUser {
    /// Returns true if both are the same process.
    pub fn is(&self, other: &Self) -> bool {
        self.rank == other.rank && self.job == other.job
    }
}

impl fmt::Display for NameUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { launch, job, rank, .. } = self;
        match launch.is_empty() {
            true => write!(f, "rank {rank} of job {job}"),
            false => write!(f, "rank {rank} of launch {launch}"),
        }
    }
}

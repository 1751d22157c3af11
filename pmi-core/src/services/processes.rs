//! Processes of a job's ranks on one node, as their host sees them.

use bytes::Bytes;

use crate::ids::Rank;

/// A job's processes on one node, the memory there, and the time that is left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobProcesses {
    /// Bytes of memory of the node; 0 if the host does not know.
    pub node_memory: u64,
    /// Bytes of memory that the process uses in which the ranks' server is; 0 if the host does not know.
    pub server_memory: u64,
    /// Seconds until a time limit ends the launch; `None` if it has none.
    pub seconds_left: Option<u32>,
    /// The processes that have been started, in the order of their ranks.
    pub ranks: Vec<RankProcess>,
}

/// Process of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankProcess {
    /// The rank.
    pub rank: Rank,
    /// Number of its process.
    pub pid: u32,
    /// The program.
    pub program: Bytes,
    /// State of the process.
    pub state: ProcessState,
    /// Bytes of memory that it and its descendants use; 0 for one that has ended.
    pub memory: u64,
}

/// State of a rank's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// It runs.
    Running,
    /// It ended with status 0.
    Ended,
    /// It ended with another status.
    Failed,
    /// A signal has ended it.
    Killed,
}

/// A signal that was not sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignalError {
    /// This host sends ranks no signals for each other.
    #[error("this host sends no signals for ranks")]
    Refused,
    /// There is no such signal.
    #[error("there is no signal {signal}")]
    NoSuchSignal {
        /// Number that was asked for.
        signal: i32,
    },
    /// The launch is ending.
    #[error("the launch is ending")]
    Ending,
}

//! Processes of a job's ranks on one node, as their host sees them.

use bytes::Bytes;

use crate::ids::Rank;

/// A job's processes on one node, the memory there, and the remaining time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobProcesses {
    /// Bytes of memory of the node; 0 if unknown.
    pub node_memory: u64,
    /// Bytes of memory of the process that runs the ranks' server; 0 if unknown.
    pub server_memory: u64,
    /// Seconds until a time limit ends the launch; `None` if it has none.
    pub seconds_left: Option<u32>,
    /// The started processes, in the order of their ranks.
    pub ranks: Vec<RankProcess>,
}

/// Process of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankProcess {
    /// The rank.
    pub rank: Rank,
    /// Process id.
    pub pid: u32,
    /// The program.
    pub program: Bytes,
    /// State of the process.
    pub state: ProcessState,
    /// Bytes of memory of the process and its descendants; 0 after its end.
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
    /// A signal ended it.
    Killed,
}

/// Reason why a signal was not sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignalError {
    /// This host sends no signals between ranks.
    #[error("this host sends no signals for ranks")]
    Refused,
    /// The signal does not exist.
    #[error("there is no signal {signal}")]
    NoSuchSignal {
        /// Requested number.
        signal: i32,
    },
    /// The launch is ending.
    #[error("the launch is ending")]
    Ending,
}

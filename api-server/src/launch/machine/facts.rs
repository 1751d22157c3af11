//! Fixed part of a launch: read-only to the machine.

use std::path::PathBuf;
use std::time::Duration;

use lattice_session::settings::{FailedRanks, LostNodes};
use pmi_core::ids::JobId;
use pmi_core::job::Placement;

use super::input_credit::InputWay;

/// The fixed part of a launch.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub id: String,
    pub allocation_id: String,
    /// The job that was launched; spawned ones are named after it.
    pub job: JobId,
    /// The names of its nodes, by node index.
    pub nodes: Vec<String>,
    /// The nodes of the ranks of the launched job.
    pub placement: Placement,
    /// Bytes of output that a node may send before it is granted more.
    pub output_window: u64,
    /// Bytes of input that may be under way.
    pub input_window: u64,
    /// The nodes whose ranks read the launch's input.
    pub input_readers: Vec<u32>,
    pub input_way: InputWay,
    /// The longest time that ranks have to end when they are told to.
    pub grace: Duration,
    pub failed_ranks: FailedRanks,
    pub lost_nodes: LostNodes,
    /// Time from the end of the first rank of the launched job to that of the launch.
    pub after_first_exit: Option<Duration>,
    /// Time that the launch may run; its sessions end it then.
    pub time_limit: Option<Duration>,
    /// The working directory of programs of spawned jobs that name none.
    pub directory: PathBuf,
    pub universe_size: Option<u32>,
    pub ownership: Ownership,
    pub settler: Settler,
    pub origin: Origin,
    /// Number of its nodes above which sessions gather what users want to know of them.
    pub gather_above: u32,
}

/// Tie of a launch to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// The launch ends when the client that owns it goes away without a word.
    Owned,
    /// The launch was detached when it was started, and ends by itself.
    Detached,
}

/// Party that settles events, so that nodes are granted what these cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settler {
    /// The owner, by acknowledging.
    Owner,
    /// The spool, by writing to disk.
    Spool,
    /// Nobody: events are settled as they come.
    Nobody,
}

/// The server that began a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// This one.
    Here,
    /// One that has ended: nodes have run the launch ever since.
    Resumed,
}

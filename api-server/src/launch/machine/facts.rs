//! Fixed part of a launch: read-only to the machine.

use std::path::PathBuf;
use std::time::Duration;

use crate::launch_id::LaunchId;
use lattice_session::settings::{FailedRanks, LostNodes};
use pmi_core::ids::{JobId, NodeIndex};
use pmi_core::job::Placement;

/// The fixed part of a launch.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub id: LaunchId,
    pub allocation_id: String,
    /// The launched job. Names of spawned jobs derive from its name.
    pub job: JobId,
    /// The names of its nodes, by node index.
    pub nodes: Vec<String>,
    /// The nodes of the ranks of the launched job.
    pub placement: Placement,
    /// Bytes of output that a node may send before it is granted more.
    pub output_window: u64,
    /// Largest number of bytes of input in transit.
    pub input_window: u64,
    /// The nodes with ranks that read the launch's input.
    pub input_readers: Vec<NodeIndex>,
    /// The longest grace period of ranks between the order to end and the kill.
    pub grace: Duration,
    pub failed_ranks: FailedRanks,
    pub lost_nodes: LostNodes,
    /// Time from the end of the first rank of the launched job to the end of the launch.
    pub after_first_exit: Option<Duration>,
    /// Time limit of the launch, which its sessions enforce.
    pub time_limit: Option<Duration>,
    /// The working directory of spawned programs that specify none.
    pub directory: PathBuf,
    pub universe_size: Option<u32>,
    pub ownership: Ownership,
    pub settler: Settler,
    pub origin: Origin,
    /// Number of nodes above which sessions collect the status of the launch over their tree.
    pub gather_above: u32,
}

/// Relation between a launch and a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// The launch ends if its owner disconnects without a goodbye.
    Owned,
    /// The launch was detached at its start. It needs no owner.
    Detached,
}

/// Party that settles events. Settled events give credit back to nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settler {
    /// The owner, by acknowledging events.
    Owner,
    /// The spool, by writing events to disk.
    Spool,
    /// None: events are settled at once.
    Nobody,
}

/// The server that began a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// This server.
    Here,
    /// An earlier server, which has ended. Nodes have run the launch since then.
    Resumed,
}

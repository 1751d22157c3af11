//! Updates of a running launch. They are the interface between the location of a launch and its presentation. An [`UpdateSource`] is a session
//! in this process, or an API server that reports from many nodes.

use lattice_session::event::Event;
use pmi_core::ids::NodeIndex;
use tokio::sync::mpsc;

/// An update of the presentation.
#[derive(Clone, Debug)]
pub enum Update {
    /// An event on a node of the launch.
    Event(NodeIndex, Event),
    /// Progress of the start.
    Starting(StartProgress),
    /// Number of ranks that initialize their libraries: `MPI_Init` in MPI.
    Initializing {
        /// Number of ranks in initialization.
        ranks: u32,
        /// Number of all ranks.
        of: u32,
    },
    /// A remark about the connection for updates.
    Remark(String),
    /// Number of lost bytes of output; `None` if unknown. No client was connected to receive them, or this client was too slow.
    Dropped(Option<u64>),
}

/// Numbers of started nodes and ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartProgress {
    /// Number of nodes.
    pub nodes: u32,
    /// Number of nodes on which all ranks run.
    pub nodes_started: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Number of running ranks.
    pub ranks_started: u32,
}

/// Source of updates.
pub trait UpdateSource {
    /// Returns the next update, or `None` after the last one. A call means that the writers have received all previous updates. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Option<Update>>;
}

/// Session in this process, which is the only node of the launch.
impl UpdateSource for mpsc::Receiver<Event> {
    async fn next(&mut self) -> Option<Update> {
        self.recv().await.map(|event| Update::Event(NodeIndex(0), event))
    }
}

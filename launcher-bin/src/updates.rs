//! Updates of a running launch, and the seam between where it runs and how it is shown: an [`UpdateSource`] is a session in this
//! process, or an API server that reports of many nodes.

use lattice_session::event::Event;
use pmi_core::ids::NodeIndex;
use tokio::sync::mpsc;

/// Something to show.
#[derive(Clone, Debug)]
pub(crate) enum Update {
    /// An event on one of the launch's nodes.
    Event(NodeIndex, Event),
    /// Progress of its start.
    Starting(StartProgress),
    /// Number of ranks that set up their libraries, of all: `MPI_Init` in MPI.
    Initializing {
        /// Number of ranks that do.
        ranks: u32,
        /// Number of all.
        of: u32,
    },
    /// A remark about the connection that updates come by.
    Remark(String),
    /// Number of bytes of output that are lost, `None` if it is not known: nobody was there to take them, or this client was too
    /// slow.
    Dropped(Option<u64>),
}

/// Numbers of nodes and ranks that have started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StartProgress {
    /// Number of nodes.
    pub(crate) nodes: u32,
    /// Number of nodes that run all their ranks.
    pub(crate) nodes_started: u32,
    /// Number of ranks.
    pub(crate) ranks: u32,
    /// Number of ranks that run.
    pub(crate) ranks_started: u32,
}

/// Source of updates.
pub(crate) trait UpdateSource {
    /// Returns the next update, or `None` after the last. A call means that all updates before were handed to the writers.
    /// Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Option<Update>>;
}

/// A session in this process: the launch's one node.
impl UpdateSource for mpsc::Receiver<Event> {
    async fn next(&mut self) -> Option<Update> {
        self.recv().await.map(|event| Update::Event(NodeIndex(0), event))
    }
}

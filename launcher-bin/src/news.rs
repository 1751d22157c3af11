//! What is heard of a launch while it runs, and the seam between where it runs and how it is shown: a [`NewsSource`] is a session
//! in this process, or an API server that tells of many.

use lattice_session::event::Event;
use pmi_core::ids::NodeIndex;
use tokio::sync::mpsc;

/// Something to show.
#[derive(Clone, Debug)]
pub(crate) enum News {
    /// What happened on one of the launch's nodes.
    Event(NodeIndex, Event),
    /// How far its start has come.
    Starting(StartProgress),
    /// Something about the way on which news come, in words.
    Remark(String),
    /// So many bytes of output come never, `None` if it is not known how many: nobody was there to take them, or we were too slow.
    Dropped(Option<u64>),
}

/// How many nodes and ranks have started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StartProgress {
    /// How many nodes there are.
    pub(crate) nodes: u32,
    /// How many of them run all their ranks.
    pub(crate) nodes_started: u32,
    /// How many ranks there are.
    pub(crate) ranks: u32,
    /// How many of them run.
    pub(crate) ranks_started: u32,
}

/// Where news come from.
pub(crate) trait NewsSource {
    /// The next news, or `None` when there will be none. To ask for it says that all before has been handed to the writers.
    /// Can be dropped and called again without a loss.
    fn next(&mut self) -> impl Future<Output = Option<News>>;
}

/// A session in this process: the launch's one node.
impl NewsSource for mpsc::Receiver<Event> {
    async fn next(&mut self) -> Option<News> {
        self.recv().await.map(|event| News::Event(NodeIndex(0), event))
    }
}

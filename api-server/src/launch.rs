//! One launch: a task that owns all that is known of it, and to which everything that concerns it is told as an [`Ask`].
//!
//! ```text
//!            every node accepted            a cause                every node reported, or was lost
//! Starting ───────────────────────> Active ─────────> (ending) ───────────────────────────────────> Over ──> (forgotten)
//!     └──a node refused: the others are told to end, nothing is kept─────────────────────────────────^
//!
//! agents  ──ReportLaunch──> reporting ──┐                         ┌──> outbox (one per node) ──> agents
//! clients ──AttachLaunch──> following ──┼──Ask──> Launch (task) ──┼──> journal ──> tape ──> telling (a task each) ──> clients
//! others  ──other calls─────────────────┘                         └──> store, allocations
//! ```
//! The task never waits for a node or a client: what is to be said to them is kept in places that are bounded
//! ([`outbox`], [`tape`], [`input`]), and fetched from there.

mod audience;
mod course;
pub(crate) mod fan_out;
mod first_cause;
pub(crate) mod following;
mod input;
mod inquiry;
mod journal;
mod judge;
mod nodes;
pub(crate) mod outbox;
mod over;
mod silence;
mod spawning;
pub(crate) mod spool;
mod tape;
mod task;
mod telling;

use std::sync::Arc;

use parking_lot::Mutex;
use pmi_core::ids::JobId;
use pmi_core::services::SpawnError;
use pmi_transport::proto::v1::{LaunchStatus, LaunchSummary, NodeEvent, SpawnCall, attach_request, node_command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tonic::Status;

use self::fan_out::NotStarted;
use self::following::ClientSender;
use self::outbox::Outbox;
pub(crate) use self::over::is_over;
pub(crate) use self::task::{resume, start};

/// What may wait to be told to a launch, before those who tell it have to wait.
const INBOX: usize = 1024;

/// What a launch is told, or asked.
#[derive(Debug)]
pub(crate) enum Ask {
    /// All nodes have answered the request to start.
    FannedOut(Result<(), NotStarted>),
    /// A node's report stream is there, with this number.
    Opened { node: u32, stream: u64 },
    /// Something happened on a node.
    Event { node: u32, event: NodeEvent },
    /// A node's report stream ended.
    Closed { node: u32, stream: u64 },
    /// A node is lost.
    NodeLost { node: String, reason: String },
    /// A client follows from now on, as the owner or as one more viewer; answered with its number.
    Attach { after: u64, owns: bool, client: ClientSender, reply: oneshot::Sender<Result<u64, Status>> },
    /// A client says something.
    Said { client: u64, what: attach_request::What },
    /// A client has said all that it will say, in order.
    Goodbye { client: u64 },
    /// Send a signal to ranks: all nodes get this command.
    Signal(node_command::What),
    /// Somebody wants the launch to end, for this reason.
    Abort { who: String, reason: String },
    /// How far is every rank?
    Status(oneshot::Sender<LaunchStatus>),
    /// A rank of `node` wants a new job.
    Spawn { node: u32, call: SpawnCall, reply: oneshot::Sender<Result<JobId, SpawnError>> },
    /// There are too many launches that are over: this one is kept for its owner at most.
    Forget,
}

/// How a launch is reached.
#[derive(Clone, Debug)]
pub(crate) struct LaunchHandle {
    inbox: mpsc::Sender<Ask>,
    /// By node index.
    nodes: Arc<[Outlet]>,
    summary: Arc<Mutex<LaunchSummary>>,
    /// By node index.
    parts: Arc<Mutex<Vec<Part>>>,
    /// It was begun by a server that has ended.
    resumed: bool,
    begun: Instant,
}

/// What is known outside of a launch about a node's part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// It may still run.
    Expected,
    /// It has ended.
    Ended,
    /// The node was lost to the launch: whatever runs there must end.
    Lost,
}

/// One node of a launch, from outside of it.
#[derive(Debug)]
struct Outlet {
    name: String,
    outbox: Outbox,
}

impl LaunchHandle {
    /// Tells the launch something. False when it has been forgotten.
    pub(crate) async fn tell(&self, ask: Ask) -> bool {
        self.inbox.send(ask).await.is_ok()
    }

    /// Asks the launch something; `None` when it is forgotten, or does not answer any more.
    pub(crate) async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.inbox.send(ask(reply)).await.ok()?;
        answer.await.ok()
    }

    /// The launch in short, as it is now.
    pub(crate) fn summary(&self) -> LaunchSummary {
        over::now(self.summary.lock().clone(), self.begun)
    }

    /// The index of a node in the launch.
    pub(crate) fn index_of(&self, node: &str) -> Option<u32> {
        self.nodes.iter().position(|outlet| outlet.name == node).map(|index| index as u32)
    }

    /// Whether a node's part of the launch may still run.
    pub(crate) fn runs_on(&self, node: &str) -> bool {
        let parts = self.parts.lock();
        self.index_of(node).is_some_and(|index| parts[index as usize] == Part::Expected)
    }

    /// The nodes on which a part of the launch may still run.
    pub(crate) fn runs_on_nodes(&self) -> Vec<String> {
        let parts = self.parts.lock();
        let expected = self.nodes.iter().zip(&*parts).filter(|&(_, part)| *part == Part::Expected);
        expected.map(|(outlet, _)| outlet.name.clone()).collect()
    }

    /// Whether the node of this index was lost to the launch, so that it has nothing to report any more.
    pub(crate) fn has_lost(&self, index: u32) -> bool {
        self.parts.lock().get(index as usize) == Some(&Part::Lost)
    }

    /// Whether the launch was begun by a server that has ended, so that its nodes have run it ever since.
    pub(crate) fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// The commands for a node, if the launch has one with this index and name.
    pub(crate) fn outbox(&self, index: u32, name: &str) -> Option<&Outbox> {
        self.nodes.get(index as usize).filter(|outlet| outlet.name == name).map(|outlet| &outlet.outbox)
    }
}

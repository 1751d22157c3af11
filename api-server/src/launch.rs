//! One launch: a pure [`machine`] that decides, and a [`runner`] (one task) that carries out what it decides. Everything that concerns
//! a launch is sent to its task as a [`Request`].
//!
//! ```text
//! agents  ──ReportLaunch──> services ──┐                                   ┌──> outbox (one per node) ──────> agents
//! clients ──AttachLaunch──> services ──┼──Request──> runner ──Effect──> ───┼──> event log ──> delivery (a task each) ──> clients
//! others  ──other calls────────────────┘              │  ^                 └──> store, fan_out (aborts), server
//!                                                inputs  effects
//!                                                     v  │
//!                                                    machine
//! ```
//! The task never waits for a node, a client or the disk: what they are to be sent is kept in places that are bounded ([`outbox`],
//! [`event_log`]), and fetched from there; what is to be durable is written by a task of its own.

pub(crate) mod client_message;
mod deliveries;
mod delivery;
pub(crate) mod entry;
mod event_log;
pub(crate) mod fan_out;
mod machine;
pub(crate) mod outbox;
mod relayed_reports;
pub(crate) mod report_stream;
mod runner;
pub(crate) mod settings;
pub(crate) mod spool;
pub(crate) mod summary;
pub(crate) mod surroundings;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use pmi_core::ids::JobId;
use pmi_core::services::{SpawnError, SpawnRequest};
use pmi_transport::identity::RevocationList;
use pmi_transport::signature::Serial;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use self::attachments::{Role, TooManyViewers};
use self::client_message::ClientSender;
use self::event::{ClientRequest, NodeCommand, NodeEvent, SpawnAsked};
pub(crate) use self::event_log::AllKept;
#[cfg(feature = "simulation")]
pub(crate) use self::event_log::{EventLog, Retention, Start};
use self::fan_out::NotStarted;
#[cfg(feature = "simulation")]
pub(crate) use self::machine::{Delivery, Resumed};
#[cfg(any(feature = "fuzzing", feature = "simulation"))]
pub(crate) use self::machine::{Machine, effect};
pub(crate) use self::machine::{attachments, checkpoint, event, facts, input_credit};
use self::outbox::{Attempt, Outbox};
#[cfg(feature = "simulation")]
pub(crate) use self::runner::input_readers;
pub(crate) use self::runner::{resume, start};
use self::summary::Summary;
use crate::clock::Clock;

/// The most requests that wait for a launch; with more, those who send them wait.
const INBOX: usize = 1024;

/// Everything that is sent to a launch's task.
#[derive(Debug)]
pub(crate) enum Request {
    /// All nodes have answered the request to start.
    FannedOut(Result<(), NotStarted>),
    /// A node's report stream is there, with this number.
    StreamOpened { node: u32, stream: u64, attempt: Attempt },
    /// A node says on a stream after which event it goes on, and which commands it has taken.
    Resumed { node: u32, stream: u64, after: u64, commands_taken: u64 },
    /// An event of a node has come, with its number; `None` for one that this version has no meaning for.
    Event { node: u32, sequence: u64, event: Option<NodeEvent> },
    /// A node's report stream ended.
    StreamClosed { node: u32, stream: u64 },
    /// The agent of a node is away; its part goes on.
    NodeAway { node: u32 },
    /// The agent of a node is there again.
    NodeBack { node: u32 },
    /// A node is lost.
    NodeLost { node: u32, reason: String },
    /// The agent of a node was started anew, and does not have the launch.
    AgentAnew { node: u32 },
    /// The agent of a node, heard for the first time since the server began, does not have the launch that was taken up.
    NotThere { node: u32 },
    /// A client follows from now on; answered with its number.
    Attach { after: u64, role: Role, client: ClientSender, reply: oneshot::Sender<Result<u64, TooManyViewers>> },
    /// A client asks for something.
    Client { client: u64, request: ClientRequest },
    /// A client sends no more.
    Goodbye { client: u64 },
    /// A client's end of the connection was closed without a goodbye.
    Closed { client: u64 },
    /// All nodes are to get this command, which sends a signal.
    Signal(NodeCommand),
    /// Somebody wants the launch to end, for this reason.
    Abort { who: String, reason: String },
    /// Somebody wants to know how far every rank is.
    Status(event::StatusDetail, oneshot::Sender<Arc<event::Status>>),
    /// A rank of `node` wants a new job.
    Spawn { asked: SpawnAsked, parent: JobId, rank: pmi_core::ids::Rank, request: SpawnRequest, reply: SpawnReply },
    /// There are too many launches that are over: this one is kept for its owner at most.
    Forget,
}

/// The way of the answer to a spawn.
pub(crate) type SpawnReply = oneshot::Sender<Result<JobId, SpawnError>>;

/// A launch, from outside of it.
#[derive(Clone, Debug)]
pub(crate) struct LaunchHandle {
    inbox: mpsc::Sender<Request>,
    /// By node index.
    nodes: Arc<[Outlet]>,
    /// The index of each node, by name.
    indices: Arc<HashMap<String, u32>>,
    shared: Arc<Shared>,
    /// Certificate of the caller who started it, in DER; empty for one who needed none.
    certificate: Bytes,
    origin: facts::Origin,
    /// Number under which it was signed; the least one if a server before this one did so.
    serial: Serial,
    begun: Instant,
    clock: Arc<Clock>,
}

/// State that a launch lets others see.
#[derive(Debug)]
struct Shared {
    summary: Mutex<Summary>,
    /// By node index.
    parts: Mutex<Vec<Part>>,
}

/// State of a node's part of a launch, as it is known outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The part may still run.
    Expected,
    /// The part has ended.
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
    /// Sends the launch a request. False when it has been forgotten.
    pub(crate) async fn send(&self, request: Request) -> bool {
        self.inbox.send(request).await.is_ok()
    }

    /// Sends the launch a request that is answered; `None` when it is forgotten, or does not answer any more.
    pub(crate) async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.inbox.send(request(reply)).await.ok()?;
        answer.await.ok()
    }

    /// Returns true if the certificate of the caller who started it is on this list.
    pub(crate) fn is_of_revoked(&self, list: &RevocationList) -> bool {
        list.revokes(&self.certificate)
    }

    /// The launch in short, as it is now.
    pub(crate) fn summary(&self) -> Summary {
        self.shared.summary.lock().clone().at(self.begun, self.clock.now())
    }

    /// Returns true if nothing more happens in the launch.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.summary.lock().is_over()
    }

    /// The index of a node in the launch.
    pub(crate) fn index_of(&self, node: &str) -> Option<u32> {
        self.indices.get(node).copied()
    }

    /// Returns true if a node's part of the launch may still run.
    pub(crate) fn runs_on(&self, node: &str) -> bool {
        self.index_of(node).is_some_and(|index| self.shared.parts.lock()[index as usize] == Part::Expected)
    }

    /// Returns true while the launch needs a node's session: its part may still run, or its report is not written down, and whoever
    /// takes the launch up after this server asks for it again.
    pub(crate) fn needs(&self, node: &str) -> bool {
        let Some(index) = self.index_of(node) else { return false };
        match self.shared.parts.lock()[index as usize] {
            Part::Expected => true,
            Part::Ended => self.outbox(index, node).is_some_and(|outbox| !outbox.is_closed()),
            Part::Lost => false,
        }
    }

    /// The nodes on which a part of the launch may still run.
    pub(crate) fn runs_on_nodes(&self) -> Vec<String> {
        let parts = self.shared.parts.lock();
        let expected = self.nodes.iter().zip(&*parts).filter(|&(_, part)| *part == Part::Expected);
        expected.map(|(outlet, _)| outlet.name.clone()).collect()
    }

    /// Returns true if the node of this index was lost to the launch, so that it has nothing to report any more.
    pub(crate) fn has_lost(&self, index: u32) -> bool {
        self.shared.parts.lock().get(index as usize) == Some(&Part::Lost)
    }

    /// Returns true if the launch was begun by a server that has ended, so that its nodes have run it ever since.
    pub(crate) fn is_resumed(&self) -> bool {
        self.origin == facts::Origin::Resumed
    }

    /// Returns true if it was signed under this number or before it.
    pub(crate) fn is_signed_by(&self, last: Serial) -> bool {
        self.serial <= last
    }

    /// The commands for a node, if the launch has one with this index and name.
    pub(crate) fn outbox(&self, index: u32, name: &str) -> Option<&Outbox> {
        self.nodes.get(index as usize).filter(|outlet| outlet.name == name).map(|outlet| &outlet.outbox)
    }
}

//! One launch. A pure [`machine`] makes the decisions. A [`runner`] (one task) carries them out.
//! Everything that concerns a launch is sent to its task as a [`Request`].
//!
//! ```text
//! agents  ──ReportLaunch──> services ──┐                                   ┌──> outbox (one per node) ──────> agents
//! clients ──AttachLaunch──> services ──┼──Request──> runner ──Effect──> ───┼──> event log ──> delivery (a task each) ──> clients
//! callers ──other calls────────────────┘              │  ^                 └──> store, fan_out (aborts), server
//!                                                inputs  effects
//!                                                     v  │
//!                                                    machine
//! ```
//! The task never waits for a node, a client or the disk. Outgoing data is stored in bounded buffers ([`outbox`], [`event_log`]), from
//! which other tasks read it. A separate task writes durable state.

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
use pmi_core::ids::{JobId, NodeIndex};
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
pub(crate) use self::machine::{attachments, checkpoint, event, facts};
use self::outbox::{Attempt, Outbox};
#[cfg(feature = "simulation")]
pub(crate) use self::runner::input_readers;
pub(crate) use self::runner::{resume, start};
use self::summary::Summary;
use crate::clock::Clock;

/// Capacity of a launch's request queue. With a full queue, senders wait.
const INBOX: usize = 1024;

/// A message to the task of a launch.
#[derive(Debug)]
pub(crate) enum Request {
    /// All nodes have answered the request to start.
    FannedOut(Result<(), NotStarted>),
    /// A node has opened the report stream with this number.
    StreamOpened { node: NodeIndex, stream: u64, attempt: Attempt },
    /// A node reports on a stream the number after which its events continue, and the commands that it has received.
    Resumed { node: NodeIndex, stream: u64, after: u64, commands_taken: u64 },
    /// A node has sent the event with this number; `None` if this version does not support the event.
    Event { node: NodeIndex, sequence: u64, event: Option<NodeEvent> },
    /// A node's report stream ended.
    StreamClosed { node: NodeIndex, stream: u64 },
    /// The agent of a node is offline; the node's part of the launch continues.
    NodeAway { node: NodeIndex },
    /// The agent of a node is online again.
    NodeBack { node: NodeIndex },
    /// A node is lost.
    NodeLost { node: NodeIndex, reason: String },
    /// The agent of a node was restarted, and does not have the launch.
    AgentAnew { node: NodeIndex },
    /// After a restart of the API server, the first contact with a node's agent shows that it does not have the resumed launch.
    NotThere { node: NodeIndex },
    /// A client attaches. The reply is the client's number.
    Attach { after: u64, role: Role, client: ClientSender, reply: oneshot::Sender<Result<u64, TooManyViewers>> },
    /// A client sends a request.
    Client { client: u64, request: ClientRequest },
    /// A client has ended its stream of requests.
    Goodbye { client: u64 },
    /// The client's end of the connection was closed without a goodbye.
    Closed { client: u64 },
    /// Send this command, which delivers a signal, to all nodes.
    Signal(NodeCommand),
    /// A caller other than the owner ends the launch, for this reason.
    Abort { who: String, reason: String },
    /// A caller requests the progress of every rank.
    Status(event::StatusDetail, oneshot::Sender<Arc<event::Status>>),
    /// A rank of `node` requests a new job.
    Spawn { asked: SpawnAsked, parent: JobId, rank: pmi_core::ids::Rank, request: SpawnRequest, reply: SpawnReply },
    /// Too many completed launches are in memory: this one is kept only while its owner needs it.
    Forget,
}

/// Channel for the answer to a spawn request.
pub(crate) type SpawnReply = oneshot::Sender<Result<JobId, SpawnError>>;

/// Handle to a launch, for the rest of the server.
#[derive(Clone, Debug)]
pub(crate) struct LaunchHandle {
    inbox: mpsc::Sender<Request>,
    /// By node index.
    nodes: Arc<[Outlet]>,
    /// The index of each node, by name.
    indices: Arc<HashMap<String, NodeIndex>>,
    shared: Arc<Shared>,
    /// Certificate of the caller that started the launch, in DER; empty if the caller needed none.
    certificate: Bytes,
    origin: facts::Origin,
    /// Serial number of the launch's signature; the lowest number if an earlier server signed the launch.
    serial: Serial,
    begun: Instant,
    clock: Arc<Clock>,
}

/// State of a launch that the rest of the server can read.
#[derive(Debug)]
struct Shared {
    summary: Mutex<Summary>,
    /// By node index.
    parts: Mutex<Vec<Part>>,
}

/// State of a node's part of a launch, as published to the rest of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The part may still run.
    Expected,
    /// The part has ended.
    Ended,
    /// The node is lost to the launch: all processes of the launch on it must end.
    Lost,
}

/// One node of a launch, as seen from the rest of the server.
#[derive(Debug)]
struct Outlet {
    name: String,
    outbox: Outbox,
}

impl LaunchHandle {
    /// Sends the launch a request. Returns false if the launch was removed from memory.
    pub(crate) async fn send(&self, request: Request) -> bool {
        self.inbox.send(request).await.is_ok()
    }

    /// Sends the launch a request and waits for the answer. Returns `None` if the launch was removed from memory, or no longer answers.
    pub(crate) async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.inbox.send(request(reply)).await.ok()?;
        answer.await.ok()
    }

    /// Returns true if this list revokes the certificate of the caller that started the launch.
    pub(crate) fn is_of_revoked(&self, list: &RevocationList) -> bool {
        list.revokes(&self.certificate)
    }

    /// The current summary of the launch.
    pub(crate) fn summary(&self) -> Summary {
        self.shared.summary.lock().clone().at(self.begun, self.clock.now())
    }

    /// Returns true if the launch is over.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.summary.lock().is_over()
    }

    /// The index of a node in the launch.
    pub(crate) fn index_of(&self, node: &str) -> Option<NodeIndex> {
        self.indices.get(node).copied()
    }

    /// Returns true if a node's part of the launch may still run.
    pub(crate) fn runs_on(&self, node: &str) -> bool {
        self.index_of(node).is_some_and(|index| self.shared.parts.lock()[index.index()] == Part::Expected)
    }

    /// Returns true while the launch needs a node's session. That is the case while the node's part may run, and until its report is
    /// stored: if this server ends before that, the next server requests the report again.
    pub(crate) fn needs(&self, node: &str) -> bool {
        let Some(index) = self.index_of(node) else { return false };
        match self.shared.parts.lock()[index.index()] {
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

    /// Returns true if the node of this index is lost to the launch, and can report nothing more.
    pub(crate) fn has_lost(&self, index: NodeIndex) -> bool {
        self.shared.parts.lock().get(index.index()) == Some(&Part::Lost)
    }

    /// Returns true if an earlier server began the launch, and its nodes have run it since then.
    pub(crate) fn is_resumed(&self) -> bool {
        self.origin == facts::Origin::Resumed
    }

    /// Returns true if the serial number of the launch's signature is `last` or lower.
    pub(crate) fn is_signed_by(&self, last: Serial) -> bool {
        self.serial <= last
    }

    /// The outbox of a node, if the launch has a node with this index and name.
    pub(crate) fn outbox(&self, index: NodeIndex, name: &str) -> Option<&Outbox> {
        self.nodes.get(index.index()).filter(|outlet| outlet.name == name).map(|outlet| &outlet.outbox)
    }
}

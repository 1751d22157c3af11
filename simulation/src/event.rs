//! All events in a cluster, by the part in which they happen, and the messages between its parts.

use std::fmt;

use bytes::Bytes;
use lattice_api_server::simulation::{ClientEvent, Port, Record};
use pmi_core::ids::Rank;

use crate::connection::{ConnectionId, Host, Side};
use crate::time::Time;

/// An event. Its `Debug` output omits the part, because the names of events are unique across parts.
pub(crate) enum Event {
    Connection(ConnectionEvent),
    Call { to: Host, call: Call },
    Api(ApiEvent),
    Node(NodeEvent),
    Agent(AgentEvent),
    Session(SessionEvent),
    Client(ClientTimer),
    Fault(FaultEvent),
}

#[derive(Debug)]
pub(crate) enum ConnectionEvent {
    Arrival {
        connection: ConnectionId,
        to: Side,
        message: Message,
    },
    /// A side receives the end of a connection.
    Broken {
        connection: ConnectionId,
        to: Side,
    },
}

/// Calls and their answers, which may be lost. A new job is identified by the number of its request in the surroundings.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Start { node: u32, caller: u64 },
    StartAnswer { node: u32, caller: u64, accepted: bool },
    Abort { node: u32, signal: i32 },
    Register { node: u32, agent: u64, asked: Time },
    Registered { node: u32, agent: u64, must_end: bool, asked: Time },
    Beat { node: u32, agent: u64, asked: Time },
    BeatAnswer { node: u32, agent: u64, again: bool, asked: Time },
    PortAnswer { node: u32, caller: u64, port: Port },
    Spawn { node: u32, wish: usize },
    SpawnAnswer { node: u32, wish: usize, answer: usize },
}

#[derive(Debug)]
pub(crate) enum ApiEvent {
    ApiTick { process: u64 },
    ApiWake { process: u64 },
    ApiBack,
    StartTimeout { process: u64 },
    Written { process: u64, record: Record, is_durable: bool },
}

/// An event of a host, or one that its fork server detects.
#[derive(Debug)]
pub(crate) enum NodeEvent {
    NodeBack { node: u32 },
    AgentBack { node: u32 },
    SessionGone { node: u32 },
}

#[derive(Debug)]
pub(crate) enum AgentEvent {
    Beat { node: u32, agent: u64 },
    AgentLook { node: u32, agent: u64 },
    Lease { node: u32, agent: u64 },
    OpenStream { node: u32, agent: u64 },
    FromSession { node: u32, agent: u64, bytes: Bytes },
}

/// An event of a session, or of one of its ranks. A session repeats a request for a new job until it receives an answer.
#[derive(Debug)]
pub(crate) enum SessionEvent {
    ToSession { node: u32, session: u64, agent: u64, bytes: Bytes },
    SessionWake { node: u32, session: u64, at: Time },
    SessionAlone { node: u32, session: u64, since: Time },
    OpenLink { node: u32, session: u64, to: u32, since: Time },
    Start { node: u32, session: u64, rank: Rank },
    Step { node: u32, session: u64, rank: Rank },
    ToServer { node: u32, session: u64, rank: Rank, bytes: Bytes },
    ToRank { node: u32, session: u64, rank: Rank, bytes: Bytes },
    Print { node: u32, session: u64, rank: Rank, line: Bytes },
    Signal { node: u32, session: u64, rank: Rank, signal: i32 },
    Dies { node: u32, session: u64, rank: Rank, signal: i32 },
    Reaped { node: u32, session: u64, rank: Rank },
    Swept { node: u32, session: u64 },
    Spawn { node: u32, session: u64, wish: usize },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ClientTimer {
    Attach {
        attempt: u64,
    },
    /// The client reads again.
    Read,
    /// The source provides more input.
    Give,
    Acknowledge,
}

/// An event of a fault, by the number of the fault.
#[derive(Debug)]
pub(crate) enum FaultEvent {
    Fault(usize),
    /// The fault has lasted for the keep-alive limit of connections.
    FaultLasts(#[expect(dead_code, reason = "for who reads the journal")] usize),
    FaultOver(usize),
    PauseOver(Host),
}

/// Message on a connection.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    /// A `LaunchReport`. The first one on a stream states whether there was an earlier stream.
    Open {
        again: bool,
    },
    Report(Bytes),
    /// A `NodeCommand`.
    Command(Bytes),
    /// The stream is over: in order, because it is no longer needed, or because another stream replaced it.
    StreamEnd(StreamEnd),
    /// A `LinkFrame`, from the session of this node.
    Frame {
        from: u32,
        frame: Bytes,
    },
    Attach {
        after: u64,
    },
    /// The client may follow, and may send this many bytes of input. Later messages add to the credit.
    Credit(u64),
    Input(Bytes),
    InputEnd,
    /// The API server has no record of the launch.
    Unknown,
    Tell {
        sequence: u64,
        event: ClientEvent,
    },
    Acknowledge {
        sequence: u64,
    },
    Signal {
        signal: i32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    Acknowledged,
    Replaced,
    Unwanted,
}

impl Event {
    /// The host of the event, which may be paused. `host_of` returns the host of a side of a connection.
    pub(crate) fn host(&self, host_of: impl FnOnce(ConnectionId, Side) -> Option<Host>) -> Option<Host> {
        match self {
            Self::Connection(
                ConnectionEvent::Arrival { connection, to, .. } | ConnectionEvent::Broken { connection, to },
            ) => host_of(*connection, *to),
            Self::Call { to, .. } => Some(*to),
            Self::Api(_) => Some(Host::API),
            Self::Agent(event) => Some(Host(event.agent().0)),
            Self::Session(event) => Some(Host(event.session().0)),
            Self::Node(NodeEvent::SessionGone { node }) => Some(Host(*node)),
            // Hosts and their services restart in any case, and the client never pauses.
            Self::Node(NodeEvent::NodeBack { .. } | NodeEvent::AgentBack { .. }) | Self::Client(_) | Self::Fault(_) => {
                None
            }
        }
    }

    /// Returns false for frequent events without information.
    pub(crate) fn is_noted(&self) -> bool {
        !matches!(
            self,
            Self::Api(ApiEvent::ApiTick { .. })
                | Self::Agent(AgentEvent::Beat { .. } | AgentEvent::AgentLook { .. })
                | Self::Session(SessionEvent::SessionWake { .. })
        )
    }
}

impl NodeEvent {
    pub(crate) fn node(&self) -> u32 {
        match *self {
            Self::NodeBack { node } | Self::AgentBack { node } | Self::SessionGone { node } => node,
        }
    }
}

impl AgentEvent {
    /// The node, and the process of its agent.
    pub(crate) fn agent(&self) -> (u32, u64) {
        match *self {
            Self::Beat { node, agent }
            | Self::AgentLook { node, agent }
            | Self::Lease { node, agent }
            | Self::OpenStream { node, agent }
            | Self::FromSession { node, agent, .. } => (node, agent),
        }
    }
}

impl SessionEvent {
    /// The node, and the process of its session.
    pub(crate) fn session(&self) -> (u32, u64) {
        match *self {
            Self::ToSession { node, session, .. }
            | Self::SessionWake { node, session, .. }
            | Self::SessionAlone { node, session, .. }
            | Self::OpenLink { node, session, .. }
            | Self::Start { node, session, .. }
            | Self::Step { node, session, .. }
            | Self::ToServer { node, session, .. }
            | Self::ToRank { node, session, .. }
            | Self::Print { node, session, .. }
            | Self::Signal { node, session, .. }
            | Self::Dies { node, session, .. }
            | Self::Reaped { node, session, .. }
            | Self::Spawn { node, session, .. }
            | Self::Swept { node, session } => (node, session),
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(event) => event.fmt(f),
            Self::Call { to, call } => f.debug_struct("Call").field("to", to).field("call", call).finish(),
            Self::Api(event) => event.fmt(f),
            Self::Node(event) => event.fmt(f),
            Self::Agent(event) => event.fmt(f),
            Self::Session(event) => event.fmt(f),
            Self::Client(timer) => f.debug_tuple("Client").field(timer).finish(),
            Self::Fault(event) => event.fmt(f),
        }
    }
}

impl From<ApiEvent> for Event {
    fn from(event: ApiEvent) -> Self {
        Self::Api(event)
    }
}

impl From<NodeEvent> for Event {
    fn from(event: NodeEvent) -> Self {
        Self::Node(event)
    }
}

impl From<AgentEvent> for Event {
    fn from(event: AgentEvent) -> Self {
        Self::Agent(event)
    }
}

impl From<SessionEvent> for Event {
    fn from(event: SessionEvent) -> Self {
        Self::Session(event)
    }
}

impl From<ClientTimer> for Event {
    fn from(timer: ClientTimer) -> Self {
        Self::Client(timer)
    }
}

impl From<FaultEvent> for Event {
    fn from(event: FaultEvent) -> Self {
        Self::Fault(event)
    }
}

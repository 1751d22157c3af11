//! The interface between a launch, its nodes and its clients: reports of nodes and commands to them, requests of clients and messages to them.
//! Protocol messages are decoded in [`crate::wire`], and never enter the machine.

use std::sync::Arc;
use std::time::Duration;

use crate::launch_id::LaunchId;
use bytes::Bytes;
use lattice_session::call_stacks::RankStack;
use lattice_session::cause::{Cause, RankExit};
use lattice_session::event::{Event, Notice, RankProgress, Usage, UsageRange};
use lattice_session::gathered::GatherOrder;
use lattice_session::input_piece::InputPiece;
use lattice_session::rank_ranges::RankRanges;
use lattice_session::settings::TerminalSize;
use lattice_session::spawn::SpawnOrder;
use lattice_session::wire::event::{NodeHappening, happening_cost};
use pmi_core::deaths::Death;
use pmi_core::ids::{JobId, NodeIndex, Rank};
use pmi_core::services::SpawnRequest;
use pmi_core::{DialoguePoint, Phase};

/// One message of a node's report stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NodeEvent {
    /// An event, with the programs of the ranks that it names, as far as they are known.
    Happened(NodeHappening, Programs),
    /// The node ends its part for a reason that this version does not support.
    UnknownEnding,
}

/// Programs of ranks, as absolute paths.
pub(crate) type Programs = Vec<(Rank, Bytes)>;

impl NodeEvent {
    /// An event of the node's session that names no program.
    pub(crate) fn of_session(event: Event) -> Self {
        Self::Happened(NodeHappening::Event(event), Programs::new())
    }

    /// Bytes of output credit that the event costs.
    pub(crate) fn cost(&self) -> u64 {
        match self {
            Self::Happened(happening, _) => happening_cost(happening) as u64,
            Self::UnknownEnding => 0,
        }
    }

    /// A notice to the user.
    pub(crate) fn notice(notice: Notice) -> Self {
        Self::of_session(Event::Notice(notice))
    }
}

/// End of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RankEnd {
    pub rank: Rank,
    pub exit: RankExit,
    /// State of its dialogue with its PMI server; `None` if there was no dialogue, or the state was not reported.
    pub reached: Option<DialoguePoint>,
}

impl RankEnd {
    /// Phase of its dialogue with its PMI server.
    pub(crate) fn phase(&self) -> Option<Phase> {
        self.reached.map(|reached| reached.phase)
    }

    /// Number of fences of its job that it has completed; 0 if it was not reported.
    pub(crate) fn fences(&self) -> u64 {
        self.reached.map_or(0, |reached| reached.fences)
    }
}

/// End of a rank that other ranks of its job may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    /// The rank ended without contact to its PMI server.
    Silent,
    /// The rank may have taken part in the last fence: it finalized, or its failure was tolerated.
    Left,
}

impl Departure {
    /// The kind of an end; `None` if no rank waits for a rank with such an end.
    pub(crate) fn of(end: &RankEnd) -> Option<Self> {
        match end.phase()? {
            Phase::Silent => Some(Self::Silent),
            Phase::Finalized => Some(Self::Left),
            Phase::Open => (!end.exit.is_success()).then_some(Self::Left),
        }
    }
}

/// A command for one node.
#[derive(Clone, Debug)]
pub(crate) enum NodeCommand {
    /// Send a signal to every rank.
    Signal(i32),
    /// Send a signal to some ranks.
    SignalRanks(i32, RankRanges),
    /// End in order, because of this signal.
    End(i32),
    /// End at once, because of this signal.
    Kill(i32),
    /// End because of a cause on another node or on the API server.
    GiveUp,
    /// Report the progress of all ranks, in reply to the query with this number.
    AskProgress(u64),
    /// The same, with the resource usage of the processes of each rank.
    AskUsage(u64),
    /// The same, with the call stacks of all ranks.
    AskStacks(u64),
    /// Query sessions, including the session of this node, and report their answers in reply to the query with this number.
    Gather { question: u64, order: GatherOrder },
    /// A node without ranks may end.
    Release,
    /// Report the call stacks of these ranks, as far as they run on the node.
    LookAtStacks(RankRanges),
    /// These ranks of other nodes have died, and the launch continues without them.
    Deaths(Arc<[Death]>),
    /// This node is lost to the launch: close all links to it, and open none.
    CutOff(NodeIndex),
    /// Start a part of a spawned job.
    Spawn(Arc<SpawnOrder>),
    /// End all processes of a job that did not start on all nodes.
    Disown(JobId),
    /// Release all resources of a job after the end of all its ranks.
    JobOver(JobId),
    /// Input for the ranks that read it.
    Stdin(Bytes),
    /// No input follows.
    StdinEnd,
    /// Input for the ranks of several nodes, starting with this one.
    Input(InputPiece),
    /// Set the size of the terminal of the rank that has one.
    ResizeTerminal(TerminalSize),
    /// Grant this many more bytes of output.
    OutputCredit(u64),
}

/// A request of a client on its stream.
#[derive(Clone, Debug)]
pub(crate) enum ClientRequest {
    /// The client has processed all events up to this one.
    Acknowledge(u64),
    Stdin(Bytes),
    StdinEnd,
    Signal(i32),
    End(i32),
    Kill(i32),
    /// The client's terminal has a new size.
    ResizeTerminal(TerminalSize),
    /// Attach to a launch, on a stream that is already attached.
    Attach,
}

/// The call that requested a job. A session repeats calls without an answer to the next server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpawnAsked {
    /// The node of the session.
    pub node: NodeIndex,
    /// The number of the call, as assigned by the session; 0 if there is none.
    pub call: u64,
}

/// A rank's request for a job.
#[derive(Clone, Debug)]
pub(crate) struct SpawnWish {
    /// The call of the rank's session.
    pub asked: SpawnAsked,
    /// The number of the pending answer.
    pub ticket: u64,
    pub parent: JobId,
    pub rank: Rank,
    pub request: SpawnRequest,
    /// The cores of each node of the launch; at least 1.
    pub cores: Arc<[u32]>,
}

/// An event, as sent to all clients of the launch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LogEvent {
    /// An event of a node, or a summary of events of several nodes.
    Node(NodeEvent),
    /// Nodes that did not confirm that no process of the launch is left on them.
    Unclean(Vec<String>),
    /// The end: no event follows.
    Complete(Arc<Completion>),
}

/// End of a launch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Completion {
    pub launch_id: LaunchId,
    pub allocation_id: String,
    /// The first cause; `None` for success.
    pub cause: Option<Cause>,
    /// The cause as text, with the nodes on which processes may be left.
    pub message: String,
    /// In the order of ranks, without ranks that have no reported end.
    pub ends: Vec<RankEnd>,
    pub duration: Duration,
    /// Resources that ranks used, summed over the nodes that have reported them.
    pub usage: Option<Usage>,
    /// Of these nodes, the ones with the lowest and the highest usage.
    pub by_node: Option<UsageRange>,
}

/// Summary of a launch that is not over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Overview {
    pub activity: Activity,
    pub ranks: u32,
    /// The first cause as text; empty if there is none.
    pub cause: String,
    /// The time since which the owner is stopped, in seconds since 1970; 0 while it is not.
    pub client_stopped_at: u64,
}

/// Phase of a launch that is not over, as shown to users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    Starting,
    Active,
    Ending,
}

/// Progress of all ranks.
#[derive(Clone, Debug)]
pub(crate) struct Status {
    pub nodes: Vec<NodeStatus>,
    pub cause: Option<Cause>,
    /// Resources that ranks used, summed over the nodes that have ended their part.
    pub usage: Option<Usage>,
}

/// Progress of one node's ranks.
#[derive(Clone, Debug)]
pub(crate) struct NodeStatus {
    pub node: String,
    /// The node did not answer in time: the progress is from earlier reports.
    pub silent: bool,
    /// `None` in a launch on one node, and if no session runs on the node.
    pub role: Option<SessionRole>,
    /// Each with its program, empty if unknown.
    pub ranks: Vec<(RankProgress, Bytes)>,
    /// Empty unless call stacks were requested.
    pub stacks: Vec<RankStack>,
    /// Number of its ranks that did not fit into the answer.
    pub left_out: u32,
}

/// Extent of a status of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusDetail {
    /// The progress of ranks, and the resource usage of their processes.
    Progress,
    /// The progress of ranks, and their call stacks.
    Stacks,
}

/// The first node. Events of the server itself have its index.
pub(crate) const FIRST_NODE: NodeIndex = NodeIndex(0);

/// Role of a session in its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionRole {
    /// The root of the tree of sessions.
    Shepherd,
    Lamb,
}

/// Progress of a launch's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StartProgress {
    pub nodes: u32,
    /// Nodes on which all ranks have started.
    pub nodes_started: u32,
    pub ranks: u32,
    pub ranks_started: u32,
    /// Ranks that have contacted their PMI server.
    pub ranks_initialized: u32,
}

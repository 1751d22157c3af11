//! The words between a launch and those around it: what nodes report and are told, what clients ask for and are sent. Decoded at the
//! edge ([`crate::wire`]), so that no message of a protocol gets into the machine.

use std::sync::Arc;
use std::time::Duration;

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
use pmi_core::ids::{JobId, Rank};
use pmi_core::services::SpawnRequest;
use pmi_core::{DialoguePoint, Phase};

/// One message of a node's report stream.
#[derive(Clone, Debug)]
pub(crate) enum NodeEvent {
    /// Something that happened, with the programs of the ranks that it names, where these are known.
    Happened(NodeHappening, Programs),
    /// The node ends its part for a reason that this version does not know.
    UnknownEnding,
}

/// Programs of ranks, as absolute paths.
pub(crate) type Programs = Vec<(Rank, Bytes)>;

impl NodeEvent {
    /// Something that happened in the node's session, where no program is named.
    pub(crate) fn of_session(event: Event) -> Self {
        Self::Happened(NodeHappening::Event(event), Programs::new())
    }

    /// Bytes of output credit that it costs.
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
    /// Point that its dialogue with its PMI server had reached; `None` where it had none, or that was not reported.
    pub reached: Option<DialoguePoint>,
}

impl RankEnd {
    /// Phase of its dialogue with its PMI server.
    pub(crate) fn phase(&self) -> Option<Phase> {
        self.reached.map(|reached| reached.phase)
    }

    /// Number of fences of its job that it has been through; none of one that did not report it.
    pub(crate) fn fences(&self) -> u64 {
        self.reached.map_or(0, |reached| reached.fences)
    }
}

/// End of a rank that others of its job may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    /// The rank ended without a word to its PMI server.
    Silent,
    /// The rank may have been part of the last fence: it finalized, or failed on its way, which the launch bore.
    Left,
}

impl Departure {
    /// The kind of an end; `None` for one that nobody waits for.
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
    /// End: the cause is elsewhere.
    GiveUp,
    /// Report the progress of all ranks, under this number.
    AskProgress(u64),
    /// The same, with what the processes of each rank use.
    AskUsage(u64),
    /// The same, with the call stacks of all ranks.
    AskStacks(u64),
    /// Ask sessions about their ranks, this node's among them, and report under this number what they have told.
    Gather { question: u64, order: GatherOrder },
    /// A node without ranks may end.
    Release,
    /// Report the call stacks of those of these ranks that are there.
    LookAtStacks(RankRanges),
    /// These ranks of other nodes have died, and the others go on.
    Deaths(Arc<[Death]>),
    /// This node is lost to the launch: close the links to it, and have none any more.
    CutOff(u32),
    /// Start a part of a spawned job.
    Spawn(Arc<SpawnOrder>),
    /// End what runs of a job that did not start everywhere.
    Disown(JobId),
    /// Drop what is held for a job, all of whose ranks have ended.
    JobOver(JobId),
    /// Input for the ranks that read it.
    Stdin(Bytes),
    /// No input follows.
    StdinEnd,
    /// Input for the ranks of several nodes, this one first.
    Input(InputPiece),
    /// The terminal of the rank there that has one shall have this size.
    ResizeTerminal(TerminalSize),
    /// So many bytes more of output may be sent.
    OutputCredit(u64),
}

/// A request of a client on the stream by which it follows the launch.
#[derive(Clone, Debug)]
pub(crate) enum ClientRequest {
    /// The client has dealt with everything up to this event.
    Acknowledge(u64),
    Stdin(Bytes),
    StdinEnd,
    Signal(i32),
    End(i32),
    Kill(i32),
    /// The client's terminal has this size now.
    ResizeTerminal(TerminalSize),
    /// To follow a launch, on a stream that follows one already.
    Attach,
}

/// The call by which a job was asked for. A session asks the next server again for what it has no answer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpawnAsked {
    /// The node of the session.
    pub node: u32,
    /// The number that the session gave the call; 0 is none.
    pub call: u64,
}

/// A job that a rank asks for.
#[derive(Clone, Debug)]
pub(crate) struct SpawnWish {
    /// The call of the rank's session.
    pub asked: SpawnAsked,
    /// The number under which the answer is awaited.
    pub ticket: u64,
    pub parent: JobId,
    pub rank: Rank,
    pub request: SpawnRequest,
    /// The cores of each node of the launch; at least 1.
    pub cores: Arc<[u32]>,
}

/// An event as all who follow the launch are sent it.
#[derive(Clone, Debug)]
pub(crate) enum LogEvent {
    /// Something that happened on a node, or was put together from several.
    Node(NodeEvent),
    /// Nodes that did not confirm that nothing of the launch is left on them.
    Unclean(Vec<String>),
    /// The end: nothing follows.
    Complete(Arc<Completion>),
}

/// End of a launch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Completion {
    pub launch_id: String,
    pub allocation_id: String,
    /// The first cause; `None` for success.
    pub cause: Option<Cause>,
    /// The same in words, with what is left behind.
    pub message: String,
    /// In the order of ranks; ranks of which no end was reported are missing.
    pub ends: Vec<RankEnd>,
    pub duration: Duration,
    /// Resources that the ranks of nodes used that have reported it.
    pub usage: Option<Usage>,
    /// Those of them whose ranks used the least and the most.
    pub by_node: Option<UsageRange>,
}

/// The launch in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Overview {
    pub activity: Activity,
    pub ranks: u32,
    /// The first cause in words; empty if there is none.
    pub cause: String,
    /// Since when its owner is stopped, in seconds since 1970; 0 while it is not.
    pub client_stopped_at: u64,
}

/// Phase of a launch that is not over, as users are told.
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
    /// Resources that the ranks of nodes used whose part is over.
    pub usage: Option<Usage>,
}

/// Progress of one node's ranks.
#[derive(Clone, Debug)]
pub(crate) struct NodeStatus {
    pub node: String,
    /// The node did not answer in time: this is what was known before.
    pub silent: bool,
    /// `None` if no session runs there any more, and in a launch on one node.
    pub role: Option<SessionRole>,
    /// Each with its program, empty where it is not known.
    pub ranks: Vec<(RankProgress, Bytes)>,
    /// Only if they were asked for.
    pub stacks: Vec<RankStack>,
    /// Number of its ranks that the answer had no room for.
    pub left_out: u32,
}

/// Extent of an answer about all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusDetail {
    /// Their progress, and what their processes use.
    Progress,
    /// Their progress and their call stacks.
    Stacks,
}

/// Role of a session among those of its launch.
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
    /// Nodes all of whose ranks have started.
    pub nodes_started: u32,
    pub ranks: u32,
    pub ranks_started: u32,
    /// Ranks that have spoken to their PMI server.
    pub ranks_initialized: u32,
}

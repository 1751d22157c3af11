//! What a session is connected to: all that a spec cannot carry.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use pmi_core::driver::TraceSink;
use pmi_core::fence::{Fence, LocalFence};
use pmi_core::ids::{JobId, NodeIndex};
use pmi_core::job::Job;
use pmi_core::services::Services;
use rank_spawner::{Keeper, LaunchTag};
use tokio::sync::{mpsc, oneshot};

use crate::cause::Cause;
use crate::event::Event;
use crate::fabric::NodeFabric;
use crate::rank_ranges::RankRanges;
use crate::spawn::SpawnOrder;

/// What a session is connected to.
pub struct Surroundings {
    /// The way to the launch's other nodes.
    pub nodes: Arc<dyn Nodes>,
    /// Answers what ranks ask of their launcher: names; and new jobs, if it says that it starts them. Then this node's part of each, its
    /// own ranks' children among them, is asked for by [`Control::Spawn`]; else the session starts new jobs by itself, here.
    pub services: Arc<dyn Services>,
    /// Where events go. A session whose events are not taken slows its ranks down.
    pub events: mpsc::Sender<Event>,
    /// Told of the first cause at once, ahead of events that wait for room.
    pub alarm: Option<oneshot::Sender<Cause>>,
    /// What is asked of the session. When all senders are gone, the session ends its ranks.
    pub control: mpsc::Receiver<Control>,
    /// Where the launch's standard input comes from.
    pub stdin: StdinSource,
    /// Gets every PMI message, when the user wants a trace.
    pub trace: Option<TraceSink>,
    /// By what the processes of the launch are known; its value is the spec's launch id.
    pub tag: LaunchTag,
    /// The fabric of this node of a cluster. Without one ranks inherit what an outer launcher gave.
    pub fabric: Option<NodeFabric>,
    /// Ends the launch should this process be killed. Who has one serves this launch alone and is a subreaper: every child
    /// of this process belongs to the launch.
    pub keeper: Option<Keeper>,
}

/// The way to the launch's other nodes.
#[async_trait]
pub trait Nodes: Send + Sync {
    /// The fences of one job, among the nodes that hold its ranks.
    fn fence(&self, job: &Job) -> Arc<dyn Fence>;

    /// Asks the PMI server of another node, which understands the question and whose answer this node's server understands.
    ///
    /// # Errors
    /// Fails when the node is lost, or has ended its part of the launch.
    async fn ask(&self, node: NodeIndex, question: Bytes) -> Result<Bytes, AskError>;
}

/// Why another node's server gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {node} gives no answer: {reason}")]
pub struct AskError {
    /// The node.
    pub node: NodeIndex,
    /// What was seen.
    pub reason: String,
}

/// No other nodes: the launch is on this one alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

#[async_trait]
impl Nodes for Alone {
    fn fence(&self, _: &Job) -> Arc<dyn Fence> {
        Arc::new(LocalFence)
    }

    async fn ask(&self, node: NodeIndex, _: Bytes) -> Result<Bytes, AskError> {
        Err(AskError { node, reason: "the launch has one node only".to_owned() })
    }
}

/// Where a launch's standard input comes from.
#[derive(Debug)]
pub enum StdinSource {
    /// There is none.
    Empty,
    /// A file, pipe or socket that the one reading rank can have as its own: what it does not read stays unread.
    Direct(OwnedFd),
    /// Pieces that the session passes on, as fast as the ranks read them; closed at the end of the input.
    Stream(mpsc::Receiver<Bytes>),
}

/// What a launch asks of a running session.
#[derive(Debug)]
#[non_exhaustive]
pub enum Control {
    /// Send this signal to every rank's process group.
    Signal(i32),
    /// Send this signal to the process groups of those of these ranks that are here.
    SignalRanks(i32, RankRanges),
    /// End in order because the user sent this signal: it goes to the ranks, then SIGTERM, and SIGKILL when they take too long.
    End(i32),
    /// End now: SIGKILL. Counts as ended by this signal if nothing ended the launch before.
    Kill(i32),
    /// The launch failed on another node, where its cause is: end the ranks here, and give no cause.
    GiveUp,
    /// Start this node's part of a job that a rank of the launch spawned; answered by [`Event::Spawned`].
    Spawn(SpawnOrder),
    /// The job could not be started on all its nodes: kill its ranks here, whose ends then say nothing about the launch.
    Disown(JobId),
    /// Tell how far each rank has come; answered by [`Event::Progress`] with the same number.
    AskProgress(u64),
    /// No job will be spawned here any more: a session that has no ranks, and waits for some, may end.
    Release,
    /// A question of another node's server to this one's; see [`Nodes::ask`].
    Question {
        /// The question.
        question: Bytes,
        /// Where the answer goes.
        reply: oneshot::Sender<Result<Bytes, String>>,
    },
}

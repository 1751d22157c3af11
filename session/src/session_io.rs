//! The connections of a session to its host: everything that a spec cannot contain.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use lattice_overlay::directory::Contact;
use pmi_core::deaths::Death;
use pmi_core::driver::TraceSink;
use pmi_core::fence::{Fence, LocalFence};
use pmi_core::ids::{JobId, JobIdError, NodeIndex};
use pmi_core::job::Job;
use pmi_core::services::{NoServices, Services};
use rank_spawner::{Keeper, LaunchTag, OwnCgroup, TerminalSize};
use tokio::sync::{mpsc, oneshot, watch};

use crate::call_stacks::RankStack;
use crate::cause::Cause;
use crate::event::{Event, RankProgress};
use crate::fabric::NodeFabric;
use crate::gathered::GatherDetail;
use crate::rank_ranges::RankRanges;
use crate::set::CommunicatorSource;
use crate::spawn::SpawnOrder;
use crate::spawner::RankSpawner;
use crate::spec::SessionSpec;

/// Connections of a session.
pub struct SessionIo {
    /// Connection to the launch's other nodes.
    pub nodes: Arc<dyn Nodes>,
    /// Services that ranks request from their launcher: names, and new jobs if the launcher starts them. In that case [`Control::Spawn`]
    /// orders this node's part of each job, including jobs of its own ranks. Otherwise the session starts new jobs itself, here.
    pub services: Arc<dyn Services>,
    /// Channel to the host for events. While it is full, the session does not read the ranks' output.
    pub events: mpsc::Sender<Event>,
    /// Channel to the host for the first cause, which is sent at once, ahead of events that wait for room.
    pub alarm: Option<oneshot::Sender<Cause>>,
    /// Requests to the session. When all senders are dropped, the session ends its ranks.
    pub control: mpsc::Receiver<Control>,
    /// Source of the launch's standard input.
    pub stdin: StdinSource,
    /// Sink of every PMI message, if the user wants a trace.
    pub trace: Option<TraceSink>,
    /// Mark of the launch's processes; its value is the spec's launch id.
    pub tag: LaunchTag,
    /// Fabric of this cluster node. Without one, ranks inherit the fabric of an outer launcher.
    pub fabric: Option<NodeFabric>,
    /// True if the environment of ranks also names the file with the node's topology, for libraries that cannot request it.
    pub topology_in_environment: bool,
    /// Process that ends the launch if this process is killed.
    pub keeper: Option<Keeper>,
    /// Use of this process, which decides about the ownership of its orphans.
    pub process: HostProcess,
    /// Contact of the launch's set, if the launched ranks get it by their environment.
    pub set: Option<Contact>,
    /// Source of the communicators of ranks here, for that set.
    pub communicators: CommunicatorSource,
    /// Control group with this process and all processes that it starts, except the keeper; `None` without such a group.
    pub cgroup: Option<OwnCgroup>,
    /// Method to start ranks; `None` for a [`rank_spawner::Spawner`].
    pub spawner: Option<Box<dyn RankSpawner>>,
}

impl SessionIo {
    /// Connections of a session on this node alone. Its ranks have no input, and get no names or new jobs from their launcher. Every field
    /// can be changed.
    ///
    /// # Errors
    /// Fails if the launch's id is invalid.
    pub fn on_one_node(
        spec: &SessionSpec,
        events: mpsc::Sender<Event>,
        control: mpsc::Receiver<Control>,
    ) -> Result<Self, JobIdError> {
        Ok(Self {
            nodes: Arc::new(Alone),
            services: Arc::new(NoServices),
            events,
            alarm: None,
            control,
            stdin: StdinSource::Empty,
            trace: None,
            tag: LaunchTag::new(JobId::new(&spec.launch_id)?),
            fabric: None,
            topology_in_environment: false,
            keeper: None,
            process: HostProcess::Shared,
            set: None,
            communicators: CommunicatorSource::default(),
            cgroup: None,
            spawner: None,
        })
    }
}

/// Use of the process in which a session runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostProcess {
    /// Subreaper that serves this launch alone: every child of it, except the keeper, belongs to the launch.
    Dedicated,
    /// Process with children outside of the launch. Orphans can become its children, or children of a process above it. They belong to the
    /// launch if they have its mark. So the process has one session of a launch at a time.
    Shared,
}

/// Connection to the launch's other nodes.
#[async_trait]
pub trait Nodes: Send + Sync {
    /// Returns the fences of one job, among the nodes that have its ranks.
    fn fence(&self, job: &Job) -> Arc<dyn Fence>;

    /// Ranks of a job have died, and the other ranks continue. Fences of the job are now among the nodes that have a living rank.
    fn ranks_died(&self, job: &Job, deaths: &[Death]) {
        let _ = (job, deaths);
    }

    /// All ranks of a job have ended, on all nodes: no state of the job is needed any more.
    fn job_over(&self, job: &Job) {
        let _ = job;
    }

    /// Returns the number of links that are being opened and on which this node has data to send; `None` if there never are any.
    fn opening(&self) -> Option<watch::Receiver<usize>> {
        None
    }

    /// The launch has lost a node: messages of its session are ignored from now on.
    fn cut_off(&self, node: NodeIndex) {
        let _ = node;
    }

    /// Sends a question to the PMI server of another node. Question and answer are opaque to all code except the two servers.
    ///
    /// # Errors
    /// Fails when the node is lost, or has ended its part of the launch.
    async fn ask(&self, node: NodeIndex, question: Bytes) -> Result<Bytes, AskError>;
}

/// Reason why another node's server did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {node} gives no answer: {reason}")]
pub struct AskError {
    /// Node that was asked.
    pub node: NodeIndex,
    /// Description of the observation.
    pub reason: String,
}

/// A launch on this node alone.
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

/// Source of a launch's standard input.
#[derive(Debug)]
pub enum StdinSource {
    /// No input: readers get its end at once.
    Empty,
    /// A file, pipe or socket that the single reading rank gets as its own: bytes that it does not read stay unread. Not for a terminal.
    Direct(OwnedFd),
    /// Pieces that the session passes to every reading rank; closed at the end of the input. A reader that lags by more than 64 MiB
    /// delays the input as long as it still reads. If it has not read a byte for 10 s by then, it loses its input, which
    /// [`crate::event::Notice::StdinClosed`] reports.
    Stream(mpsc::Receiver<Bytes>),
}

/// Answer of a session about its ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RanksAnswer {
    /// Every rank of this node.
    pub ranks: Vec<RankProgress>,
    /// Call stacks of the running ranks, if requested.
    pub stacks: Option<Vec<RankStack>>,
}

/// Request of a launch to a running session.
#[derive(Debug)]
#[non_exhaustive]
pub enum Control {
    /// Send this signal to every rank's process group.
    Signal(i32),
    /// Send this signal to the process groups of these ranks, as far as they are here.
    SignalRanks(i32, RankRanges),
    /// The user's terminal has this size now: give it to the rank's terminal.
    ResizeTerminal(TerminalSize),
    /// End in order because the user sent this signal. Ranks receive the signal, then SIGTERM, and SIGKILL if they take too long.
    End(i32),
    /// End now: SIGKILL. Counts as ended by this signal if there is no earlier cause.
    Kill(i32),
    /// End in order at the request of a caller other than the client that follows the launch.
    Abort {
        /// The caller, such as `user 1000`.
        who: String,
        /// Reason; may be empty.
        reason: String,
    },
    /// The launch failed on another node, which has the cause: end the ranks here, and report no cause.
    GiveUp,
    /// Start this node's part of a job that a rank of the launch spawned; answered by [`Event::Spawned`].
    Spawn(SpawnOrder),
    /// The job could not be started on all its nodes: kill its ranks here. Their exits do not count for the launch.
    Disown(JobId),
    /// All ranks of a spawned job have ended, on all nodes: no state of the job is needed any more.
    JobOver(JobId),
    /// Report the progress of each rank; answered by [`Event::Progress`] with the same number.
    AskProgress(u64),
    /// The same, with the resources that the processes of each rank use.
    AskUsage(u64),
    /// The same, with the call stacks of all running ranks; answered when these were read.
    AskStacks(u64),
    /// Other ranks wait for these ranks: report the call stacks of the ones that are here.
    LookAtStacks(RankRanges),
    /// These ranks have died, and the other ranks continue: notify the ranks here. Ranks of this node are skipped.
    Deaths(Vec<Death>),
    /// The launch has lost the node with this index: nothing is exchanged with it any more.
    CutOff(NodeIndex),
    /// No job will be spawned here any more: a session without ranks that waits for spawned jobs may end.
    Release,
    /// Send the progress of the ranks here to another session, or to this one for other sessions. Dropped without an answer if the ranks
    /// are over.
    Tell {
        /// Extent of the answer.
        detail: GatherDetail,
        /// Receiver of the answer.
        reply: oneshot::Sender<RanksAnswer>,
    },
    /// A question of another node's server to this node's server; see [`Nodes::ask`].
    Question {
        /// The question, as the other server wrote it.
        question: Bytes,
        /// Receiver of the answer.
        reply: oneshot::Sender<Result<Bytes, String>>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::spec_on;

    /// It was 28 KiB, and futures of hosts that contain it were several times larger.
    #[test]
    fn the_future_of_a_session_is_small() {
        let spec = (*spec_on(&[2])).clone();
        let (events, _happened) = mpsc::channel(1);
        let (_controls, control) = mpsc::channel(1);
        let io = SessionIo::on_one_node(&spec, events, control).unwrap();
        let input = size_of_val(&spec) + size_of_val(&io);
        let future = size_of_val(&crate::run(spec, io));
        assert!(future < 3 * input, "{future} bytes, of which {input} are its input");
    }
}

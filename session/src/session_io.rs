//! The connections of a session to its host: everything that a spec cannot carry.

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
    /// Way to the launch's other nodes.
    pub nodes: Arc<dyn Nodes>,
    /// Services that ranks ask of their launcher: names; and new jobs, if it says that it starts them. Then this node's part of each, its
    /// own ranks' children among them, is ordered by [`Control::Spawn`]; else the session starts new jobs by itself, here.
    pub services: Arc<dyn Services>,
    /// Receiver of events. While events are not taken, the ranks' output is not read.
    pub events: mpsc::Sender<Event>,
    /// Receiver of the first cause, which is sent at once, ahead of events that wait for room.
    pub alarm: Option<oneshot::Sender<Cause>>,
    /// Requests to the session. When all senders are gone, the session ends its ranks.
    pub control: mpsc::Receiver<Control>,
    /// Source of the launch's standard input.
    pub stdin: StdinSource,
    /// Receiver of every PMI message, when the user wants a trace.
    pub trace: Option<TraceSink>,
    /// Mark of the launch's processes; its value is the spec's launch id.
    pub tag: LaunchTag,
    /// Fabric of this node of a cluster. Without one, ranks inherit what an outer launcher gave.
    pub fabric: Option<NodeFabric>,
    /// True if ranks are told the file with the node's topology by their environment as well, for libraries that cannot ask.
    pub topology_in_environment: bool,
    /// Process that ends the launch should this process be killed.
    pub keeper: Option<Keeper>,
    /// Use of this process, which decides whose its orphans are.
    pub process: HostProcess,
    /// Where the launched ranks take part in the set of the launch, where that is told by their environment.
    pub set: Option<Contact>,
    /// Where that set finds the communicators that ranks here are in.
    pub communicators: CommunicatorSource,
    /// Control group that has this process and all that it starts in it, but for the keeper; where there is one.
    pub cgroup: Option<OwnCgroup>,
    /// Way in which ranks are started; `None` for a [`rank_spawner::Spawner`].
    pub spawner: Option<Box<dyn RankSpawner>>,
}

impl SessionIo {
    /// Connections of a session on this node alone, whose ranks have no input, and no names or new jobs of their launcher. Every field may
    /// be set to something else.
    ///
    /// # Errors
    /// Fails if the launch's id is none.
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
    /// Subreaper that serves this launch alone: every child of it, other than the keeper, belongs to the launch.
    Dedicated,
    /// Process with children that belong to others. Of its orphans, and of those that fell to a process above
    /// it, those belong to the launch that carry its mark: it has one session of a launch at a time.
    Shared,
}

/// Way to the launch's other nodes.
#[async_trait]
pub trait Nodes: Send + Sync {
    /// Returns the fences of one job, among the nodes that hold its ranks.
    fn fence(&self, job: &Job) -> Arc<dyn Fence>;

    /// Ranks of a job have died, and the others go on: its fences are among the nodes that have a living rank.
    fn ranks_died(&self, job: &Job, deaths: &[Death]) {
        let _ = (job, deaths);
    }

    /// All ranks of a job have ended, on all nodes: nothing of it is needed any more.
    fn job_over(&self, job: &Job) {
        let _ = job;
    }

    /// Number of links to other nodes that are being opened, over which this node has something to send; `None` if there never are any.
    fn opening(&self) -> Option<watch::Receiver<usize>> {
        None
    }

    /// A node is lost to the launch: whatever its session says from now on does not count.
    fn cut_off(&self, node: NodeIndex) {
        let _ = node;
    }

    /// Asks the PMI server of another node. Question and answer are opaque to everybody but the two servers.
    ///
    /// # Errors
    /// Fails when the node is lost, or has ended its part of the launch.
    async fn ask(&self, node: NodeIndex, question: Bytes) -> Result<Bytes, AskError>;
}

/// Reason why another node's server gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {node} gives no answer: {reason}")]
pub struct AskError {
    /// Node that was asked.
    pub node: NodeIndex,
    /// Observation, in words.
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
    /// No input: readers see its end at once.
    Empty,
    /// A file, pipe or socket that the one reading rank is given as its own: bytes that it does not read stay unread. Not for a terminal.
    Direct(OwnedFd),
    /// Pieces that the session passes on to every reading rank; closed at the end of the input. A reader that lags behind by more than
    /// 64 MiB holds the input back for as long as it still reads; one that has not read a byte for 10 s by then loses its input, which
    /// [`crate::event::Notice::StdinClosed`] reports.
    Stream(mpsc::Receiver<Bytes>),
}

/// Answer of a session about its ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Every rank of this node.
    pub ranks: Vec<RankProgress>,
    /// Call stacks of those that run, if they were asked for.
    pub stacks: Option<Vec<RankStack>>,
}

/// Request of a launch to a running session.
#[derive(Debug)]
#[non_exhaustive]
pub enum Control {
    /// Send this signal to every rank's process group.
    Signal(i32),
    /// Send this signal to the process groups of those of these ranks that are here.
    SignalRanks(i32, RankRanges),
    /// The user's terminal has this size now, and the rank's shall have it.
    ResizeTerminal(TerminalSize),
    /// End in order because the user sent this signal: it goes to the ranks, then SIGTERM, and SIGKILL when they take too long.
    End(i32),
    /// End now: SIGKILL. Counts as ended by this signal if nothing ended the launch before.
    Kill(i32),
    /// End in order because somebody other than the client that follows it had it ended, for this reason.
    Abort {
        /// Who, such as `user 1000`.
        who: String,
        /// Reason; may be empty.
        reason: String,
    },
    /// The launch failed on another node, where its cause is: end the ranks here, and give no cause.
    GiveUp,
    /// Start this node's part of a job that a rank of the launch spawned; answered by [`Event::Spawned`].
    Spawn(SpawnOrder),
    /// The job could not be started on all its nodes: kill its ranks here, whose ends then say nothing about the launch.
    Disown(JobId),
    /// All ranks of a spawned job have ended, on all nodes: nothing of it is needed any more.
    JobOver(JobId),
    /// Report the progress of each rank; answered by [`Event::Progress`] with the same number.
    AskProgress(u64),
    /// The same, with what the processes of each rank use.
    AskUsage(u64),
    /// The same, with the call stacks of all ranks that run; answered when these were looked at.
    AskStacks(u64),
    /// Others wait for those of these ranks that are here: report their call stacks.
    LookAtStacks(RankRanges),
    /// These ranks have died, and the others go on without them: tell the ranks here. Those of this node are passed over.
    Deaths(Vec<Death>),
    /// The node of this index is lost to the launch: nothing is exchanged with it any more.
    CutOff(NodeIndex),
    /// No job will be spawned here any more: a session that has no ranks, and waits for some, may end.
    Release,
    /// Another session, or this one for others, wants to know what the ranks here do; dropped without an answer if they are over.
    Tell {
        /// Extent of the answer.
        detail: GatherDetail,
        /// Receiver of the answer.
        reply: oneshot::Sender<Told>,
    },
    /// A question of another node's server to this one's; see [`Nodes::ask`].
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

    /// It has been 28 KiB, and hosts that contain it several times that.
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

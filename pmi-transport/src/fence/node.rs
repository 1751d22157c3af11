//! The fences of all launches on one node: the calls of its sessions on one side, its links on the other.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use pmi_core::fence::{Contribution, Fence, FenceError as CoreError, FenceId, Merged, Scope};
use pmi_core::ids::{Epoch, NodeIndex};
use pmi_core::kvs::Segment;
use tokio::runtime::Handle;
use tokio::time::MissedTickBehavior;
use tokio_stream::{Stream, StreamExt};
use tonic::codegen::BoxStream;
use tonic::{Code, Status};

use super::counted::Counted;
use super::links::StreamId;
use super::reach::Reach;
use super::state::{Deed, State};
use super::{AskError, FanOut, FenceError, Limits};
use crate::proto::v1::{DataReply, DataRequest, FenceKey, FenceScope, LinkFrame, data_reply, fence_scope::Kind};

/// How often it is looked who waits for whom, and what waited too long.
const TICK: Duration = Duration::from_secs(1);

/// A launch, as one of its nodes must know it.
#[derive(Clone, Debug)]
pub struct Membership {
    /// The launch's id; not empty.
    pub launch_id: String,
    /// This node.
    pub me: NodeIndex,
    /// All nodes of the launch, in order. Their names are different.
    pub nodes: Arc<[Member]>,
    /// The shape of the trees; the same on all nodes.
    pub fan_out: FanOut,
}

/// A node of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name, by which its agent proves who it is.
    pub name: String,
    /// Where its agent listens.
    pub address: String,
}

/// Answers what other nodes want to know without a fence.
#[async_trait]
pub trait Questions: Send + Sync + 'static {
    /// Answers a question of another node of the launch. The call is dropped when this node leaves the launch.
    ///
    /// # Errors
    /// Says why there is no answer; the one who asked hears it.
    async fn answer(&self, from: NodeIndex, question: Bytes) -> Result<Bytes, String>;
}

/// The fences of one node, and its links to other nodes. Dropping it closes the links.
pub struct FenceNode {
    name: String,
    reach: Arc<dyn Reach>,
    this: Weak<Self>,
    runtime: Handle,
    state: Mutex<State>,
}

impl FenceNode {
    /// The fences of the node `name`, which reaches other nodes by `reach`. Its tasks run in the tokio runtime that this is
    /// called in.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    pub fn new(name: String, reach: Arc<dyn Reach>) -> Arc<Self> {
        Self::with_limits(name, reach, Limits::default())
    }

    /// The same with other limits than usual.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    pub fn with_limits(name: String, reach: Arc<dyn Reach>, limits: Limits) -> Arc<Self> {
        let state = Mutex::new(State::new(limits));
        let runtime = Handle::current();
        Arc::new_cyclic(|this| Self { name, reach, this: this.clone(), runtime, state })
    }

    /// Takes part in a launch until the result is dropped; fences of other nodes that need this one fail then. Frames of the
    /// launch that came before are not lost.
    pub fn join(&self, membership: Membership, questions: Arc<dyn Questions>) -> LaunchFences {
        let (launch_id, me) = (membership.launch_id.clone(), membership.me);
        let nodes = membership.nodes.len() as u32;
        let own = Arc::clone(&questions);
        let join = self.change(|state| state.join(membership, questions));
        LaunchFences {
            seat: Seat { node: self.this.clone(), launch_id: launch_id.into(), join, me, nodes },
            questions: own,
        }
    }

    /// Fails every fence that the node of this name takes part in, now and later, and closes the link to it.
    pub fn lost(&self, node: &str, reason: &str) {
        self.change(|state| {
            state.post.links.cut(node);
            state.lost(node, reason, true);
        });
    }

    /// Serves a link that the agent of the node `caller` opened: reads `incoming` until it ends, and returns what is sent back.
    /// Who calls must have been proved by the transport.
    pub fn link<S>(&self, caller: &str, incoming: S) -> BoxStream<LinkFrame>
    where
        S: Stream<Item = Result<LinkFrame, Status>> + Send + Unpin + 'static,
    {
        let (id, outgoing) = self.change(|state| {
            let (id, outgoing, ends_another) = state.post.links.accept(caller);
            if ends_another {
                state.lost(caller, "its agent was started anew", false);
            }
            (id, outgoing)
        });
        self.read(caller.to_owned(), id, read(self.this.clone(), caller.to_owned(), id, incoming));
        Box::pin(outgoing.map(Ok))
    }

    /// What this node's fences have seen.
    pub fn counted(&self) -> Counted {
        self.state.lock().post.counted
    }

    /// How many nodes there is a link to.
    pub fn links(&self) -> usize {
        self.state.lock().post.links.count()
    }

    /// Changes the state, and then does what follows from that.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (result, deeds, starts_ticking) = {
            let mut state = self.state.lock();
            let result = change(&mut state);
            let starts_ticking = state.needs_ticks();
            state.is_ticking |= starts_ticking;
            (result, std::mem::take(&mut state.post.deeds), starts_ticking)
        };
        if starts_ticking {
            self.runtime.spawn(tick(self.this.clone()));
        }
        deeds.into_iter().for_each(|deed| self.execute(deed));
        result
    }

    pub(super) fn reach(&self) -> Arc<dyn Reach> {
        Arc::clone(&self.reach)
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    fn execute(&self, deed: Deed) {
        match deed {
            Deed::Open { id, name, address, outgoing } => {
                let (this, reach, peer) = (self.this.clone(), Arc::clone(&self.reach), name.clone());
                self.read(name, id, async move {
                    match reach.link(&peer, &address, outgoing).await {
                        Ok(incoming) => read(this, peer, id, incoming).await,
                        Err(status) if status.code() == Code::Unimplemented => no_link(&this, &peer, id),
                        Err(status) => {
                            let reason = format!("no link to {address}: {}", status.message());
                            end_of_link(&this, &peer, id, &reason);
                        }
                    }
                });
            }
            Deed::Answer { launch_id, from, request, questions } => {
                let answer = answer(self.this.clone(), launch_id.clone(), from, request, questions);
                self.state.lock().adopt(&launch_id, answer, &self.runtime);
            }
            Deed::Lose { name } => self.change(|state| state.lost(&name, "it does not read what it is sent", false)),
        }
    }

    /// Starts the task that reads a stream.
    fn read(&self, peer: String, id: StreamId, task: impl Future<Output = ()> + Send + 'static) {
        let reader = self.runtime.spawn(task).abort_handle();
        self.state.lock().post.links.give_reader(&peer, id, reader);
    }
}

impl std::fmt::Debug for FenceNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FenceNode").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Reads a stream to its end.
async fn read<S>(node: Weak<FenceNode>, peer: String, id: StreamId, mut incoming: S)
where
    S: Stream<Item = Result<LinkFrame, Status>> + Unpin,
{
    let reason = loop {
        match incoming.next().await {
            Some(Ok(frame)) => {
                let Some(node) = node.upgrade() else { return };
                // A kind of frame that this version does not know is none of its business.
                if let Some(what) = frame.what {
                    node.change(|state| state.on_frame(&peer, what));
                }
            }
            Some(Err(status)) => break format!("its link broke: {}", status.message()),
            None => break "it closed its link".to_owned(),
        }
    };
    end_of_link(&node, &peer, id, &reason);
}

fn end_of_link(node: &Weak<FenceNode>, peer: &str, id: StreamId, reason: &str) {
    let Some(node) = node.upgrade() else { return };
    tracing::debug!(node = node.name, peer, reason, "a link ended");
    node.change(|state| {
        if state.post.links.close(peer, id) {
            state.lost(peer, reason, false);
        }
    });
}

/// An agent of the design document has no links, and is not lost for that: it calls `PmiFence` when it is ready.
fn no_link(node: &Weak<FenceNode>, peer: &str, id: StreamId) {
    if let Some(node) = node.upgrade() {
        node.change(|state| state.post.links.close(peer, id));
    }
}

async fn tick(node: Weak<FenceNode>) {
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let Some(node) = node.upgrade() else { return };
        if !node.change(State::tick) {
            return;
        }
    }
}

async fn answer(
    node: Weak<FenceNode>,
    launch_id: String,
    from: NodeIndex,
    request: DataRequest,
    questions: Arc<dyn Questions>,
) {
    let result = match questions.answer(from, request.question).await {
        Ok(data) => data_reply::Result::Data(data),
        Err(reason) => data_reply::Result::Error(reason),
    };
    let reply = DataReply { launch_id: launch_id.clone(), request_id: request.request_id, result: Some(result) };
    if let Some(node) = node.upgrade() {
        node.change(|state| state.answer(&launch_id, from, reply));
    }
}

/// The fences of one launch on one node. Dropping it leaves the launch.
pub struct LaunchFences {
    seat: Seat,
    questions: Arc<dyn Questions>,
}

/// A node's place in a launch.
#[derive(Clone)]
struct Seat {
    node: Weak<FenceNode>,
    launch_id: Arc<str>,
    join: u64,
    me: NodeIndex,
    nodes: u32,
}

impl LaunchFences {
    /// Brings `segments` to a fence, and returns what all nodes brought, in their order. Neighbouring segments may have been
    /// joined. `members` are the nodes that hold a rank of the job, in order; a scope that names nodes has its own.
    ///
    /// When the call is dropped before its end, the fence fails on all nodes.
    ///
    /// # Errors
    /// Fails when a node is lost or gives up, when more is brought than a fence may carry, and when the call makes no sense.
    pub async fn exchange(
        &self,
        job_id: &str,
        members: &[NodeIndex],
        scope: &Scope,
        epoch: Epoch,
        segments: Vec<Bytes>,
    ) -> Result<Vec<Bytes>, FenceError> {
        self.seat.exchange(job_id, members, scope, epoch, segments).await
    }

    /// Asks another node of the launch, or this one.
    ///
    /// # Errors
    /// Fails when the node is lost or has no answer.
    pub async fn ask(&self, node: NodeIndex, question: Bytes) -> Result<Bytes, AskError> {
        if node == self.seat.me {
            let answer = self.questions.answer(node, question).await;
            return answer.map_err(|reason| AskError::Refused { node, reason });
        }
        self.seat.ask(node, question).await
    }

    /// Waits until every question of other nodes that has come is answered. Who leaves a launch calls it before, once [`Questions`]
    /// keeps none waiting any more: an answer that is not on its way when the launch is left never goes out.
    pub async fn last_answers(&self) {
        let answering = self.seat.change(|state| state.take_answering(&self.seat.launch_id, self.seat.join));
        answering.unwrap_or_default().join_all().await;
    }

    /// The fences of one job of the launch, whose ranks are on `members`; they fail once this is dropped.
    pub fn fence_of(&self, job_id: &str, members: Arc<[NodeIndex]>) -> Arc<dyn Fence> {
        Arc::new(JobFence { seat: self.seat.clone(), job_id: job_id.to_owned(), members })
    }

    /// How many nodes the launch has.
    pub fn nodes(&self) -> u32 {
        self.seat.nodes
    }
}

impl Drop for LaunchFences {
    fn drop(&mut self) {
        let seat = &self.seat;
        seat.change(|state| state.leave(&seat.launch_id, seat.join));
    }
}

impl Seat {
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> Option<T> {
        self.node.upgrade().map(|node| node.change(change))
    }

    async fn exchange(
        &self,
        job_id: &str,
        members: &[NodeIndex],
        scope: &Scope,
        epoch: Epoch,
        segments: Vec<Bytes>,
    ) -> Result<Vec<Bytes>, FenceError> {
        let (kind, name, members) = match scope {
            Scope::World => (Kind::World, "", members),
            Scope::Ring => (Kind::Ring, "", members),
            Scope::Group { name, nodes } => (Kind::Group, &**name, &**nodes),
            Scope::Foreign { name, nodes } => (Kind::Foreign, &**name, &**nodes),
            // `Scope` may grow.
            _ => return Err(FenceError::Members { epoch }),
        };
        let scope = FenceScope { kind: kind.into(), name: name.to_owned(), node_gaps: Vec::new() };
        let (launch_id, job_id) = (self.launch_id.to_string(), job_id.to_owned());
        let key = FenceKey { launch_id, job_id, scope: Some(scope), epoch: epoch.0, members: 0 };
        let ended = FenceError::LaunchEnded { epoch };
        let begun = self.change(|state| state.begin((&self.launch_id, self.join), key, members, segments));
        let (key, result) = begun.ok_or_else(|| ended.clone())??;
        let give_up = OnDrop::new(|| {
            self.change(|state| state.give_up(&self.launch_id, self.join, &key));
        });
        let result = result.await;
        give_up.disarm();
        result.unwrap_or(Err(ended))
    }

    async fn ask(&self, node: NodeIndex, question: Bytes) -> Result<Bytes, AskError> {
        let asked = self.change(|state| state.ask((&self.launch_id, self.join), node, question));
        let (request, answer) = asked.ok_or(AskError::LaunchEnded)??;
        let withdraw = OnDrop::new(|| {
            self.change(|state| state.withdraw(&self.launch_id, request));
        });
        let answer = answer.await;
        withdraw.disarm();
        answer.unwrap_or(Err(AskError::LaunchEnded))
    }
}

/// Does something when a call is dropped before its end.
struct OnDrop<F: FnMut()> {
    act: F,
    is_armed: bool,
}

impl<F: FnMut()> OnDrop<F> {
    fn new(act: F) -> Self {
        Self { act, is_armed: true }
    }

    fn disarm(mut self) {
        self.is_armed = false;
    }
}

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if self.is_armed {
            (self.act)();
        }
    }
}

/// The fences of one job, for a server that runs in the agent's process.
struct JobFence {
    seat: Seat,
    job_id: String,
    members: Arc<[NodeIndex]>,
}

#[async_trait]
impl Fence for JobFence {
    async fn exchange(&self, id: &FenceId, contribution: Contribution) -> Result<Merged, CoreError> {
        let FenceId { scope, epoch } = id;
        let segments = contribution.segments.into_iter().map(Segment::into_bytes).collect();
        let runs = self.seat.exchange(&self.job_id, &self.members, scope, *epoch, segments).await?;
        let decode = |run| {
            Segment::decode(run).map_err(|error| CoreError::BadSegment { epoch: *epoch, reason: error.to_string() })
        };
        Ok(Merged { segments: runs.into_iter().map(decode).collect::<Result<_, _>>()? })
    }
}

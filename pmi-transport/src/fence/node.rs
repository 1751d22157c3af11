//! Fences of all launches on one node, at run time: one lock around their state, and the tasks that read links, tick, and prepare answers. The
//! state makes all decisions. A task passes it one input at a time.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_stream::{Stream, StreamExt};
use tonic::codegen::BoxStream;
use tonic::{Code, Status};

use super::Limits;
use super::counters::Counters;
use super::effects::{FenceResult, NodeQuestion, Question};
use super::fence_call::FenceCall;
use super::launch::Loss;
use super::link_queue::Outgoing;
use super::links::{Accepted, StreamEnd, StreamId};
use super::membership::{MembershipId, Questions};
use super::outbound::Effect;
use super::state::State;
use super::transport::Transport;
use crate::proto::v1::LinkFrame;

/// Interval of checks for calls that wait too long; one tick of [`Limits`].
const TICK: Duration = Duration::from_secs(1);

/// Fences of one node, and its links to other nodes. Dropping it closes the links.
pub struct FenceNode {
    name: String,
    transport: Arc<dyn Transport>,
    this: Weak<Self>,
    runtime: Handle,
    state: Mutex<State>,
    /// Number of links that are being opened.
    opening: watch::Sender<usize>,
}

impl FenceNode {
    /// Fences of the node `name`, which reaches other nodes through `transport`. Its tasks run in the current tokio runtime.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    pub fn new(name: String, transport: Arc<dyn Transport>) -> Arc<Self> {
        Self::with_limits(name, transport, Limits::default())
    }

    /// The same with other limits than the default.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    pub fn with_limits(name: String, transport: Arc<dyn Transport>, limits: Limits) -> Arc<Self> {
        let state = Mutex::new(State::new(limits));
        let runtime = Handle::current();
        let opening = watch::Sender::new(0);
        Arc::new_cyclic(|this| Self { name, transport, this: this.clone(), runtime, state, opening })
    }

    /// Fails all current and later fences of the named node, and closes the link to it.
    pub fn lost(&self, node: &str, reason: &str) {
        self.update(|state| {
            state.outbound.links.cut(node);
            state.lost(node, reason, Loss::Node);
        });
    }

    /// Serves a link that the agent of the node `caller` opened: reads `incoming` until it ends, and returns the frames to send back. The
    /// transport must have proved the caller's name.
    pub fn link<S>(&self, caller: &str, incoming: S) -> BoxStream<LinkFrame>
    where
        S: Stream<Item = Result<LinkFrame, Status>> + Send + Unpin + 'static,
    {
        Box::pin(self.accept(caller, incoming).map(Ok))
    }

    /// The same, but returns the frames in the form that a transport sends.
    pub fn accept<S>(&self, caller: &str, incoming: S) -> Outgoing
    where
        S: Stream<Item = Result<LinkFrame, Status>> + Send + Unpin + 'static,
    {
        let Accepted { id, outgoing, .. } = self.update(|state| {
            let accepted = state.outbound.links.accept(caller);
            if accepted.replaces_link {
                state.lost(caller, "its agent was started anew", Loss::Link);
            }
            accepted
        });
        self.spawn_reader(caller.to_owned(), id, read(self.this.clone(), caller.to_owned(), id, incoming));
        outgoing
    }

    /// Counters of this node's fences since its creation.
    pub fn counters(&self) -> Counters {
        self.state.lock().outbound.counters
    }

    /// Number of nodes with a link to this node.
    pub fn links(&self) -> usize {
        self.state.lock().outbound.links.count()
    }

    /// Number of links that are being opened. Each has queued frames that its node waits for, and that no other process sends.
    pub fn opening(&self) -> watch::Receiver<usize> {
        self.opening.subscribe()
    }

    /// Applies an input to the state, and then executes its effects. The caller may hold a lock that the ends of fences need, so a task
    /// delivers the ends.
    pub(super) fn update<T>(&self, input: impl FnOnce(&mut State) -> T) -> T {
        self.apply(input, |call, result| {
            self.runtime.spawn(async move { call.end(result) });
        })
    }

    /// Applies an input of a link; delivers the ends of fences at once.
    fn update_by_link<T>(&self, input: impl FnOnce(&mut State) -> T) -> T {
        self.apply(input, FenceCall::end)
    }

    fn apply<T>(&self, input: impl FnOnce(&mut State) -> T, end: impl Fn(FenceCall, FenceResult)) -> T {
        let (result, effects, ends, begins_ticking) = {
            let mut state = self.state.lock();
            let result = input(&mut state);
            let outbound = &mut state.outbound;
            let (effects, ends) = (std::mem::take(&mut outbound.effects), std::mem::take(&mut outbound.ends));
            (result, effects, ends, state.begins_ticking())
        };
        if begins_ticking {
            self.runtime.spawn(tick(self.this.clone()));
        }
        effects.into_iter().for_each(|effect| self.carry_out(effect));
        ends.into_iter().for_each(|(call, result)| end(call, result));
        result
    }

    pub(super) fn downgrade(&self) -> Weak<Self> {
        self.this.clone()
    }

    pub(super) fn transport(&self) -> Arc<dyn Transport> {
        Arc::clone(&self.transport)
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    fn carry_out(&self, effect: Effect) {
        match effect {
            Effect::Open { id, name, address, outgoing } => {
                let (this, transport, peer) = (self.this.clone(), Arc::clone(&self.transport), name.clone());
                let opening = Opening::new(&self.opening);
                self.spawn_reader(name, id, async move {
                    let opened = transport.link(&peer, &address, outgoing).await;
                    drop(opening);
                    match opened {
                        Ok(incoming) => read(this, peer, id, incoming).await,
                        Err(status) if status.code() == Code::Unimplemented => forget_link(&this, &peer, id),
                        Err(status) => {
                            let reason = format!("no link to {address}: {}", status.message());
                            let loss = if status.code() == Code::NotFound { Loss::Absent } else { Loss::Link };
                            end_link(&this, &peer, (id, StreamEnd::Broken), loss, &reason);
                        }
                    }
                });
            }
            Effect::Answer { membership, asked, source } => {
                let task = answer(self.this.clone(), membership, asked, source);
                if let Some(joined) = self.state.lock().joined(membership) {
                    joined.spawn_answering(task, &self.runtime);
                }
            }
            Effect::Flush(queue) => queue.flush(),
            Effect::Lose { name, stuck } => {
                self.update(|state| state.lost(&name, &stuck.to_string(), Loss::Link));
            }
        }
    }

    /// Starts the task that reads a stream.
    fn spawn_reader(&self, peer: String, id: StreamId, task: impl Future<Output = ()> + Send + 'static) {
        let reader = self.runtime.spawn(task).abort_handle();
        self.state.lock().outbound.links.give_reader(&peer, id, reader);
    }
}

impl std::fmt::Debug for FenceNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FenceNode").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A link that is being opened; it is counted until this is dropped.
struct Opening(watch::Sender<usize>);

impl Opening {
    fn new(count: &watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Reads a stream to its end. If the node closes it normally without any frame, it had left the launch when it accepted the stream.
async fn read<S>(node: Weak<FenceNode>, peer: String, id: StreamId, mut incoming: S)
where
    S: Stream<Item = Result<LinkFrame, Status>> + Unpin,
{
    let mut has_sent = false;
    let (end, loss, reason) = loop {
        match incoming.next().await {
            Some(Ok(frame)) => {
                has_sent = true;
                let Some(node) = node.upgrade() else { return };
                // Frames of an unknown kind are ignored.
                if let Some(what) = frame.what {
                    node.update_by_link(|state| state.on_stream_frame(&peer, id, what));
                }
            }
            Some(Err(status)) => {
                break (StreamEnd::Broken, Loss::Link, format!("its link broke: {}", status.message()));
            }
            None => {
                let loss = if has_sent { Loss::Link } else { Loss::Absent };
                break (StreamEnd::InOrder, loss, "it closed its link".to_owned());
            }
        }
    };
    end_link(&node, &peer, (id, end), loss, &reason);
}

fn end_link(node: &Weak<FenceNode>, peer: &str, (id, end): (StreamId, StreamEnd), loss: Loss, reason: &str) {
    let Some(node) = node.upgrade() else { return };
    tracing::debug!(node = node.name, peer, reason, "a link ended");
    node.update(|state| {
        if state.outbound.links.close(peer, id, end) {
            state.lost(peer, reason, loss);
        }
    });
}

/// Closes the link to an agent that serves no links. That is not a loss: the agent calls `PmiFence` when it is ready.
fn forget_link(node: &Weak<FenceNode>, peer: &str, id: StreamId) {
    if let Some(node) = node.upgrade() {
        node.update(|state| state.outbound.links.close(peer, id, StreamEnd::Broken));
    }
}

async fn tick(node: Weak<FenceNode>) {
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let Some(node) = node.upgrade() else { return };
        if !node.update(State::tick) {
            return;
        }
    }
}

/// Prepares the answer to another node's question.
async fn answer(node: Weak<FenceNode>, membership: MembershipId, asked: NodeQuestion, source: Arc<dyn Questions>) {
    let answer = match asked.question {
        Question::Server(question) => source.answer(asked.from, question).await,
        Question::Session(message) => source.hear(asked.from, message).await,
    };
    let Some(node) = node.upgrade() else { return };
    node.update(|state| {
        if let Some(mut fences) = state.fences(membership) {
            fences.answer(asked.id, answer);
        }
    });
}

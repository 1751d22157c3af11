//! Fences of one launch on one node, as its session calls them. Waits for the results of [`State`](super::state::State), and
//! withdraws calls that are dropped.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use pmi_core::fence::{Begun, Contribution, FenceId, Scope};
use pmi_core::ids::{Epoch, NodeIndex};
use tokio::sync::oneshot;

use super::effects::{Brought, FenceResult, Gathered, Question};
use super::fence_call::{FenceEnd, launch_ended};
use super::launches::{BegunFence, LaunchGuard};
use super::members::Members;
use super::membership::{Membership, MembershipId, Questions};
use super::node::FenceNode;
use super::{AskError, FenceError};
use crate::proto::v1::{FenceKey, FenceScope, fence_scope::Kind};

/// Membership of one node in a launch. Dropping it leaves the launch.
pub struct LaunchFences {
    node: Weak<FenceNode>,
    id: MembershipId,
    launch_id: Arc<str>,
    me: NodeIndex,
    nodes: u32,
    source: Arc<dyn Questions>,
}

impl FenceNode {
    /// Joins a launch until the result is dropped; then fences of other nodes that need this node fail. Earlier frames of the
    /// launch are not lost.
    pub fn join(&self, membership: Membership, source: Arc<dyn Questions>) -> LaunchFences {
        let (launch_id, me) = (Arc::from(membership.launch_id.as_str()), membership.me);
        let nodes = membership.nodes.len() as u32;
        let id = self.update(|state| state.join(membership, Arc::clone(&source)));
        LaunchFences { node: self.downgrade(), id, launch_id, me, nodes, source }
    }
}

impl LaunchFences {
    /// Adds this node's contribution to a fence, and returns the contributions of all nodes, in order. `members` are the nodes
    /// with ranks of the job, in order. A scope that names nodes overrides them.
    ///
    /// Not cancel-safe: if the call is dropped before its end, the fence fails on all nodes.
    ///
    /// # Errors
    /// Fails if a node is lost or drops its call, if the contributions exceed the limit, and if the arguments are invalid.
    pub async fn exchange(
        &self,
        job_id: &str,
        members: &[NodeIndex],
        scope: &Scope,
        epoch: Epoch,
        brought: impl Into<Brought>,
    ) -> Result<Gathered, FenceError> {
        let (end, result) = oneshot::channel();
        let end = Box::new(move |result| drop(end.send(result)));
        let (key, result) = match self.begin_fence(job_id, members, scope, epoch, brought.into(), end)? {
            BegunFence::Over(result) => return result,
            BegunFence::Pending(key) => (key, result),
        };
        let give_up = OnDrop::new(|| {
            self.update(|mut fences| fences.give_up(&key));
        });
        let result = result.await;
        give_up.disarm();
        result.unwrap_or_else(|_| Err(launch_ended(epoch)))
    }

    /// Begins a fence of PMI servers without a future, as specified by [`Fence::begin`](pmi_core::fence::Fence::begin).
    pub fn begin(
        &self,
        job_id: &str,
        members: &[NodeIndex],
        FenceId { scope, epoch }: &FenceId,
        contribution: Contribution,
        end: pmi_core::fence::FenceEnd,
    ) -> Begun {
        let epoch = *epoch;
        let merged = move |gathered: FenceResult| gathered?.merged(epoch);
        let end = Box::new(move |result| end(merged(result)));
        match self.begin_fence(job_id, members, scope, epoch, contribution.into(), end) {
            Ok(BegunFence::Pending(_)) => Begun::Pending,
            Ok(BegunFence::Over(result)) => Begun::Over(merged(result)),
            Err(error) => Begun::Over(Err(error.into())),
        }
    }

    /// Fails a begun fence on all nodes. No effect if it has ended.
    pub fn give_up(&self, job_id: &str, members: &[NodeIndex], scope: &Scope, epoch: Epoch) {
        let Ok((mut key, scope_members)) = self.key(job_id, scope, epoch) else { return };
        if let Some(members) = Members::of(scope_members.unwrap_or(members), self.nodes) {
            key.members = members.digest();
            self.update(|mut fences| fences.give_up(&key));
        }
    }

    fn begin_fence(
        &self,
        job_id: &str,
        members: &[NodeIndex],
        scope: &Scope,
        epoch: Epoch,
        brought: Brought,
        end: FenceEnd,
    ) -> Result<BegunFence, FenceError> {
        let (key, scope_members) = self.key(job_id, scope, epoch)?;
        let begun = self.update(|mut fences| fences.begin(key, scope_members.unwrap_or(members), brought, end));
        begun.unwrap_or_else(|| Err(launch_ended(epoch)))
    }

    /// Key of a fence, without its members, and the members that its scope names.
    fn key<'scope>(
        &self,
        job_id: &str,
        scope: &'scope Scope,
        epoch: Epoch,
    ) -> Result<(FenceKey, Option<&'scope [NodeIndex]>), FenceError> {
        let (scope, members) = encode_scope(scope).ok_or(FenceError::Members { epoch })?;
        let (launch_id, job_id) = (self.launch_id.to_string(), job_id.to_owned());
        Ok((FenceKey { launch_id, job_id, scope: Some(scope), epoch: epoch.0, members: 0 }, members))
    }

    /// Asks another node of the launch, or this one. Dropping the call withdraws the question.
    ///
    /// # Errors
    /// Fails if the node is lost, has left the launch or has no answer.
    pub async fn ask(&self, node: NodeIndex, question: Bytes) -> Result<Bytes, AskError> {
        if node == self.me {
            let answer = self.source.answer(node, question).await;
            return answer.map_err(|reason| AskError::Refused { node, reason });
        }
        self.put(node, Question::Server(question)).await
    }

    /// Sends a message to the session of another node of the launch. The message is sent at once. The future completes when it is
    /// received. Dropping the future does not withdraw the message.
    ///
    /// # Errors
    /// Fails if the node is lost, has left the launch or accepts no such messages.
    pub fn tell(&self, node: NodeIndex, message: Bytes) -> impl Future<Output = Result<(), AskError>> + Send + use<> {
        let heard = self.put(node, Question::Session(message));
        async move { heard.await.map(drop) }
    }

    /// Asks the session of another node of the launch. Dropping the call withdraws the question.
    ///
    /// # Errors
    /// Fails if the node is lost, has left the launch or does not support the question.
    pub async fn ask_session(&self, node: NodeIndex, message: Bytes) -> Result<Bytes, AskError> {
        self.put(node, Question::Session(message)).await
    }

    /// Sends the question at once.
    fn put(&self, node: NodeIndex, question: Question) -> impl Future<Output = Result<Bytes, AskError>> + Send + use<> {
        let asked = self.update(|mut fences| fences.ask(node, question)).unwrap_or(Err(AskError::LaunchEnded));
        let (own, launch) = (Weak::clone(&self.node), self.id);
        let asked = asked.map(|(id, answer)| {
            let withdraw = OnDrop::new(move || {
                update(&own, launch, |mut fences| fences.withdraw(id));
            });
            (withdraw, answer)
        });
        async move {
            let (withdraw, answer) = asked?;
            let answer = answer.await;
            withdraw.disarm();
            answer.unwrap_or(Err(AskError::LaunchEnded))
        }
    }

    /// Waits until every received question of other nodes is answered. Call it before the launch is left, once [`Questions`]
    /// delays no answer: leaving the launch refuses all open questions.
    pub async fn last_answers(&self) {
        let node = self.node.upgrade();
        let answering = node.and_then(|node| node.update(|state| Some(state.joined(self.id)?.take_answering())));
        answering.unwrap_or_default().join_all().await;
    }

    /// Leaves the launch, like dropping. Other nodes are notified, and open calls here end.
    pub fn leave(&self) {
        if let Some(node) = self.node.upgrade() {
            node.update(|state| state.leave(self.id));
        }
    }

    /// Number of nodes of the launch.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Applies an input to the launch; `None` if it has ended here.
    fn update<T>(&self, input: impl FnOnce(LaunchGuard<'_>) -> T) -> Option<T> {
        update(&self.node, self.id, input)
    }
}

impl Drop for LaunchFences {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Applies an input to a launch; `None` if it has ended here.
fn update<T>(node: &Weak<FenceNode>, id: MembershipId, input: impl FnOnce(LaunchGuard<'_>) -> T) -> Option<T> {
    node.upgrade()?.update(|state| state.fences(id).map(input))
}

/// Encodes a scope for links, and returns the members that it names; `None` for an unknown kind.
fn encode_scope(scope: &Scope) -> Option<(FenceScope, Option<&[NodeIndex]>)> {
    let (kind, name, members) = match scope {
        Scope::World => (Kind::World, "", None),
        Scope::Ring => (Kind::Ring, "", None),
        Scope::Group { name, nodes } => (Kind::Group, &**name, Some(&**nodes)),
        Scope::Foreign { name, nodes } => (Kind::Foreign, &**name, Some(&**nodes)),
        _ => return None,
    };
    Some((FenceScope { kind: kind.into(), name: name.to_owned(), node_gaps: Vec::new() }, members))
}

/// Runs a function if a call is dropped before its end.
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

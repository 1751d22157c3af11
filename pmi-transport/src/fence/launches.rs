//! Launches of one node, each with the open calls of its session.
//!
//! ```text
//! Launches ──> Joined { Launch (pure), Calls of the session }
//!     └──────────────> LaunchGuard = Joined + Outbound: applies an input to the launch, and passes its effects on
//! ```

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use pmi_core::ids::{Epoch, NodeIndex};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::budget::Budget;
use super::effects::{AnswerId, AskResult, Brought, Effects, FenceResult, Question, QuestionId};
use super::fast_map::FastMap;
use super::fence_call::{FenceCall, FenceEnd};
use super::launch::{Launch, Loss};
use super::membership::{Member, Membership, MembershipId, Questions};
use super::outbound::{Effect, Outbound};
use super::{AskError, FenceError, Limits};
use crate::proto::v1::{FenceKey, link_frame::What};

/// Outcome of beginning a fence.
pub(super) enum BegunFence {
    /// It has ended already.
    Over(FenceResult),
    /// Its call has this key.
    Pending(FenceKey),
}

/// An open question, with the receiver of its answer.
pub(super) type PendingQuestion = (QuestionId, oneshot::Receiver<AskResult>);

/// Launches that a node takes part in.
#[derive(Default)]
pub(super) struct Launches {
    joined: FastMap<MembershipId, Joined>,
    by_launch: FastMap<String, MembershipId>,
    last: u64,
}

/// Launch that a node takes part in.
pub(super) struct Joined {
    pub(super) id: MembershipId,
    pub(super) launch: Launch,
    pub(super) membership: Membership,
    by_name: FastMap<String, NodeIndex>,
    calls: Calls,
    source: Arc<dyn Questions>,
    /// Tasks that prepare answers to other nodes' questions; dropping the launch ends them.
    answering: JoinSet<()>,
}

/// Open calls of the session. Dropping them reports to their callers that the launch has ended here.
#[derive(Default)]
struct Calls {
    fences: FastMap<FenceKey, FenceCall>,
    questions: FastMap<QuestionId, oneshot::Sender<AskResult>>,
}

impl Launches {
    /// Adds a launch. An earlier membership in it ends, and is returned.
    pub(super) fn join(
        &mut self,
        membership: Membership,
        source: Arc<dyn Questions>,
        budget: &Budget,
        limits: Limits,
    ) -> (MembershipId, Option<Joined>) {
        self.last += 1;
        let id = MembershipId(self.last);
        let Membership { launch_id, me, nodes, fan_out } = &membership;
        // The number of nodes fits the type of an index.
        let count = nodes.len() as u32;
        let joined = Joined {
            id,
            launch: Launch::with_budget(budget, launch_id, *me, count, *fan_out, limits),
            by_name: nodes.iter().map(|member| member.name.clone()).zip((0..).map(NodeIndex)).collect(),
            calls: Calls::default(),
            source,
            answering: JoinSet::new(),
            membership,
        };
        let earlier = self.by_launch.insert(joined.membership.launch_id.clone(), id);
        let earlier = earlier.and_then(|earlier| self.joined.remove(&earlier));
        self.joined.insert(id, joined);
        (id, earlier)
    }

    /// Removes a launch; `None` if the membership has ended.
    pub(super) fn remove(&mut self, id: MembershipId) -> Option<Joined> {
        let joined = self.joined.remove(&id)?;
        self.by_launch.remove(&joined.membership.launch_id);
        Some(joined)
    }

    pub(super) fn get_mut(&mut self, id: MembershipId) -> Option<&mut Joined> {
        self.joined.get_mut(&id)
    }

    pub(super) fn of_launch(&mut self, launch_id: &str) -> Option<&mut Joined> {
        self.joined.get_mut(self.by_launch.get(launch_id)?)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Joined> {
        self.joined.values_mut()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.joined.is_empty()
    }
}

impl Joined {
    pub(super) fn node_of(&self, name: &str) -> Option<NodeIndex> {
        self.by_name.get(name).copied()
    }

    fn member(&self, node: NodeIndex) -> &Member {
        &self.membership.nodes[node.index()]
    }

    /// The open fence calls with their results, because the launch has ended here.
    pub(super) fn into_ends(self) -> impl Iterator<Item = (FenceCall, FenceResult)> {
        self.calls.fences.into_values().map(|call| {
            let result = call.launch_ended();
            (call, result)
        })
    }

    /// Adds a task that prepares an answer.
    pub(super) fn spawn_answering(&mut self, task: impl Future<Output = ()> + Send + 'static, runtime: &Handle) {
        while self.answering.try_join_next().is_some() {}
        self.answering.spawn_on(task, runtime);
    }

    /// Takes the tasks that prepare answers, so that the caller can wait for them.
    pub(super) fn take_answering(&mut self) -> JoinSet<()> {
        std::mem::take(&mut self.answering)
    }
}

/// One launch of a node, with the output for its frames. Each method applies one input and executes its effects.
pub(super) struct LaunchGuard<'state> {
    pub(super) joined: &'state mut Joined,
    pub(super) outbound: &'state mut Outbound,
}

impl LaunchGuard<'_> {
    /// Begins a fence; `end` receives its result, unless it has ended at once.
    pub(super) fn begin(
        &mut self,
        key: FenceKey,
        members: &[NodeIndex],
        brought: Brought,
        end: FenceEnd,
    ) -> Result<BegunFence, FenceError> {
        let mut effects = Effects::default();
        let key = self.joined.launch.begin(key, members, brought, &mut effects)?;
        let begun = match effects.ended.pop() {
            // This input ends no other fence.
            Some((_, result)) => BegunFence::Over(result),
            None => {
                let call = FenceCall::new(Epoch(key.epoch), end);
                self.joined.calls.fences.insert(key.clone(), call);
                BegunFence::Pending(key)
            }
        };
        self.pass_on(effects);
        Ok(begun)
    }

    /// Fails a fence, because its caller has ended.
    pub(super) fn give_up(&mut self, key: &FenceKey) {
        if let Some(call) = self.joined.calls.fences.remove(key) {
            call.forget();
        }
        self.apply(|launch, effects| launch.give_up(key, effects));
    }

    /// Asks another node.
    pub(super) fn ask(&mut self, node: NodeIndex, question: Question) -> Result<PendingQuestion, AskError> {
        let mut effects = Effects::default();
        let id = self.joined.launch.ask(node, question, &mut effects)?;
        let (caller, answer) = oneshot::channel();
        self.joined.calls.questions.insert(id, caller);
        self.pass_on(effects);
        Ok((id, answer))
    }

    /// Withdraws a question, because its caller has ended.
    pub(super) fn withdraw(&mut self, id: QuestionId) {
        self.joined.calls.questions.remove(&id);
        self.joined.launch.withdraw(id);
    }

    /// Answers a question of another node.
    pub(super) fn answer(&mut self, id: AnswerId, answer: Result<Bytes, String>) {
        self.apply(|launch, effects| launch.answer(id, answer, effects));
    }

    /// Processes a frame of the node named `from`.
    pub(super) fn on_frame(&mut self, from: &str, what: What) {
        match self.joined.node_of(from) {
            Some(from) => self.apply(|launch, effects| launch.on_frame(from, what, effects)),
            None => self.outbound.counters.foreign += 1,
        }
    }

    /// Processes the loss of the node `name`, if it is in the launch.
    pub(super) fn lost(&mut self, name: &str, reason: &str, loss: Loss) {
        if let Some(node) = self.joined.node_of(name) {
            self.apply(|launch, effects| launch.lost(node, reason, loss, effects));
        }
    }

    pub(super) fn tick(&mut self) {
        self.apply(Launch::tick);
    }

    pub(super) fn leave(&mut self) {
        self.apply(Launch::leave);
    }

    fn apply(&mut self, input: impl FnOnce(&mut Launch, &mut Effects)) {
        let mut effects = Effects::default();
        input(&mut self.joined.launch, &mut effects);
        self.pass_on(effects);
    }

    fn pass_on(&mut self, effects: Effects) {
        let Effects { frames, ended, answered, asked, counters } = effects;
        self.outbound.counters += counters;
        for (node, frame) in frames {
            self.outbound.send(node, self.joined.member(node), frame);
        }
        // Callers may have ended.
        for (key, result) in ended {
            let call = self.joined.calls.fences.remove(&key);
            self.outbound.ends.extend(call.map(|call| (call, result)));
        }
        for (id, answer) in answered {
            if let Some(caller) = self.joined.calls.questions.remove(&id) {
                let _ = caller.send(answer);
            }
        }
        for asked in asked {
            let source = Arc::clone(&self.joined.source);
            self.outbound.effects.push(Effect::Answer { membership: self.joined.id, asked, source });
        }
    }
}

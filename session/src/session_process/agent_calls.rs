//! Calls of a session to its agent: fences, questions to other nodes, names, new jobs, and meetings with other launches.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use lattice_overlay::address::SetId;
use parking_lot::Mutex;
use pmi_core::fence::{Contribution, Fence, FenceError, FenceId, LocalFence, Merged, Scope};
use pmi_core::ids::{JobId, NodeIndex, Rank};
use pmi_core::job::Job;
use pmi_core::kvs::Segment;
use pmi_core::services::{MeetError, Meeting, Met, NameError, NameRequest, Services, SpawnError, SpawnRequest};
use pmi_transport::fence::Gathered;
use pmi_transport::proto::v1 as proto;
use proto::answer::What as AnswerWhat;
use proto::call::What as CallWhat;
use tokio::sync::{mpsc, oneshot};

use super::frames::ToAgent;
use super::job_nodes::JobNodes;
use crate::session_io::{AskError, Nodes};
use crate::set::Passes;
use crate::spec::SessionSpec;
use crate::wire;
use crate::wire::pass::SetPass;

/// Calls that wait for answers. A call is sent again to the next agent under the same number. Without a next agent, it ends unanswered.
#[derive(Clone)]
pub(super) struct AgentCalls {
    node: NodeIndex,
    job: JobId,
    outgoing: mpsc::Sender<ToAgent>,
    pending: Arc<Mutex<Pending>>,
}

struct Pending {
    last: u64,
    /// `None` when the agent is gone.
    waiting: Option<BTreeMap<u64, PendingCall>>,
}

/// A call that waits for its answer.
struct PendingCall {
    call: ToAgent,
    answer: oneshot::Sender<AnswerWhat>,
}

impl AgentCalls {
    pub(super) fn new(spec: &SessionSpec, outgoing: mpsc::Sender<ToAgent>) -> Self {
        let pending = Arc::new(Mutex::new(Pending { last: 0, waiting: Some(BTreeMap::new()) }));
        Self { node: spec.node, job: spec.job.id.clone(), outgoing, pending }
    }

    /// Delivers an answer to its call, if the call still waits.
    pub(super) fn answer(&self, answer: proto::Answer) {
        let waiting = self.pending.lock().waiting.as_mut().and_then(|waiting| waiting.remove(&answer.id));
        if let (Some(waiting), Some(what)) = (waiting, answer.what) {
            // The caller may have stopped waiting.
            let _ = waiting.answer.send(what);
        }
    }

    /// Sends all unanswered calls to another agent, in their original order. Calls without a waiting receiver are dropped.
    pub(super) async fn ask_again(&self) {
        let calls: Vec<ToAgent> = match &mut self.pending.lock().waiting {
            Some(waiting) => {
                waiting.retain(|_, asked| !asked.answer.is_closed());
                waiting.values().map(|asked| asked.call.clone()).collect()
            }
            None => Vec::new(),
        };
        for call in calls {
            // Fails when the session has ended.
            let _ = self.outgoing.send(call).await;
        }
    }

    /// Ends all calls without an answer, because the agent is gone. Later calls end at once.
    pub(super) fn close(&self) {
        self.pending.lock().waiting = None;
    }

    /// Sends a call to the agent and waits for the answer; `None` when the agent is gone.
    async fn call(&self, what: CallWhat) -> Option<AnswerWhat> {
        let (sender, answer) = oneshot::channel();
        let call = {
            let mut pending = self.pending.lock();
            pending.last += 1;
            let id = pending.last;
            let call = ToAgent::call(id, what);
            pending.waiting.as_mut()?.insert(id, PendingCall { call: call.clone(), answer: sender });
            call
        };
        self.outgoing.send(call).await.ok()?;
        answer.await.ok()
    }
}

/// Reason why a call has no answer of the expected kind.
fn no_answer(answer: Option<AnswerWhat>) -> String {
    match answer {
        None => "the node agent is gone".to_owned(),
        Some(AnswerWhat::DataError(reason)) => reason,
        Some(_) => "the node agent answered another question".to_owned(),
    }
}

#[async_trait]
impl Nodes for AgentCalls {
    fn fence(&self, job: &Job) -> Arc<dyn Fence> {
        Arc::new(AgentFence { calls: self.clone(), nodes: JobNodes::new(job, self.node) })
    }

    async fn ask(&self, node: NodeIndex, question: Bytes) -> Result<Bytes, AskError> {
        match self.call(CallWhat::Data(proto::DataCall { node: node.0, question })).await {
            Some(AnswerWhat::Data(answer)) => Ok(answer),
            other => Err(AskError { node, reason: no_answer(other) }),
        }
    }
}

#[async_trait]
impl Services for AgentCalls {
    async fn name(&self, request: NameRequest) -> Result<Bytes, NameError> {
        match self.call(CallWhat::Name(wire::call::encode_name(request))).await {
            Some(AnswerWhat::Name(answer)) => wire::call::decode_name_answer(answer),
            other => Err(NameError::Unavailable { reason: no_answer(other) }),
        }
    }

    fn starts_jobs(&self) -> bool {
        true
    }

    async fn spawn(&self, rank: Rank, request: SpawnRequest) -> Result<JobId, SpawnError> {
        let parent = request.parent.as_ref().unwrap_or(&self.job);
        let call = CallWhat::Spawn(wire::call::encode_spawn(parent, rank, &request));
        match self.call(call).await {
            Some(AnswerWhat::Spawn(answer)) => wire::call::decode_spawn_answer(answer),
            other => Err(SpawnError::Failed { reason: no_answer(other) }),
        }
    }

    async fn meet(&self, meeting: Meeting) -> Result<Met, MeetError> {
        match self.call(CallWhat::Meet(wire::meeting::encode(meeting))).await {
            Some(AnswerWhat::Meet(answer)) => wire::meeting::decode_answer(answer),
            other => Err(MeetError::Unavailable { reason: no_answer(other) }),
        }
    }
}

#[async_trait]
impl Passes for AgentCalls {
    async fn pass(&self, to: SetId) -> Result<SetPass, String> {
        match self.call(CallWhat::Pass(proto::PassCall { to: to.bits() })).await {
            Some(AnswerWhat::Pass(pass)) => Ok(wire::pass::decode(&pass)),
            other => Err(no_answer(other)),
        }
    }
}

/// Fences of one job through the agent. A fence of this node alone does not use the agent.
struct AgentFence {
    calls: AgentCalls,
    nodes: JobNodes,
}

#[async_trait]
impl Fence for AgentFence {
    async fn exchange(&self, id: &FenceId, contribution: Contribution) -> Result<Merged, FenceError> {
        let JobNodes { job, node, members } = &self.nodes;
        if self.nodes.is_alone(&id.scope) {
            return LocalFence.exchange(id, contribution).await;
        }
        let bad = |reason: String| FenceError::BadSegment { epoch: id.epoch, reason };
        let of_all = matches!(id.scope, Scope::World | Scope::Ring);
        let call = proto::FenceCall {
            job_id: job.as_str().to_owned(),
            member_gaps: if of_all { wire::fence::encode_nodes(members) } else { Vec::new() },
            scope: Some(wire::fence::encode_scope(&id.scope).map_err(|error| bad(error.to_string()))?),
            epoch: id.epoch.0,
            segments: contribution.segments.into_iter().map(Segment::into_bytes).collect(),
        };
        match self.calls.call(CallWhat::Fence(call)).await {
            Some(AnswerWhat::Merged(answer)) => Gathered { runs: answer.segments, withheld: 0 }.merged(id.epoch),
            Some(AnswerWhat::FenceFault(fault)) => Err(wire::fence::decode_fault(fault, id.epoch)),
            other => Err(FenceError::NodeLost { node: *node, epoch: id.epoch, reason: no_answer(other) }),
        }
    }
}

#[cfg(test)]
mod tests;

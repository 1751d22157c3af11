//! Calls of sessions to their agent, and of other nodes to sessions.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use pmi_core::fence::FenceError;
use pmi_core::ids::{Epoch, NodeIndex};
use pmi_core::services::{MeetError, NameError};
use pmi_transport::connect::Channel;
use pmi_transport::fence::{LaunchFences, Questions};
use pmi_transport::limits::MESSAGE_MAX;
use pmi_transport::proto::v1 as proto;
use proto::answer::What as AnswerWhat;
use proto::call::What as CallWhat;
use proto::node_service_client::NodeServiceClient;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tonic::{Code, Response, Status};

use super::Node;
use super::report::PAUSE_FIRST;
use super::to_session::{HasEnded, ToSession};
use lattice_session::{timeouts, wire};

/// Refusal of a call that the sessions must make over their links.
const OVER_LINKS: &str = "the sessions of the launch have links for this";

/// Answers the calls of one session.
pub(super) struct Callee {
    pub(super) node: Arc<Node>,
    pub(super) launch_id: String,
    /// Fences through the agents; `None` if the sessions have links.
    pub(super) fences: Option<LaunchFences>,
}

impl Callee {
    /// Answers one call. Takes as long as the ranks of other nodes take.
    pub(super) async fn answer(&self, call: proto::Call) -> proto::Answer {
        let id = call.id;
        let what = match call.what {
            Some(CallWhat::Fence(fence)) => self.fence(fence).await,
            Some(CallWhat::Name(name)) => AnswerWhat::Name(self.name(id, name).await),
            Some(CallWhat::Spawn(spawn)) => AnswerWhat::Spawn(self.spawn(id, spawn).await),
            Some(CallWhat::Meet(meet)) => AnswerWhat::Meet(self.meet(id, meet).await),
            Some(CallWhat::Data(data)) => self.ask(data).await,
            Some(CallWhat::Pass(pass)) => self.pass(pass).await,
            None => AnswerWhat::DataError("the node agent does not know this call".to_owned()),
        };
        proto::Answer { id, what: Some(what) }
    }

    async fn pass(&self, pass: proto::PassCall) -> AnswerWhat {
        let (launch_id, node_id) = (self.launch_id.clone(), self.node.config.node_id.clone());
        let request = proto::PassRequest { to: pass.to, from: 0, launch_id, node_id };
        let call = |channel, request| async move { NodeServiceClient::new(channel).pass_to_set(request).await };
        match self.ask_api(request, call).await {
            Ok(pass) => AnswerWhat::Pass(pass),
            Err(status) => AnswerWhat::DataError(format!("the API server: {}", status.message())),
        }
    }

    /// Calls the API server, and repeats the call on its successor if the server ends meanwhile. The call's number makes it take effect once.
    /// Without a successor, the lease ends the launch and its calls. A call that breaks two connections in a row is the cause, and fails.
    async fn ask_api<Q: Clone, A, F>(&self, request: Q, call: impl Fn(Channel, Q) -> F) -> Result<A, Status>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let (mut pause, mut broke) = (PAUSE_FIRST, false);
        loop {
            let place = self.node.api.place();
            let status = match call(place.channel(), request.clone()).await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => status,
            };
            // Status codes of tonic: the first for a missing connection, the next three for a connection that breaks.
            broke = match status.code() {
                Code::Unavailable => false,
                Code::Unknown | Code::Cancelled | Code::Internal if !broke => true,
                _ => return Err(status),
            };
            tracing::info!(
                launch = self.launch_id,
                "a call of its session waits for the API server: {}",
                status.message()
            );
            drop(place);
            sleep(pause).await;
            pause = (pause * 2).min(timeouts::REPORT_PAUSE);
        }
    }

    async fn ask(&self, data: proto::DataCall) -> AnswerWhat {
        let Some(fences) = &self.fences else { return AnswerWhat::DataError(OVER_LINKS.to_owned()) };
        match fences.ask(NodeIndex(data.node), data.question).await {
            Ok(answer) => AnswerWhat::Data(answer),
            Err(error) => AnswerWhat::DataError(error.to_string()),
        }
    }

    async fn fence(&self, call: proto::FenceCall) -> AnswerWhat {
        let fault = |reason: String| AnswerWhat::FenceFault(proto::FenceFault { node: None, reason });
        let Some(fences) = &self.fences else { return fault(OVER_LINKS.to_owned()) };
        let Some(scope) = call.scope else { return fault("the call has no scope".to_owned()) };
        let (scope, members) = match (wire::fence::decode_scope(scope), wire::fence::decode_nodes(&call.member_gaps)) {
            (Ok(scope), Ok(members)) => (scope, members),
            (Err(error), _) | (_, Err(error)) => return fault(error.to_string()),
        };
        let result = fences.exchange(&call.job_id, &members, &scope, Epoch(call.epoch), call.segments).await;
        match result {
            Ok(gathered) => AnswerWhat::Merged(proto::Segments { segments: gathered.runs }),
            Err(error) => AnswerWhat::FenceFault(wire::fence::encode_fault(&FenceError::from(error))),
        }
    }

    async fn name(&self, call_id: u64, call: proto::NameCall) -> proto::NameAnswer {
        let request = proto::NameRequest {
            launch_id: self.launch_id.clone(),
            node_id: self.node.config.node_id.clone(),
            call: Some(call),
            call_id,
        };
        let call = |channel, request| async move { NodeServiceClient::new(channel).call_name(request).await };
        match self.ask_api(request, call).await {
            Ok(answer) => answer,
            Err(status) => {
                let reason = format!("the API server: {}", status.message());
                wire::call::encode_name_answer(&Err(NameError::Unavailable { reason }))
            }
        }
    }

    async fn spawn(&self, call_id: u64, call: proto::SpawnCall) -> proto::SpawnAnswer {
        let request = proto::SpawnRequest {
            launch_id: self.launch_id.clone(),
            node_id: self.node.config.node_id.clone(),
            call: Some(call),
            call_id,
        };
        let call = |channel, request| async move { NodeServiceClient::new(channel).spawn_tasks(request).await };
        match self.ask_api(request, call).await {
            Ok(answer) => answer,
            Err(status) => {
                let refusal = format!("the API server: {}", status.message());
                proto::SpawnAnswer { job_id: String::new(), refusal }
            }
        }
    }

    async fn meet(&self, call_id: u64, call: proto::MeetCall) -> proto::MeetAnswer {
        let request = proto::MeetRequest {
            launch_id: self.launch_id.clone(),
            node_id: self.node.config.node_id.clone(),
            call: Some(call),
            call_id,
        };
        let call = |channel, request| async move {
            let client = NodeServiceClient::new(channel);
            let mut client = client.max_decoding_message_size(MESSAGE_MAX).max_encoding_message_size(MESSAGE_MAX);
            client.meet_launches(request).await
        };
        match self.ask_api(request, call).await {
            Ok(answer) => answer,
            Err(status) => {
                let reason = format!("the API server: {}", status.message());
                wire::meeting::encode_error(&MeetError::Unavailable { reason })
            }
        }
    }
}

/// The answer to a call that is refused.
pub(super) fn refusal(call: &proto::Call, reason: &str) -> proto::Answer {
    let reason = reason.to_owned();
    let what = match &call.what {
        Some(CallWhat::Fence(_)) => AnswerWhat::FenceFault(proto::FenceFault { node: None, reason }),
        Some(CallWhat::Name(_)) => {
            AnswerWhat::Name(wire::call::encode_name_answer(&Err(NameError::Unavailable { reason })))
        }
        Some(CallWhat::Spawn(_)) => AnswerWhat::Spawn(proto::SpawnAnswer { job_id: String::new(), refusal: reason }),
        Some(CallWhat::Meet(_)) => AnswerWhat::Meet(wire::meeting::encode_error(&MeetError::Unavailable { reason })),
        Some(CallWhat::Data(_) | CallWhat::Pass(_)) | None => AnswerWhat::DataError(reason),
    };
    proto::Answer { id: call.id, what: Some(what) }
}

/// Reply of a session to a question, or its error as text.
type Reply = Result<Bytes, String>;

/// Forwards questions of other nodes to a session, and returns its replies.
pub(super) struct SessionQuestions {
    launch_id: String,
    to_session: ToSession,
    last: AtomicU64,
    /// `None` after the end of the session.
    asked: Mutex<Option<HashMap<u64, oneshot::Sender<Reply>>>>,
}

impl SessionQuestions {
    pub(super) fn new(launch_id: String, to_session: ToSession) -> Self {
        Self { launch_id, to_session, last: AtomicU64::new(0), asked: Mutex::new(Some(HashMap::new())) }
    }

    /// Delivers the session's reply to a question.
    pub(super) fn replied(&self, reply: proto::DataReply) {
        let asked = self.asked.lock().as_mut().and_then(|asked| asked.remove(&reply.request_id));
        let Some(asked) = asked else { return };
        let result = match reply.result {
            Some(proto::data_reply::Result::Data(data)) => Ok(data),
            Some(proto::data_reply::Result::Error(reason)) => Err(reason),
            None => Err("it gave no answer".to_owned()),
        };
        // The caller may be gone.
        let _ = asked.send(result);
    }

    /// Fails the open questions, because the session has ended.
    pub(super) fn close(&self) {
        *self.asked.lock() = None;
    }

    fn ask(&self, question: u64) -> Option<oneshot::Receiver<Reply>> {
        let (sender, answer) = oneshot::channel();
        self.asked.lock().as_mut()?.insert(question, sender);
        Some(answer)
    }
}

#[async_trait]
impl Questions for SessionQuestions {
    async fn answer(&self, from: NodeIndex, question: Bytes) -> Result<Bytes, String> {
        let ended = || "its part of the launch has ended".to_owned();
        let request_id = self.last.fetch_add(1, Ordering::Relaxed);
        let answer = self.ask(request_id).ok_or_else(ended)?;
        let launch_id = self.launch_id.clone();
        let request =
            proto::DataRequest { launch_id, request_id, from_node: from.0, question, to_session: Bytes::new() };
        self.to_session.send(proto::to_session::What::Question(request)).await.map_err(|HasEnded| ended())?;
        answer.await.unwrap_or_else(|_| Err(ended()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_is_refused_gets_an_answer_of_its_kind() {
        let answer = |what: Option<CallWhat>| {
            let answer = refusal(&proto::Call { id: 7, what }, "too many");
            assert_eq!(answer.id, 7);
            answer.what.unwrap()
        };
        let fault = proto::FenceFault { node: None, reason: "too many".to_owned() };
        assert_eq!(answer(Some(CallWhat::Fence(proto::FenceCall::default()))), AnswerWhat::FenceFault(fault));
        let AnswerWhat::Name(name) = answer(Some(CallWhat::Name(proto::NameCall::default()))) else {
            panic!("not an answer about names");
        };
        assert_eq!(wire::call::decode_name_answer(name), Err(NameError::Unavailable { reason: "too many".to_owned() }));
        let AnswerWhat::Spawn(spawn) = answer(Some(CallWhat::Spawn(proto::SpawnCall::default()))) else {
            panic!("not an answer about a spawn");
        };
        assert_eq!(spawn.refusal, "too many");
        assert!(matches!(answer(Some(CallWhat::Meet(proto::MeetCall::default()))), AnswerWhat::Meet(_)));
        let error = || AnswerWhat::DataError("too many".to_owned());
        assert_eq!(answer(Some(CallWhat::Data(proto::DataCall::default()))), error());
        assert_eq!(answer(None), error());
    }
}

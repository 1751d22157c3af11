use pmi_core::ids::Epoch;
use pmi_core::services::{Lifetime, NameCall, NameRange, Publisher};
use proto::from_session::What;

use super::*;
use crate::sample::spec_on;

/// Calls of node 0 in a launch with one rank on each of two nodes, and the agent that receives them.
fn calls() -> (AgentCalls, Agent) {
    let (outgoing, calls) = mpsc::channel(8);
    let session = AgentCalls::new(&spec_on(&[1, 1]), outgoing);
    (session.clone(), Agent { calls, session })
}

struct Agent {
    calls: mpsc::Receiver<ToAgent>,
    session: AgentCalls,
}

impl Agent {
    /// Answers the next call and returns it.
    async fn answer(&mut self, answer: AnswerWhat) -> CallWhat {
        let Some(What::Call(call)) = self.calls.recv().await.unwrap().into_what() else { panic!("not a call") };
        self.session.answer(proto::Answer { id: call.id, what: Some(answer) });
        call.what.unwrap()
    }
}

fn look() -> NameCall {
    NameCall::Lookup { service: "ocean".into(), timeout: None, range: NameRange::User }
}

fn lookup() -> CallWhat {
    CallWhat::Name(wire::call::encode_name(NameRequest::of(Rank(0), look())))
}

fn found(port: &'static str) -> AnswerWhat {
    AnswerWhat::Name(wire::call::encode_name_answer(&Ok(port.into())))
}

fn world_fence() -> FenceId {
    FenceId { scope: Scope::World, epoch: Epoch(4) }
}

#[tokio::test]
async fn answers_find_their_calls_in_any_order() {
    let (session, mut agent) = calls();
    let both = async { tokio::join!(session.call(lookup()), session.call(lookup())) };
    let answered = async {
        let mut ids = Vec::new();
        for _ in 0..2 {
            let Some(What::Call(call)) = agent.calls.recv().await.unwrap().into_what() else { panic!("not a call") };
            ids.push(call.id);
        }
        for (&id, port) in ids.iter().zip(["first", "second"]).rev() {
            session.answer(proto::Answer { id, what: Some(found(port)) });
        }
        session.answer(proto::Answer { id: 99, what: Some(found("nobody asked")) });
    };
    let ((first, second), ()) = tokio::join!(both, answered);
    assert_eq!((first, second), (Some(found("first")), Some(found("second"))));
}

#[tokio::test]
async fn each_service_is_a_call_of_its_own_kind_to_the_agent() {
    let (session, mut agent) = calls();
    let rank = Rank(0);
    let port = || Bytes::from_static(b"port");
    let (lifetime, range) = (Lifetime::Withdrawn, NameRange::Session);
    let publish = NameCall::Publish { service: "s".into(), port: port(), lifetime, range };
    let unpublish = NameCall::Unpublish { service: "s".into(), publisher: Publisher::Itself };
    for (call, answer) in [(publish, ""), (look(), "port"), (unpublish, ""), (NameCall::Leave, "")] {
        let request = NameRequest::of(rank, call);
        let (answered, asked) = tokio::join!(session.name(request.clone()), agent.answer(found(answer)));
        assert_eq!((answered, asked), (Ok(answer.into()), CallWhat::Name(wire::call::encode_name(request))));
    }
    let job = JobId::new("kvs_1_0.s1").unwrap();
    let started = AnswerWhat::Spawn(wire::call::encode_spawn_answer(&Ok(job.clone())));
    let (spawned, call) = tokio::join!(session.spawn(rank, SpawnRequest::default()), agent.answer(started));
    assert_eq!(spawned, Ok(job));
    let CallWhat::Spawn(call) = call else { panic!("{call:?} is no spawn") };
    assert_eq!((call.parent_job.as_str(), call.parent_rank), ("kvs_1_0", 0));
    assert!(session.starts_jobs());
    let answer = AnswerWhat::Data("value".into());
    let (data, call) = tokio::join!(session.ask(NodeIndex(1), "key?".into()), agent.answer(answer));
    assert_eq!(data.unwrap(), "value");
    assert_eq!(call, CallWhat::Data(proto::DataCall { node: 1, question: "key?".into() }));
}

#[tokio::test]
async fn a_fence_of_several_nodes_is_the_agents_and_its_failure_keeps_node_and_epoch() {
    let (session, mut agent) = calls();
    let fence = session.fence(&spec_on(&[1, 0, 1]).job);
    let segment: Segment = [("key", "value")].into_iter().collect();
    let contribution = || Contribution::from(vec![segment.clone()]);
    let segments = vec![segment.clone().into_bytes(), Segment::default().into_bytes()];
    let merged = AnswerWhat::Merged(proto::Segments { segments });
    let id = world_fence();
    let (result, call) = tokio::join!(fence.exchange(&id, contribution()), agent.answer(merged));
    assert_eq!(result.unwrap().segments, [segment.clone(), Segment::default()]);
    let CallWhat::Fence(call) = call else { panic!("{call:?} is no fence") };
    assert_eq!(wire::fence::decode_nodes(&call.member_gaps).unwrap(), [NodeIndex(0), NodeIndex(2)]);
    assert_eq!((call.job_id.as_str(), call.epoch, call.segments), ("kvs_1_0", 4, vec![segment.clone().into_bytes()]));

    let fault = |node| AnswerWhat::FenceFault(proto::FenceFault { node, reason: "it left".to_owned() });
    let (result, _) = tokio::join!(fence.exchange(&id, contribution()), agent.answer(fault(Some(2))));
    let lost = FenceError::NodeLost { node: NodeIndex(2), epoch: Epoch(4), reason: "it left".to_owned() };
    assert_eq!(result.unwrap_err().to_string(), lost.to_string());
    let broken = AnswerWhat::Merged(proto::Segments { segments: vec![Bytes::from_static(b"no segment")] });
    let (result, _) = tokio::join!(fence.exchange(&id, contribution()), agent.answer(broken));
    assert!(matches!(result.unwrap_err(), FenceError::BadSegment { epoch: Epoch(4), .. }));
}

#[tokio::test]
async fn a_fence_of_this_node_alone_needs_no_agent() {
    let (session, agent) = calls();
    drop(agent);
    let contribution = || Contribution::from(vec![[("key", "value")].into_iter().collect()]);
    let here = session.fence(&spec_on(&[2]).job);
    let merged = here.exchange(&world_fence(), contribution()).await.unwrap();
    assert_eq!(merged.segments, contribution().segments);
    let several = session.fence(&spec_on(&[1, 1]).job);
    let group = |nodes: &[u32]| {
        let nodes: Vec<_> = nodes.iter().copied().map(NodeIndex).collect();
        FenceId { scope: Scope::Group { name: "g".into(), nodes: nodes.into() }, epoch: Epoch(0) }
    };
    assert!(several.exchange(&group(&[0]), contribution()).await.is_ok());
    assert!(
        several.exchange(&group(&[0, 1]), contribution()).await.is_err(),
        "it takes another node, and no agent is there"
    );
}

#[tokio::test]
async fn a_call_ends_with_a_reason_whenever_the_agent_goes_away() {
    let gone = Err("the node agent is gone".to_owned());
    let reason = |answer: Result<Bytes, AskError>| answer.map_err(|error| error.reason);
    // The agent disconnects before the call: first the reading side detects it, then the writing side.
    let (session, agent) = calls();
    session.close();
    assert_eq!(reason(session.ask(NodeIndex(1), Bytes::new()).await), gone);
    drop(agent);
    let (session, agent) = calls();
    drop(agent);
    assert_eq!(reason(session.ask(NodeIndex(1), Bytes::new()).await), gone);
    // While the call waits for its answer.
    let (session, mut agent) = calls();
    let leaves = async {
        drop(agent.calls.recv().await);
        session.close();
    };
    let (answer, ()) = tokio::join!(session.ask(NodeIndex(1), Bytes::new()), leaves);
    assert_eq!(reason(answer), gone);
}

#[tokio::test]
async fn an_answer_of_another_kind_is_an_error_of_the_call() {
    let (session, mut agent) = calls();
    let other = "the node agent answered another question";
    let (result, _) =
        tokio::join!(session.name(NameRequest::of(Rank(0), look())), agent.answer(AnswerWhat::Data("".into())));
    assert_eq!(result, Err(NameError::Unavailable { reason: other.to_owned() }));
    let (result, _) = tokio::join!(session.spawn(Rank(0), SpawnRequest::default()), agent.answer(found("")));
    assert_eq!(result, Err(SpawnError::Failed { reason: other.to_owned() }));
    let (result, _) = tokio::join!(session.ask(NodeIndex(1), Bytes::new()), agent.answer(found("")));
    assert_eq!(result.unwrap_err().reason, other);
    let refusal = AnswerWhat::DataError("the node is lost".to_owned());
    let (result, _) = tokio::join!(session.ask(NodeIndex(1), Bytes::new()), agent.answer(refusal));
    assert_eq!(result.unwrap_err().reason, "the node is lost");
    let fence = session.fence(&spec_on(&[1, 1]).job);
    let id = world_fence();
    let (result, _) = tokio::join!(fence.exchange(&id, Contribution::default()), agent.answer(found("")));
    assert!(matches!(result.unwrap_err(), FenceError::NodeLost { node: NodeIndex(0), .. }));
}

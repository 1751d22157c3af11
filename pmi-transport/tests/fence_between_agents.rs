//! Fences between agents from the view of sessions: early and late ones, nodes that are lost or leave, questions, and agents that
//! use `PmiFence`.

mod agents;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use agents::{DEADLINE, Echo, Over, World, insecure, serve_agent};
use async_trait::async_trait;
use bytes::Bytes;
use pmi_core::fence::Scope;
use pmi_core::ids::{Epoch, NodeIndex};
use pmi_transport::connect::channel;
use pmi_transport::fence::{
    AskError, FanOut, FenceError, FenceNode, Incoming, LaunchFences, Limits, Member, Membership, Outgoing, Transport,
};
use pmi_transport::identity::{Caller, caller_of};
use pmi_transport::proto::v1;
use pmi_transport::proto::v1::link_frame::What;
use pmi_transport::proto::v1::node_agent_service_client::NodeAgentServiceClient;
use pmi_transport::proto::v1::node_agent_service_server::NodeAgentService;
use pmi_transport::proto::v1::{
    AbortProcessesRequest, AbortProcessesResponse, FenceDown, FenceKey, FenceScope, FenceUp, LaunchProcessesRequest,
    LaunchProcessesResponse, LinkFrame, NodePiece, PmiFenceCompleteRequest, PmiFenceCompleteResponse, PmiFenceRequest,
    PmiFenceResponse,
};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

/// A fence of all ranks of a job with ranks on all nodes.
async fn fence(launch: &LaunchFences, job: &str, epoch: u64, text: &str) -> Result<String, FenceError> {
    let members: Vec<_> = (0..launch.nodes()).map(NodeIndex).collect();
    let segments = vec![Bytes::copy_from_slice(text.as_bytes())];
    let exchange = launch.exchange(job, &members, &Scope::World, Epoch(epoch), segments);
    let gathered = tokio::time::timeout(DEADLINE, exchange).await.expect("an end within the deadline")?;
    Ok(String::from_utf8(gathered.runs.concat()).unwrap())
}

/// Polls a future once that cannot be ready yet.
async fn begin(future: &mut (impl Future + Unpin)) {
    poll_fn(|context| {
        assert!(pin!(&mut *future).poll(context).is_pending(), "it ended at once");
        Poll::Ready(())
    })
    .await;
}

fn blamed(result: Result<String, FenceError>) -> (u32, String) {
    let (node, reason) = failed(result);
    (node.expect("a node is to blame").0, reason)
}

/// The node that caused the failure, if known, and the reason.
fn failed(result: Result<String, FenceError>) -> (Option<NodeIndex>, String) {
    match result.expect_err("the fence cannot be complete") {
        FenceError::Failed { node, reason, .. } => (node, reason),
        error => panic!("{error}"),
    }
}

#[tokio::test]
async fn two_launches_and_two_jobs_have_fences_at_once() {
    let world = World::new(3, Over::Tcp, Limits::default()).await;
    let (one, two) = (world.join_all("one", FanOut::default()), world.join_all("two", FanOut::STAR));
    for epoch in 0..3 {
        let all = async |launches: &[LaunchFences], job: &str, tag: &str| {
            let texts: Vec<_> = (0..3).map(|node| format!("{tag}{node} ")).collect();
            let calls = launches.iter().zip(&texts).map(|(launch, text)| fence(launch, job, epoch, text));
            let [a, b, c]: [_; 3] = calls.collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("three nodes"));
            let expected = texts.concat();
            assert_eq!(tokio::try_join!(a, b, c), Ok((expected.clone(), expected.clone(), expected)));
        };
        tokio::join!(all(&one, "a", "1a"), all(&one, "b", "1b"), all(&two, "a", "2a"));
    }
    // Up and down between the head and two nodes, for all fences.
    assert_eq!([world.agent(0).links(), world.agent(1).links(), world.agent(2).links()], [2, 1, 1]);
    assert_eq!(world.agent(0).counters().completed, 9);
}

#[tokio::test]
async fn a_node_may_hear_of_the_launch_after_others_have_begun() {
    let world = World::new(2, Over::Tcp, Limits::default()).await;
    let late = world.join(1, "launch", FanOut::default());
    let mut call = pin!(fence(&late, "job", 0, "b"));
    begin(&mut call).await;
    // The frame of node 1 arrives before node 0 joins the launch.
    while world.agent(0).counters().frames == 0 {
        tokio::task::yield_now().await;
    }
    let head = world.join(0, "launch", FanOut::default());
    let (first, second) = tokio::join!(fence(&head, "job", 0, "a"), call);
    assert_eq!((first.unwrap(), second.unwrap()), ("ab".to_owned(), "ab".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_never_told_of_the_launch_fails_it() {
    let world = World::new(2, Over::Memory, Limits::default()).await;
    let launch = world.join(1, "launch", FanOut::default());
    assert_eq!(blamed(fence(&launch, "job", 0, "b").await), (0, "it has no such launch".to_owned()));
}

#[tokio::test]
async fn a_node_that_is_reported_lost_fails_fences_now_and_later() {
    let world = World::new(3, Over::Tcp, Limits::default()).await;
    let launches = world.join_all("launch", FanOut::default());
    let (mut head, mut leaf) = (pin!(fence(&launches[0], "job", 0, "")), pin!(fence(&launches[1], "job", 0, "")));
    begin(&mut head).await;
    begin(&mut leaf).await;
    world.agent(0).lost("node2", "it missed three heartbeats");
    let reason = "it missed three heartbeats".to_owned();
    assert_eq!(blamed(head.await), (2, reason.clone()));
    assert_eq!(blamed(leaf.await), (2, reason.clone()));
    assert_eq!(blamed(fence(&launches[0], "other", 0, "").await), (2, reason));
}

#[tokio::test]
async fn a_killed_agent_fails_those_that_wait_for_it_though_it_never_came() {
    let mut world = World::new(4, Over::Tcp, Limits::default()).await;
    let launches = world.join_all("launch", FanOut { barrier: 1, data: 1 });
    let mut calls: Vec<_> = launches[..3].iter().map(|launch| Box::pin(fence(launch, "job", 0, ""))).collect();
    for call in &mut calls {
        begin(call).await;
    }
    world.kill(3);
    for call in calls {
        let (node, reason) = blamed(call.await);
        assert_eq!(node, 3, "{reason}");
    }
}

#[tokio::test]
async fn a_node_that_leaves_the_launch_fails_those_that_wait_for_it() {
    let world = World::new(3, Over::Tcp, Limits::default()).await;
    let mut launches = world.join_all("launch", FanOut { barrier: 1, data: 1 });
    let left = launches.remove(1);
    let (mut head, mut leaf) = (pin!(fence(&launches[0], "job", 0, "")), pin!(fence(&launches[1], "job", 0, "")));
    begin(&mut head).await;
    begin(&mut leaf).await;
    drop(left);
    for result in [leaf.await, head.await] {
        assert_eq!(blamed(result), (1, "it has left the launch".to_owned()));
    }
}

/// A process with a more precise reason for its end must be able to report it first.
#[tokio::test(start_paused = true)]
async fn a_fence_waits_a_while_for_a_node_that_had_left_before() {
    let world = World::new(2, Over::Memory, Limits::default()).await;
    let launches = world.join_all("launch", FanOut::default());
    let [head, leaf] = launches.try_into().unwrap_or_else(|_| panic!("two nodes"));
    drop(head);
    let mut call = pin!(fence(&leaf, "job", 0, ""));
    begin(&mut call).await;
    // The answer to its frame, which was late.
    while world.agent(0).counters().late == 0 || world.agent(1).counters().frames == 0 {
        tokio::task::yield_now().await;
    }
    begin(&mut call).await;
    assert_eq!(blamed(call.await), (0, "it has left the launch".to_owned()));
}

/// A node that accepts links, and closes each normally before it has sent a frame.
struct Leaving;

#[async_trait]
impl Transport for Leaving {
    async fn link(&self, _: &str, _: &str, _: Outgoing) -> Result<Incoming, Status> {
        Ok(Box::pin(tokio_stream::empty()))
    }
}

/// A session that is ending may accept a link that it cannot use. That is no loss of the node. The paused clock measures the
/// time.
#[tokio::test(start_paused = true)]
async fn a_fence_waits_a_while_for_a_node_that_leaves_while_it_accepts_the_link() {
    let node = FenceNode::new("node1".into(), Arc::new(Leaving));
    let member = |name: &str| Member { name: name.into(), address: format!("{name}:1") };
    let nodes = ["node0", "node1"].map(member).into();
    let membership = Membership { launch_id: "launch".into(), me: NodeIndex(1), nodes, fan_out: FanOut::default() };
    let launch = node.join(membership, Arc::new(Echo));
    let begun = tokio::time::Instant::now();
    assert_eq!(blamed(fence(&launch, "job", 0, "").await), (0, "it closed its link".to_owned()));
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_call_that_is_dropped_gives_the_fence_up_for_all() {
    let world = World::new(3, Over::Tcp, Limits::default()).await;
    let launches = world.join_all("launch", FanOut::default());
    let mut call = pin!(fence(&launches[0], "job", 0, ""));
    begin(&mut call).await;
    {
        let mut dropped = Box::pin(fence(&launches[2], "job", 0, ""));
        begin(&mut dropped).await;
    }
    assert_eq!(blamed(call.await), (2, "it does not wait any longer".to_owned()));
    assert_eq!(fence(&launches[2], "job", 0, "").await, Err(FenceError::Repeated { epoch: Epoch(0) }));
}

#[tokio::test]
async fn more_than_a_fence_may_carry_fails_it_on_all_nodes() {
    let limits = Limits { fence_bytes: 10_000, ..Limits::default() };
    let world = World::new(2, Over::Tcp, limits).await;
    let launches = world.join_all("launch", FanOut::default());
    let text = "x".repeat(6_000);
    let (head, leaf) = tokio::join!(fence(&launches[0], "job", 0, &text), fence(&launches[1], "job", 0, &text));
    for result in [head, leaf] {
        let (node, reason) = failed(result);
        assert!(node.is_none() && reason.ends_with("the limit is 10000"), "{node:?}: {reason}");
    }
}

#[tokio::test]
async fn questions_are_answered_by_the_node_that_is_asked() {
    let mut world = World::new(3, Over::Tcp, Limits::default()).await;
    let launches = world.join_all("launch", FanOut::default());
    let ask = |node, question: &'static str| launches[0].ask(NodeIndex(node), question.into());
    assert_eq!(ask(1, "where").await, Ok("0 asked where".into()));
    assert_eq!(ask(0, "me").await, Ok("0 asked me".into()));
    assert_eq!(ask(2, "unknown").await, Err(AskError::Refused { node: NodeIndex(2), reason: "nobody knows".into() }));
    assert_eq!(ask(3, "where").await, Err(AskError::NoSuchNode { node: NodeIndex(3), nodes: 3 }));
    let mut unanswered = pin!(ask(2, "never"));
    begin(&mut unanswered).await;
    // It has received the question by the time it answers another one.
    ask(2, "where").await.unwrap();
    world.kill(2);
    assert!(matches!(unanswered.await, Err(AskError::NodeLost { node: NodeIndex(2), .. })));
}

#[tokio::test]
async fn calls_that_make_no_sense_are_refused() {
    let world = World::new(3, Over::Memory, Limits::default()).await;
    let launch = world.join(0, "launch", FanOut::default());
    for members in [&[][..], &[1, 2], &[0, 0], &[1, 0], &[0, 3]] {
        let members: Vec<_> = members.iter().copied().map(NodeIndex).collect();
        let refused = launch.exchange("job", &members, &Scope::World, Epoch(0), Vec::new()).await;
        assert_eq!(refused, Err(FenceError::Members { epoch: Epoch(0) }), "{members:?}");
    }
}

/// The link of a malicious peer: its sent and received frames.
struct Stranger {
    frames: mpsc::UnboundedSender<LinkFrame>,
    answers: Streaming<LinkFrame>,
}

impl Stranger {
    async fn open(world: &World, to: usize, name: &str) -> Self {
        let (frames, outgoing) = mpsc::unbounded_channel();
        let outgoing = tokio_stream::wrappers::UnboundedReceiverStream::new(outgoing);
        let answers = agent(world, to, name).link(outgoing).await.unwrap().into_inner();
        Self { frames, answers }
    }

    fn send(&self, what: What) {
        self.frames.send(LinkFrame { what: Some(what) }).unwrap();
    }
}

fn agent(world: &World, to: usize, name: &str) -> NodeAgentServiceClient<pmi_transport::connect::Channel> {
    let member = &world.members[to];
    let peer = Caller::Agent(member.name.clone());
    NodeAgentServiceClient::new(channel(&member.address.parse().unwrap(), &peer, &insecure(name)).unwrap())
}

fn key(launch: &str, epoch: u64) -> Option<FenceKey> {
    let scope = Some(FenceScope::default());
    Some(FenceKey { launch_id: launch.into(), job_id: "job".into(), scope, epoch, members: 0 })
}

#[tokio::test]
async fn frames_of_strangers_and_of_the_wrong_neighbours_change_nothing() {
    let world = World::new(3, Over::Tcp, Limits::default()).await;
    let launches = [0, 1].map(|node| world.join(node, "launch", FanOut { barrier: 1, data: 1 }));
    let mut head = pin!(fence(&launches[0], "job", 0, "a"));
    begin(&mut head).await;
    let stranger = Stranger::open(&world, 0, "elsewhere").await;
    let grandchild = Stranger::open(&world, 0, "node2").await;
    let forged = |position| vec![NodePiece { position, run: "forged".into(), goes_on: false }];
    for sender in [&stranger, &grandchild] {
        let (key, brought) = (key("launch", 0), forged(1));
        sender.send(What::Up(FenceUp { key, brought, last: true, ..FenceUp::default() }));
        let down = FenceDown { key: self::key("launch", 0), last: true, fan_out: 1, ..FenceDown::default() };
        sender.send(What::Down(down));
        sender.send(What::Up(FenceUp { key: None, last: true, ..FenceUp::default() }));
    }
    while world.agent(0).counters().frames < 6 {
        tokio::task::yield_now().await;
    }
    let counters = world.agent(0).counters();
    assert_eq!((counters.foreign, counters.misdirected), (4, 2), "{counters:?}");
    let third = world.join(2, "launch", FanOut { barrier: 1, data: 1 });
    let (head, second, third) = tokio::join!(head, fence(&launches[1], "job", 0, "b"), fence(&third, "job", 0, "c"));
    for result in [head, second, third] {
        assert_eq!(result.unwrap(), "abc");
    }
}

#[tokio::test]
async fn a_neighbour_that_forges_or_leaves_out_fails_the_fence_under_its_name() {
    let world = World::new(3, Over::Tcp, Limits::default()).await;
    let head = world.join(0, "launch", FanOut::STAR);
    let neighbour = Stranger::open(&world, 0, "node1").await;
    let piece = |position| NodePiece { position, run: "x".into(), goes_on: false };
    let frames =
        [(vec![piece(2)], 0, "brought what nodes outside its branch put"), (vec![piece(1)], 7, "left out a frame")];
    for (epoch, (brought, part, what)) in (0..).zip(frames) {
        let mut call = pin!(fence(&head, "job", epoch, ""));
        begin(&mut call).await;
        neighbour.send(What::Up(FenceUp { key: key("launch", epoch), brought, part, ..FenceUp::default() }));
        let (node, reason) = blamed(call.await);
        assert!(node == 1 && reason.contains(what), "node {node}: {reason}");
    }
}

#[tokio::test]
async fn frames_of_unknown_launches_are_kept_within_bounds_and_refused_beyond() {
    let limits = Limits { unclaimed_bytes: 1000, ..Limits::default() };
    let world = World::new(1, Over::Tcp, limits).await;
    let mut sender = Stranger::open(&world, 0, "elsewhere").await;
    for epoch in 0..4 {
        sender.send(What::Up(FenceUp { key: key("unknown", epoch), last: true, ..FenceUp::default() }));
    }
    let refused = tokio::time::timeout(DEADLINE, sender.answers.next()).await.unwrap().unwrap().unwrap();
    let Some(What::Failed(refused)) = refused.what else { panic!("{refused:?}") };
    assert_eq!((refused.key, refused.node), (key("unknown", 3), None));
}

#[tokio::test]
async fn an_agent_that_speaks_pmi_fence_takes_part_in_a_star() {
    let world = World::new(3, Over::Tcp, Limits::default()).await;
    let ours: Vec<_> = [0, 1].map(|node| world.join(node, "abc", FanOut::STAR)).into();
    let mut theirs = agent(&world, 0, "node2");
    for epoch in 0..2 {
        let entries = [("theirs", "3"), ("key", "value")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let request = PmiFenceRequest {
            launch_id: "abc".into(),
            kvs_entries: entries.into(),
            node_index: 2,
            ..PmiFenceRequest::default()
        };
        let [head, leaf] = [0, 1].map(|node| fence(&ours[node], "kvs_abc_0", epoch, "\x04\x01ours1"));
        let (answer, head, leaf) = tokio::join!(theirs.pmi_fence(request), head, leaf);
        let PmiFenceResponse { success, merged_kvs, complete, .. } = answer.unwrap().into_inner();
        let mut pairs: Vec<_> = merged_kvs.iter().map(|(key, value)| format!("{key}={value}")).collect();
        pairs.sort();
        assert_eq!((success, complete, pairs.join(" ")), (true, true, "key=value ours=1 theirs=3".to_owned()));
        assert!(head.unwrap().contains("theirs3") && leaf.unwrap().contains("theirs3"));
    }
}

/// An agent with an early response, which then receives the results of its fences.
struct Early(mpsc::UnboundedSender<(Caller, PmiFenceCompleteRequest)>);

#[tonic::async_trait]
impl NodeAgentService for Early {
    async fn pmi_fence_complete(
        &self,
        request: Request<PmiFenceCompleteRequest>,
    ) -> Result<Response<PmiFenceCompleteResponse>, Status> {
        let caller = caller_of(&request)?.clone();
        self.0.send((caller, request.into_inner())).unwrap();
        Ok(Response::new(PmiFenceCompleteResponse {}))
    }

    async fn pmi_fence(&self, _: Request<PmiFenceRequest>) -> Result<Response<PmiFenceResponse>, Status> {
        Err(Status::unimplemented("it is no head"))
    }

    type RelayReportsStream = BoxStream<v1::RelayedReports>;

    async fn relay_reports(
        &self,
        _: Request<Streaming<v1::RelayedCommands>>,
    ) -> Result<Response<Self::RelayReportsStream>, Status> {
        Err(Status::unimplemented("it launches nothing"))
    }

    async fn report_directly(
        &self,
        _: Request<v1::ReportDirectlyRequest>,
    ) -> Result<Response<v1::ReportDirectlyResponse>, Status> {
        Err(Status::unimplemented("it launches nothing"))
    }

    type LinkStream = BoxStream<LinkFrame>;

    async fn link(&self, _: Request<Streaming<LinkFrame>>) -> Result<Response<Self::LinkStream>, Status> {
        Err(Status::unimplemented("it knows no links"))
    }

    async fn retire_vni(&self, _: Request<v1::RetireVniRequest>) -> Result<Response<v1::RetireVniResponse>, Status> {
        Err(Status::unimplemented("it has no fabric"))
    }

    async fn list_cxi_services(
        &self,
        _: Request<v1::ListCxiServicesRequest>,
    ) -> Result<Response<v1::ListCxiServicesResponse>, Status> {
        Err(Status::unimplemented("it has no fabric"))
    }

    async fn launch_processes(
        &self,
        _: Request<LaunchProcessesRequest>,
    ) -> Result<Response<LaunchProcessesResponse>, Status> {
        Err(Status::unimplemented("it launches nothing"))
    }

    async fn abort_processes(
        &self,
        _: Request<AbortProcessesRequest>,
    ) -> Result<Response<AbortProcessesResponse>, Status> {
        Err(Status::unimplemented("it ends nothing"))
    }
}

#[tokio::test]
async fn an_agent_that_is_answered_early_is_handed_the_result() {
    let world = World::new(2, Over::Tcp, Limits::default()).await;
    let head = world.join(0, "abc", FanOut::STAR);
    let (results, mut completed) = mpsc::unbounded_channel();
    let (reply_to, serving) = serve_agent("node1", Early(results)).await;
    let mut theirs = agent(&world, 0, "node1");
    for epoch in 0..2 {
        let request = PmiFenceRequest {
            launch_id: "abc".into(),
            kvs_entries: [("theirs".to_owned(), epoch.to_string())].into(),
            node_index: 1,
            answer_early: true,
            reply_to: reply_to.clone(),
            ..PmiFenceRequest::default()
        };
        // The response arrives before the contribution of the head's own ranks.
        let answer = tokio::time::timeout(DEADLINE, theirs.pmi_fence(request)).await.unwrap().unwrap().into_inner();
        assert_eq!((answer.success, answer.complete, answer.merged_kvs.len()), (true, false, 0));
        fence(&head, "kvs_abc_0", epoch, "\x04\x01ours1").await.unwrap();
        let (caller, result) = tokio::time::timeout(DEADLINE, completed.recv()).await.unwrap().unwrap();
        assert_eq!(caller, Caller::Agent("node0".into()));
        let expected = [("ours".to_owned(), "1".to_owned()), ("theirs".to_owned(), epoch.to_string())];
        assert_eq!((result.success, result.epoch, result.merged_kvs), (true, epoch, expected.into()));
    }
    // A failed fence is reported too.
    let request = PmiFenceRequest {
        launch_id: "abc".into(),
        node_index: 1,
        answer_early: true,
        reply_to,
        ..PmiFenceRequest::default()
    };
    theirs.pmi_fence(request).await.unwrap();
    drop(head);
    let (_, result) = tokio::time::timeout(DEADLINE, completed.recv()).await.unwrap().unwrap();
    assert!(!result.success && !result.message.is_empty(), "{result:?}");
    serving.abort();
}

#[tokio::test]
async fn pmi_fence_is_refused_where_it_cannot_be_served() {
    let world = World::new(4, Over::Tcp, Limits::default()).await;
    let _star = [0, 1].map(|node| world.join(node, "star", FanOut::STAR));
    let _tree = world.join(0, "tree", FanOut { barrier: 2, data: 2 });
    let refusal = async |to, name: &str, launch: &str| {
        let request = PmiFenceRequest { launch_id: launch.into(), node_index: 2, ..PmiFenceRequest::default() };
        agent(&world, to, name).pmi_fence(request).await.expect_err("it is refused").message().to_owned()
    };
    assert_eq!(refusal(0, "node2", "other").await, "launch other is not known here");
    assert_eq!(refusal(0, "node3", "star").await, "node3 is not node 2 of the launch");
    assert_eq!(refusal(1, "node2", "star").await, "this node is not the head of the launch");
    assert!(refusal(0, "node2", "tree").await.contains("with star fences"));
}

#[tokio::test]
async fn a_membership_ends_when_its_launch_is_joined_again() {
    let world = World::new(2, Over::Memory, Limits::default()).await;
    let earlier = world.join(0, "launch", FanOut::default());
    let mut call = Box::pin(fence(&earlier, "job", 0, "old"));
    begin(&mut call).await;
    let now = [0, 1].map(|node| world.join(node, "launch", FanOut::default()));
    assert_eq!(call.as_mut().await, Err(FenceError::LaunchEnded { epoch: Epoch(0) }));
    drop(call);
    assert_eq!(fence(&earlier, "job", 1, "old").await, Err(FenceError::LaunchEnded { epoch: Epoch(1) }));
    assert_eq!(earlier.ask(NodeIndex(1), "where".into()).await, Err(AskError::LaunchEnded));
    // Its end does not affect its successor.
    drop(earlier);
    let (a, b) = tokio::join!(fence(&now[0], "job", 0, "a"), fence(&now[1], "job", 0, "b"));
    assert_eq!((a.unwrap().as_str(), b.unwrap().as_str()), ("ab", "ab"));
}

/// No state of a launch remains after its nodes have left it.
#[tokio::test(start_paused = true)]
async fn a_node_that_rejoins_a_launch_starts_anew() {
    let world = World::new(2, Over::Memory, Limits::default()).await;
    for _ in 0..3 {
        let launches = world.join_all("launch", FanOut::default());
        let (a, b) = tokio::join!(fence(&launches[0], "job", 0, "a"), fence(&launches[1], "job", 0, "b"));
        assert_eq!((a.unwrap().as_str(), b.unwrap().as_str()), ("ab", "ab"));
    }
}

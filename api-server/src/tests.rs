//! The whole server with scripted agents and clients: tests of the messages that each of them receives.

mod broken_streams;
mod changes;
mod drains;
mod following;
mod inventories;
mod ownership;
mod plans;
mod proxying;
mod queue;
mod relayed_reports;
mod rendezvous;
mod restarts;
mod rights;
mod spawns;
mod time;
mod unclean_nodes;
mod world;

use node_command::What as Command;
use node_event::What as Event;
use pmi_transport::proto::v1::cause::Kind;
use pmi_transport::proto::v1::*;
use tonic::Code;

use self::world::{USER, World, exit, order, soon};
use pmi_transport::identity::Caller;

#[tokio::test]
async fn a_launch_is_told_of_from_its_start_to_its_end() {
    let world = World::new(2).await;
    let launch = world.launch(3).await;
    let mut client = world.attach(&launch.id, 0).await;
    let Some(attach_response::What::Spec(spec)) = client.hear().await.unwrap().what else { panic!("no spec") };
    assert_eq!((spec.nodes.as_str(), spec.secret.len()), ("node[0-1]", 0));
    let blocks: Vec<_> = spec.job.unwrap().blocks.iter().map(|block| (block.nodes, block.ranks_per_node)).collect();
    assert_eq!(blocks, [(1, 2), (1, 1)]);

    launch.reports[0].run(0, 0, RankPhase::Finalized).await;
    launch.reports[0].output(1, 5).await;
    launch.reports[0].run(1, 0, RankPhase::Finalized).await;
    launch.reports[0].finish().await;
    assert!(matches!(client.event().await, Event::Started(_)));
    assert!(matches!(client.event().await, Event::Exited(_)));
    assert!(matches!(client.event().await, Event::Output(_)));
    launch.reports[1].run(2, 0, RankPhase::Finalized).await;
    launch.reports[1].finish().await;
    let complete = client.complete().await;
    assert!(complete.success, "{complete:?}");
    assert_eq!(complete.ranks.len(), 3);

    // The launch is over, and still known.
    let status = soon(world.launches().get_launch(GetLaunchRequest { id: launch.id.clone(), stacks: false }))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(status.summary.unwrap().state(), LaunchState::Succeeded);
    assert_eq!(status.nodes[1].ranks[0].rank, 2);
    let mut late = world.attach(&launch.id, 0).await;
    assert!(late.complete().await.success);
}

#[tokio::test]
async fn one_refusal_rolls_all_others_back() {
    let world = World::new(3).await;
    let allocation = world.allocate(RequeuePolicy::Never).await;
    world.agents[1].seen.lock().refusal = Some(LaunchProcessesResponse {
        message: "no user 1000 here".to_owned(),
        reason: RefusalReason::User.into(),
        ..Default::default()
    });
    let request = LaunchTasksRequest { num_tasks: 3, ..order(&allocation) };
    let refused = soon(world.allocations(&USER).launch_tasks(request.clone())).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert_eq!(refused.message(), "node node1 does not start its part of the launch: no user 1000 here");
    let aborted = |index: usize| world.agents[index].seen.lock().aborted.len();
    assert_eq!([aborted(0), aborted(1), aborted(2)], [1, 0, 1]);

    // The allocation can still be used.
    world.agents[1].seen.lock().refusal = None;
    assert_eq!(world.launch_in(&request).await.reports.len(), 3);
    let all = soon(world.launches().list_launches(ListLaunchesRequest { all: true })).await.unwrap().into_inner();
    let states: Vec<_> = all.launches.iter().map(LaunchSummary::state).collect();
    assert!(states.contains(&LaunchState::LaunchFailed) && states.contains(&LaunchState::Active), "{states:?}");
}

#[tokio::test]
async fn the_first_cause_ends_the_launch_everywhere() {
    let world = World::new(2).await;
    let mut launch = world.launch(2).await;
    let mut client = world.attach(&launch.id, 0).await;
    let killed = RankExitStatus { rank: 1, signaled: true, signal: 9, ..Default::default() };
    let cause = Cause { host: "node1".to_owned(), kind: Some(Kind::Failed(killed)) };
    launch.reports[1].tell(Event::Ending(cause.clone())).await;
    assert_eq!(launch.reports[0].command().await, Some(Command::GiveUp(Nothing {})));
    // A consequence of the first cause is not a cause.
    let fence = Cause { host: "node0".to_owned(), kind: Some(Kind::Fence("node1 left".to_owned())) };
    launch.reports[0].tell(Event::Ending(fence)).await;
    assert_eq!(client.event().await, Event::Ending(cause.clone()));
    launch.reports[0].finish().await;
    launch.reports[1].tell(Event::Exited(killed)).await;
    launch.reports[1].finish().await;
    let complete = client.complete().await;
    assert_eq!((complete.success, complete.cause), (false, Some(cause)));
    assert!(complete.error_message.contains("rank 1 on node1"), "{}", complete.error_message);
}

/// Rank 1, on the other node, aborts.
fn abort_of_rank_1() -> Cause {
    let kind = Kind::Aborted(Aborted { rank: 1, code: 14, message: String::new() });
    Cause { host: "node1".to_owned(), kind: Some(kind) }
}

#[tokio::test]
async fn an_abort_over_a_rank_that_is_gone_is_not_the_cause() {
    let world = World::new(2).await;
    let mut launch = world.launch(2).await;
    let mut client = world.attach(&launch.id, 0).await;
    let gone = Cause { host: "node0".to_owned(), kind: Some(Kind::LeftWithoutFinalize(0)) };
    launch.reports[1].tell(Event::Ending(abort_of_rank_1())).await;
    launch.reports[0].tell(Event::Ending(gone.clone())).await;
    assert_eq!(client.event().await, Event::Ending(gone));
    assert_eq!(launch.reports[1].command().await, Some(Command::GiveUp(Nothing {})));
}

#[tokio::test]
async fn an_abort_counts_if_nothing_comes_from_which_it_can_follow() {
    let world = World::new(2).await;
    let mut launch = world.launch(2).await;
    let mut client = world.attach(&launch.id, 0).await;
    launch.reports[1].tell(Event::Ending(abort_of_rank_1())).await;
    assert_eq!(client.event().await, Event::Ending(abort_of_rank_1()));
    assert_eq!(launch.reports[0].command().await, Some(Command::GiveUp(Nothing {})));
}

#[tokio::test]
async fn an_agent_that_starts_anew_has_lost_its_launches() {
    let world = World::new(2).await;
    let allocation = world.allocate(RequeuePolicy::OnNodeFailure).await;
    let request = LaunchTasksRequest { num_tasks: 2, ..order(&allocation) };
    let mut launch = world.launch_in(&request).await;
    let mut client = world.attach(&launch.id, 0).await;
    world.register(1, 2, &[]).await;
    assert_eq!(launch.reports[0].command().await, Some(Command::GiveUp(Nothing {})));
    launch.reports[0].finish().await;
    let complete = client.complete().await;
    assert_eq!(
        complete.error_message,
        "node node1 was lost: its agent was started anew, and found no session of the launch"
    );
    // Its nodes are up, so that it runs again at once, or is about to.
    let now = loop {
        let request = GetAllocationRequest { id: allocation.clone() };
        let now = soon(world.allocations(&USER).get_allocation(request)).await.unwrap().into_inner();
        if now.requeues == 1 && now.state() == AllocationState::Running {
            break now;
        }
    };
    assert_eq!(now.reason, "");
    assert_eq!(world.register(1, 2, &[&launch.id]).await, [launch.id.clone()], "it must end what is over");
}

#[tokio::test]
async fn a_rank_that_left_is_missed_by_those_on_other_nodes() {
    let world = World::new(2).await;
    let mut launch = world.launch(2).await;
    let mut client = world.attach(&launch.id, 0).await;
    launch.reports[0].tell(Event::Waiting(Waiting { ranks: vec![0] })).await;
    launch.reports[1].run(1, 0, RankPhase::Silent).await;
    launch.reports[1].finish().await;
    assert_eq!(launch.reports[0].command().await, Some(Command::GiveUp(Nothing {})));
    launch.reports[0].finish().await;
    let cause = client.complete().await.cause.unwrap();
    assert_eq!(cause.host, "node1");
    let left = LeftBeforeInit { exit: Some(exit(1, 0, RankPhase::Silent)), others: vec![0] };
    assert_eq!(cause.kind, Some(Kind::LeftBeforeInit(left)));
}

#[tokio::test]
async fn a_rank_that_finalized_is_missed_once_others_are_seen_to_wait() {
    let world = World::new(2).await;
    let mut launch = world.launch(3).await;
    let mut client = world.attach(&launch.id, 0).await;
    launch.reports[0].tell(Event::Waiting(Waiting { ranks: vec![0, 1] })).await;
    launch.reports[1].run(2, 0, RankPhase::Finalized).await;
    launch.reports[1].finish().await;
    launch.reports[0].answer(&[(0, true), (1, false)]).await;
    assert_eq!(launch.reports[0].command().await, Some(Command::GiveUp(Nothing {})));
    launch.reports[0].finish().await;
    let kind = client.complete().await.cause.unwrap().kind;
    assert_eq!(kind, Some(Kind::LeftFence(LeftFence { rank: 2, waiting: vec![0] })));
}

#[tokio::test]
async fn a_fence_timeout_names_the_missing_ranks_of_all_nodes() {
    let world = World::new(2).await;
    let mut launch = world.launch(3).await;
    let mut client = world.attach(&launch.id, 0).await;
    let timeout = FenceTimeout { limit_ms: 1000, waiting: 2, missing: Vec::new() };
    launch.reports[0]
        .tell(Event::Ending(Cause { host: "node0".into(), kind: Some(Kind::FenceTimeout(timeout)) }))
        .await;
    launch.reports[0].answer(&[(0, true), (1, true)]).await;
    launch.reports[1].answer(&[(2, false)]).await;
    assert_eq!(launch.reports[1].command().await, Some(Command::GiveUp(Nothing {})));
    launch.reports[0].finish().await;
    launch.reports[1].finish().await;
    let complete = client.complete().await;
    let expected = "PMI fence timeout: after 1s, node0 still waits for rank 2 (last PMI command: put)";
    assert_eq!(complete.error_message, expected);
}

#[tokio::test]
async fn a_stuck_start_is_told_once_with_the_ranks_of_all_nodes() {
    let world = World::new(2).await;
    let mut launch = world.launch(2).await;
    let mut client = world.attach(&launch.id, 0).await;
    let stuck =
        || Notice { what: Some(notice::What::Stuck(StuckStart { after_ms: 30_000, waiting: 1, missing: vec![] })) };
    launch.reports[0].tell(Event::Notice(stuck())).await;
    launch.reports[0].answer(&[(0, true)]).await;
    launch.reports[1].answer(&[(1, false)]).await;
    let Event::Notice(Notice { what: Some(notice::What::Stuck(told)) }) = client.event().await else { panic!() };
    assert_eq!((told.waiting, told.missing[0].rank), (1, 1));
    launch.reports[1].tell(Event::Notice(stuck())).await;
    launch.reports[1].output(1, 1).await;
    assert!(matches!(client.event().await, Event::Output(_)), "the second notice is nothing new");
}

#[tokio::test]
async fn only_the_owner_launches_and_only_where_it_can() {
    let world = World::new(1).await;
    let allocation = world.allocate(RequeuePolicy::Never).await;
    let check = async |caller: Caller, id: &str, code: Code, expected: &str| {
        let error = soon(world.allocations(&caller).launch_tasks(order(id))).await.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.message().contains(expected), "{error}");
    };
    check(Caller::User(7), &allocation, Code::PermissionDenied, "belongs to another user").await;
    check(USER, "nowhere", Code::NotFound, "no allocation nowhere").await;
    let launch = world.launch_in(&order(&allocation)).await;
    let mut stranger = launch_service_client::LaunchServiceClient::new(world.channel(&Caller::User(7)));
    let refused =
        soon(stranger.get_launch(GetLaunchRequest { id: launch.id.clone(), stacks: false })).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let mut liar = node_service_client::NodeServiceClient::new(world.channel(&Caller::Agent("x".into())));
    let refused =
        soon(liar.heartbeat(HeartbeatRequest { node_id: "node0".into(), incarnation: 1, ..Default::default() }))
            .await
            .unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);

    // Releasing waits for the launch to end.
    let release = ReleaseAllocationRequest { id: allocation.clone() };
    let releasing = soon(world.allocations(&USER).release_allocation(release.clone())).await.unwrap().into_inner();
    assert_eq!(releasing.state(), AllocationState::Releasing);
    check(USER, &allocation, Code::FailedPrecondition, "is releasing, not running").await;
    let mut report = launch.reports.into_iter().next().unwrap();
    assert_eq!(report.command().await, Some(Command::End(15)));
    report.finish().await;
    while soon(world.allocations(&USER).release_allocation(release.clone())).await.unwrap().into_inner().state()
        != AllocationState::Released
    {
        tokio::task::yield_now().await;
    }
}

/// The answer is a signature, which is empty without authentication.
#[tokio::test]
async fn a_fork_server_is_told_the_last_number_in_answer_to_its_challenge() {
    let world = World::new(1).await;
    let mut agent = node_service_client::NodeServiceClient::new(world.channel(&Caller::Agent("node0".into())));
    let mut answer = async |challenge: &'static [u8]| {
        let (node_id, challenge) = ("node0".to_owned(), challenge.into());
        let beat = HeartbeatRequest { node_id, challenge, ..Default::default() };
        soon(agent.heartbeat(beat)).await.map(|answer| answer.into_inner().serial_signature)
    };
    assert!(answer(b"").await.unwrap().is_none());
    assert!(answer(&[7; 32]).await.unwrap().is_some());
    assert_eq!(answer(b"short").await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn input_goes_to_the_ranks_that_read_it() {
    let world = World::new(2).await;
    let allocation = world.allocate(RequeuePolicy::Never).await;
    let app = AppSpec { program: "cat".into(), directory: "/".into(), ..Default::default() };
    let spec = LaunchSpec {
        apps: vec![app],
        job: Some(Job { apps: vec![App { ranks: 2, appnum: 0 }], ..Default::default() }),
        stdin: Some(StdinTarget { target: Some(stdin_target::Target::Rank(1)) }),
        ..Default::default()
    };
    let mut launch =
        world.launch_in(&LaunchTasksRequest { spec: Some(spec), num_tasks: 0, ..order(&allocation) }).await;
    let mut client = world.attach(&launch.id, 0).await;
    client.say(attach_request::What::Stdin("hello".into())).await;
    assert_eq!(launch.reports[1].command().await, Some(Command::Stdin("hello".into())));
    client.say(attach_request::What::StdinEnd(Nothing {})).await;
    assert_eq!(launch.reports[1].command().await, Some(Command::StdinEnd(Nothing {})));
    client.hear().await.unwrap();
    launch.reports[1].tell(Event::StdinTaken(5)).await;
    assert_eq!(client.hear().await.unwrap().what, Some(attach_response::What::StdinCredit(5)));
    // The other node has received none of the input.
    client.say(attach_request::What::Signal(10)).await;
    assert_eq!(launch.reports[0].command().await, Some(Command::Signal(10)));
    client.say(attach_request::What::Signal(99)).await;
    assert_eq!(client.hear().await.unwrap_err().code(), Code::InvalidArgument);
}

/// The exit of the missing rank comes after output that no client reads.
#[tokio::test]
async fn a_deserter_is_found_behind_output_that_waits() {
    let world = World::new(2).await;
    let mut launch = world.launch(4).await;
    let mut client = world.attach(&launch.id, 0).await;
    let Some(attach_response::What::Spec(spec)) = client.hear().await.unwrap().what else { panic!("no spec") };
    launch.reports[0].output(0, spec.output_window as usize).await;
    launch.reports[1].tell(Event::Waiting(Waiting { ranks: vec![2, 3] })).await;
    let Some(Command::AskProgress(question)) = launch.reports[0].command().await else { panic!("no question") };
    let gone = RankProgress { rank: 1, exit: Some(exit(1, 0, RankPhase::Silent)), ..Default::default() };
    launch.reports[0].tell(Event::Progress(Progress { question, ranks: vec![gone], stacks: None })).await;
    launch.reports[1].answer(&[(2, true), (3, true)]).await;
    for report in &mut launch.reports {
        assert_eq!(report.command().await, Some(Command::GiveUp(Nothing {})));
    }
}

#[tokio::test]
async fn a_signal_for_some_ranks_is_theirs_alone() {
    let world = World::new(1).await;
    let mut launch = world.launch(2).await;
    let id = launch.id.clone();
    let ranks = |first, last| vec![RankRange { first, last }];
    let signal = |ranks| SignalLaunchRequest { id: id.clone(), signal: 10, ranks };
    soon(world.launches().signal_launch(signal(ranks(1, 1)))).await.unwrap();
    let expected = Command::SignalRanks(SignalRanks { signal: 10, ranks: ranks(1, 1) });
    assert_eq!(launch.reports[0].command().await, Some(expected));
    let refused = soon(world.launches().signal_launch(signal(ranks(0, 2)))).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("has no rank 2; it has ranks 0 to 1\ntry: --ranks"), "{}", refused.message());
    let backwards = soon(world.launches().signal_launch(signal(ranks(1, 0)))).await.unwrap_err();
    assert!(backwards.message().contains("the smaller number comes first"), "{}", backwards.message());
}

/// The request of the design document, from a client that uses no other fields.
#[tokio::test]
async fn a_plain_request_is_a_launch_that_nobody_follows() {
    let world = World::new(2).await;
    let allocation_id = world.allocate(RequeuePolicy::Never).await;
    let request = LaunchTasksRequest {
        allocation_id,
        num_tasks: 2,
        tasks_per_node: 1,
        entrypoint: "/bin/app".to_owned(),
        args: vec!["one word".to_owned()],
        env: [("NAME".to_owned(), "value".to_owned())].into(),
        pmi_mode: "pmi2".to_owned(),
        ..Default::default()
    };
    let mut launch = world.launch_in(&request).await;
    assert_eq!(launch.reports.len(), 2);
    let spec = world.agents[0].seen.lock().launched[0].spec.clone();
    let spec = <LaunchSpec as prost::Message>::decode(spec).unwrap();
    assert_eq!(
        (spec.apps[0].program.as_ref(), spec.apps[0].args.as_slice()),
        (&b"/bin/app"[..], &["one word".into()][..])
    );
    let variables = spec.environment.iter().chain(&spec.apps[0].set);
    assert!(variables.into_iter().any(|variable| variable.name == "NAME" && variable.value == "value"));
    assert_eq!(spec.pmi_family(), PmiFamily::Auto);
    // Output does not wait for a client.
    launch.reports[0].output(0, spec.output_window as usize).await;
    assert!(matches!(launch.reports[0].command().await, Some(Command::OutputCredit(_))));
    for (rank, report) in (0..).zip(&launch.reports) {
        report.run(rank, 0, RankPhase::Finalized).await;
        report.finish().await;
    }
    let state = async || {
        let request = GetLaunchRequest { id: launch.id.clone(), stacks: false };
        soon(world.launches().get_launch(request)).await.unwrap().into_inner().summary.unwrap().state()
    };
    while state().await != LaunchState::Succeeded {
        tokio::task::yield_now().await;
    }
}

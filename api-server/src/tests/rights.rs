//! The use of a stolen agent's key: it can disturb launches on its node, and nothing else. Also the share of a user in the server.

use node_event::What as Event;
use pmi_transport::identity::Caller;
use pmi_transport::proto::v1::node_service_client::NodeServiceClient;
use pmi_transport::proto::v1::*;
use tokio_stream::once;
use tonic::{Code, Status};

use super::world::{USER, World, order, soon};

/// All calls that an agent can make to the API server for a node, made by `caller`.
async fn every_call(world: &World, caller: &str, node: &str, launch: &str) -> [Result<(), Status>; 6] {
    let mut client = NodeServiceClient::new(world.channel(&Caller::Agent(caller.to_owned())));
    let (node_id, launch_id) = (node.to_owned(), launch.to_owned());
    let register = RegisterNodeRequest {
        node_id: node_id.clone(),
        grpc_address: "127.0.0.1:1".to_owned(),
        incarnation: 1,
        ..Default::default()
    };
    let beat = HeartbeatRequest { node_id: node_id.clone(), incarnation: 1, ..Default::default() };
    let of = ReportFor { launch_id: launch_id.clone(), node_id: node_id.clone(), node_index: 0, again: false };
    let report = LaunchReport { what: Some(launch_report::What::Of(of)) };
    let call = Some(NameCall { service: "s".into(), port: "p".into(), ..Default::default() });
    let name = NameRequest { launch_id: launch_id.clone(), node_id: node_id.clone(), call, call_id: 0 };
    let meet = MeetRequest {
        launch_id: launch_id.clone(),
        node_id: node_id.clone(),
        call: Some(MeetCall::default()),
        call_id: 0,
    };
    let spawn = SpawnRequest { launch_id, node_id, call: Some(SpawnCall::default()), call_id: 0 };
    [
        soon(client.register_node(register)).await.map(drop),
        soon(client.heartbeat(beat)).await.map(drop),
        soon(client.report_launch(once(report))).await.map(drop),
        soon(client.call_name(name)).await.map(drop),
        soon(client.spawn_tasks(spawn)).await.map(drop),
        soon(client.meet_launches(meet)).await.map(drop),
    ]
}

fn codes(answers: [Result<(), Status>; 6]) -> [Code; 6] {
    answers.map(|answer| answer.map_or_else(|status| status.code(), |()| Code::Ok))
}

#[tokio::test]
async fn an_agent_speaks_for_its_own_node_only() {
    let world = World::new(3).await;
    let mut launch = world.launch(2).await;
    assert_eq!(launch.reports.len(), 2);
    let mut client = world.attach(&launch.id, 0).await;

    let as_another = every_call(&world, "node2", "node0", &launch.id).await;
    assert_eq!(as_another[0].as_ref().unwrap_err().message(), "the agent of node2 cannot speak for node node0");
    assert_eq!(codes(as_another), [Code::PermissionDenied; 6]);
    // Under its own name it is no node of the launch.
    let as_itself = codes(every_call(&world, "node2", "node2", &launch.id).await);
    assert_eq!(as_itself[2], Code::InvalidArgument);
    assert_eq!(as_itself[3..], [Code::FailedPrecondition; 3]);
    // It cannot replace a node of the launch.
    let of = ReportFor { launch_id: launch.id.clone(), node_id: "node2".to_owned(), node_index: 0, again: false };
    let report = LaunchReport { what: Some(launch_report::What::Of(of)) };
    let refused = soon(world.nodes(2).report_launch(once(report))).await.unwrap_err();
    assert_eq!(refused.message(), format!("node2 is not node 0 of launch {}", launch.id));

    // Reports of a node about ranks of another node are ignored.
    launch.reports[1].run(0, 9, RankPhase::Initialized).await;
    launch.reports[1].output(0, 5).await;
    for (rank, report) in (0..).zip(&mut launch.reports) {
        report.run(rank, 0, RankPhase::Finalized).await;
        report.finish().await;
    }
    let mut heard = Vec::new();
    let complete = loop {
        match client.hear().await.unwrap().what {
            Some(attach_response::What::Event(event)) => heard.extend(event.what),
            Some(attach_response::What::Complete(complete)) => break complete,
            _ => {}
        }
    };
    assert!(complete.success, "{complete:?}");
    assert!(heard.iter().all(|event| !matches!(event, Event::Output(_))), "{heard:?}");
}

/// The key of an agent does not give the rights of a user.
#[tokio::test]
async fn an_agent_asks_for_nothing_that_users_do() {
    let world = World::new(1).await;
    let allocation = world.allocate(RequeuePolicy::Never).await;
    let launch = world.launch_in(&order(&allocation)).await;
    let thief = Caller::Agent("node0".to_owned());
    let mut launches = launch_service_client::LaunchServiceClient::new(world.channel(&thief));
    let abort = AbortLaunchRequest { id: launch.id.clone(), reason: String::new() };
    assert_eq!(soon(launches.abort_launch(abort)).await.unwrap_err().code(), Code::PermissionDenied);
    let refused = soon(world.allocations(&thief).launch_tasks(order(&allocation))).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert_eq!(soon(world.allocations(&USER).launch_tasks(order(&allocation))).await.map(drop).ok(), Some(()));
}

#[tokio::test]
async fn an_abort_is_told_with_who_wanted_it_and_why() {
    let world = World::new(1).await;
    let mut launch = world.launch(1).await;
    let mut client = world.attach(&launch.id, 0).await;
    let abort = AbortLaunchRequest { id: launch.id.clone(), reason: "enough".to_owned() };
    soon(world.launches().abort_launch(abort)).await.unwrap();
    assert_eq!(launch.reports[0].command().await, Some(node_command::What::End(15)));
    launch.reports[0].finish().await;
    assert_eq!(client.complete().await.error_message, "ended by user 1000: enough");
}

/// Sixty detached launches with a large environment each took 239 MiB of the server's memory.
#[tokio::test]
async fn specs_of_a_users_launches_take_no_more_than_the_users_share() {
    let world = World::new(1).await;
    let allocation = world.allocate(RequeuePolicy::Never).await;
    let large = |kibibytes: usize| {
        let mut order = order(&allocation);
        let value = vec![b'x'; kibibytes << 10];
        order.spec.as_mut().unwrap().environment = vec![Variable { name: "LARGE".into(), value: value.into() }];
        order
    };
    let mut client = world.allocations(&USER);
    let first = world.launch_in(&large(600)).await;
    let refused = soon(client.launch_tasks(large(600))).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("1048576 are possible here; wait until some are over"), "{refused}");
    let _small = world.launch_in(&large(1)).await;
    let plan = LaunchTasksRequest { plan_only: true, ..large(600) };
    assert!(soon(client.launch_tasks(plan)).await.is_ok(), "nothing comes of it");
    first.reports[0].run(0, 0, RankPhase::Finalized).await;
    first.reports[0].finish().await;
    let again = async {
        while client.launch_tasks(large(600)).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    soon(again).await;
    let administrator = soon(world.allocations(&Caller::Admin(None)).launch_tasks(large(600))).await;
    assert!(administrator.is_ok(), "{administrator:?}");
}

//! Nodes that do not end their part of a launch. No other allocation gets them before the part has ended.

use lattice_session::timeouts;
use pmi_transport::identity::Caller;
use pmi_transport::proto::v1::*;
use tonic::Code;

use crate::clock::STANDSTILL;

use super::world::{Running, USER, World, exit, order, pass, soon};

/// A launch on two nodes that is over before the second node has ended its part, and the allocation of the launch.
async fn given_up(world: &World) -> (Running, String) {
    let allocation = world.allocate(RequeuePolicy::Never).await;
    let mut launch = world.launch_in(&LaunchTasksRequest { num_tasks: 2, ..order(&allocation) }).await;
    let mut client = world.attach(&launch.id, 0).await;
    launch.reports[1].tell(node_event::What::Ending(Cause::default())).await;
    assert_eq!(launch.reports[0].command().await, Some(node_command::What::GiveUp(Nothing {})));
    launch.reports[0].finish().await;
    let unended = loop {
        match client.hear().await.unwrap().what {
            Some(attach_response::What::UnendedNodes(nodes)) => break nodes,
            Some(attach_response::What::Complete(complete)) => panic!("{complete:?}"),
            _ => {}
        }
    };
    assert_eq!(unended, "node1");
    let complete = client.complete().await;
    let expected = "; node1 did not report the end of its part, processes may be left there";
    assert!(complete.error_message.ends_with(expected), "{}", complete.error_message);
    (launch, allocation)
}

async fn release(world: &World, id: &str) -> Allocation {
    let request = ReleaseAllocationRequest { id: id.to_owned() };
    soon(world.allocations(&USER).release_allocation(request)).await.unwrap().into_inner()
}

async fn allocate_both(world: &World) -> Result<String, Code> {
    let request = CreateAllocationRequest { num_nodes: 2, ..Default::default() };
    let answer = soon(world.allocations(&USER).create_allocation(request)).await;
    answer.map(|answer| answer.into_inner().id).map_err(|status| status.code())
}

async fn beat(world: &World, launches: &[&str]) {
    let launches = launches.iter().map(|&id| id.to_owned()).collect();
    let beat = HeartbeatRequest { node_id: "node1".to_owned(), incarnation: 1, launches, ..Default::default() };
    assert!(!soon(world.nodes(1).heartbeat(beat)).await.unwrap().into_inner().register);
}

#[tokio::test]
async fn a_node_stays_taken_until_its_agent_says_that_nothing_is_left() {
    let world = World::new(2).await;
    let (launch, allocation) = given_up(&world).await;
    let released = release(&world, &allocation).await;
    assert_eq!(released.state(), AllocationState::Releasing);
    assert_eq!(released.reason, "waits until nothing of a launch is left on node1");
    beat(&world, &[&launch.id]).await;
    assert_eq!(allocate_both(&world).await, Err(Code::FailedPrecondition));
    beat(&world, &[]).await;
    // The release follows soon.
    while allocate_both(&world).await.is_err() {
        tokio::task::yield_now().await;
    }
}

/// Nodes that accepted the launch may not have ended its ranks yet when another node refuses it.
#[tokio::test]
async fn nodes_that_took_a_launch_that_another_refused_stay_taken_as_well() {
    let world = World::new(2).await;
    let allocation = world.allocate(RequeuePolicy::Never).await;
    let refusal = LaunchProcessesResponse { reason: RefusalReason::User.into(), ..Default::default() };
    world.agents[0].seen.lock().refusal = Some(refusal);
    let request = LaunchTasksRequest { num_tasks: 2, ..order(&allocation) };
    soon(world.allocations(&USER).launch_tasks(request)).await.unwrap_err();
    let released = release(&world, &allocation).await;
    assert_eq!(released.reason, "waits until nothing of a launch is left on node1");
    beat(&world, &[]).await;
    while allocate_both(&world).await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_agent_that_is_started_anew_has_nothing_left() {
    let world = World::new(2).await;
    let (_, allocation) = given_up(&world).await;
    assert_eq!(release(&world, &allocation).await.state(), AllocationState::Releasing);
    world.register(1, 2, &[]).await;
    assert!(allocate_both(&world).await.is_ok());
}

/// A node that died while no server ran. No agent will report that nothing is left; an agent that returns reports its launches.
#[tokio::test]
async fn a_node_that_never_came_back_after_a_restart_keeps_nothing() {
    let mut world = World::new(2).await;
    let allocation = world.allocate(RequeuePolicy::Never).await;
    let launch = world.launch_in(&LaunchTasksRequest { num_tasks: 2, ..order(&allocation) }).await;
    world.restart().await;
    world.register(0, 1, &[&launch.id]).await;
    let report = world.report(&launch.id, 0, 0).await;
    let mut client = world.attach(&launch.id, 0).await;
    report.tell(node_event::What::Exited(exit(0, 0, RankPhase::Finalized))).await;
    report.finish().await;
    while !matches!(client.event().await, node_event::What::Exited(_)) {}
    pass(timeouts::REPORT_AFTER_RESTART).await;
    let complete = client.complete().await;
    let expected = "node node1 was lost: it did not report again when the API server had been started anew";
    assert_eq!(complete.error_message, expected);
    // The release follows the end of the launch.
    while release(&world, &allocation).await.state() != AllocationState::Released {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_node_is_not_given_up_for_a_time_in_which_the_server_stood_still() {
    let world = World::new(2).await;
    let mut launch = world.launch(2).await;
    let mut client = world.attach(&launch.id, 0).await;
    client.say(attach_request::What::End(15)).await;
    for report in &mut launch.reports {
        assert_eq!(report.command().await, Some(node_command::What::End(15)));
    }
    // The server is stopped, as by Ctrl-Z, for longer than any part may take to end.
    tokio::time::pause();
    tokio::time::advance(timeouts::LINGER).await;
    tokio::time::resume();
    pass(STANDSTILL).await;
    assert!(world.agents.iter().all(|agent| agent.seen.lock().aborted.is_empty()), "no agent is told to kill");
    for report in &launch.reports {
        report.finish().await;
    }
    assert_eq!(client.complete().await.error_message, "interrupted by SIGTERM");
}

#[tokio::test]
async fn a_node_that_was_given_up_has_nothing_more_to_report() {
    let world = World::new(2).await;
    let (launch, _) = given_up(&world).await;
    let of = ReportFor { launch_id: launch.id.clone(), node_id: "node1".to_owned(), node_index: 1, again: false };
    let report = tokio_stream::once(LaunchReport { what: Some(launch_report::What::Of(of)) });
    let mut agent = node_service_client::NodeServiceClient::new(world.channel(&Caller::Agent("node1".to_owned())));
    let refused = soon(agent.report_launch(report)).await.unwrap_err();
    // On this code an agent ends its part of the launch.
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
}

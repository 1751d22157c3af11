//! The task of a launch under virtual time: its actions when no messages arrive.

use lattice_session::timeouts;
use node_command::What as Command;
use node_event::What as Event;
use pmi_transport::proto::v1::*;
use std::time::Duration;

use super::world::{USER, World, order, pass, soon};

/// Longer than the pause between two ticks of a launch.
const MOMENT: Duration = Duration::from_millis(500);

/// A launch of one rank on each of two nodes. The nodes have accepted it, and do not report.
async fn accepted(world: &World) -> String {
    let allocation = world.allocate(RequeuePolicy::Never).await;
    let request = LaunchTasksRequest { num_tasks: 2, ..order(&allocation) };
    soon(world.allocations(&USER).launch_tasks(request)).await.unwrap().into_inner().task_launch_id
}

/// Returns true if the only launch that is not over is active.
async fn is_active(world: &World) -> bool {
    let launches = soon(world.launches().list_launches(ListLaunchesRequest { all: false })).await.unwrap().into_inner();
    matches!(&launches.launches[..], [launch] if launch.state() == LaunchState::Active)
}

#[tokio::test]
async fn a_launch_whose_nodes_never_report_is_over_when_their_time_is() {
    let world = World::new(2).await;
    let launch = accepted(&world).await;
    let mut client = world.attach(&launch, 0).await;
    pass(timeouts::FIRST_REPORT - MOMENT).await;
    assert!(is_active(&world).await);
    pass(2 * MOMENT).await;
    let complete = client.complete().await;
    let (message, left) = complete.error_message.split_once("; ").unwrap();
    assert_eq!(message, "node node0 was lost: it accepted the launch and never reported");
    assert!(left.starts_with("node[0-1] did not report the end of their parts"), "{left}");
}

#[tokio::test]
async fn an_owner_that_never_comes_ends_its_launch() {
    let world = World::new(2).await;
    let mut launch = world.launch(2).await;
    pass(timeouts::FIRST_OWNER - MOMENT).await;
    assert!(is_active(&world).await);
    pass(2 * MOMENT).await;
    for report in &mut launch.reports {
        assert_eq!(report.command().await, Some(Command::End(1)));
    }
}

#[tokio::test]
async fn a_node_whose_connection_breaks_has_time_to_come_back() {
    for comes_back in [true, false] {
        let world = World::new(2).await;
        let mut launch = world.launch(2).await;
        let mut client = world.attach(&launch.id, 0).await;
        launch.reports[0].run(0, 0, RankPhase::Finalized).await;
        assert!(matches!(client.event().await, Event::Started(_)));
        drop(launch.reports.pop());
        pass(timeouts::REPORT_AGAIN / 2).await;
        if comes_back {
            launch.reports.push(world.report(&launch.id, 1, 1).await);
        }
        pass(timeouts::REPORT_AGAIN).await;
        if comes_back {
            launch.reports[1].run(1, 0, RankPhase::Finalized).await;
            launch.reports[1].finish().await;
        }
        launch.reports[0].finish().await;
        let complete = client.complete().await;
        assert_eq!(complete.success, comes_back, "{complete:?}");
    }
}

#[tokio::test]
async fn a_launch_that_somebody_else_ends_kills_what_does_not_end_by_itself() {
    let world = World::new(1).await;
    let mut launch = world.launch(1).await;
    let mut client = world.attach(&launch.id, 0).await;
    let abort = AbortLaunchRequest { id: launch.id.clone(), reason: String::new() };
    soon(world.launches().abort_launch(abort)).await.unwrap();
    assert_eq!(launch.reports[0].command().await, Some(Command::End(15)));
    let killed = || world.agents[0].seen.lock().aborted.iter().any(|request| request.signal == 9);
    let mut passed = Duration::ZERO;
    while !killed() {
        pass(MOMENT).await;
        passed += MOMENT;
        // The call that kills takes time as well.
        is_active(&world).await;
    }
    let latest = timeouts::GRACE_OF_OTHERS + timeouts::END + timeouts::LAST;
    assert!(passed >= timeouts::END && passed <= latest, "after {passed:?}");
    pass(timeouts::LAST + MOMENT).await;
    assert_eq!(client.complete().await.error_message.split(';').next(), Some("ended by user 1000"));
}

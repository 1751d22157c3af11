//! New jobs in a launch: the orders to nodes, the time of the answer to the requesting rank, and the effects of a part that does not start.

use node_command::What as Command;
use node_event::What as Event;
use pmi_transport::proto::v1::*;
use tokio::task::JoinHandle;

use super::world::{Report, Running, USER, World, order, soon};
use crate::start_policy::{Spawning, StartPolicy};

/// Rank 0 of a launch, on node0, requests two more ranks.
pub(super) fn spawn(world: &World, launch: &str) -> JoinHandle<SpawnAnswer> {
    spawn_by(world, launch, 0)
}

/// The same by a numbered call.
pub(super) fn spawn_by(world: &World, launch: &str, call_id: u64) -> JoinHandle<SpawnAnswer> {
    let app = SpawnApp { program: "./child".into(), ranks: 2, ..Default::default() };
    let call = SpawnCall { parent_job: format!("kvs_{launch}_0"), parent_rank: 0, apps: vec![app], preput: vec![] };
    let request = SpawnRequest { launch_id: launch.to_owned(), node_id: "node0".into(), call: Some(call), call_id };
    let mut nodes = world.nodes(0);
    tokio::spawn(async move { nodes.spawn_tasks(request).await.unwrap().into_inner() })
}

/// The next command, which must be to start a part of a job.
pub(super) async fn ordered(report: &mut Report) -> SpawnOrder {
    match report.command().await {
        Some(Command::Spawn(order)) => order,
        other => panic!("no order to spawn: {other:?}"),
    }
}

/// Reports that the node's part of a job runs, or does not run.
pub(super) async fn answer(report: &Report, order: &SpawnOrder, failure: &str) {
    let job_id = order.job.as_ref().unwrap().id.clone();
    report.tell(Event::Spawned(Spawned { job_id, failure: failure.to_owned() })).await;
}

async fn end(launch: &Running, ranks: u32) {
    for (rank, report) in (0..ranks).zip(&launch.reports) {
        report.run(rank, 0, RankPhase::Finalized).await;
        report.finish().await;
    }
}

#[tokio::test]
async fn spawned_ranks_are_placed_and_their_parent_is_answered_when_they_run() {
    let world = World::new(2).await;
    let mut launch = world.launch(1).await;
    assert_eq!(launch.reports.len(), 1);
    let asked = spawn(&world, &launch.id);
    let order = ordered(&mut launch.reports[0]).await;
    let job = order.job.clone().unwrap();
    assert_eq!((job.id.clone(), order.first_shown), (format!("kvs_{}_0.s1", launch.id), 1));
    assert_eq!(job.blocks, [Block { first_node: 0, nodes: 1, ranks_per_node: 2 }]);
    answer(&launch.reports[0], &order, "").await;
    assert_eq!(soon(asked).await.unwrap().job_id, job.id);
}

#[tokio::test]
async fn every_node_hears_of_a_job_before_its_parent_is_answered() {
    let world = World::new(2).await;
    let allocation = world.allocate(RequeuePolicy::Never).await;
    let request = LaunchTasksRequest { num_tasks: 2, ..order(&allocation) };
    let launch = soon(world.allocations(&USER).launch_tasks(request)).await.unwrap().into_inner().task_launch_id;
    let mut first = world.report(&launch, 0, 0).await;
    let asked = spawn(&world, &launch);
    let order = ordered(&mut first).await;
    answer(&first, &order, "").await;
    // The other node is slow to begin its report. The report of the first node has arrived when that node gets another command.
    first.tell(Event::Notice(Notice { what: Some(notice::What::Stuck(StuckStart::default())) })).await;
    assert!(matches!(first.command().await, Some(Command::AskProgress(_))));
    assert!(!asked.is_finished());
    let mut second = world.report(&launch, 1, 1).await;
    assert_eq!(ordered(&mut second).await, order);
    answer(&second, &order, "").await;
    assert_eq!(soon(asked).await.unwrap().refusal, "");
}

#[tokio::test]
async fn a_job_that_does_not_start_everywhere_is_ended_and_the_launch_goes_on() {
    let world = World::new(2).await;
    let mut launch = world.launch(2).await;
    let mut client = world.attach(&launch.id, 0).await;
    let asked = spawn(&world, &launch.id);
    let orders = [ordered(&mut launch.reports[0]).await, ordered(&mut launch.reports[1]).await];
    answer(&launch.reports[0], &orders[0], "").await;
    answer(&launch.reports[1], &orders[1], "there is no ./child").await;
    assert_eq!(soon(asked).await.unwrap().refusal, "node1: there is no ./child");
    let job = orders[0].job.as_ref().unwrap().id.clone();
    for report in &mut launch.reports {
        assert_eq!(report.command().await, Some(Command::Disown(job.clone())));
    }
    end(&launch, 2).await;
    // The launch does not wait for a rank of the job.
    let complete = client.complete().await;
    assert!(complete.success, "{complete:?}");
}

#[tokio::test]
async fn nodes_without_ranks_are_released_when_a_job_was_not_started() {
    let world = World::new(2).await;
    let allocation = world.allocate(RequeuePolicy::Never).await;
    let placement = Some(PlacementRequest { nodes: 2, ..Default::default() });
    let mut launch = world.launch_in(&LaunchTasksRequest { placement, ..order(&allocation) }).await;
    assert_eq!(launch.reports.len(), 2);
    let asked = spawn(&world, &launch.id);
    for index in [0, 1] {
        let order = ordered(&mut launch.reports[index]).await;
        answer(&launch.reports[index], &order, "no").await;
    }
    assert_ne!(soon(asked).await.unwrap().refusal, "");
    end(&launch, 1).await;
    assert!(matches!(launch.reports[1].command().await, Some(Command::Disown(_))));
    assert!(matches!(launch.reports[1].command().await, Some(Command::JobOver(_))));
    assert_eq!(launch.reports[1].command().await, Some(Command::Release(Nothing {})));
}

/// An attacker with the key of a node's agent requests a job of the user, with any program.
#[tokio::test]
async fn a_node_starts_nothing_that_the_policy_forbids() {
    let entry_points = Some(vec!["/app".into()]);
    for (policy, words) in [
        (StartPolicy { spawning: Spawning::Forbidden, entry_points: None }, "an administrator has turned spawning off"),
        (StartPolicy { entry_points, ..StartPolicy::default() }, "\"./child\" is no entry point"),
    ] {
        let world = World::under(policy, 2).await;
        let mut launch = world.launch(1).await;
        let refusal = soon(spawn(&world, &launch.id)).await.unwrap().refusal;
        assert!(refusal.contains(words), "{refusal}");
        end(&launch, 1).await;
        assert_eq!(launch.reports[0].command().await, Some(Command::Release(Nothing {})));
    }
}

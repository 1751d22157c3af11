//! A server that takes over the work of an earlier server.

use std::sync::Arc;

use node_command::What as Command;
use node_event::What as Event;
use pmi_transport::proto::v1::cause::Kind;
use pmi_transport::proto::v1::*;
use pmi_transport::signature::Serial;

use super::spawns::{answer, ordered, spawn, spawn_by};
use super::world::{Follower, Report, USER, World, exit, order, soon};
use crate::store::{Change, RedbStore, Store};

/// Waits until the report of a node is durable: until then the stream of the node stays open.
async fn farewell(report: &mut Report) {
    while report.command().await.is_some() {}
}

#[tokio::test]
async fn launches_outlive_the_server() {
    let mut world = World::new(2).await;
    let launch = world.launch(2).await;
    let id = launch.id.clone();
    world.restart().await;
    assert!(world.register(0, 1, &[&id]).await.is_empty());
    assert!(world.register(1, 1, &[&id, "stranger"]).await == ["stranger"]);
    let mut reports = [world.report(&id, 0, 0).await, world.report(&id, 1, 1).await];
    let mut client = world.attach(&id, 0).await;
    for (rank, report) in (0..).zip(&mut reports) {
        assert!(matches!(report.command().await, Some(Command::OutputCredit(_))), "it may send again");
        report.tell(Event::Exited(exit(rank, 0, RankPhase::Finalized))).await;
        report.finish().await;
    }
    let complete = client.complete().await;
    assert!(complete.success && complete.ranks.len() == 2, "{complete:?}");
}

/// If a number were assigned twice, fork servers would accept an old signature again.
#[tokio::test]
async fn numbers_of_launches_go_on_behind_those_of_the_server_before_whatever_the_clock_says() {
    let store = Arc::new(RedbStore::in_memory().unwrap());
    // The previous server had a clock that was years ahead.
    let before = Serial(u64::MAX / 2);
    store.write(&[Change::Serial(before)]).unwrap();
    let world = World::on(Arc::<RedbStore>::clone(&store), 1).await;
    let beat = HeartbeatRequest { node_id: "node0".into(), incarnation: 1, ..Default::default() };
    let first = Serial(soon(world.nodes(0).heartbeat(beat)).await.unwrap().into_inner().last_serial);
    assert!(first > before);
    let _launch = world.launch(1).await;
    assert!(store.read().unwrap().serial > first, "it is written down with the launch");
}

/// Time at which the client of the only launch was stopped.
async fn client_stopped_at(world: &World) -> u64 {
    let launches = soon(world.launches().list_launches(ListLaunchesRequest { all: false })).await.unwrap().into_inner();
    launches.launches[0].client_stopped_at
}

#[tokio::test]
async fn a_server_knows_of_owners_that_were_stopped_before_it() {
    let mut world = World::new(1).await;
    let launch = world.launch(1).await;
    let Follower { say, hear: _hear } = world.attach(&launch.id, 0).await;
    assert_eq!(client_stopped_at(&world).await, 0);
    // The client continues to listen, like a stopped process.
    drop(say);
    while world.kept(&launch.id).summary.unwrap().client_stopped_at == 0 {
        tokio::task::yield_now().await;
    }
    let stopped_at = client_stopped_at(&world).await;
    world.restart().await;
    // No node answers, so that the server has read its clock before its answer.
    let status =
        soon(world.launches().get_launch(GetLaunchRequest { id: launch.id.clone(), stacks: false })).await.unwrap();
    assert_eq!(status.into_inner().summary.unwrap().client_stopped_at, stopped_at);
    let _owner = world.attach(&launch.id, 0).await;
    while client_stopped_at(&world).await != 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_part_that_was_over_is_not_expected_again() {
    let mut world = World::new(2).await;
    let mut launch = world.launch(2).await;
    launch.reports[1].run(1, 0, RankPhase::Finalized).await;
    launch.reports[1].finish().await;
    farewell(&mut launch.reports[1]).await;
    world.restart().await;
    world.register(1, 1, &[]).await;
    world.register(0, 1, &[&launch.id]).await;
    let report = world.report(&launch.id, 0, 0).await;
    let mut client = world.attach(&launch.id, 0).await;
    report.tell(Event::Exited(exit(0, 0, RankPhase::Finalized))).await;
    report.finish().await;
    let complete = client.complete().await;
    assert!(complete.success && complete.ranks.len() == 2, "{complete:?}");
}

#[tokio::test]
async fn the_cause_outlives_the_server() {
    let mut world = World::new(2).await;
    let mut launch = world.launch(2).await;
    let cause = Cause { host: "node1".to_owned(), kind: Some(Kind::Failed(exit(1, 3, RankPhase::Unspecified))) };
    launch.reports[1].tell(Event::Ending(cause.clone())).await;
    launch.reports[1].finish().await;
    farewell(&mut launch.reports[1]).await;
    world.restart().await;
    let mut report = world.report(&launch.id, 0, 0).await;
    assert!(matches!(report.command().await, Some(Command::OutputCredit(_))));
    assert_eq!(report.command().await, Some(Command::GiveUp(Nothing {})));
    report.finish().await;
    let mut client = world.attach(&launch.id, 0).await;
    assert_eq!(client.complete().await.cause, Some(cause));
}

#[tokio::test]
async fn an_agent_that_was_started_anew_meanwhile_is_lost() {
    let mut world = World::new(2).await;
    let launch = world.launch(2).await;
    world.restart().await;
    let mut report = world.report(&launch.id, 0, 0).await;
    world.register(1, 2, &[]).await;
    assert!(matches!(report.command().await, Some(Command::OutputCredit(_))));
    let mut command = report.command().await;
    while matches!(command, Some(Command::AskProgress(_))) {
        command = report.command().await;
    }
    assert_eq!(command, Some(Command::GiveUp(Nothing {})));
    report.finish().await;
    let mut client = world.attach(&launch.id, 0).await;
    let expected = "node node1 was lost: its agent does not have the launch: it was started anew, or had not been asked when the API server ended";
    assert_eq!(client.complete().await.error_message, expected);
}

#[tokio::test]
async fn spawned_jobs_are_counted_on_and_those_that_were_about_to_start_are_ended() {
    let mut world = World::new(1).await;
    let mut launch = world.launch(1).await;
    let asked = spawn(&world, &launch.id);
    let first = ordered(&mut launch.reports[0]).await;
    answer(&launch.reports[0], &first, "").await;
    assert_eq!(soon(asked).await.unwrap().refusal, "");
    let lost = spawn(&world, &launch.id);
    let second = ordered(&mut launch.reports[0]).await;
    lost.abort();
    world.restart().await;
    let mut report = world.report(&launch.id, 0, 0).await;
    let ended = second.job.unwrap().id;
    assert_eq!(report.command().await, Some(Command::Disown(ended.clone())));
    assert_eq!(report.command().await, Some(Command::JobOver(ended)));
    assert!(matches!(report.command().await, Some(Command::OutputCredit(_))));
    assert!(matches!(report.command().await, Some(Command::AskProgress(_))));
    let asked = spawn(&world, &launch.id);
    let third = ordered(&mut report).await;
    assert_eq!(third.job.as_ref().unwrap().id, format!("kvs_{}_0.s3", launch.id));
    assert_eq!(third.first_shown, 1 + 2 + 2);
    answer(&report, &third, "").await;
    assert_eq!(soon(asked).await.unwrap().refusal, "");
}

/// A rank of the first node makes a call about a name. Returns the port in the answer.
async fn call_name(world: &World, launch: &str, kind: name_call::Kind, service: &str) -> Vec<u8> {
    let call =
        NameCall { kind: kind.into(), service: service.to_owned().into(), port: "a port".into(), ..Default::default() };
    let request = NameRequest { launch_id: launch.to_owned(), node_id: "node0".into(), call: Some(call), call_id: 0 };
    soon(world.nodes(0).call_name(request)).await.unwrap().into_inner().port.to_vec()
}

#[tokio::test]
async fn names_are_found_after_a_restart_for_as_long_as_who_published_them_runs() {
    let mut world = World::new(1).await;
    let allocation = world.allocate(RequeuePolicy::Never).await;
    let launch = world.launch_in(&order(&allocation)).await;
    let mut other = world.launch_in(&order(&allocation)).await;
    for (launch, service) in [(&launch, "ocean"), (&launch, "gone"), (&other, "ice")] {
        call_name(&world, &launch.id, name_call::Kind::Publish, service).await;
    }
    call_name(&world, &launch.id, name_call::Kind::Unpublish, "gone").await;
    let mut client = world.attach(&other.id, 0).await;
    other.reports[0].run(0, 0, RankPhase::Finalized).await;
    other.reports[0].finish().await;
    assert!(client.complete().await.success);
    farewell(&mut other.reports[0]).await;
    world.restart().await;
    let mut found = Vec::new();
    for service in ["ocean", "gone", "ice"] {
        found.push(call_name(&world, &launch.id, name_call::Kind::Lookup, service).await);
    }
    assert_eq!(found, [b"a port".as_slice(), b"", b""]);
}

/// The session repeats its call to the next server, because the previous one was killed before its answer.
#[tokio::test]
async fn a_job_that_runs_is_not_started_again_for_a_call_that_had_no_answer() {
    let mut world = World::new(1).await;
    let mut launch = world.launch(1).await;
    let asked = spawn_by(&world, &launch.id, 7);
    let first = ordered(&mut launch.reports[0]).await;
    answer(&launch.reports[0], &first, "").await;
    let job = soon(asked).await.unwrap().job_id;
    world.restart().await;
    let mut report = world.report(&launch.id, 0, 0).await;
    assert_eq!(soon(spawn_by(&world, &launch.id, 7)).await.unwrap().job_id, job);
    let other = spawn_by(&world, &launch.id, 8);
    while !matches!(report.command().await, Some(Command::Spawn(_))) {}
    other.abort();
}

#[tokio::test]
async fn an_allocation_that_was_being_released_is_released() {
    let mut world = World::new(1).await;
    let allocation = world.allocate(RequeuePolicy::Never).await;
    let launch = world.launch_in(&order(&allocation)).await;
    let release = ReleaseAllocationRequest { id: allocation.clone() };
    soon(world.allocations(&USER).release_allocation(release.clone())).await.unwrap();
    world.restart().await;
    let mut report = world.report(&launch.id, 0, 0).await;
    while report.command().await != Some(Command::End(15)) {}
    report.finish().await;
    let mut client = world.attach(&launch.id, 0).await;
    // The text of the first server, unless that server ended before it was written.
    let words = client.complete().await.error_message;
    let reasons = [format!("its allocation is released by {USER}"), "its allocation is gone".to_owned()];
    assert!(reasons.map(|reason| format!("ended by the API server: {reason}")).contains(&words), "{words}");
    while soon(world.allocations(&USER).release_allocation(release.clone())).await.unwrap().into_inner().state()
        != AllocationState::Released
    {
        tokio::task::yield_now().await;
    }
}

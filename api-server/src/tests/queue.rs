//! Allocations that wait for nodes, and the scripts of batch jobs.

use std::sync::Arc;

use pmi_transport::identity::Caller;
use pmi_transport::proto::v1::*;
use tonic::Code;

use super::world::{USER, World, order, soon};
use crate::allocations;
use crate::launch::summary::Course;
use crate::start_policy::StartPolicy;
use crate::store::{Change, EndedLaunch, RedbStore, Store};
use crate::wire::allocation::encode_script;

/// A batch job for this number of nodes.
fn batch(num_nodes: u32) -> CreateAllocationRequest {
    let batch = BatchRequest { name: "job".to_owned(), launch: Some(order("")) };
    CreateAllocationRequest { num_nodes, batch: Some(batch), ..Default::default() }
}

async fn create(world: &World, request: CreateAllocationRequest) -> Allocation {
    soon(world.allocations(&USER).create_allocation(request)).await.unwrap().into_inner()
}

async fn release(world: &World, id: &str) {
    let request = ReleaseAllocationRequest { id: id.to_owned() };
    soon(world.allocations(&USER).release_allocation(request)).await.unwrap();
}

/// Waits until a condition holds for an allocation.
async fn until(world: &World, id: &str, holds: impl Fn(&Allocation) -> bool) -> Allocation {
    let wait = async {
        loop {
            let request = GetAllocationRequest { id: id.to_owned() };
            let allocation = world.allocations(&USER).get_allocation(request).await.unwrap().into_inner();
            if holds(&allocation) {
                return allocation;
            }
        }
    };
    soon(wait).await
}

/// The launch of a script that was started.
async fn script(world: &World, id: &str) -> String {
    let is_started = |allocation: &Allocation| allocation.batch.as_ref().is_some_and(|job| !job.launch_id.is_empty());
    let id = until(world, id, is_started).await.batch.unwrap().launch_id;
    // The id is known before the launch begins.
    let request = GetLaunchRequest { id: id.clone(), stacks: false };
    soon(async { while world.launches().get_launch(request.clone()).await.is_err() {} }).await;
    id
}

#[tokio::test]
async fn a_batch_job_begins_when_nodes_are_free_and_ends_with_its_script() {
    let world = World::new(2).await;
    let held = world.allocate(RequeuePolicy::Never).await;
    let queued = create(&world, batch(1)).await;
    assert_eq!((queued.state(), queued.nodes.as_str(), queued.num_nodes), (AllocationState::Pending, "", 1));
    assert_eq!(queued.reason, "1 node was asked for, and 0 are up and free");
    release(&world, &held).await;
    let launch = script(&world, &queued.id).await;
    let report = world.report(&launch, 0, 0).await;
    report.run(0, 3, RankPhase::Silent).await;
    report.finish().await;
    let over = until(&world, &queued.id, |allocation| allocation.state() == AllocationState::Released).await;
    let end = over.batch.unwrap().end.unwrap();
    assert_eq!(end.exit_code, Some(3));
    assert!(end.cause.contains("exited with status 3"), "{}", end.cause);
    assert_eq!(create(&world, CreateAllocationRequest { num_nodes: 2, ..Default::default() }).await.nodes, "node[0-1]");
}

#[tokio::test]
async fn the_script_of_a_batch_job_that_names_anothers_allocation_runs_in_its_own() {
    let world = World::new(2).await;
    let one = CreateAllocationRequest { num_nodes: 1, ..Default::default() };
    let anothers = soon(world.allocations(&Caller::User(2000)).create_allocation(one)).await.unwrap().into_inner();
    let batch = BatchRequest { name: "job".to_owned(), launch: Some(order(&anothers.id)) };
    let job = CreateAllocationRequest { num_nodes: 1, batch: Some(batch), ..Default::default() };
    let job = create(&world, job).await;
    let launch = script(&world, &job.id).await;
    assert_eq!((anothers.nodes.as_str(), job.nodes.as_str()), ("node0", "node1"));
    let begun = |agent: usize| world.agents[agent].seen.lock().launched.len();
    soon(async {
        while begun(1) == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(begun(0), 0);
    let status = soon(world.launches().get_launch(GetLaunchRequest { id: launch, stacks: false })).await.unwrap();
    assert_eq!(status.into_inner().summary.unwrap().allocation_id, job.id);
}

/// Launches that end with the allocation are no failures of its next attempt.
#[tokio::test]
async fn an_allocation_is_queued_again_once_and_goes_on_when_all_its_launches_have_ended() {
    let world = World::new(1).await;
    let id = world.allocate(RequeuePolicy::OnAnyFailure).await;
    let failing = world.launch_in(&order(&id)).await;
    let mut others = vec![world.launch_in(&order(&id)).await, world.launch_in(&order(&id)).await];
    failing.reports[0].run(0, 1, RankPhase::Silent).await;
    failing.reports[0].finish().await;
    for launch in &mut others {
        let waits = until(&world, &id, |allocation| allocation.state() == AllocationState::Pending).await;
        assert!(waits.reason.starts_with("queued again: "), "{}", waits.reason);
        while launch.reports[0].command().await != Some(node_command::What::End(15)) {}
        launch.reports[0].finish().await;
    }
    let again = until(&world, &id, |allocation| allocation.state() == AllocationState::Running).await;
    assert_eq!(again.requeues, 1);
    let mut next = world.launch_in(&order(&id)).await;
    release(&world, &id).await;
    let reason = format!("its allocation is released by {USER}");
    assert_eq!(next.reports[0].command().await, Some(node_command::What::End(15)), "nobody has ended it before");
    next.reports[0].finish().await;
    let end = world.attach(&next.id, 0).await.complete().await;
    assert!(end.error_message.ends_with(&reason), "{}", end.error_message);
}

/// The end of a job names the user that cancelled it, whether the job had begun or not.
#[tokio::test]
async fn a_job_that_is_cancelled_says_by_whom() {
    let world = World::new(1).await;
    let runs = create(&world, batch(1)).await;
    let waits = create(&world, batch(1)).await;
    let launch = script(&world, &runs.id).await;
    let mut report = world.report(&launch, 0, 0).await;
    for id in [&waits.id, &runs.id] {
        release(&world, id).await;
    }
    while report.command().await != Some(node_command::What::End(15)) {}
    report.run(0, 15, RankPhase::Silent).await;
    report.finish().await;
    for (id, words) in [(&waits.id, "cancelled by"), (&runs.id, "its batch job is cancelled by")] {
        let over = until(&world, id, |allocation| allocation.state() == AllocationState::Released).await;
        let cause = over.batch.unwrap().end.unwrap().cause;
        assert!(cause.contains(&format!("{words} {USER}")), "{cause}");
    }
}

#[tokio::test]
async fn jobs_wait_for_nodes_that_have_not_come_back_to_a_new_server() {
    let store = Arc::new(RedbStore::in_memory().unwrap());
    store.write(&[Change::Registered(vec!["node0".to_owned()])]).unwrap();
    let world = World::on(store, 0).await;
    let queued = create(&world, batch(1)).await;
    assert_eq!(queued.reason, "1 node was asked for, and 0 are up and free");
    let refused = refused(&world, batch(2)).await;
    assert!(refused.message().starts_with("2 nodes were asked for, and this cluster has 1\ntry: -N 1"), "{refused}");
}

async fn refused(world: &World, request: CreateAllocationRequest) -> tonic::Status {
    soon(world.allocations(&USER).create_allocation(request)).await.unwrap_err()
}

#[tokio::test]
async fn the_queue_and_a_script_that_runs_outlive_the_server() {
    let mut world = World::new(1).await;
    let runs = create(&world, batch(1)).await;
    let waits = create(&world, batch(1)).await;
    assert_eq!(waits.state(), AllocationState::Pending);
    let launch = script(&world, &runs.id).await;
    world.restart().await;
    world.register(0, 1, &[&launch]).await;
    let report = world.report(&launch, 0, 0).await;
    report.run(0, 0, RankPhase::Silent).await;
    report.finish().await;
    let over = until(&world, &runs.id, |allocation| allocation.state() == AllocationState::Released).await;
    assert_eq!(over.batch.unwrap().end, Some(BatchEnd { exit_code: Some(0), cause: String::new() }));
    script(&world, &waits.id).await;
    assert_eq!(world.agents[0].seen.lock().launched.len(), 2, "each script was started once");
}

/// The server was killed after the end of the script, which lost a node, and before that end was processed.
#[tokio::test]
async fn a_job_whose_node_was_lost_is_queued_again_by_the_next_server_as_well() {
    let request = crate::wire::allocation::decode_request(batch(1)).unwrap();
    let job = request.batch.as_ref().unwrap();
    let script = allocations::batch::BatchJob {
        name: job.name.clone(),
        bytes: job.bytes,
        launch: Some("lost".into()),
        end: None,
    };
    let running = allocations::Allocation::running("job", 1000, vec!["node0".to_owned()]);
    let requeue = allocations::allocation::RequeuePolicy::OnNodeFailure;
    let kept = allocations::Allocation { batch: Some(script), requeue, ..running };
    let cause = Cause { host: "node0".to_owned(), kind: Some(cause::Kind::NodeLost("no heartbeat came".to_owned())) };
    let complete = LaunchCompleteNotification { cause: Some(cause), ..Default::default() };
    let summary = LaunchSummary { id: "lost".to_owned(), allocation_id: "job".to_owned(), ..Default::default() };
    let ended = EndedLaunch { summary: Some(summary), complete: Some(complete), ..Default::default() };
    let text = Change::Script { allocation: "job".to_owned(), request: encode_script(job) };
    let store = Arc::new(RedbStore::in_memory().unwrap());
    store.write(&[Change::Allocation(kept), text, Change::Ended(Box::new(ended))]).unwrap();
    let world = World::on(store, 1).await;
    let again = until(&world, "job", |allocation| {
        allocation.batch.as_ref().is_some_and(|job| !["", "lost"].contains(&job.launch_id.as_str()))
    });
    assert_eq!(again.await.requeues, 1);
}

#[tokio::test]
async fn a_script_that_the_server_before_did_not_start_is_started() {
    for (launch, refused) in [(None, false), (Some("never"), false), (Some("never"), true)] {
        let request = crate::wire::allocation::decode_request(batch(1)).unwrap();
        let script_of = |batch: &allocations::batch::BatchRequest| allocations::batch::BatchJob {
            name: batch.name.clone(),
            bytes: batch.bytes,
            launch: launch.map(Into::into),
            end: None,
        };
        let running = allocations::Allocation::running("job", 1000, vec!["node0".to_owned()]);
        let job = request.batch.as_ref().unwrap();
        let kept = allocations::Allocation { batch: Some(script_of(job)), ..running };
        let store = Arc::new(RedbStore::in_memory().unwrap());
        let text = Change::Script { allocation: "job".to_owned(), request: encode_script(job) };
        let summary = LaunchSummary { id: "never".to_owned(), allocation_id: "job".to_owned(), ..Default::default() };
        let ended = EndedLaunch { summary: Some(summary), course: Course::NotBegun.into(), ..EndedLaunch::default() };
        let ended = refused.then(|| Change::Ended(Box::new(ended)));
        store.write(&Vec::from_iter([Change::Allocation(kept), text].into_iter().chain(ended))).unwrap();
        let world = World::on(store, 1).await;
        let launch = until(&world, "job", |allocation| {
            allocation.batch.as_ref().is_some_and(|job| !["", "never"].contains(&job.launch_id.as_str()))
        });
        assert_eq!(launch.await.requeues, 0);
        soon(async {
            while world.agents[0].seen.lock().launched.is_empty() {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_script_that_a_node_did_not_take_is_started_on_another_one() {
    for reason in [RefusalReason::Busy, RefusalReason::Unreachable] {
        let world = World::new(2).await;
        let refusal = LaunchProcessesResponse { reason: reason.into(), ..Default::default() };
        world.agents[0].seen.lock().refusal = Some(refusal);
        let job = create(&world, batch(1)).await;
        let waits = until(&world, &job.id, |allocation| allocation.state() == AllocationState::Pending).await;
        assert!(waits.reason.starts_with("the script was not started: node node0 does not start"), "{}", waits.reason);
        // The next job in the queue does not use that node.
        let next = create(&world, batch(1)).await;
        assert_eq!(next.nodes, "node1");
        let launch = script(&world, &next.id).await;
        let report = world.report(&launch, 1, 0).await;
        report.finish().await;
        let again = until(&world, &job.id, |allocation| {
            allocation.nodes == "node1" && allocation.batch.as_ref().is_some_and(|job| !job.launch_id.is_empty())
        });
        let again = again.await;
        assert_eq!((again.requeues, again.batch.unwrap().end), (0, None));
        assert_eq!(world.agents[0].seen.lock().launched.len(), 1, "the node is not asked again at once");
    }
}

/// Administrators may start any program. This also applies when the job leaves the queue.
#[tokio::test]
async fn a_script_is_held_to_the_policy_when_it_is_submitted() {
    let world =
        World::under(StartPolicy { entry_points: Some(vec!["/opt".into()]), ..StartPolicy::default() }, 1).await;
    let refused = soon(world.allocations(&USER).create_allocation(batch(1))).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let request = CreateAllocationRequest { uid: Some(1000), ..batch(1) };
    let queued = soon(world.allocations(&Caller::Admin(None)).create_allocation(request)).await.unwrap().into_inner();
    let launch = script(&world, &queued.id).await;
    world.report(&launch, 0, 0).await.run(0, 0, RankPhase::Silent).await;
}

#[tokio::test]
async fn a_script_that_cannot_be_started_says_why() {
    let world = World::new(1).await;
    let refusal = LaunchProcessesResponse { accepted: false, message: "no".to_owned(), ..Default::default() };
    world.agents[0].seen.lock().refusal = Some(refusal);
    let queued = create(&world, batch(1)).await;
    let over = until(&world, &queued.id, |allocation| allocation.state() == AllocationState::Released).await;
    let end = over.batch.unwrap().end.unwrap();
    assert_eq!(end.exit_code, None);
    assert!(!end.cause.is_empty());
}

#[tokio::test]
async fn what_waits_is_cancelled_as_what_runs_and_its_script_is_forgotten() {
    let store = Arc::new(RedbStore::in_memory().unwrap());
    let world = World::on(Arc::<RedbStore>::clone(&store), 1).await;
    world.allocate(RequeuePolicy::Never).await;
    let queued = create(&world, batch(1)).await;
    assert!(store.script(&queued.id).unwrap().is_some());
    release(&world, &queued.id).await;
    until(&world, &queued.id, |allocation| allocation.state() == AllocationState::Released).await;
    assert!(store.script(&queued.id).unwrap().is_none());
}

#[tokio::test]
async fn a_batch_job_that_makes_no_sense_is_refused() {
    let world = World::new(1).await;
    let refused = async |request: CreateAllocationRequest| {
        soon(world.allocations(&USER).create_allocation(request)).await.unwrap_err()
    };
    let without = CreateAllocationRequest { batch: Some(BatchRequest::default()), ..batch(1) };
    let status = refused(without).await;
    assert_eq!((status.code(), status.message().contains("script of the batch job")), (Code::InvalidArgument, true));
    let mut large = batch(1);
    let spec = large.batch.as_mut().unwrap().launch.as_mut().unwrap().spec.as_mut().unwrap();
    spec.environment = vec![Variable { name: "X".into(), value: vec![b'x'; 1 << 20].into() }];
    assert_eq!(refused(large).await.code(), Code::InvalidArgument);
    let name = BatchRequest { name: "x".repeat(257), launch: Some(order("")) };
    assert_eq!(refused(CreateAllocationRequest { batch: Some(name), ..batch(1) }).await.code(), Code::InvalidArgument);
    assert_eq!(refused(batch(2)).await.code(), Code::FailedPrecondition);
}

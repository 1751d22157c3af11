//! Meetings of launches of one user, and of no other user.

use meet_answer::Outcome;
use pmi_transport::identity::Caller;
use pmi_transport::proto::v1::*;
use tokio::task::JoinHandle;

use super::world::{Running, USER, World, order, soon};

fn namespace(launch: &str) -> String {
    format!("kvs_{launch}_0.secret")
}

/// The request of a launch with one node to meet another launch.
fn request(node: usize, launch: &str, other: &str) -> MeetRequest {
    let job = MetJob { namespace: namespace(launch), ..Default::default() };
    let call = MeetCall {
        name: "connect".to_owned(),
        others: vec![namespace(other)],
        node_gaps: vec![0],
        jobs: vec![job],
        segments: vec![launch.to_owned().into()],
        ..Default::default()
    };
    MeetRequest { launch_id: launch.to_owned(), node_id: format!("node{node}"), call: Some(call), call_id: 0 }
}

fn come(world: &World, node: usize, launch: &str, other: &str) -> JoinHandle<MeetAnswer> {
    let (mut nodes, request) = (world.nodes(node), request(node, launch, other));
    tokio::spawn(async move { nodes.meet_launches(request).await.unwrap().into_inner() })
}

async fn met(answer: JoinHandle<MeetAnswer>) -> MeetAnswer {
    soon(answer).await.unwrap()
}

async fn two_launches(world: &World) -> [Running; 2] {
    let allocation = world.allocate(RequeuePolicy::Never).await;
    [world.launch_in(&order(&allocation)).await, world.launch_in(&order(&allocation)).await]
}

#[tokio::test]
async fn two_launches_of_a_user_get_what_both_bring() {
    let world = World::new(1).await;
    let [a, b] = two_launches(&world).await;
    let answers = [come(&world, 0, &a.id, &b.id), come(&world, 0, &b.id, &a.id)];
    let [first, second] = answers.map(met);
    let (first, second) = (first.await, second.await);
    assert_eq!((first.outcome(), &first), (Outcome::Met, &second));
    let mut ids = [a.id.as_str(), b.id.as_str()];
    ids.sort_unstable();
    assert_eq!(first.segments, ids);
}

#[tokio::test]
async fn nobody_waits_for_a_launch_that_has_ended() {
    let world = World::new(1).await;
    let [a, b] = two_launches(&world).await;
    let mut client = world.attach(&b.id, 0).await;
    let answer = come(&world, 0, &a.id, &b.id);
    b.reports[0].run(0, 0, RankPhase::Finalized).await;
    b.reports[0].finish().await;
    assert!(client.complete().await.success);
    assert_eq!(met(answer).await.outcome(), Outcome::NotFound);
    assert_eq!(met(come(&world, 0, &a.id, &b.id)).await.outcome(), Outcome::NotFound);
}

#[tokio::test]
async fn another_users_launch_is_not_met() {
    let world = World::new(2).await;
    let own = launch_of(&world, &USER, 0).await;
    let theirs = launch_of(&world, &Caller::User(2000), 1).await;
    for (node, launch, other) in
        [(0, &own, &theirs), (1, &theirs, &own), (0, &own, &own), (0, &own, &"nobody's".to_owned())]
    {
        let answer = met(come(&world, node, launch, other)).await;
        assert_eq!(answer.outcome(), Outcome::NotFound, "{launch} meets {other}");
    }
}

/// A launch of one rank in a new allocation of one node.
async fn launch_of(world: &World, user: &Caller, node: usize) -> String {
    let create = CreateAllocationRequest { nodes: format!("node{node}"), ..Default::default() };
    let mut client = world.allocations(user);
    let allocation = soon(client.create_allocation(create)).await.unwrap().into_inner().id;
    let launch = soon(client.launch_tasks(order(&allocation))).await.unwrap().into_inner().task_launch_id;
    // The launch stays known for a while, unless its agent reports otherwise.
    drop(world.report(&launch, node, 0).await);
    launch
}

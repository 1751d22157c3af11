//! A plan describes a launch, and has no effects.

use pmi_transport::identity::Caller;
use pmi_transport::proto::v1::node_service_client::NodeServiceClient;
use pmi_transport::proto::v1::*;
use tonic::Code;

use super::world::{USER, World, order, soon};

const ADMIN: Caller = Caller::Admin(None);

/// Three ranks, one after the other, on two nodes.
fn plan(allocation: &str) -> LaunchTasksRequest {
    let placement = PlacementRequest { distribution: Distribution::Cyclic.into(), ..Default::default() };
    LaunchTasksRequest { num_tasks: 3, placement: Some(placement), plan_only: true, ..order(allocation) }
}

#[tokio::test]
async fn a_plan_is_the_launch_that_follows_and_starts_nothing() {
    let world = World::new(2).await;
    let allocation = world.allocate(RequeuePolicy::Never).await;
    let planned = soon(world.allocations(&USER).launch_tasks(plan(&allocation))).await.unwrap().into_inner();
    assert_eq!(planned.task_launch_id, "");
    let spec = planned.spec.unwrap();
    assert_eq!((spec.nodes.as_str(), spec.secret.len()), ("node[0-1]", 0));
    assert!(world.agents.iter().all(|agent| agent.seen.lock().launched.is_empty()));
    let all = soon(world.launches().list_launches(ListLaunchesRequest { all: true })).await.unwrap().into_inner();
    assert_eq!(all.launches, []);

    let request = LaunchTasksRequest { plan_only: false, ..plan(&allocation) };
    assert_eq!(world.launch_in(&request).await.reports.len(), 2);
    let launched = world.agents[0].seen.lock().launched[0].spec.clone();
    let launched = <LaunchSpec as prost::Message>::decode(launched).unwrap();
    assert_eq!((spec.nodes, spec.addresses), (launched.nodes, launched.addresses));
    let [planned, launched] = [spec.job, launched.job].map(Option::unwrap_or_default);
    assert_eq!((planned.blocks, planned.apps), (launched.blocks, launched.apps));
}

#[tokio::test]
async fn a_plan_is_refused_as_its_launch_would_be() {
    let world = World::new(1).await;
    let allocation = world.allocate(RequeuePolicy::Never).await;
    let check = async |caller: Caller, request: LaunchTasksRequest, code: Code, expected: &str| {
        let error = soon(world.allocations(&caller).launch_tasks(request)).await.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.message().contains(expected), "{error}");
    };
    let elsewhere = PlacementRequest { only: "node7".to_owned(), ..Default::default() };
    check(Caller::User(7), plan(&allocation), Code::PermissionDenied, "belongs to another user").await;
    check(USER, plan("nowhere"), Code::NotFound, "no allocation nowhere").await;
    let request = LaunchTasksRequest { placement: Some(elsewhere), ..plan(&allocation) };
    check(USER, request, Code::InvalidArgument, "node node7 is not in the allocation").await;
    let release = ReleaseAllocationRequest { id: allocation.clone() };
    soon(world.allocations(&USER).release_allocation(release)).await.unwrap();
    check(USER, plan(&allocation), Code::NotFound, &allocation).await;
}

#[tokio::test]
async fn a_plan_for_nodes_that_are_not_there_says_so_and_its_launch_is_refused() {
    let world = World::new(1).await;
    let allocation = world.allocate(RequeuePolicy::Never).await;
    let drain = DrainNodesRequest { nodes: "node0".to_owned(), reason: "a new disk".to_owned() };
    soon(NodeServiceClient::new(world.channel(&ADMIN)).drain_nodes(drain)).await.unwrap();
    let ask = async |request: LaunchTasksRequest| soon(world.allocations(&USER).launch_tasks(request)).await;
    let strict = ask(plan(&allocation)).await.unwrap_err();
    assert!(strict.message().contains("node node0 is drained: a new disk"), "{strict}");
    let absent = |allocation: &str| LaunchTasksRequest { plan_absent: true, ..plan(allocation) };
    let planned = ask(absent(&allocation)).await.unwrap().into_inner();
    let line = "node0 is drained: a new disk; nothing is known of what it is, and a launch would be refused now";
    assert_eq!((planned.absent, planned.spec.unwrap().nodes), (vec![line.to_owned()], "node0".to_owned()));
    // Without an allocation the plan is for all known nodes, and for no other nodes.
    let planned = ask(absent("")).await.unwrap().into_inner();
    assert_eq!((planned.spec.unwrap().allocation_id.as_str(), planned.absent.len()), ("", 1));
    let elsewhere = PlacementRequest { only: "node7".to_owned(), ..Default::default() };
    let unknown = ask(LaunchTasksRequest { placement: Some(elsewhere), ..absent("") }).await.unwrap_err();
    let nobody = "nothing is known of node node7: it has not registered, and is in no list; known are node0";
    assert!(unknown.message().contains(nobody), "{unknown}");
    let launch = LaunchTasksRequest { plan_only: false, plan_absent: true, ..plan("") };
    assert_eq!(ask(launch).await.unwrap_err().code(), Code::NotFound);
}

//! Nodes that administrators drain, and agents of other versions.

use pmi_transport::identity::Caller;
use pmi_transport::proto::v1::node_service_client::NodeServiceClient;
use pmi_transport::proto::v1::*;
use tonic::Code;

use super::world::{USER, World, order, soon};

const ADMIN: Caller = Caller::Admin(None);

fn drain(nodes: &str) -> DrainNodesRequest {
    DrainNodesRequest { nodes: nodes.to_owned(), reason: "new memory".to_owned() }
}

#[tokio::test]
async fn nothing_new_begins_on_drained_nodes_until_they_are_resumed() {
    let mut world = World::new(2).await;
    let allocation = world.allocate(RequeuePolicy::Never).await;
    let running = world.launch_in(&LaunchTasksRequest { num_tasks: 2, ..order(&allocation) }).await;
    let answer = soon(NodeServiceClient::new(world.channel(&ADMIN)).drain_nodes(drain("node[1,7]"))).await.unwrap();
    assert_eq!(answer.into_inner().unknown, "node7");

    // Running launches continue. The drain also applies to the next server, and after the agent registers again.
    world.restart().await;
    world.register(0, 1, &[&running.id]).await;
    assert!(world.register(1, 1, &[&running.id]).await.is_empty());
    let two = LaunchTasksRequest { num_tasks: 2, ..order(&allocation) };
    let refused = soon(world.allocations(&USER).launch_tasks(two)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(refused.message(), "node node1 is drained: new memory; leave it out");
    let release = ReleaseAllocationRequest { id: allocation.clone() };
    soon(world.allocations(&USER).release_allocation(release.clone())).await.unwrap();
    // Kept, because a dropped stream discards messages that it has not sent yet.
    let mut reports = Vec::new();
    for (index, _) in (0..).zip(&running.reports) {
        let report = world.report(&running.id, index, index as u32).await;
        report.finish().await;
        reports.push(report);
    }
    while soon(world.allocations(&USER).release_allocation(release.clone())).await.unwrap().into_inner().state()
        != AllocationState::Released
    {
        tokio::task::yield_now().await;
    }
    let by_number = CreateAllocationRequest { num_nodes: 2, ..Default::default() };
    let refused = soon(world.allocations(&USER).create_allocation(by_number.clone())).await.unwrap_err();
    assert!(refused.message().starts_with("2 nodes were asked for, and 1 is up and free; "), "{refused}");
    let nodes = soon(world.nodes(0).list_nodes(ListNodesRequest {})).await.unwrap().into_inner().nodes;
    let drains: Vec<_> = nodes.iter().map(|node| node.drain.as_ref().map(|drain| drain.by.as_str())).collect();
    assert_eq!(drains, [None, Some("an administrator"), Some("an administrator")]);

    let resume = ResumeNodesRequest { nodes: "node[0-1,7]".to_owned() };
    soon(NodeServiceClient::new(world.channel(&ADMIN)).resume_nodes(resume)).await.unwrap();
    let made = soon(world.allocations(&USER).create_allocation(by_number)).await.unwrap().into_inner();
    assert_eq!(made.nodes, "node[0-1]");
}

#[tokio::test]
async fn a_drain_that_makes_no_sense_is_refused() {
    let world = World::new(1).await;
    let check = async |caller: &Caller, request: DrainNodesRequest, code: Code, expected: &str| {
        let refused = soon(NodeServiceClient::new(world.channel(caller)).drain_nodes(request)).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(expected), "{refused}");
    };
    check(&USER, drain("node0"), Code::PermissionDenied, "administrators may").await;
    let silent = DrainNodesRequest { reason: " ".to_owned(), ..drain("node0") };
    check(&ADMIN, silent, Code::InvalidArgument, "give a reason").await;
    check(&ADMIN, drain(""), Code::InvalidArgument, "no node is named").await;
    check(&ADMIN, drain("node[0-9999999]"), Code::InvalidArgument, "more than 131072 names").await;
    check(&ADMIN, drain("a/b"), Code::InvalidArgument, "cannot be a node's name").await;
}

#[tokio::test]
async fn a_node_that_nobody_knows_is_not_resumed_and_those_beside_it_stay_drained() {
    let world = World::new(2).await;
    let mut admin = NodeServiceClient::new(world.channel(&ADMIN));
    soon(admin.drain_nodes(drain("node[1,7]"))).await.unwrap();
    let resume = |nodes: &str| ResumeNodesRequest { nodes: nodes.to_owned() };
    let refused = soon(admin.resume_nodes(resume("node[1,3-4]"))).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    let expected = "node[3-4]: there are no such nodes, registered or drained; there are node[0-1,7]";
    assert!(refused.message().starts_with(expected), "{refused}");
    let refused = soon(admin.resume_nodes(resume("nod1"))).await.unwrap_err();
    let expected = "nod1: there is no such node, registered or drained; there are node[0-1,7]\ntry: lattice nodes";
    assert!(refused.message().starts_with(expected), "{refused}");
    let drained = async || {
        let nodes = soon(world.nodes(0).list_nodes(ListNodesRequest {})).await.unwrap().into_inner().nodes;
        nodes.into_iter().filter(|node| node.drain.is_some()).map(|node| node.id).collect::<Vec<_>>()
    };
    assert_eq!(drained().await, ["node1", "node7"]);
    soon(admin.resume_nodes(resume("node[1,7]"))).await.unwrap();
    assert!(drained().await.is_empty());
}

#[tokio::test]
async fn agents_of_other_versions_are_known_by_them() {
    let world = World::new(1).await;
    let register = |version: &str| RegisterNodeRequest {
        node_id: "node0".to_owned(),
        grpc_address: "127.0.0.1:1".to_owned(),
        incarnation: 1,
        version: version.to_owned(),
        ..Default::default()
    };
    let ours = env!("CARGO_PKG_VERSION");
    soon(world.nodes(0).register_node(register(&format!("{ours}-local")))).await.unwrap();
    let listed = soon(world.nodes(0).list_nodes(ListNodesRequest {})).await.unwrap().into_inner();
    assert_eq!((listed.version.as_str(), listed.nodes[0].version.as_str()), (ours, format!("{ours}-local").as_str()));
    let refused = soon(world.nodes(0).register_node(register("4000.1.0"))).await.unwrap_err();
    assert!(refused.message().starts_with("an agent of version 4000.1.0 and an API server of version "), "{refused}");
}

//! Launches in the shape of the design document.

use bytes::Bytes;

use super::super::{foreign, spec};
use super::*;

fn unsaid() -> foreign::Unsaid<'static> {
    let secret = Bytes::from_static(&[7; spec::SECRET_LEN]);
    foreign::Unsaid { node_id: "node1", address: "10.0.0.3:50052", uid: 1000, secret }
}

fn peer(node: u32, first_rank: u32, num_ranks: u32) -> proto::PeerInfo {
    let (node_id, grpc_address) = (format!("node{node}"), format!("10.0.0.{}:50052", node + 2));
    proto::PeerInfo { node_id, grpc_address, first_rank, num_ranks }
}

fn foreign_request() -> proto::LaunchProcessesRequest {
    proto::LaunchProcessesRequest {
        launch_id: "abc".into(),
        allocation_id: "alloc".into(),
        entrypoint: "./app".into(),
        args: vec!["-v".into()],
        tasks_per_node: 3,
        first_rank: 4,
        world_size: 10,
        env: [("A".to_owned(), "1".to_owned())].into(),
        peers: vec![peer(0, 0, 4), peer(1, 4, 3), peer(2, 7, 3)],
        ..Default::default()
    }
}

#[test]
fn a_request_without_a_spec_means_the_same_as_one_with() {
    let (launch, node) = foreign::launch_spec(&foreign_request(), &unsaid()).unwrap();
    assert_eq!((launch.uid, node), (1000, 1));
    let session = spec::decode(launch, NodeIndex(node)).unwrap();
    assert_eq!(session.job.placement, Placement::block(&[4, 3, 3]));
    assert_eq!(session.hosts, ["node0", "node1", "node2"]);
    assert_eq!(session.address(), Some("10.0.0.3"));
    assert_eq!(session.apps[0].args, ["-v"]);
    assert_eq!(session.settings.pmi.family, PmiFamily::Auto);
    let alone = proto::LaunchProcessesRequest { peers: Vec::new(), first_rank: 0, world_size: 3, ..foreign_request() };
    let (launch, node) = foreign::launch_spec(&alone, &unsaid()).unwrap();
    assert_eq!(spec::decode(launch, NodeIndex(node)).unwrap().job.placement, Placement::one_node(3));
}

#[test]
fn a_request_whose_peers_do_not_add_up_is_refused() {
    let check = |change: fn(&mut proto::LaunchProcessesRequest), expected: &str| {
        let mut wrong = foreign_request();
        change(&mut wrong);
        assert_eq!(foreign::launch_spec(&wrong, &unsaid()).unwrap_err().to_string(), expected);
    };
    check(|request| drop(request.peers.remove(1)), "this node is node1; possible is one of the peers node[0,2]");
    check(
        |request| request.peers[2].first_rank = 6,
        "the first rank of a peer is 6; possible is 7, after those before",
    );
    check(|request| request.world_size = 12, "the number of ranks is 12; possible is 10 as among the peers");
    check(|request| request.first_rank = 5, "the first rank of this node is 5; possible is 4 as among the peers");
    check(|request| request.head_node_index = 1, "the head of the fences is node 1; possible is node 0");
    check(|request| request.entrypoint.clear(), "the message has no entrypoint");
    let expected =
        "the name or address of a peer is n,node1; possible is one without commas, spaces and brackets of lists";
    check(|request| request.peers[0].node_id = "n,node1".to_owned(), expected);
    check(
        |request| request.peers[2].grpc_address = "10.0.0.[3-4]:1".to_owned(),
        &expected.replace("n,node1", "10.0.0.[3-4]:1"),
    );
    check(|request| request.peers.clear(), "the first rank of a peer is 4; possible is 0, after those before");
}

//! Requests in the design document's shape: fields for each node, and no spec.

use std::time::Duration;

use pmi_transport::proto::v1 as proto;
use proto::RefusalReason;

use crate::world::{Agent, Api, mpich_hello};

#[tokio::test(flavor = "current_thread")]
async fn a_request_without_a_spec_runs_as_the_agents_user() {
    let mut api = Api::start().await;
    let agent = Agent::start(&mut api, "node0").await;
    let request = proto::LaunchProcessesRequest {
        launch_id: format!("foreign{}", std::process::id()),
        entrypoint: "/bin/sh".into(),
        args: vec!["-c".into(), "echo $LATTICE_RANK of $LATTICE_NPROCS $WORD".into()],
        tasks_per_node: 2,
        world_size: 2,
        env: [("WORD".to_owned(), "spoken".to_owned()), ("PATH".to_owned(), "/bin:/usr/bin".to_owned())].into(),
        ..Default::default()
    };
    let answer = agent.send(request).await;
    assert!(answer.accepted, "{answer:?}");
    let mut launch = api.next_launch().await;
    launch.until_report().await;
    let mut lines: Vec<_> = launch.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0 of 2 spoken", "1 of 2 spoken"]);
    let strange = proto::LaunchProcessesRequest { launch_id: "x".into(), entrypoint: "y".into(), ..Default::default() };
    assert_eq!(agent.send(strange).await.reason(), RefusalReason::MalformedRequest);
}

#[tokio::test(flavor = "current_thread")]
async fn peers_exchange_what_their_ranks_put() {
    let (_directory, hello) = mpich_hello();
    let mut api = Api::start().await;
    let agents = [Agent::start(&mut api, "node0").await, Agent::start(&mut api, "node1").await];
    let peers: Vec<proto::PeerInfo> = (0..)
        .zip(&agents)
        .map(|(node, agent)| proto::PeerInfo {
            node_id: agent.registration.node_id.clone(),
            grpc_address: agent.registration.grpc_address.clone(),
            first_rank: 2 * node,
            num_ranks: 2,
        })
        .collect();
    for (node, agent) in (0..).zip(&agents) {
        let request = proto::LaunchProcessesRequest {
            launch_id: format!("peers{}", std::process::id()),
            entrypoint: hello.to_str().unwrap().to_owned(),
            tasks_per_node: 2,
            first_rank: 2 * node,
            world_size: 4,
            peers: peers.clone(),
            ..Default::default()
        };
        let answer = agent.send(request).await;
        assert!(answer.accepted, "{answer:?}");
    }
    let mut stdout = String::new();
    for _ in &agents {
        let mut launch = api.next_launch().await;
        let report = tokio::time::timeout(Duration::from_secs(60), launch.until_report()).await.unwrap();
        assert!(report.exits.iter().all(|exit| exit.exit_code == 0 && !exit.signaled), "{report:?} {}", launch.stderr);
        stdout += &launch.stdout;
    }
    for rank in 0..4 {
        assert!(stdout.contains(&format!("{rank} of 4, sum 6")), "{stdout}");
    }
}

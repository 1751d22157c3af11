//! Time limits of an agent for its sessions and for other agents.

use nix::sys::signal::Signal;
use pmi_transport::proto::v1 as proto;
use proto::RefusalReason;

use super::world::{Agent, Api, launch_on, parent_of, request, runs, signal};

/// Exceeds the duration of a test.
const LONG_MS: u64 = 1_000_000;

#[tokio::test(flavor = "current_thread")]
async fn an_order_to_kill_does_not_wait_for_the_grace_of_an_order_before() {
    let mut api = Api::start().await;
    let agent = Agent::start(&mut api, "node0").await;
    let mut spec = launch_on(&[&agent], 1, "exec sleep 1000");
    spec.patience.get_or_insert_default().after_interrupt_ms = LONG_MS;
    let mut launch = agent.launch(&mut api, spec.clone()).await;
    launch.until(|launch| !launch.pids.is_empty()).await;
    let rank = launch.pids[0];
    signal(parent_of(rank), Signal::SIGSTOP);
    agent.abort(&spec.launch_id, 15).await;
    agent.abort(&spec.launch_id, 9).await;
    launch.until_report().await;
    assert!(matches!(launch.cause.clone().unwrap().kind, Some(proto::cause::Kind::NodeLost(_))), "{:?}", launch.cause);
    launch.end().await;
    super::eventually("its rank is gone", async || !runs(rank)).await;
}

/// Each relay gives the nodes below it less time than it has. So its sender receives the name of the node that did not answer.
#[tokio::test(flavor = "current_thread")]
async fn a_node_that_does_not_answer_is_named_by_the_relay_above_it() {
    let mut api = Api::start().await;
    let mut agents = Vec::new();
    for node in ["node0", "node1", "node2"] {
        agents.push(Agent::start(&mut api, node).await);
    }
    let spec = launch_on(&agents.iter().collect::<Vec<_>>(), 1, "exec sleep 1000");
    agents[2].stop();
    let chain =
        proto::LaunchProcessesRequest { relay_nodes: 2, relay_fan_out: 1, answer_within_ms: 6500, ..request(&spec) };
    let answer = agents[0].send(chain).await;
    assert_eq!((answer.reason(), answer.node_id.as_str()), (RefusalReason::Unreachable, "node2"), "{answer:?}");
    assert!(answer.message.contains("no answer within"), "{answer:?}");
}

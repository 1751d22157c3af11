//! Agents that adopt sessions of earlier agents.

use pmi_transport::proto::v1 as proto;
use proto::RefusalReason;
use proto::node_command::What as Command;

use super::world::{Agent, Api, eventually, kill, launch_on, parent_of, runs, with_tag};

/// Settings of agents with sessions that outlive a test.
const LONG: &str = "agent_lease = 60";

/// Prints a line for each USR1, until it is killed.
const COUNT: &str = "n=0; trap 'n=$((n + 1)); echo signal $n' USR1; echo ready; while :; do sleep 0.02; done";

#[tokio::test(flavor = "current_thread")]
async fn the_next_agent_takes_up_a_session_and_registers_with_it() {
    let mut api = Api::start().await;
    let mut agent = Agent::start_set(&mut api, "node0", LONG).await;
    let spec = launch_on(&[&agent], 1, COUNT);
    let mut launch = agent.launch(&mut api, spec.clone()).await;
    launch.until(|launch| launch.stdout == "ready\n").await;
    let rank = launch.pids[0];
    for turn in 1..=3 {
        agent.kill();
        agent.exit().await;
        agent = Agent::start_set(&mut api, "node0", LONG).await;
        assert_eq!(agent.registration.launches, std::slice::from_ref(&spec.launch_id));
        launch = api.next_launch().await;
        assert!(launch.of.again, "the API server has heard of it before");
        assert_eq!(agent.ask(&spec, 0).await.reason(), RefusalReason::AlreadyRunning);
        launch.command(Command::Signal(10)).await;
        launch.until(|launch| launch.stdout.ends_with(&format!("signal {turn}\n"))).await;
        assert!(runs(rank));
    }
    let session = parent_of(rank);
    agent.abort(&spec.launch_id, 9).await;
    launch.until_report().await;
    launch.end().await;
    eventually("it leaves", async || with_tag(&spec.launch_id).is_empty() && !runs(session)).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_session_that_ended_without_an_agent_is_told_of_by_the_next_one() {
    let mut api = Api::start().await;
    let mut agent = Agent::start_set(&mut api, "node0", LONG).await;
    let spec = launch_on(&[&agent], 1, "exec sleep 1000");
    let mut launch = agent.launch(&mut api, spec.clone()).await;
    launch.until(|launch| !launch.pids.is_empty()).await;
    let session = parent_of(launch.pids[0]);
    agent.kill();
    agent.exit().await;
    kill(session);
    eventually("it ends", async || !runs(session)).await;
    let agent = Agent::start_set(&mut api, "node0", LONG).await;
    assert_eq!(agent.registration.launches, [spec.launch_id]);
    let mut launch = api.next_launch().await;
    launch.until_report().await;
    let text = "the session process was killed by signal 9 (SIGKILL)";
    assert_eq!(launch.cause.clone().unwrap().kind, Some(proto::cause::Kind::NodeLost(text.into())));
    launch.end().await;
}

/// The exit of a rank is kept until an agent is there to receive it.
#[tokio::test(flavor = "current_thread")]
async fn ranks_that_end_without_an_agent_are_reported_to_the_next_one() {
    let mut api = Api::start().await;
    let mut agent = Agent::start_set(&mut api, "node0", LONG).await;
    let go = tempfile::tempdir().unwrap();
    let script = format!("until [ -e {}/go ]; do sleep 0.01; done; echo late; exit 3", go.path().display());
    let spec = launch_on(&[&agent], 1, &script);
    let mut launch = agent.launch(&mut api, spec.clone()).await;
    launch.until(|launch| !launch.pids.is_empty()).await;
    let (rank, session) = (launch.pids[0], parent_of(launch.pids[0]));
    agent.kill();
    agent.exit().await;
    std::fs::write(go.path().join("go"), "").unwrap();
    eventually("the rank ends", async || !runs(rank)).await;
    let _agent = Agent::start_set(&mut api, "node0", LONG).await;
    let mut launch = api.next_launch().await;
    let report = launch.until_report().await;
    assert_eq!((launch.stdout.as_str(), report.exits[0].exit_code), ("late\n", 3));
    launch.end().await;
    eventually("its session leaves", async || !runs(session)).await;
}

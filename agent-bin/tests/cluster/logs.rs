//! Messages of sessions in the log of their agent.

use std::io::{BufRead, BufReader, Write};

use crate::world::{Agent, Api, launch_on};

/// Settings of an agent with a warning from each session: the agent's environment names a topology file that does not exist.
const WARNS: &str = "share_topology = 'env'\nagent_lease = 5";

#[tokio::test(flavor = "current_thread")]
async fn a_warning_of_a_session_is_in_its_agents_log_with_its_launch() {
    let mut api = Api::start().await;
    let (log, said) = std::io::pipe().unwrap();
    let agent = Agent::start_logging(&mut api, "node0", WARNS, said).await;
    let spec = launch_on(&[&agent], 1, "echo ran");
    let mut launch = agent.launch(&mut api, spec).await;
    launch.until_report().await;
    assert_eq!(launch.stdout, "ran\n");
    // All other writers end with the agent, after its lease.
    drop(agent);
    let mut lines = BufReader::new(log).lines().map_while(Result::ok);
    let warning = lines.find(|line| line.contains("PMIX_TOPOLOGY_CACHE cannot be used"));
    let warning = warning.expect("the session's warning");
    assert!(warning.contains("WARN") && warning.contains(&launch.of.launch_id), "{warning}");
}

#[tokio::test(flavor = "current_thread")]
async fn a_session_that_nobody_takes_a_warning_of_goes_on() {
    let mut api = Api::start().await;
    let (_log, mut said) = std::io::pipe().unwrap();
    said.write_all(&[b'x'; 65536]).unwrap();
    let agent = Agent::start_logging(&mut api, "node0", WARNS, said).await;
    let spec = launch_on(&[&agent], 1, "echo ran");
    let mut launch = agent.launch(&mut api, spec).await;
    launch.until_report().await;
    assert_eq!(launch.stdout, "ran\n");
}

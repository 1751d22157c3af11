//! An agent that runs out of descriptors.

use std::process::Command;

use pmi_transport::proto::v1 as proto;
use proto::RefusalReason;

use super::world::{Agent, Api, launch_on, request};

/// The soft and the hard limit of open files of an agent, as `prlimit` prints them.
fn limits(agent: &Agent) -> (String, String) {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", agent.pid())).unwrap();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let mut values = files.split_whitespace().map(str::to_owned);
    (values.next().unwrap(), values.next().unwrap())
}

fn set_soft_limit(agent: &Agent, soft: &str) {
    let args = ["--pid".to_owned(), agent.pid().to_string(), format!("--nofile={soft}:")];
    assert!(Command::new("prlimit").args(args).status().unwrap().success());
}

/// The soft limit that leaves an agent this many free descriptors.
fn limit_that_leaves(agent: &Agent, free: usize) -> String {
    let open = std::fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap();
    let open: Vec<usize> = open.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    (0..).filter(|number| !open.contains(number)).nth(free).unwrap().to_string()
}

#[tokio::test(flavor = "current_thread")]
async fn an_agent_raises_its_limit_of_descriptors() {
    let mut api = Api::start().await;
    let agent = Agent::start(&mut api, "node0").await;
    let (soft, hard) = limits(&agent);
    assert_eq!(soft, hard);
    // Programs that use select(2) rely on the original limit of the agent.
    let mut launch = agent.launch(&mut api, launch_on(&[&agent], 1, "ulimit -n")).await;
    launch.until_report().await;
    let (ours, _) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    assert_eq!(launch.stdout.trim(), ours.to_string());
}

#[tokio::test(flavor = "current_thread")]
async fn an_agent_without_descriptors_refuses_a_launch_and_keeps_the_others() {
    let mut api = Api::start().await;
    let agent = Agent::start(&mut api, "node0").await;
    let mut running = agent.launch(&mut api, launch_on(&[&agent], 1, "exec sleep 1000")).await;
    running.until(|launch| !launch.pids.is_empty()).await;
    // One connection for all requests below: the agent could accept no other.
    let mut client = agent.client("lattice:///api");
    let mut ask = async |spec: &proto::LaunchSpec| client.launch_processes(request(spec)).await.unwrap().into_inner();
    let elsewhere = proto::LaunchSpec { nodes: "node7".into(), ..launch_on(&[&agent], 1, "true") };
    assert!(!ask(&elsewhere).await.accepted);
    let (soft, _) = limits(&agent);
    for free in 0..2 {
        set_soft_limit(&agent, &limit_that_leaves(&agent, free));
        let refusal = ask(&launch_on(&[&agent], 1, "true")).await;
        set_soft_limit(&agent, &soft);
        assert_eq!((refusal.accepted, refusal.reason()), (false, RefusalReason::Busy), "{free} free: {refusal:?}");
        assert!(refusal.message.contains("Too many open files"), "{free} free: {refusal:?}");
    }
    let spec = launch_on(&[&agent], 1, "echo served");
    assert!(ask(&spec).await.accepted);
    let mut next = api.next_launch().await;
    next.until_report().await;
    assert_eq!(next.stdout, "served\n");
    assert_eq!(running.cause, None, "the launch that ran goes on");
    let id = running.of.launch_id.clone();
    agent.abort(&id, 9).await;
    running.until_report().await;
}

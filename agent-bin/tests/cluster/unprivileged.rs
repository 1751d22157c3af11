//! Agents with a daemon that has given up root: its remaining abilities, and the work of its fork server, which requires signed orders.

use std::fs;

use bytes::Bytes;
use pmi_transport::identity::{Caller, Security};
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::RefusalReason;
use proto::node_command::What as Command;

use crate::trust::{DAEMON, Trust, signed_under};
use crate::world::{Agent, Api, Launch, NOBODY, eventually, ignored_when_not_root, kill, launch_on, parent_of, runs};

/// Values of a field of `/proc/PID/status`.
fn field(pid: u32, name: &str) -> Vec<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.split_whitespace().map(str::to_owned).collect()
}

fn assert_unprivileged(agent: &Agent) {
    for ids in ["Uid", "Gid"] {
        assert_eq!(field(agent.pid(), ids), [(); 4].map(|()| DAEMON.to_string()));
    }
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(agent.pid(), set), ["0000000000000000"], "{set}");
    }
    assert_eq!(field(agent.pid(), "NoNewPrivs"), ["1"]);
}

async fn ask(agent: &Agent, api: &Security, request: &proto::LaunchProcessesRequest) -> proto::LaunchProcessesResponse {
    agent.client_as(api).launch_processes(request.clone()).await.unwrap().into_inner()
}

/// Starts a launch that the API server has signed with this number.
async fn started(agent: &Agent, (api, server): (&mut Api, &Security), spec: &proto::LaunchSpec, serial: u64) -> Launch {
    let answer = ask(agent, server, &signed_under(server, spec, serial)).await;
    assert!(answer.accepted, "{answer:?}");
    api.next_launch().await
}

#[tokio::test(flavor = "current_thread")]
async fn a_daemon_without_root_has_sessions_started_signalled_and_killed() {
    if ignored_when_not_root() {
        return;
    }
    let trust = Trust::new();
    let server = trust.identity(&Caller::Api, "api");
    let mut api = Api::start_as(&server).await;
    let agent = trust.unprivileged_agent(&mut api, "node0", "").await;
    assert_unprivileged(&agent);
    let script = "trap 'echo signalled' USR1; id -u; while :; do sleep 0.02; done";
    let spec = proto::LaunchSpec { uid: NOBODY, ..launch_on(&[&agent], 1, script) };
    let mut launch = started(&agent, (&mut api, &server), &spec, 1).await;
    launch.until(|launch| launch.stdout == "65534\n").await;
    launch.command(Command::Signal(10)).await;
    launch.until(|launch| launch.stdout.ends_with("signalled\n")).await;
    // The daemon has a stopped session killed, which it could not kill itself.
    let session = parent_of(launch.pids[0]);
    crate::world::signal(session, nix::sys::signal::Signal::SIGSTOP);
    launch.until_report().await;
    let rank = launch.pids[0];
    eventually("nothing is left", async || !runs(session) && !runs(rank)).await;
}

/// Requests that are unsigned, for another node or user, or repeated, reach the fork server and start nothing.
#[tokio::test(flavor = "current_thread")]
async fn what_the_api_server_has_not_signed_for_this_node_is_not_started() {
    if ignored_when_not_root() {
        return;
    }
    let trust = Trust::new();
    let server = trust.identity(&Caller::Api, "api");
    let thief = trust.identity(&Caller::Agent("node1".to_owned()), "thief");
    let mut api = Api::start_as(&server).await;
    api.has_signed(5);
    let agent = trust.unprivileged_agent(&mut api, "node0", "").await;
    // Each is another launch, because a refused launch is remembered.
    let spec = |uid: u32| proto::LaunchSpec { uid, ..launch_on(&[&agent], 1, "echo ran") };
    let signed = |uid: u32, serial: u64| signed_under(&server, &spec(uid), serial);
    let instead = |spec: &proto::LaunchSpec, by: &proto::LaunchProcessesRequest| proto::LaunchProcessesRequest {
        spec: spec.encode_to_vec().into(),
        launch_id: spec.launch_id.clone(),
        ..by.clone()
    };
    let unsigned = proto::LaunchProcessesRequest { signature: Bytes::new(), signer: Vec::new(), ..signed(NOBODY, 7) };
    let changed = "the launch is not what the API server signed";
    let cases = [
        (unsigned, "the launch is not signed"),
        (signed_under(&thief, &spec(NOBODY), 7), "the launch is signed by the agent of node1; only the API server may"),
        (instead(&spec(NOBODY), &signed(NOBODY, 7)), changed),
        (proto::LaunchProcessesRequest { serial: 8, ..signed(NOBODY, 7) }, changed),
        (instead(&spec(NOBODY), &signed(0, 7)), changed),
        (signed(0, 7), "this node starts no processes of root"),
        (signed(NOBODY, 5), "the launch was signed before this agent started, or long ago"),
    ];
    for (request, expected) in cases {
        // The API server's certificate allows a connection, which alone starts nothing.
        let answer = ask(&agent, &server, &request).await;
        assert!(!answer.accepted && answer.message.starts_with(expected), "{expected}: {answer:?}");
    }
    let good = spec(NOBODY);
    let mut launch = started(&agent, (&mut api, &server), &good, 7).await;
    launch.until_report().await;
    assert_eq!(launch.stdout, "ran\n");
    launch.end().await;
    // The daemon does not have this id yet, but the number was used before.
    let answer = ask(&agent, &server, &signed(NOBODY, 7)).await;
    assert_eq!((answer.accepted, answer.reason()), (false, RefusalReason::Signature));
    assert_eq!(answer.message, "the launch was started here before");
}

/// The next agent is root while it adopts sessions, and no longer when it listens.
#[tokio::test(flavor = "current_thread")]
async fn the_next_agent_without_root_takes_sessions_up() {
    if ignored_when_not_root() {
        return;
    }
    let trust = Trust::new();
    let server = trust.identity(&Caller::Api, "api");
    let mut api = Api::start_as(&server).await;
    let mut agent = trust.unprivileged_agent(&mut api, "node0", "agent_lease = 60").await;
    let script = "trap 'echo here' USR1; echo ready; while :; do sleep 0.02; done";
    let spec = proto::LaunchSpec { uid: NOBODY, ..launch_on(&[&agent], 1, script) };
    let mut launch = started(&agent, (&mut api, &server), &spec, 1).await;
    launch.until(|launch| launch.stdout == "ready\n").await;
    let rank = launch.pids[0];
    agent.kill();
    agent.exit().await;
    let next = trust.start(&mut api, "node0", &trust.config_of("node0")).await;
    assert_unprivileged(&next);
    assert_eq!(next.registration.launches, std::slice::from_ref(&spec.launch_id));
    let mut launch = api.next_launch().await;
    launch.command(Command::Signal(10)).await;
    launch.until(|launch| launch.stdout.ends_with("here\n")).await;
    kill(rank);
    launch.until_report().await;
    // New sessions belong to its own fork server.
    let spec = proto::LaunchSpec { uid: NOBODY, ..launch_on(&[&next], 1, "id -u") };
    let mut launch = started(&next, (&mut api, &server), &spec, 2).await;
    launch.until_report().await;
    assert_eq!(launch.stdout, "65534\n");
}

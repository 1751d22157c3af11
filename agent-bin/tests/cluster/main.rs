//! The agent as a program, between a scripted API server and real session processes.

mod descriptors;
mod fabric;
mod foreign;
mod logs;
mod report_relay;
mod rights;
mod successors;
mod time_limits;
mod trust;
mod unprivileged;
mod world;

use std::time::Duration;

use pmi_transport::identity::Caller;
use pmi_transport::proto::v1 as proto;
use proto::RefusalReason;
use proto::node_command::What as Command;

use trust::{Trust, signed};
use world::{Agent, Api, Launch, NOBODY, eventually, ignored_when_not_root, launch_on, runs, with_tag};

#[tokio::test(flavor = "current_thread")]
async fn an_agent_registers_and_says_that_it_lives() {
    let mut api = Api::start().await;
    let agent = Agent::start(&mut api, "node0").await;
    assert_eq!(agent.registration.node_id, "node0");
    assert_eq!(agent.registration.capabilities, ["pmi1", "pmi2", "pmix"]);
    assert!(agent.registration.cores > 0 && agent.registration.memory_bytes > 0);
    // The API server forgets the agent, which registers again with the same incarnation.
    api.forget_nodes();
    let again = api.next_registration().await;
    assert_eq!(again.incarnation, agent.registration.incarnation);
}

#[test]
fn what_the_system_refuses_is_told_with_its_reason() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let tls = "ca = '/nonesuch/ca.pem'\ncert = '/nonesuch/cert.pem'\nkey = '/nonesuch/key.pem'";
    std::fs::write(file.path(), format!("node_id = 'x'\napi = '127.0.0.1:1'\n[tls]\n{tls}\n")).unwrap();
    let mut agent = std::process::Command::new(env!("CARGO_BIN_EXE_lattice-agent"));
    let said = agent.arg("--check-config").arg("--config").arg(file.path()).output().unwrap().stderr;
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("/nonesuch/") && said.contains(": No such file or directory"), "{said}");
}

#[tokio::test(flavor = "current_thread")]
async fn a_launch_runs_as_its_user_and_reports() {
    let mut api = Api::start().await;
    let agent = Agent::start(&mut api, "node0").await;
    let spec = launch_on(&[&agent], 1, "id -u; echo \"$HOME $LATTICE_RANK\" >&2; exit 3");
    let mut launch = agent.launch(&mut api, spec).await;
    let report = launch.until_report().await;
    assert_eq!(launch.stdout, format!("{}\n", nix::unistd::getuid()));
    assert!(launch.stderr.starts_with('/') && launch.stderr.ends_with(" 0\n"), "{}", launch.stderr);
    assert_eq!(report.exits.iter().map(|exit| (exit.rank, exit.exit_code)).collect::<Vec<_>>(), [(0, 3)]);
    assert!(matches!(launch.cause.clone().unwrap().kind, Some(proto::cause::Kind::Failed(exit)) if exit.rank == 0));
    // A process that has ended before its report runs no program any more.
    let is_path = |program: &String| program.is_empty() || program.starts_with('/');
    assert!(launch.programs.iter().all(is_path), "{:?}", launch.programs);
}

#[tokio::test(flavor = "current_thread")]
async fn root_runs_what_others_want_as_them() {
    if ignored_when_not_root() {
        return;
    }
    let trust = Trust::new();
    let server = trust.identity(&Caller::Api, "api");
    let mut api = Api::start_as(&server).await;
    let agent = trust.agent(&mut api, "node0", "").await;
    let ask = async |spec: &proto::LaunchSpec| {
        agent.client_as(&server).launch_processes(signed(&server, spec)).await.unwrap().into_inner()
    };
    let mut spec =
        launch_on(&[&agent], 1, "id -un; grep -E 'CapEff|NoNewPrivs' /proc/self/status; echo $HOME; touch /root/x");
    spec.uid = NOBODY;
    assert!(ask(&spec).await.accepted);
    let mut launch = api.next_launch().await;
    launch.until_report().await;
    assert!(launch.stdout.starts_with("nobody\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n/"), "{}", launch.stdout);
    assert!(launch.stderr.contains("Permission denied"), "{}", launch.stderr);
    let mut unknown = launch_on(&[&agent], 1, "true");
    unknown.uid = 12345;
    let refusal = ask(&unknown).await;
    assert_eq!(refusal.reason(), RefusalReason::User);
    assert_eq!(refusal.message, "user 12345 is not known on this node");
}

/// The agent accepts any identity that a client claims.
#[tokio::test(flavor = "current_thread")]
async fn without_certificates_an_agent_serves_its_own_user_alone() {
    let mut api = Api::start().await;
    let agent = Agent::start(&mut api, "node0").await;
    let mut spec = launch_on(&[&agent], 1, "id -un");
    spec.uid = NOBODY;
    let refusal = agent.ask(&spec, 0).await;
    assert_eq!((refusal.accepted, refusal.reason()), (false, RefusalReason::User));
    assert!(refusal.message.contains("of its own user"), "{}", refusal.message);
}

#[tokio::test(flavor = "current_thread")]
async fn what_makes_no_sense_is_refused_with_a_reason() {
    let mut api = Api::start().await;
    let agent = Agent::start(&mut api, "node0").await;
    let spec = launch_on(&[&agent], 1, "sleep 1000");
    let check = async |spec: &proto::LaunchSpec, reason: RefusalReason, text: &str| {
        let answer = agent.ask(spec, 0).await;
        assert_eq!((answer.accepted, answer.reason(), answer.node_id.as_str()), (false, reason, "node0"));
        assert!(answer.message.contains(text), "{}", answer.message);
    };
    let elsewhere = proto::LaunchSpec { nodes: "node7".into(), ..spec.clone() };
    check(&elsewhere, RefusalReason::MalformedRequest, "node0, which the request was sent to").await;
    check(&proto::LaunchSpec { job: None, ..spec.clone() }, RefusalReason::MalformedRequest, "has no job").await;
    let mut launch = agent.launch(&mut api, spec.clone()).await;
    check(&spec, RefusalReason::AlreadyRunning, "runs here already").await;
    agent.abort(&spec.launch_id, 9).await;
    launch.until_report().await;
    launch.end().await;
    eventually("the launch has left", async || agent.ask(&spec, 0).await.reason() == RefusalReason::MalformedRequest)
        .await;
    // An unknown launch counts as ended.
    agent.abort("nosuchid", 0).await;
}

#[tokio::test(flavor = "current_thread")]
async fn output_waits_for_credit_and_the_cause_does_not() {
    let mut api = Api::start().await;
    let agent = Agent::start(&mut api, "node0").await;
    let mut spec = launch_on(&[&agent], 2, "[ $LATTICE_RANK = 0 ] && exec head -c 3000000 /dev/zero; exec sleep 1000");
    spec.output_window = 100_000;
    let mut launch = agent.launch(&mut api, spec).await;
    launch.until(|launch| launch.output_bytes >= 100_000).await;
    // The output does not exceed the credit and one piece.
    launch.command(Command::AskProgress(7)).await;
    launch.until(|launch| launch.progress.is_some()).await;
    assert!(launch.output_bytes < 400_000, "{}", launch.output_bytes);
    launch.command(Command::End(15)).await;
    launch.until(|launch| launch.cause.is_some()).await;
    assert!(launch.output_bytes < 400_000, "{}", launch.output_bytes);
    launch.command(Command::OutputCredit(u64::MAX)).await;
    launch.until_report().await;
}

#[tokio::test(flavor = "current_thread")]
async fn input_flows_as_it_is_read() {
    let mut api = Api::start().await;
    let agent = Agent::start(&mut api, "node0").await;
    let mut spec = launch_on(&[&agent], 2, "[ $LATTICE_RANK = 1 ] && exec wc -c; exec cat");
    spec.stdin = Some(proto::StdinTarget { target: Some(proto::stdin_target::Target::Rank(1)) });
    spec.stdin_window = 1 << 16;
    let mut launch = agent.launch(&mut api, spec).await;
    let piece = vec![b'x'; 1 << 15];
    for sent in 1..=100_u64 {
        launch.command(Command::Stdin(piece.clone().into())).await;
        // The input on its way never exceeds the window.
        launch.until(|launch| sent * (1 << 15) - launch.stdin_taken <= 1 << 15).await;
    }
    launch.command(Command::StdinEnd(proto::Nothing {})).await;
    launch.until_report().await;
    assert_eq!(launch.stdout.trim(), (100 * (1 << 15)).to_string());
}

#[tokio::test(flavor = "current_thread")]
async fn a_killed_session_is_a_lost_node_and_leaves_nothing() {
    let mut api = Api::start().await;
    let agent = Agent::start(&mut api, "node0").await;
    let spec = launch_on(&[&agent], 2, "(setsid env -i sleep 1000 & echo $!); echo $$; exec sleep 1000");
    let id = spec.launch_id.clone();
    let mut launch = agent.launch(&mut api, spec).await;
    launch.until(|launch| launch.stdout.lines().count() == 4).await;
    let ranks: Vec<i32> = launch.stdout.lines().map(|line| line.parse().unwrap()).collect();
    world::kill(world::parent_of(launch.pids[0]));
    let report = launch.until_report().await;
    assert_eq!(report.exits, []);
    let cause = launch.cause.clone().unwrap();
    let text = "the session process was killed by signal 9 (SIGKILL)";
    assert_eq!(cause.kind, Some(proto::cause::Kind::NodeLost(text.into())));
    eventually("nothing is left", async || with_tag(&id).is_empty() && !ranks.iter().any(|&pid| runs(pid))).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_killed_agent_that_has_no_successor_leaves_nothing() {
    let mut api = Api::start().await;
    let mut agent = Agent::start_set(&mut api, "node0", "agent_lease = 1").await;
    let spec = launch_on(&[&agent], 2, "trap '' TERM; (setsid env -i sleep 1000 & echo $!); echo $$; sleep 1000");
    let id = spec.launch_id.clone();
    let mut launch = agent.launch(&mut api, spec).await;
    launch.until(|launch| launch.stdout.lines().count() == 4).await;
    let mut all: Vec<i32> = launch.stdout.lines().map(|line| line.parse().unwrap()).collect();
    let session = world::parent_of(launch.pids[0]);
    all.extend([session, world::parent_of(session)]);
    assert!(all.iter().all(|&pid| runs(pid)));
    agent.kill();
    eventually("nothing is left", async || with_tag(&id).is_empty() && !all.iter().any(|&pid| runs(pid))).await;
}

#[tokio::test(flavor = "current_thread")]
async fn an_agent_that_is_told_to_stop_ends_its_launches_first() {
    let mut api = Api::start().await;
    let mut agent = Agent::start_set(&mut api, "node0", "when_stopped = 'end'").await;
    let spec = launch_on(&[&agent], 1, "exec sleep 1000");
    let id = spec.launch_id.clone();
    let mut launch = agent.launch(&mut api, spec).await;
    launch.until(|launch| !launch.pids.is_empty()).await;
    agent.terminate();
    launch.until_report().await;
    let cause = launch.cause.clone().unwrap();
    let lost = proto::cause::Kind::NodeLost("its agent was stopped".into());
    assert_eq!((cause.host.as_str(), cause.kind), ("node0", Some(lost)), "not the user's own interrupt");
    launch.end().await;
    assert!(agent.exit().await.success());
    assert_eq!(with_tag(&id), Vec::<i32>::new());
}

#[tokio::test(flavor = "current_thread")]
async fn a_broken_stream_is_opened_again_and_the_report_comes() {
    let mut api = Api::start().await;
    let agent = Agent::start(&mut api, "node0").await;
    let go = tempfile::tempdir().unwrap();
    let file = go.path().join("go");
    let script = format!("until [ -e {} ]; do sleep 0.01; done; exit 3", file.display());
    let spec = launch_on(&[&agent], 1, &script);
    let id = spec.launch_id.clone();
    let mut launch = agent.launch(&mut api, spec).await;
    launch.until(|launch| !launch.pids.is_empty()).await;
    launch.break_off().await;
    std::fs::write(&file, "").unwrap();
    let mut launch: Launch = api.next_launch().await;
    assert_eq!(launch.until_report().await.exits[0].exit_code, 3);
    assert!(launch.cause.is_some());
    // The stream breaks before its end: an API server without the report receives it again.
    launch.break_off().await;
    api.forget_events();
    let mut launch: Launch = api.next_launch().await;
    assert_eq!(launch.until_report().await.exits[0].exit_code, 3);
    assert!(launch.cause.is_some());
    launch.end().await;
    eventually("the session is dismissed", async || with_tag(&id).is_empty()).await;
}

/// Messages on their way when a stream breaks are sent again, and none arrives twice.
#[tokio::test(flavor = "current_thread")]
async fn output_is_whole_however_often_the_stream_breaks() {
    const LINES: usize = 20_000;
    let mut api = Api::start().await;
    let agent = Agent::start(&mut api, "node0").await;
    let mut spec = launch_on(&[&agent], 1, &format!("seq {LINES}; read -r line; echo $line"));
    spec.stdin = Some(proto::StdinTarget { target: Some(proto::stdin_target::Target::Rank(0)) });
    (spec.output_window, spec.stdin_window) = (1 << 30, 1 << 16);
    let mut launch = agent.launch(&mut api, spec).await;
    let mut output = String::new();
    for part in 1..=5 {
        launch.until(|launch| output.len() + launch.stdout.len() > part * 10_000).await;
        output += &launch.stdout;
        launch.break_off().await;
        launch = api.next_launch().await;
    }
    launch.until(|launch| launch.stdout.ends_with(&format!("\n{LINES}\n"))).await;
    // The same command on two streams.
    for last in [false, true] {
        let what = Some(Command::Stdin("typed\n".into()));
        launch.numbered(proto::NodeCommand { what, sequence: 1, events_taken: 0 }).await;
        if !last {
            output += &launch.stdout;
            launch.break_off().await;
            launch = api.next_launch().await;
        }
    }
    assert_eq!(launch.until_report().await.exits[0].exit_code, 0);
    output += &launch.stdout;
    launch.end().await;
    let expected: String = (1..=LINES).map(|line| format!("{line}\n")).collect();
    assert!(output == expected + "typed\n", "{} bytes, ends with {:?}", output.len(), &output[output.len() - 40..]);
}

#[tokio::test(flavor = "current_thread")]
async fn nobody_but_the_api_server_starts_anything() {
    let mut api = Api::start().await;
    let agent = Agent::start(&mut api, "node0").await;
    for (caller, may) in [("lattice:///user/0", false), ("lattice:///admin", false), ("lattice:///api", true)] {
        let spec = launch_on(&[&agent], 1, "true");
        let answer = agent.ask_as(caller, &spec).await;
        assert_eq!(answer.is_ok(), may, "{caller}: {answer:?}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_launch_is_passed_on_and_fenced_between_nodes() {
    let (_directory, hello) = world::mpich_hello();
    let mut api = Api::start().await;
    let mut agents = Vec::new();
    for node in ["node0", "node1", "node2"] {
        agents.push(Agent::start(&mut api, node).await);
    }
    let nodes: Vec<&Agent> = agents.iter().collect();
    let spec = launch_on(&nodes, 2, &format!("exec {}", hello.display()));
    // node0 forwards it to node1, and node1 to node2.
    let answer = agents[0].ask_through(&spec, 2, 1).await;
    assert!(answer.accepted, "{answer:?}");
    let mut stdout = String::new();
    for _ in 0..3 {
        let mut launch = api.next_launch().await;
        let report = tokio::time::timeout(Duration::from_secs(60), launch.until_report()).await.unwrap();
        assert!(report.exits.iter().all(|exit| exit.exit_code == 0 && !exit.signaled), "{report:?} {}", launch.stderr);
        assert_eq!(launch.cause, None);
        stdout += &launch.stdout;
    }
    for rank in 0..6 {
        assert!(stdout.contains(&format!("{rank} of 6")), "{stdout}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_node_that_cannot_be_reached_is_named() {
    let mut api = Api::start().await;
    let agent = Agent::start(&mut api, "node0").await;
    let mut spec = launch_on(&[&agent], 1, "exec sleep 1000");
    spec.nodes = "node[0-1]".into();
    spec.addresses = format!("{},127.0.0.1:1", agent.registration.grpc_address);
    let id = spec.launch_id.clone();
    let answer = agent.ask_through(&spec, 1, 1).await;
    // No process listens there, as while an agent is being replaced.
    assert_eq!((answer.accepted, answer.reason()), (false, RefusalReason::Restarting));
    assert_eq!(answer.node_id, "node1");
    eventually("what was started is ended", async || with_tag(&id).is_empty()).await;
}

#[tokio::test(flavor = "current_thread")]
async fn an_abort_on_one_node_fails_the_fences_of_the_others() {
    let (_directory, hello) = world::mpich_hello();
    let mut api = Api::start().await;
    let agents = [Agent::start(&mut api, "node0").await, Agent::start(&mut api, "node1").await];
    // The only rank of the second node never enters the fence.
    let script = format!("[ $LATTICE_RANK = 1 ] && exec sleep 1000; exec {}", hello.display());
    let spec = launch_on(&[&agents[0], &agents[1]], 1, &script);
    assert!(agents[0].ask_through(&spec, 1, 1).await.accepted);
    let (one, two) = (api.next_launch().await, api.next_launch().await);
    let (mut first, mut second) = if one.of.node_index == 0 { (one, two) } else { (two, one) };
    first.until(|launch| !launch.pids.is_empty()).await;
    second.until(|launch| !launch.pids.is_empty()).await;
    // The rank waits in its fence.
    eventually("the first rank waits", async || world::is_asleep_in_read(first.pids[0])).await;
    agents[1].abort(&spec.launch_id, 9).await;
    // Sessions report another first cause if an API server does not read for long.
    let (report, _) = tokio::join!(first.until_report(), second.until_report());
    assert!(report.exits.iter().all(|exit| exit.signaled || exit.exit_code != 0), "{report:?}");
    let cause = first.cause.clone().unwrap();
    assert!(matches!(cause.kind, Some(proto::cause::Kind::NodeLost(_))), "{cause:?}");
    assert_eq!(cause.host, "node1");
}

#[tokio::test(flavor = "current_thread")]
async fn metrics_count_launches() {
    let mut api = Api::start().await;
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let agent = Agent::start_with(&mut api, "node0", &["--metrics", &address]).await;
    let mut launch = agent.launch(&mut api, launch_on(&[&agent], 1, "true")).await;
    launch.until_report().await;
    let text = world::http_get(&address).await;
    assert!(text.contains("lattice_agent_launches_started_total 1\n"), "{text}");
}

#[test]
fn settings_are_checked_without_running() {
    let (out, code) = world::check_config(&["--insecure", "--api", "127.0.0.1:1", "--node-id", "n"]);
    assert_eq!(
        (out.as_str(), code),
        ("lattice-agent: the settings of n make sense; its API server is 127.0.0.1:1\n", Some(0))
    );
    let (out, code) = world::check_config(&["--insecure", "--api", "nonsense"]);
    assert_eq!(code, Some(125));
    assert!(out.starts_with("lattice-agent: api: \"nonsense\" is no address"), "{out}");
    let (out, code) = world::check_config(&["--api", "127.0.0.1:1"]);
    assert_eq!(code, Some(125));
    assert!(
        out.contains("neither certificates ([tls] with ca, cert and key) nor `insecure` are set\nlattice-agent: try:"),
        "{out}"
    );
    let insecure = ["--insecure", "--node-id", "n", "--api"];
    let (out, code) = world::check_config(&[&insecure[..], &["127.0.0.1:1", "--listen", "0.0.0.0:1"]].concat());
    assert_eq!(code, Some(125));
    assert!(out.contains("0.0.0.0:1 can be reached from other machines"), "{out}");
    let (out, code) = world::check_config(&[&insecure[..], &["192.0.2.1:1"]].concat());
    assert_eq!(code, Some(125));
    assert!(out.contains("192.0.2.1:1 is not this machine"), "{out}");
    let (out, code) = world::check_config(&["--no-such-flag"]);
    assert_eq!(code, Some(125), "{out}");
}

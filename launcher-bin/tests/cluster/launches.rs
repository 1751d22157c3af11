//! Launches on a cluster: output, input, signals, broken connections, exit codes.

use std::io::Read;

use nix::pty::{OpenptyResult, openpty};
use nix::sys::signal::Signal;
use pmi_transport::proto::v1::attach_request::What as Wish;
use pmi_transport::proto::v1::*;
use tokio::io::AsyncWriteExt;
use tokio::process::Child;
use tonic::Status;

use crate::child::{ended, insist, run, says, signal};
use crate::fake::{Fake, LAUNCH, ReceivedRequest, soon, spec};

/// Polls until a process is stopped, because no event reports it.
async fn stopped(child: &Child) {
    let file = format!("/proc/{}/status", child.id().expect("it runs"));
    while !std::fs::read_to_string(&file).unwrap().contains("State:\tT") {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_launch_is_shown_and_its_end_is_acknowledged() {
    let mut fake = Fake::start().await;
    let (child, request, mut conversation) =
        fake.launched("-n 2 -N 2 -w node[1,0] --label --show-map --distribution cyclic ./app x").await;
    assert_eq!(request.allocation_id, "7f3k");
    let placement = request.placement.unwrap();
    assert_eq!((placement.nodes, placement.only.as_str()), (2, "node[1,0]"));
    assert_eq!(placement.distribution(), Distribution::Cyclic);
    let asked = request.spec.unwrap();
    assert_eq!(asked.job.unwrap().apps, [App { ranks: 2, appnum: 0 }]);
    assert_eq!((&asked.apps[0].program[..], &asked.apps[0].args[0][..]), (&b"./app"[..], &b"x"[..]));
    assert!(conversation.to.tied && conversation.to.after == 0);

    conversation.output(1, 0, 0, "one\n").await;
    conversation.output(2, 1, 1, "two\n").await;
    conversation.hear_acknowledged(2).await;
    let exited = RankExitStatus { rank: 1, exit_code: 3, ..Default::default() };
    let cause = Cause { host: "node1".to_owned(), kind: Some(cause::Kind::Failed(exited)) };
    conversation.tell_event(3, 1, node_event::What::Exited(exited)).await;
    conversation.complete(4, Some(cause)).await;
    conversation.hear_acknowledged(4).await;
    assert_eq!(conversation.hear().await, None, "it hangs up");
    drop(conversation);

    let (code, stdout, stderr) = ended(child).await;
    assert_eq!((code, stdout.as_str()), (Some(3), "[0] one\n[1] two\n"), "{stderr}");
    assert_eq!(stderr, format!("{MAP}lattice: rank 1 on node1 exited with status 3\n"));
}

/// Map of the launch in the answer of the API server.
const MAP: &str =
    "RANK  NODE   LOCAL  CPUS  PROGRAM\n   0  node0      0  any   ./app\n   1  node1      0  any   ./app\n";

#[tokio::test]
async fn a_plan_is_shown_and_not_followed() {
    let mut fake = Fake::start().await;
    for line in ["launch --dry-run -n 2 ./app", "launch --dry-run --show-map --detach -n 2 ./app"] {
        assert_eq!(run(&fake, line).await, (Some(0), MAP.to_owned(), String::new()), "{line}");
        let ReceivedRequest::Launch(request) = fake.asked().await else { panic!("no launch") };
        assert!(request.plan_only);
    }
    let (code, stdout, _) = run(&fake, "launch --dry-run --json -n 2 ./app").await;
    let plan: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &plan["event"], &plan["allocation_id"]), (Some(0), &"plan".into(), &"7f3k".into()));
    let rank = serde_json::json!({ "rank": 1, "node": "node1", "local_rank": 0, "cpus": null });
    assert_eq!((&plan["ranks"][1], plan["ranks"].as_array().map(Vec::len)), (&rank, Some(2)));
}

/// A user that places more ranks than cores on a node does so each time.
#[tokio::test]
async fn notes_on_a_placement_are_for_those_who_watch_or_ask() {
    let fake = Fake::start().await;
    let note = "lattice: note: 2 ranks on 1 cores of node0";
    assert_eq!(run(&fake, "launch --dry-run -n 2 ./app").await.2, "");
    assert_eq!(run(&fake, "-v launch --dry-run -n 2 ./app").await.2, format!("{note}\n"));
    for (line, expected) in [("launch --dry-run -n 2 ./app", note), ("-q launch --dry-run -n 2 ./app", "")] {
        let OpenptyResult { master, slave } = openpty(None, None).unwrap();
        let mut command = fake.lattice(line);
        let child = command.env("NO_COLOR", "1").stderr(slave).spawn().unwrap();
        drop(command);
        assert_eq!(ended(child).await.0, Some(0));
        let mut shown = Vec::new();
        // Ends with an error when no process has the other side open.
        let _ = std::fs::File::from(master).read_to_end(&mut shown);
        assert_eq!(String::from_utf8_lossy(&shown).trim_end(), expected, "{line}");
    }
}

#[tokio::test]
async fn json_tells_the_node_of_every_rank() {
    let mut fake = Fake::start().await;
    let (child, _, conversation) = fake.launched("--json -n 2 ./app").await;
    conversation
        .tell_event(1, 1, node_event::What::Started(RankStarted { rank: 1, pid: 7, ..Default::default() }))
        .await;
    conversation.output(2, 1, 1, "hi\n").await;
    conversation.complete(3, None).await;
    let (code, stdout, _) = ended(child).await;
    let events: Vec<serde_json::Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!((code, kinds), (Some(0), vec!["launch", "started", "output", "complete"]));
    assert_eq!(events[0]["nodes"], serde_json::json!(["node0", "node1"]));
    assert_eq!((&events[1]["node"], &events[2]["node"]), (&"node1".into(), &"node1".into()));
}

#[tokio::test]
async fn the_start_is_shown_on_a_terminal_until_something_else_is() {
    let mut fake = Fake::start().await;
    let OpenptyResult { master, slave } = openpty(None, None).unwrap();
    let mut command = fake.lattice("launch --stdin none -n 2 ./app");
    command.stdout(slave.try_clone().unwrap()).stderr(slave);
    let child = command.spawn().unwrap();
    drop(command);
    assert!(matches!(fake.asked().await, ReceivedRequest::Launch(_)));
    let conversation = fake.attached(spec()).await;
    let progress = |nodes_started, ranks_started| {
        let progress = StartProgress { nodes: 2, nodes_started, ranks: 2, ranks_started, ranks_initialized: 0 };
        attach_response::What::Starting(progress)
    };
    conversation.tell(0, 0, progress(0, 0)).await;
    conversation.tell(0, 0, progress(1, 1)).await;
    conversation.output(1, 0, 0, "hi\n").await;
    conversation.tell(0, 0, progress(2, 2)).await;
    conversation.complete(2, None).await;
    assert_eq!(ended(child).await.0, Some(0));
    let mut shown = Vec::new();
    // Ends with an error when no process has the other side open.
    let _ = std::fs::File::from(master).read_to_end(&mut shown);
    let expected = "lattice: starting: 0 of 2 nodes, 0 of 2 ranks\r\x1b[Klattice: starting: 1 of 2 nodes, 1 of 2 ranks\r\x1b[Khi\r\n";
    assert_eq!(String::from_utf8_lossy(&shown), expected);
}

#[tokio::test]
async fn input_goes_as_far_as_there_is_credit() {
    let mut fake = Fake::start().await;
    let (mut child, _, mut conversation) = fake.launched("-n 2 ./app").await;
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"abcdefgh").await.unwrap();
    drop(stdin);
    assert_eq!(conversation.hear_wish().await, Some(Wish::Stdin("abcd".into())));
    conversation.tell(0, 0, attach_response::What::StdinCredit(3)).await;
    assert_eq!(conversation.hear_wish().await, Some(Wish::Stdin("efg".into())));
    conversation.tell(0, 0, attach_response::What::StdinCredit(4)).await;
    assert_eq!(conversation.hear_wish().await, Some(Wish::Stdin("h".into())));
    assert_eq!(conversation.hear_wish().await, Some(Wish::StdinEnd(Nothing {})));
    conversation.complete(1, None).await;
    assert_eq!(ended(child).await.0, Some(0));
}

#[tokio::test]
async fn one_interrupt_ends_in_order_and_two_at_once() {
    let mut fake = Fake::start().await;
    let (mut child, _, mut conversation) = fake.launched("--stdin none -v -n 2 ./app").await;
    says(&mut child, "launch k3jq09zmf2 on node[0-1] (allocation 7f3k)").await;
    signal(&child, Signal::SIGUSR1);
    assert_eq!(conversation.hear_wish().await, Some(Wish::Signal(Signal::SIGUSR1 as i32)));
    signal(&child, Signal::SIGINT);
    assert_eq!(conversation.hear_wish().await, Some(Wish::End(Signal::SIGINT as i32)));
    insist(&child, Signal::SIGINT).await;
    assert_eq!(conversation.hear_wish().await, Some(Wish::Kill(Signal::SIGINT as i32)));
    let cause = Cause { host: "node0".to_owned(), kind: Some(cause::Kind::InterruptedBy(2)) };
    conversation.complete(1, Some(cause)).await;
    assert_eq!(ended(child).await.0, Some(130));
}

#[tokio::test]
async fn a_stopped_command_is_not_taken_for_gone() {
    let mut fake = Fake::start().await;
    let (mut child, _, mut conversation) = fake.launched("--stdin none -v -n 2 ./app").await;
    says(&mut child, "launch k3jq09zmf2 on").await;
    signal(&child, Signal::SIGTSTP);
    assert_eq!(conversation.hear_wish().await, Some(Wish::Signal(Signal::SIGSTOP as i32)));
    assert_eq!(conversation.hear_wish().await, None, "it says goodbye before it is stopped");
    soon(stopped(&child)).await;
    signal(&child, Signal::SIGCONT);
    let mut conversation = fake.attached(spec()).await;
    assert!(conversation.to.tied);
    assert_eq!(conversation.hear_wish().await, Some(Wish::Signal(Signal::SIGCONT as i32)));
    conversation.complete(1, None).await;
    assert_eq!(ended(child).await.0, Some(0));
}

#[tokio::test]
async fn a_broken_connection_loses_and_repeats_nothing() {
    let mut fake = Fake::start().await;
    let (child, _, mut conversation) = fake.launched("--stdin none -n 2 ./app").await;
    conversation.output(1, 0, 0, "one\n").await;
    conversation.hear_acknowledged(1).await;
    conversation.output(2, 0, 0, "two\n").await;
    conversation.fail(Status::unavailable("the API server is being restarted")).await;

    let conversation = fake.attached(spec()).await;
    assert!((1..=2).contains(&conversation.to.after) && conversation.to.tied, "{:?}", conversation.to);
    for (sequence, text) in (1..).zip(["one\n", "two\n", "three\n"]).skip(conversation.to.after as usize) {
        conversation.output(sequence, 0, 0, text).await;
    }
    conversation.complete(4, None).await;
    let (code, stdout, stderr) = ended(child).await;
    assert_eq!((code, stdout.as_str()), (Some(0), "one\ntwo\nthree\n"));
    assert!(stderr.contains("attaching again") && stderr.contains("the API server is being restarted"), "{stderr}");
    assert!(stderr.contains("attached again"), "{stderr}");
}

#[tokio::test]
async fn a_client_that_is_replaced_does_not_fight() {
    let mut fake = Fake::start().await;
    let (child, _, conversation) = fake.launched("--stdin none -n 2 ./app").await;
    conversation.fail(Status::aborted("another client follows the launch now")).await;
    let (code, _, stderr) = ended(child).await;
    assert_eq!(code, Some(125));
    assert!(stderr.contains("launch k3jq09zmf2 was lost sight of: another client follows the launch now"), "{stderr}");
    assert!(stderr.contains("try: lattice attach k3jq09zmf2"), "{stderr}");
}

#[tokio::test]
async fn output_files_and_traces_are_written_here() {
    let mut fake = Fake::start().await;
    let (out, trace) = (fake.directory().join("%n.%r"), fake.directory().join("trace"));
    let line = format!("--stdin none --output {} --pmi-trace {} -n 2 ./app", out.display(), trace.display());
    let (child, request, conversation) = fake.launched(&line).await;
    assert!(request.spec.unwrap().trace);
    conversation.output(1, 1, 1, "mine\n").await;
    conversation.tell_event(2, 1, node_event::What::Trace("@rank 1\nC> cmd=init\\n\n".into())).await;
    conversation.complete(3, None).await;
    assert_eq!(ended(child).await.0, Some(0));
    let read = |name: &str| std::fs::read_to_string(fake.directory().join(name)).unwrap();
    assert_eq!((read("1.1").as_str(), read("0.0").as_str()), ("mine\n", ""));
    assert_eq!(read("trace"), "@rank 1\nC> cmd=init\\n\n");
}

#[tokio::test]
async fn a_launch_whose_client_cannot_show_it_is_ended() {
    let mut fake = Fake::start().await;
    let child = fake.lattice("launch --output /nonexistent/out -n 2 ./app").spawn().unwrap();
    assert!(matches!(fake.asked().await, ReceivedRequest::Launch(_)));
    let _conversation = fake.attached(spec()).await;
    match fake.asked().await {
        ReceivedRequest::Abort(abort) => {
            assert_eq!(abort.id, LAUNCH);
            assert!(abort.reason.contains("/nonexistent/out"), "{}", abort.reason);
        }
        other => panic!("{other:?} instead of an abort"),
    }
    let (code, _, stderr) = ended(child).await;
    assert_eq!(code, Some(125));
    assert!(stderr.contains("/nonexistent/out"), "{stderr}");
}

#[tokio::test]
async fn a_detached_launch_is_named_and_followed_later() {
    let mut fake = Fake::start().await;
    let (code, stdout, stderr) = run(&fake, "launch --detach -n 2 ./app").await;
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (Some(0), "k3jq09zmf2\n", ""));
    let ReceivedRequest::Launch(request) = fake.asked().await else { panic!("no launch") };
    assert!(request.detached);
    assert!(!request.plan_only);
    assert_eq!(request.spec.unwrap().stdin, Some(StdinTarget { target: None }));
    let (code, stdout, _) = run(&fake, "launch --detach --json -n 2 ./app").await;
    let line: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &line["event"], &line["launch_id"]), (Some(0), &"launch".into(), &LAUNCH.into()));
    assert!(matches!(fake.asked().await, ReceivedRequest::Launch(_)));

    let child = fake.lattice("attach k3jq09zmf2 --label").spawn().unwrap();
    let mut conversation = fake.attached(spec()).await;
    assert!(!conversation.to.tied);
    conversation.tell(0, 0, attach_response::What::DroppedOutput(99)).await;
    conversation.output(7, 1, 1, "late\n").await;
    conversation.hear_acknowledged(7).await;
    signal(&child, Signal::SIGINT);
    assert_eq!(conversation.hear_wish().await, None, "whoever looks on ends nothing");
    let (code, stdout, stderr) = ended(child).await;
    assert_eq!((code, stdout.as_str()), (Some(130), "[1] late\n"));
    assert!(stderr.contains("warning: 99 bytes of output are missing here"), "{stderr}");
    assert!(stderr.contains("launch k3jq09zmf2 goes on without us") && !stderr.contains("ending"), "{stderr}");
}

#[tokio::test]
async fn launches_are_signalled_and_aborted_by_others() {
    let mut fake = Fake::start().await;
    assert_eq!(run(&fake, "signal k3jq09zmf2 USR1").await.0, Some(0));
    assert!(matches!(fake.asked().await, ReceivedRequest::Signal(SignalLaunchRequest { signal: 10, .. })));
    // Without a terminal nothing confirms it. The id may be that of an allocation.
    assert_eq!(run(&fake, "abort k3jq09zmf2").await, (Some(0), String::new(), String::new()));
    assert!(matches!(fake.asked().await, ReceivedRequest::Release(_)));
    assert!(matches!(fake.asked().await, ReceivedRequest::Abort(abort) if abort.reason == "lattice cancel"));
    let told = async |line: &str| serde_json::from_str::<serde_json::Value>(&run(&fake, line).await.1).unwrap();
    assert_eq!(
        told("signal k3jq09zmf2 USR1 --ranks 0-3,8 --json").await,
        serde_json::json!({ "asked": "signal", "launch_id": LAUNCH, "signal": "SIGUSR1",
                            "ranks": [{ "first": 0, "last": 3 }, { "first": 8, "last": 8 }] })
    );
    assert_eq!(
        told("kill k3jq09zmf2 --reason enough --json").await,
        serde_json::json!({ "asked": "cancel", "ids": [LAUNCH], "reason": "enough" })
    );
    assert_eq!(run(&fake, "alloc create -N 2").await, (Some(0), "7f3k\n".to_owned(), String::new()));
    assert_eq!(run(&fake, "launches --json").await.1, "[]\n");
}

#[tokio::test]
async fn refusals_are_told_in_words() {
    let fake = Fake::start().await;
    let check = async |line: &str, expected: &str| {
        let (code, stdout, stderr) = run(&fake, line).await;
        assert_eq!((code, stdout.as_str()), (Some(125), ""), "{line}");
        assert!(stderr.starts_with(&format!("lattice: {expected}")), "{line}: {stderr}");
    };
    check("launch --alloc pending -n 1 true", "allocation pending is pending; launches need a running one\n").await;
    check("alloc show", "there is no allocation 7f3k\n").await;
    check("status nowhere", "there is no launch nowhere\n").await;
    check("launch --alloc pending --dry-run --json true", "allocation pending is pending").await;
    check("launch --alloc local --api unix:/x true", "--api needs the nodes of an allocation").await;
    check("launch --api nonsense true", "\"nonsense\" names no API server").await;
    check(
        "nodes --api unix:/nonexistent/api.sock",
        "cannot reach the API server at unix:/nonexistent/api.sock: No such file",
    )
    .await;
    check("nodes", "the API server at unix:").await;
    // For an allocation that cannot be reached, no launch starts on this machine instead.
    let (code, stdout, stderr) = run(&fake, "launch --api unix:/nonexistent/api.sock echo hello").await;
    assert_eq!((code, stdout.as_str()), (Some(125), ""));
    assert!(stderr.contains("cannot reach the API server") && stderr.contains("try: --api"), "{stderr}");
    assert_eq!(run(&fake, "launch --alloc local --pmi none echo hello").await.1, "hello\n");
}

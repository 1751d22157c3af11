//! Requests to the API server: their contents, and recorded answers as shown to users and programs.

use std::time::Duration;

use pmi_transport::proto::v1::*;
use serde_json::{Value, json};
use tonic::Status;

use crate::child::{on_a_terminal, run};
use crate::fake::{Answers, Fake, LAUNCH, ReceivedRequest};

/// Number of a user without a name on any machine.
const NOBODY_KNOWN: u32 = 3_999_999_999;

/// A time that is in the future for every clock of a test.
const TO_COME: u64 = 4_000_000_000;

async fn shown(fake: &Fake, line: &str) -> String {
    let (code, stdout, stderr) = run(fake, line).await;
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{line}");
    stdout
}

async fn json_of(fake: &Fake, line: &str) -> Value {
    serde_json::from_str(&shown(fake, &format!("{line} --json")).await).unwrap()
}

fn allocations() -> Answers {
    let held = Allocation {
        id: "7f3k".to_owned(),
        state: AllocationState::Running.into(),
        uid: NOBODY_KNOWN,
        nodes: "node[0-3]".to_owned(),
        requeue: RequeuePolicy::OnNodeFailure.into(),
        created_at: TO_COME,
        requeues: 2,
        ..Allocation::default()
    };
    let failed = Allocation {
        id: "9abc".to_owned(),
        state: AllocationState::Failed.into(),
        nodes: "node7".to_owned(),
        requeue: RequeuePolicy::Never.into(),
        requeues: 0,
        reason: "node7 was lost".to_owned(),
        ..held.clone()
    };
    Answers { allocations: vec![held, failed], ..Answers::default() }
}

#[tokio::test]
async fn allocations_are_listed_with_their_reasons() {
    let mut fake = Fake::answering(allocations()).await;
    assert_eq!(
        shown(&fake, "alloc list").await,
        "ID    STATE    USER        NODES      CREATED  REQUEUE                     REASON\n\
         7f3k  running  3999999999  node[0-3]  0 s ago  on-node-failure (2 so far)\n\
         9abc  failed   3999999999  node7      0 s ago  never                       node7 was lost\n"
    );
    assert!(matches!(fake.asked().await, ReceivedRequest::List { all: false }));
    shown(&fake, "alloc list --all").await;
    assert!(matches!(fake.asked().await, ReceivedRequest::List { all: true }));
    let held = json!({
        "allocation_id": "7f3k", "state": "running", "uid": NOBODY_KNOWN, "nodes": ["node0", "node1", "node2", "node3"],
        "requeue": "on-node-failure", "created_at": "2096-10-02T07:06:40Z", "requeues": 2, "reason": null,
    });
    assert_eq!(json_of(&fake, "alloc list").await[0], held);
    assert_eq!(json_of(&fake, "alloc show").await, held, "the allocation of the environment");
    assert!(shown(&fake, "alloc show 9abc").await.ends_with("never    node7 was lost\n"));
}

#[tokio::test]
async fn an_allocation_is_asked_for_as_its_flags_say() {
    let nodes = ["node1", "node3"].map(|id| Node { id: id.to_owned(), ..Node::default() }).to_vec();
    let nodes = Some(ListNodesResponse { nodes, version: "0.1.0".to_owned() });
    let mut fake = Fake::answering(Answers { nodes, ..Answers::default() }).await;
    let base = CreateAllocationRequest { requeue: RequeuePolicy::Never.into(), ..Default::default() };
    for (flags, expected) in [
        ("-N 2", CreateAllocationRequest { num_nodes: 2, ..base.clone() }),
        ("-w node[3,1]", CreateAllocationRequest { nodes: "node[3,1]".to_owned(), ..base.clone() }),
        ("-N 1 --uid 7", CreateAllocationRequest { num_nodes: 1, uid: Some(7), ..base.clone() }),
        (
            "-N 1 --requeue on-any-failure",
            CreateAllocationRequest { num_nodes: 1, requeue: RequeuePolicy::OnAnyFailure.into(), ..base.clone() },
        ),
        (
            "--nodes 1 --requeue on-node-failure",
            CreateAllocationRequest { num_nodes: 1, requeue: RequeuePolicy::OnNodeFailure.into(), ..base.clone() },
        ),
    ] {
        assert_eq!(shown(&fake, &format!("alloc create {flags}")).await, "7f3k\n", "a script reads the id alone");
        match fake.asked().await {
            ReceivedRequest::Create(request) => assert_eq!(*request, expected, "{flags}"),
            other => panic!("{flags}: {other:?}"),
        }
    }
    let (_, stdout, stderr) = run(&fake, "-v alloc create -N 1").await;
    assert_eq!((stdout.as_str(), stderr.as_str()), ("7f3k\n", "lattice: allocation 7f3k of  is running\n"));
}

/// An allocation in the queue, or in a later state.
fn queued(state: AllocationState, reason: &str) -> Allocation {
    Allocation { id: "7f3k".to_owned(), state: state.into(), reason: reason.to_owned(), ..Allocation::default() }
}

#[tokio::test]
async fn who_waits_for_nodes_is_told_why_once_and_gets_them() {
    let waits = || queued(AllocationState::Pending, "waits behind allocation 9abc");
    let queued = [waits(), waits(), queued(AllocationState::Running, "")].into();
    let mut fake = Fake::answering(Answers { queued, ..Answers::default() }).await;
    let (code, stdout, stderr) = run(&fake, "alloc create --wait -N 1 --time 2:00:00").await;
    assert_eq!((code, stdout.as_str()), (Some(0), "7f3k\n"));
    assert_eq!(stderr, "lattice: allocation 7f3k is pending: waits behind allocation 9abc\n");
    let ReceivedRequest::Create(request) = fake.asked().await else { panic!("something else was asked") };
    assert_eq!((request.queue, request.time_limit_s), (true, 7200));
}

#[tokio::test]
async fn who_waits_for_an_allocation_that_is_cancelled_is_told() {
    let queued = [queued(AllocationState::Pending, "why"), queued(AllocationState::Released, "")].into();
    let fake = Fake::answering(Answers { queued, ..Answers::default() }).await;
    let (code, _, stderr) = run(&fake, "-q alloc create --wait -N 1").await;
    assert_eq!((code, stderr.as_str()), (Some(125), "lattice: allocation 7f3k is released, and has never run\n"));
}

#[tokio::test]
async fn nodes_that_cannot_be_had_are_a_failure_for_those_who_do_not_wait() {
    for (words, refusal) in [
        ("alloc create -N 1", Status::failed_precondition("node0 is in allocation 9abc")),
        ("alloc create --wait -N 1", Status::invalid_argument("there is no node9")),
    ] {
        let told = format!("lattice: {}\n", refusal.message());
        let fake = Fake::answering(Answers { refusals: [refusal].into(), ..Answers::default() }).await;
        assert_eq!(run(&fake, words).await, (Some(125), String::new(), told), "{words}");
    }
}

#[tokio::test]
async fn a_release_is_silent_unless_it_is_asked_to_speak() {
    let mut fake = Fake::answering(allocations()).await;
    assert_eq!(shown(&fake, "alloc release 9abc").await, "");
    assert!(matches!(fake.asked().await, ReceivedRequest::Release(request) if request.id == "9abc"));
    assert_eq!(run(&fake, "-v alloc release 9abc").await.2, "lattice: allocation 9abc is failed\n");
    assert_eq!(json_of(&fake, "alloc release 9abc").await["state"], "failed");
    let (code, _, stderr) = run(&fake, "alloc release nosuch").await;
    assert_eq!((code, stderr.as_str()), (Some(125), "lattice: there is no allocation nosuch\n"));
}

#[tokio::test]
async fn one_that_cannot_be_cancelled_keeps_none_of_the_others() {
    let refusals = [Status::not_found("there is no launch nosuch"), Status::permission_denied("foreign is not yours")];
    let mut fake = Fake::answering(Answers { refusals: refusals.into(), ..allocations() }).await;
    let (code, stdout, stderr) = run(&fake, "cancel nosuch foreign 9abc").await;
    assert_eq!((code, stdout.as_str()), (Some(125), ""));
    assert_eq!(stderr, "lattice: there is no launch nosuch\nlattice: foreign is not yours\n");
    let mut ended = Vec::new();
    for _ in 0..5 {
        match fake.asked().await {
            ReceivedRequest::Release(request) => ended.push(request.id),
            ReceivedRequest::Abort(request) => ended.push(request.id),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ended, ["nosuch", "nosuch", "foreign", "foreign", "9abc"]);
}

fn nodes() -> Answers {
    let drain = Drain {
        node: "node1".to_owned(),
        reason: "new memory".to_owned(),
        by: "administrator 0".to_owned(),
        since: TO_COME,
    };
    let up = Node {
        id: "node0".to_owned(),
        state: NodeState::Up.into(),
        grpc_address: "10.0.0.1:50052".to_owned(),
        network_addresses: vec!["10.0.0.1".to_owned()],
        cores: 8,
        memory_bytes: 1 << 34,
        capabilities: vec!["pmix".to_owned()],
        version: "0.1.0".to_owned(),
        heard_ms_ago: 400,
        launches: 2,
        drain: None,
        rival_address: String::new(),
    };
    let node = |id: &str| Node { id: id.to_owned(), ..up.clone() };
    let nodes = vec![
        up.clone(),
        Node { drain: Some(drain.clone()), ..node("node1") },
        Node { drain: Some(drain), launches: 0, ..node("node2") },
        Node { state: NodeState::Lost.into(), version: "0.0.9".to_owned(), heard_ms_ago: 90_000, ..node("node3") },
        Node { state: NodeState::Unspecified.into(), version: String::new(), ..node("node4") },
    ];
    Answers {
        nodes: Some(ListNodesResponse { nodes, version: "0.1.0".to_owned() }),
        unknown: "node[8-9]".to_owned(),
        ..Answers::default()
    }
}

#[tokio::test]
async fn nodes_are_shown_as_they_can_be_used() {
    let fake = Fake::answering(nodes()).await;
    assert_eq!(
        shown(&fake, "nodes").await,
        "NODE   STATE     CORES    MEMORY  LAUNCHES           HEARD  AGENT           VERSION  NOTE\n\
         node0  up            8  16.0 GiB         2       0.4 s ago  10.0.0.1:50052  0.1.0\n\
         node1  draining      8  16.0 GiB         2       0.4 s ago  10.0.0.1:50052  0.1.0    drained 0 s ago by administrator 0: new memory\n\
         node2  drained       8  16.0 GiB         0       0.4 s ago  10.0.0.1:50052  0.1.0    drained 0 s ago by administrator 0: new memory\n\
         node3  lost          8  16.0 GiB         2  1 min 30 s ago  10.0.0.1:50052  0.0.9    the API server is of version 0.1.0\n\
         node4  unknown       8  16.0 GiB         2           never  10.0.0.1:50052\n"
    );
    let all = json_of(&fake, "nodes").await;
    assert_eq!(
        all[1],
        json!({
            "node": "node1", "state": "up", "grpc_address": "10.0.0.1:50052", "network_addresses": ["10.0.0.1"], "cores": 8,
            "memory_bytes": 17_179_869_184_u64, "capabilities": ["pmix"], "version": "0.1.0", "heard_ago_s": 0.4, "launches": 2,
            "drain": { "reason": "new memory", "by": "administrator 0", "drained_at": "2096-10-02T07:06:40Z" },
        })
    );
    assert_eq!(all[3]["state"], "lost");
}

#[tokio::test]
async fn changes_of_nodes_and_allocations_are_confirmed_on_a_terminal() {
    let fake = Fake::answering(Answers { nodes: nodes().nodes, ..allocations() }).await;
    for (line, expected) in [
        ("nodes resume node3", "lattice: new work can start on node3 again\n"),
        ("nodes resume node3 --quiet", ""),
        ("cancel 9abc", "lattice: cancelled: 9abc\n"),
        ("-q cancel 9abc", ""),
    ] {
        assert_eq!(on_a_terminal(&fake, line).await, expected, "{line}");
        assert_eq!(shown(&fake, line).await, "", "{line}");
    }
    let drained = on_a_terminal(&fake, "nodes drain node[3,8-9] --reason memory").await;
    assert!(drained.ends_with("lattice: no new work starts on node[3,8-9]; running work continues\n"), "{drained}");
}

#[tokio::test]
async fn nodes_are_drained_and_resumed_by_name() {
    let mut fake = Fake::answering(nodes()).await;
    let (code, stdout, stderr) = run(&fake, "nodes drain node[3,8-9] --reason memory").await;
    assert_eq!((code, stdout.as_str()), (Some(0), ""));
    assert_eq!(stderr, "lattice: note: not registered yet, and drained when they are: node[8-9]\n");
    match fake.asked().await {
        ReceivedRequest::Drain(request) => {
            assert_eq!((request.nodes.as_str(), request.reason.as_str()), ("node[3,8-9]", "memory"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(run(&fake, "-q nodes drain node[3,8-9] --reason memory").await.2, "");
    assert_eq!(
        json_of(&fake, "nodes drain node[3,8-9] --reason memory").await,
        json!({ "state": "drained", "nodes": ["node3", "node8", "node9"], "unregistered": ["node8", "node9"] })
    );
    assert_eq!(shown(&fake, "nodes resume node3").await, "");
    loop {
        match fake.asked().await {
            ReceivedRequest::Drain(_) => {}
            ReceivedRequest::Resume(request) => break assert_eq!(request.nodes, "node3"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(json_of(&fake, "nodes resume node3").await, json!({ "state": "resumed", "nodes": ["node3"] }));
}

fn summary() -> LaunchSummary {
    LaunchSummary {
        id: LAUNCH.to_owned(),
        allocation_id: "7f3k".to_owned(),
        uid: NOBODY_KNOWN,
        state: LaunchState::Active.into(),
        nodes: "node[0-1]".to_owned(),
        ranks: 4,
        command: "./app x".to_owned(),
        started_at: 1_795_183_742,
        started_nanos: 0,
        duration_us: 65_000_000,
        cause: String::new(),
        client_stopped_at: 0,
        set_id: 4_099_098,
    }
}

/// A launch of four ranks in different phases, on a node that responds and a node that does not.
fn launches() -> Answers {
    let rank = |rank, pid, phase: RankPhase| RankProgress { rank, pid, phase: phase.into(), ..Default::default() };
    let killed = RankExitStatus { rank: 2, signaled: true, signal: 11, ..Default::default() };
    let waiting = RankProgress {
        waiting: true,
        last_command: Some("barrier_in".to_owned()),
        ..rank(0, 41, RankPhase::Initialized)
    };
    let ended = RankProgress { exit: Some(killed), ..rank(2, 43, RankPhase::Initialized) };
    let node = |id: &str, silent, ranks: Vec<RankProgress>| NodeStatus {
        node_id: id.to_owned(),
        silent,
        programs: vec!["/bin/app".into(); ranks.len()],
        ranks,
        role: if id == "node0" { SessionRole::Shepherd } else { SessionRole::Lamb }.into(),
        stacks: Vec::new(),
        left_out: 0,
    };
    let nodes = vec![
        node("node0", false, vec![waiting, ended]),
        node("node1", true, vec![rank(1, 42, RankPhase::Silent), rank(3, 0, RankPhase::Unspecified)]),
    ];
    let cause = Cause { host: "node0".to_owned(), kind: Some(cause::Kind::Failed(killed)) };
    let failed = LaunchSummary {
        id: "zz".to_owned(),
        state: LaunchState::LaunchFailed.into(),
        cause: "rank 2 on node0 was killed by signal 11 (SIGSEGV)".to_owned(),
        ..summary()
    };
    Answers {
        launches: vec![
            LaunchStatus { summary: Some(summary()), nodes: nodes.clone(), cause: None, usage: None },
            LaunchStatus { summary: Some(failed), nodes, cause: Some(cause), usage: None },
        ],
        ..Answers::default()
    }
}

#[tokio::test]
async fn launches_are_listed_with_their_first_causes() {
    let mut fake = Fake::answering(launches()).await;
    assert_eq!(
        shown(&fake, "launches").await,
        "ID          ALLOCATION  USER        STATE   NODES      RANKS  STARTED                    RAN  COMMAND  CAUSE\n\
         k3jq09zmf2  7f3k        3999999999  active  node[0-1]      4  2026-11-20 14:09:02  1 min 5 s  ./app x\n\
         zz          7f3k        3999999999  failed  node[0-1]      4  2026-11-20 14:09:02  1 min 5 s  ./app x  rank 2 on node0 was killed by signal 11 (SIGSEGV)\n"
    );
    assert!(matches!(fake.asked().await, ReceivedRequest::List { all: false }));
    let all = json_of(&fake, "launches --all").await;
    assert!(matches!(fake.asked().await, ReceivedRequest::List { all: true }));
    assert_eq!(
        all[0],
        json!({
            "launch_id": LAUNCH, "allocation_id": "7f3k", "uid": NOBODY_KNOWN, "state": "active", "nodes": ["node0", "node1"], "num_ranks": 4,
            "command": "./app x", "started_at": "2026-11-20T14:09:02Z", "duration_s": 65.0, "client_stopped_at": null, "reason": null,
        })
    );
    assert_eq!(all[1]["reason"], "rank 2 on node0 was killed by signal 11 (SIGSEGV)");
}

#[tokio::test]
async fn a_status_shows_every_rank_where_it_is() {
    let fake = Fake::answering(launches()).await;
    let ranks = "sessions: shepherd on node0, lambs on node1\n\
                 RANK  NODE            PID  STATE                              LAST PMI COMMAND  PROGRAM\n   \
                 0  node0            41  waits in a fence                   barrier_in        /bin/app\n   \
                 1  node1 (silent)   42  runs, not initialized              -                 /bin/app\n   \
                 2  node0            43  was killed by signal 11 (SIGSEGV)  -                 /bin/app\n   \
                 3  node1 (silent)    -  not started                        -                 /bin/app\n";
    let head = "launch k3jq09zmf2 in allocation 7f3k is active; 4 ranks on node[0-1]; 1 min 5 s; ./app x\n";
    assert_eq!(shown(&fake, "status k3jq09zmf2").await, format!("{head}{ranks}"));
    let head = "launch zz in allocation 7f3k has failed; 4 ranks on node[0-1]; 1 min 5 s; ./app x\n\
                cause: rank 2 on node0 was killed by signal 11 (SIGSEGV)\n";
    assert_eq!(shown(&fake, "status zz").await, format!("{head}{ranks}"));
}

#[tokio::test]
async fn a_status_has_the_same_facts_for_programs() {
    let fake = Fake::answering(launches()).await;
    let status = json_of(&fake, "status zz").await;
    let cause = json!({ "kind": "failed", "node": "node0", "rank": 2, "message": "rank 2 on node0 was killed by signal 11 (SIGSEGV)" });
    assert_eq!((&status["launch_id"], &status["cause"]), (&"zz".into(), &cause));
    assert_eq!(status["silent_nodes"], json!(["node1"]));
    let session = |node: &str, role: &str| json!({ "node": node, "role": role });
    assert_eq!(status["sessions"], json!([session("node0", "shepherd"), session("node1", "lamb")]));
    let rank = |rank: usize| status["ranks"][rank].clone();
    assert_eq!(
        rank(0),
        json!({ "rank": 0, "node": "node0", "pid": 41, "program": "/bin/app", "phase": "initialized",
                "last_command": "barrier_in", "waiting": true, "exit": null, "lost": false, "usage": null })
    );
    assert_eq!(rank(2)["exit"], json!({ "rank": 2, "signal": 11 }));
    assert_eq!((&rank(3)["pid"], &rank(3)["phase"]), (&Value::Null, &Value::Null));
}

#[tokio::test]
async fn debuggers_get_the_processes_that_run() {
    let fake = Fake::answering(launches()).await;
    assert_eq!(
        shown(&fake, "proctable k3jq09zmf2").await,
        "RANK  NODE   PID  PROGRAM\n   0  node0   41  /bin/app\n   1  node1   42  /bin/app\n"
    );
    let process = |rank, node: &str, pid| json!({ "rank": rank, "node": node, "pid": pid, "program": "/bin/app" });
    assert_eq!(json_of(&fake, "proctable k3jq09zmf2").await, json!([process(0, "node0", 41), process(1, "node1", 42)]));
}

#[tokio::test]
async fn nothing_to_show_is_a_head_without_rows() {
    let fake = Fake::answering(Answers { nodes: Some(ListNodesResponse::default()), ..Answers::default() }).await;
    for (line, first) in [("alloc list", "ID"), ("launches", "ID"), ("nodes", "NODE")] {
        let text = shown(&fake, line).await;
        assert_eq!((text.lines().count(), text.split(' ').next()), (1, Some(first)), "{line}");
        assert_eq!(shown(&fake, &format!("{line} --json")).await, "[]\n", "{line}");
    }
}

#[tokio::test]
async fn a_table_whose_reader_goes_away_ends_as_any_program_does() {
    let fake = Fake::answering(launches()).await;
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = fake.lattice("launches");
    let child = command.stdout(writer).spawn().unwrap();
    drop(command);
    let output = tokio::time::timeout(Duration::from_secs(60), child.wait_with_output()).await.unwrap().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(141), &b""[..]));
}

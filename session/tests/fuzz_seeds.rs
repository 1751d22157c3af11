//! The fuzz targets as ordinary tests. Messages of a launch on three nodes, and damaged copies of them, are passed to the functions that
//! the targets in `fuzz/` call.
//!
//! `cargo test -p lattice-session --test fuzz_seeds -- --ignored` writes the messages as seeds to `fuzz/corpus/`.

use bytes::Bytes;
use lattice_fuzz_seeds::Target;
use lattice_session::fuzzing;
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::answer::What as AnswerWhat;
use proto::call::What as CallWhat;
use proto::from_session::What as FromWhat;
use proto::node_command::What as Command;
use proto::node_event::What as Event;
use proto::to_session::What as ToWhat;

/// Request of an API server for a launch of ten ranks of two programs on three nodes.
fn spec() -> proto::LaunchSpec {
    let variable = |name: &'static str, value: &'static str| proto::Variable { name: name.into(), value: value.into() };
    let app = |program: &'static str| proto::AppSpec {
        program: program.into(),
        args: vec!["-x".into(), Bytes::new()],
        directory: "/work".into(),
        set: vec![variable("A", "1")],
        remove: vec!["B*".to_owned()],
        process_set: "app://ocean".to_owned(),
    };
    let block = |first_node, nodes, ranks_per_node| proto::Block { first_node, nodes, ranks_per_node };
    proto::LaunchSpec {
        launch_id: "abc".to_owned(),
        allocation_id: "alloc".to_owned(),
        uid: 1000,
        nodes: "node[0-2]".to_owned(),
        addresses: "10.0.0.[2-4]:50052".to_owned(),
        job: Some(proto::Job {
            id: "kvs_abc_0".to_owned(),
            blocks: vec![block(0, 1, 4), block(1, 2, 3)],
            apps: vec![proto::App { ranks: 6, appnum: 0 }, proto::App { ranks: 4, appnum: 1 }],
            universe_size: Some(12),
            spawner: None,
            preput: vec![proto::Pair { key: "key".into(), value: "value".into() }],
        }),
        apps: vec![app("./a"), app("b")],
        environment: vec![variable("PATH", "/bin")],
        stdin: Some(proto::StdinTarget { target: Some(proto::stdin_target::Target::Rank(0)) }),
        secret: Bytes::from_static(b"0123456789abcdef"),
        output_window: 1 << 20,
        stdin_window: 256 << 10,
        ..proto::LaunchSpec::default()
    }
}

fn agent_requests() -> Vec<Vec<u8>> {
    let credentials = proto::CxiCredentials {
        vni: 1024,
        auth_key: Bytes::from_static(b"key"),
        nics: vec![proto::CxiNic { device: "cxi0".to_owned(), svc_id: 3 }],
        traffic_classes: 0xf,
        ..proto::CxiCredentials::default()
    };
    let ours = proto::LaunchProcessesRequest {
        launch_id: "abc".to_owned(),
        spec: spec().encode_to_vec().into(),
        node_index: 1,
        serial: 7,
        cxi_credentials: Some(credentials),
        ..proto::LaunchProcessesRequest::default()
    };
    let peer = |node_id: &str, first_rank| proto::PeerInfo {
        node_id: node_id.to_owned(),
        grpc_address: format!("{node_id}:50052"),
        first_rank,
        num_ranks: 2,
    };
    let foreign = proto::LaunchProcessesRequest {
        launch_id: "abc".to_owned(),
        entrypoint: "./app".to_owned(),
        peers: vec![peer("node0", 0), peer("node1", 2)],
        first_rank: 2,
        world_size: 4,
        ..proto::LaunchProcessesRequest::default()
    };
    [ours, foreign].map(|request| request.encode_to_vec()).into()
}

fn to_session() -> Vec<proto::ToSession> {
    let start = proto::StartSession {
        spec: spec().encode_to_vec().into(),
        node_index: 1,
        environment: Vec::new(),
        fabric: Some(proto::NodeFabric { provider: "cxi".to_owned(), credentials: None }),
    };
    let ranks = vec![proto::RankRange { first: 0, last: 3 }];
    let commands = [
        Command::Signal(15),
        Command::SignalRanks(proto::SignalRanks { signal: 10, ranks }),
        Command::GiveUp(proto::Nothing {}),
        Command::Disown("kvs_abc_0.s1".to_owned()),
        Command::Stdin("input\n".into()),
        Command::OutputCredit(1 << 16),
    ];
    let answers = [
        AnswerWhat::Merged(proto::Segments { segments: vec!["\x04\x01ours1".into()] }),
        AnswerWhat::FenceFault(proto::FenceFault { node: Some(2), reason: "gone".to_owned() }),
        AnswerWhat::Name(proto::NameAnswer { port: "port".into(), ..proto::NameAnswer::default() }),
        AnswerWhat::Spawn(proto::SpawnAnswer { job_id: "kvs_abc_0.s1".to_owned(), refusal: String::new() }),
        AnswerWhat::Meet(proto::MeetAnswer { number: 1 << 63, ..proto::MeetAnswer::default() }),
    ];
    let commands = commands.map(|what| ToWhat::Command(proto::NodeCommand { what: Some(what), ..Default::default() }));
    let answers = answers.map(|what| ToWhat::Answer(proto::Answer { id: 1, what: Some(what) }));
    let resume = ToWhat::Resume(proto::ResumeEvents { stream: 2, after: Some(7), handed: None });
    let taken = ToWhat::Command(proto::NodeCommand { what: None, sequence: 0, events_taken: 7 });
    let all = [ToWhat::Start(start), resume, taken].into_iter().chain(commands).chain(answers);
    all.map(|what| proto::ToSession { what: Some(what) }).collect()
}

fn from_session() -> Vec<proto::FromSession> {
    let fence = proto::FenceCall {
        job_id: "kvs_abc_0".to_owned(),
        member_gaps: vec![0, 1, 1],
        scope: Some(proto::FenceScope { kind: 1, name: "group".to_owned(), node_gaps: vec![1, 1] }),
        epoch: 3,
        segments: vec!["\x04\x01ours1".into()],
    };
    let app = proto::SpawnApp { program: "./child".into(), ranks: 2, ..proto::SpawnApp::default() };
    let spawn = proto::SpawnCall {
        parent_job: "kvs_abc_0".to_owned(),
        parent_rank: 3,
        apps: vec![app],
        ..proto::SpawnCall::default()
    };
    let calls = [
        CallWhat::Fence(fence),
        CallWhat::Name(proto::NameCall { service: "name".into(), port: "port".into(), ..proto::NameCall::default() }),
        CallWhat::Spawn(spawn),
        CallWhat::Meet(proto::MeetCall {
            name: "meet".to_owned(),
            node_gaps: vec![0, 2],
            ..proto::MeetCall::default()
        }),
    ];
    let events = [
        Event::Started(proto::RankStarted { rank: 3, pid: 4711, program: Bytes::new(), at_us: 1 }),
        Event::Output(proto::RankOutput { rank: 3, on_stderr: false, data: "hello\n".into() }),
    ];
    let calls = calls.map(|what| FromWhat::Call(proto::Call { id: 1, what: Some(what) }));
    let events = events.map(|what| FromWhat::Event(proto::NodeEvent { what: Some(what), ..Default::default() }));
    let resumed = FromWhat::Resumed(proto::Resumed { after: 7, commands_taken: 3, stream: 2 });
    calls.into_iter().chain(events).chain([resumed]).map(|what| proto::FromSession { what: Some(what) }).collect()
}

/// Messages of an agent to its fork server: an order, and an answer to a challenge.
fn start_orders() -> Vec<Vec<u8>> {
    let signature = proto::SerialSignature { signature: "signature".into(), signer: vec!["certificate".into()] };
    let order = proto::StartOrder {
        serial: 7,
        spec: spec().encode_to_vec().into(),
        node_index: 1,
        signature: signature.signature.clone(),
        signer: signature.signer.clone(),
        nics: Some(proto::NicsTask { what: Some(proto::nics_task::What::Find(7)) }),
    };
    let answer = proto::SignedSerial { last_serial: 7, signature: Some(signature) };
    vec![order.encode_to_vec(), answer.encode_to_vec()]
}

fn targets() -> [Target; 4] {
    let tagged = |tag: u8, message: Vec<u8>| [&[tag], &message[..]].concat();
    let to = to_session().into_iter().map(|message| tagged(0, message.encode_to_vec()));
    let from = from_session().into_iter().map(|message| tagged(1, message.encode_to_vec()));
    let host = "node1".to_owned();
    let cause = proto::Cause { host, kind: Some(proto::cause::Kind::Fence("node2 left".to_owned())) };
    let failure = proto::LaunchFailure { cause: Some(cause), below: 3, api_is_silent: true };
    let between = [tagged(u8::MAX, failure.encode_to_vec())];
    [
        Target { name: "agent_request", run: fuzzing::agent_request, seeds: agent_requests() },
        Target { name: "launch_spec", run: fuzzing::launch_spec, seeds: vec![tagged(1, spec().encode_to_vec())] },
        Target { name: "session_frame", run: fuzzing::session_frame, seeds: to.chain(from).chain(between).collect() },
        Target { name: "start_order", run: fuzzing::start_order, seeds: start_orders() },
    ]
}

#[test]
fn messages_of_a_launch_and_damaged_copies_of_them_keep_all_promises() {
    targets().iter().for_each(Target::run_damaged);
}

#[test]
fn the_seeds_are_messages_that_are_taken() {
    let decoded = lattice_session::wire::spec::decode(spec(), pmi_core::ids::NodeIndex(1)).unwrap();
    assert_eq!((decoded.hosts.len(), decoded.job.size()), (3, 10));
}

#[test]
#[ignore = "writes files: the seeds for cargo fuzz"]
fn write_the_corpus() {
    targets().iter().for_each(Target::write_seeds);
}

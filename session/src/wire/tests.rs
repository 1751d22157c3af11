use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use pmi_core::Phase;
use pmi_core::fence::{FenceError, Scope};
use pmi_core::ids::{Epoch, JobId, NodeIndex, Rank};
use pmi_core::job::{App, Job, Placement};
use pmi_core::kvs::Segment;
use pmi_core::services::{
    Lifetime, MeetError, Meeting, Met, MetJob, NameError, Names, SpawnApp, SpawnError, SpawnRequest,
};
use pmi_transport::proto::v1 as proto;
use prost::Message;
use rank_spawner::{CpuBind, RankExit};

use super::event::NodeHappening;
use super::{call, cause, command, event, fence, foreign, job, meeting, placed, spec};
use crate::cause::{Cause, CauseKind, StartClass};
use crate::event::{Event, MpiFamily, MpiLibrary, Notice, Output, RankProgress, Report, Stream};
use crate::placed::{ClusterTerms, PlacedLaunch};
use crate::session_io::Control;
use crate::settings::{Entrance, LaunchSettings, PmiFamily, PmiSpec, StdinTarget, Timeouts};
use crate::spawn::SpawnOrder;
use crate::spec::{AppSpec, LaunchSecret, SessionSpec};
use crate::template::Template;

fn app(program: &str) -> AppSpec {
    AppSpec {
        program: program.into(),
        args: vec!["-x".into(), "".into()],
        directory: "/work".into(),
        set: vec![("A".into(), "1".into())],
        remove: vec!["B*".to_owned()],
    }
}

fn placed_launch() -> PlacedLaunch {
    PlacedLaunch {
        launch_id: "abc".into(),
        allocation_id: Some("alloc".into()),
        job: Job {
            id: JobId::new("kvs_abc_0").unwrap(),
            placement: Placement::block(&[4, 3, 3]),
            apps: vec![App { ranks: 6, appnum: 0 }, App { ranks: 4, appnum: 1 }],
            universe_size: Some(12),
            spawner: None,
            preput: vec![("key".into(), "value".into())],
        },
        hosts: ["node0", "node1", "node2"].map(str::to_owned).to_vec(),
        apps: vec![app("./a"), app("b")],
        settings: settings(),
    }
}

fn settings() -> LaunchSettings {
    LaunchSettings {
        environment: vec![("PATH".into(), "/bin".into())],
        pmi: PmiSpec { family: PmiFamily::Pmix, entrance: Entrance::Port, group_barriers: true },
        pmi_trace: true,
        slurm_environment: true,
        cpu_bind: CpuBind::None,
        stdin: StdinTarget::File(Template::parse("/in.%r".as_ref()).unwrap()),
        timeouts: Timeouts {
            silent: Duration::from_millis(1),
            stuck: Duration::from_millis(2),
            grace_after_failure: Duration::from_millis(3),
            grace_after_interrupt: Duration::from_millis(4),
            prompt: Some(Duration::from_millis(5)),
            fence: Some(Duration::from_millis(6)),
            timeout: Some(Duration::from_millis(7)),
        },
    }
}

fn secret() -> LaunchSecret {
    LaunchSecret::from_bytes(std::array::from_fn(|index| index as u8))
}

fn terms() -> ClusterTerms {
    ClusterTerms {
        uid: 1000,
        addresses: ["10.0.0.2:50052", "10.0.0.3:50052", "10.0.0.4:50052"].map(str::to_owned).to_vec(),
        secret: secret(),
        barrier_fan_out: NonZeroU32::new(8),
        data_fan_out: None,
        output_window: 65_536,
        stdin_window: 7,
    }
}

fn session() -> SessionSpec {
    placed_launch().session(NodeIndex(1), Some("10.0.0.3".into()), secret())
}

fn launch() -> proto::LaunchSpec {
    placed::encode(&placed_launch(), &terms())
}

#[test]
fn a_session_spec_travels() {
    let sent = launch().encode_to_vec();
    let got = spec::decode(proto::LaunchSpec::decode(&*sent).unwrap(), NodeIndex(1)).unwrap();
    // Its types have no equality of their own.
    assert_eq!(format!("{got:?}"), format!("{:?}", session()));
    assert_eq!(got.secret.to_string(), "000102030405060708090a0b0c0d0e0f");
    assert_eq!(spec::addresses(&launch().addresses, 3).unwrap()[2], "10.0.0.4:50052");
    assert_eq!(spec::nodes(&launch().nodes).unwrap(), session().hosts);
}

/// As users are told of it: with neither secret nor environment.
#[test]
fn a_placed_launch_travels_without_its_secret() {
    let sent = proto::LaunchSpec { secret: Bytes::new(), environment: Vec::new(), ..launch() };
    let got = placed::decode(sent.clone()).unwrap();
    let settings = LaunchSettings { environment: Vec::new(), ..settings() };
    assert_eq!(format!("{got:?}"), format!("{:?}", PlacedLaunch { settings, ..placed_launch() }));
    assert!(spec::decode(sent, NodeIndex(0)).is_err(), "no node takes a launch without a secret");
    assert_eq!((launch().uid, launch().barrier_fan_out, launch().data_fan_out), (1000, 8, 0));
    assert_eq!((launch().output_window, launch().stdin_window, launch().trace), (65_536, 7, true));
}

#[test]
fn a_spec_grows_neither_with_ranks_nor_with_nodes() {
    let nodes = 10_000;
    let launch = PlacedLaunch {
        hosts: (0..nodes).map(|node| format!("node{node}")).collect(),
        job: Job {
            placement: Placement::block(&vec![100; nodes]),
            apps: vec![App { ranks: 1_000_000, appnum: 0 }],
            ..placed_launch().job
        },
        ..placed_launch()
    };
    let addresses = (0..nodes).map(|node| format!("node{node}:50052")).collect();
    assert!(placed::encode(&launch, &ClusterTerms { addresses, ..terms() }).encoded_len() < 300);
}

#[test]
fn a_spec_that_does_not_fit_together_is_refused_in_words() {
    let check = |change: fn(&mut proto::LaunchSpec), expected: &str| {
        let mut wrong = launch();
        change(&mut wrong);
        assert_eq!(spec::decode(wrong, NodeIndex(1)).unwrap_err().to_string(), expected);
    };
    check(|spec| spec.launch_id.clear(), "the launch's id: a job id has 1 to 63 bytes, not 0");
    check(|spec| spec.job = None, "the message has no job");
    check(|spec| spec.nodes = "node0".into(), "the receiving node is 1; possible is one of 1 nodes, counted from 0");
    check(|spec| spec.nodes = "node[0-1]".into(), "a node of the job is 2; possible is one of 2 nodes, counted from 0");
    check(|spec| spec.addresses = "a:1".into(), "the number of addresses is 1; possible is 3 as of nodes");
    check(
        |spec| spec.job.as_mut().unwrap().apps[0].ranks = u32::MAX,
        "the number of ranks is 4294967299 in its programs; possible is 10 as on its nodes",
    );
    check(
        |spec| spec.job.as_mut().unwrap().blocks[1].ranks_per_node = u32::MAX,
        "the number of ranks is 8589934594; possible is 1 to 2147483647",
    );
    check(
        |spec| spec.job.as_mut().unwrap().blocks[0].first_node = u32::MAX,
        "a node of the job is 4294967295; possible is one of 3 nodes, counted from 0",
    );
    check(|spec| spec.job.as_mut().unwrap().blocks.clear(), "the number of ranks is 0; possible is 1 to 2147483647");
    check(|spec| drop(spec.apps.pop()), "the number of programs is 1; possible is 2 as in the job");
    check(|spec| spec.apps[0].program.clear(), "the message has no program");
    check(
        |spec| spec.apps[1].directory = "here".into(),
        "the directory of a program is \"here\"; possible is an absolute path",
    );
    check(|spec| spec.secret = "short".into(), "the length of the secret is 5; possible is 16 bytes");
    check(|spec| spec.pmi_family = 9, "the kind of PMI is 9; possible is 0 (auto) to 4 (none)");
    check(
        |spec| spec.stdin.as_mut().unwrap().target = Some(proto::stdin_target::Target::Rank(10)),
        "the rank that reads standard input is 10; possible is 0 to 9",
    );
    check(
        |spec| spec.patience.as_mut().unwrap().timeout_ms = Some(u64::MAX),
        "the time limit is 18446744073709551615 ms; possible is at most 31622400000 ms",
    );
    assert!(spec::decode(proto::LaunchSpec { cpu_bind: "sideways".into(), ..launch() }, NodeIndex(0)).is_err());
    assert!(spec::decode(proto::LaunchSpec { nodes: "a[".into(), ..launch() }, NodeIndex(0)).is_err());
}

#[test]
fn more_ranks_than_a_node_can_serve_are_refused() {
    for ranks in [16_385, i32::MAX as u32] {
        let mut wrong = launch();
        let job = wrong.job.as_mut().unwrap();
        job.blocks = vec![proto::Block { first_node: 1, nodes: 1, ranks_per_node: ranks }];
        job.apps = vec![proto::App { ranks, appnum: 0 }; 1];
        wrong.apps.pop();
        let error = spec::decode(wrong.clone(), NodeIndex(1)).unwrap_err();
        assert_eq!(error.to_string(), format!("the number of ranks of one node is {ranks}; possible is at most 16384"));
        assert!(spec::decode(wrong, NodeIndex(0)).is_err(), "whichever node is asked");
    }
    let mut right = launch();
    right.job.as_mut().unwrap().blocks = vec![proto::Block { first_node: 0, nodes: 3, ranks_per_node: 5_461 }];
    right.job.as_mut().unwrap().apps = vec![proto::App { ranks: 3 * 5_461, appnum: 0 }];
    right.apps.pop();
    assert!(spec::decode(right, NodeIndex(1)).is_ok(), "three nodes can hold what one cannot");
}

fn causes() -> Vec<CauseKind> {
    let exit = RankExit::Signal { signal: 11, core_dumped: true };
    let rank = Rank(3);
    let missing = vec![(Rank(1), Some("fullinit".to_owned())), (Rank(2), None)];
    vec![
        CauseKind::Failed { rank, exit },
        CauseKind::LeftWithoutFinalize { rank },
        CauseKind::LeftBeforeInit { rank, exit: RankExit::Code(3), others: vec![Rank(0), Rank(7)] },
        CauseKind::LeftFence { rank, waiting: vec![Rank(9)] },
        CauseKind::Aborted { rank, code: -5, message: "text".into() },
        CauseKind::Offence { rank, offence: "nonsense".into() },
        CauseKind::NotServed { rank, protocol: "PMI-1".into() },
        CauseKind::Fence { reason: "broken".into() },
        CauseKind::FenceTimeout { limit: Duration::from_secs(3), waiting: 5, missing },
        CauseKind::NodeLost { reason: "no heartbeat".into() },
        CauseKind::NotStarted { reason: "no such program".into(), class: StartClass::NotFound },
        CauseKind::Interrupted { signal: 2 },
        CauseKind::Ended { who: "user 7".into(), reason: "enough".into() },
        CauseKind::TimedOut { limit: Duration::from_secs(9) },
    ]
}

#[test]
fn causes_travel() {
    for kind in causes() {
        let sent = Cause { host: "node3".into(), kind };
        assert_eq!(cause::decode(cause::encode(&sent)).unwrap(), sent);
    }
    assert!(cause::decode(proto::Cause::default()).is_err());
}

#[test]
fn events_travel() {
    let library = MpiLibrary { name: "MPICH".into(), file: "libmpi.so.12".into(), family: MpiFamily::Vendor };
    let stuck = vec![(Rank(1), Some("barrier_in".to_owned()))];
    let progress = RankProgress {
        rank: Rank(2),
        pid: Some(77),
        phase: Some(Phase::Open),
        last_command: Some("get".into()),
        waiting: true,
        exit: Some(RankExit::Code(1)),
    };
    let early =
        RankProgress { pid: None, phase: None, last_command: None, waiting: false, exit: None, ..progress.clone() };
    let after = Duration::from_millis(5);
    let silent = Notice::Silent { ranks: vec![Rank(0)], size: 2, ended: true, after, library: Some(library) };
    let events = [
        Event::Started { rank: Rank(1), pid: 17 },
        Event::Output(Output { rank: Rank(1), stream: Stream::Stderr, bytes: Bytes::from_static(b"a\xff\n") }),
        Event::Notice(silent),
        Event::Notice(Notice::Stuck { after, waiting: 3, missing: stuck }),
        Event::Notice(Notice::Leftover { pids: vec![5, 6] }),
        Event::Exited { rank: Rank(1), exit: RankExit::Code(7), phase: Some(Phase::Finalized) },
        Event::Exited { rank: Rank(1), exit: RankExit::Signal { signal: 9, core_dumped: false }, phase: None },
        Event::Spawned { job: JobId::new("kvs_a_0.s1").unwrap(), failure: None },
        Event::Spawned { job: JobId::new("kvs_a_0.s1").unwrap(), failure: Some("no".into()) },
        Event::Progress { question: 4, ranks: vec![progress, early] },
        Event::Waiting { ranks: vec![Rank(4)] },
        Event::Ending(Cause { host: "h".into(), kind: CauseKind::Interrupted { signal: 2 } }),
    ];
    for sent in events {
        let NodeHappening::Event(got) = event::decode(event::encode(&sent)).unwrap() else {
            panic!("{sent:?} came as something else");
        };
        assert_eq!(format!("{got:?}"), format!("{sent:?}"));
    }
}

#[test]
fn reports_travel() {
    let exits = vec![(Rank(0), RankExit::Code(0)), (Rank(3), RankExit::Signal { signal: 9, core_dumped: false })];
    let report = Report { exits: exits.clone(), cause: None, duration: Duration::from_micros(1234) };
    match event::decode(event::encode_report(&report)).unwrap() {
        NodeHappening::Report { exits: got, duration } => assert_eq!((got, duration), (exits, report.duration)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn commands_say_whom_they_concern() {
    use proto::node_command::What;
    let check = |what: What, expected: &str| {
        let got = command::decode(proto::NodeCommand { what: Some(what) }, 3).unwrap();
        assert_eq!(format!("{got:?}"), expected);
    };
    check(What::Signal(10), "Control(Signal(10))");
    let ranks = vec![proto::RankRange { first: 1, last: 3 }];
    check(What::SignalRanks(proto::SignalRanks { signal: 10, ranks }), "Control(SignalRanks(10, RankRanges([1..=3])))");
    check(What::End(2), "Control(End(2))");
    check(What::Kill(9), "Control(Kill(9))");
    check(What::GiveUp(proto::Nothing {}), "Control(GiveUp)");
    check(What::AskProgress(4), "Control(AskProgress(4))");
    check(What::Release(proto::Nothing {}), "Control(Release)");
    check(What::Disown("kvs_a_0.s1".into()), "Control(Disown(JobId(\"kvs_a_0.s1\")))");
    check(What::Stdin(Bytes::from_static(b"in")), "Stdin(b\"in\")");
    check(What::StdinEnd(proto::Nothing {}), "StdinEnd");
    check(What::OutputCredit(8), "OutputCredit(8)");
    assert!(command::decode(proto::NodeCommand { what: None }, 3).is_err());
    let nobody = proto::SignalRanks { signal: 10, ranks: Vec::new() };
    assert!(command::decode(proto::NodeCommand { what: Some(What::SignalRanks(nobody)) }, 3).is_err());
}

#[test]
fn spawn_orders_travel_and_are_checked() {
    let order = SpawnOrder {
        job: Job { spawner: Some(JobId::new("parent").unwrap()), ..session().job },
        apps: session().apps,
        parent_rank: Rank(2),
        first_shown: Rank(10),
    };
    let sent = |nodes| {
        let what = Some(proto::node_command::What::Spawn(command::encode_spawn(&order)));
        command::decode(proto::NodeCommand { what }, nodes)
    };
    let command::Command::Control(Control::Spawn(got)) = sent(3).unwrap() else { panic!("not a spawn") };
    assert_eq!(format!("{got:?}"), format!("{order:?}"));
    assert!(sent(2).is_err(), "its ranks sit on three nodes");
}

#[test]
fn fences_travel() {
    let nodes: Vec<_> = [0, 1, 5, 70].map(NodeIndex).to_vec();
    let scopes = [
        Scope::World,
        Scope::Ring,
        Scope::Group { name: "0,1:7".into(), nodes: nodes.clone().into() },
        Scope::Foreign { name: "x".into(), nodes: vec![NodeIndex(3)].into() },
    ];
    for scope in scopes {
        assert_eq!(fence::decode_scope(fence::encode_scope(&scope).unwrap()).unwrap(), scope);
    }
    assert_eq!(fence::encode_nodes(&nodes), [0, 1, 4, 65]);
    for wrong in [&[1, 0][..], &[1 << 20], &[u32::MAX, u32::MAX]] {
        assert!(fence::decode_nodes(wrong).is_err(), "{wrong:?}");
    }
    let lost = FenceError::NodeLost { node: NodeIndex(2), epoch: Epoch(4), reason: "gone".into() };
    assert_eq!(fence::decode_fault(fence::encode_fault(&lost), Epoch(4)).to_string(), lost.to_string());
}

#[test]
fn names_and_spawns_travel() {
    let service = Bytes::from_static(b"ocean");
    let timeout = Some(Duration::from_secs(3));
    for sent in [
        call::NameCall::Publish { service: service.clone(), port: "p".into(), lifetime: Lifetime::FirstRead },
        call::NameCall::Publish { service: service.clone(), port: "p".into(), lifetime: Lifetime::Withdrawn },
        call::NameCall::Lookup { service: service.clone(), timeout },
        call::NameCall::Lookup { service: service.clone(), timeout: None },
        call::NameCall::Unpublish { service },
    ] {
        assert_eq!(call::decode_name(call::encode_name(sent.clone())).unwrap(), sent);
    }
    for sent in [
        Ok(Bytes::from_static(b"port")),
        Err(NameError::AlreadyPublished),
        Err(NameError::NotFound),
        Err(NameError::TimedOut),
        Err(NameError::Full { limit: Names::LIMIT }),
        Err(NameError::Unavailable { reason: "away".into() }),
    ] {
        assert_eq!(call::decode_name_answer(call::encode_name_answer(&sent)), sent);
    }
    let pair = (Bytes::from_static(b"k"), Bytes::from_static(b"v"));
    let app = SpawnApp {
        program: "p".into(),
        args: vec!["a".into()],
        ranks: 3,
        info: vec![pair.clone()],
        variables: vec![pair.clone()],
        directory: Some("/d".into()),
    };
    let job = JobId::new("kvs_a_0").unwrap();
    let request = SpawnRequest { apps: vec![app], preput: vec![pair], parent: Some(job.clone()) };
    let sent = call::encode_spawn(&job, Rank(1), &request);
    assert_eq!(call::decode_spawn(sent).unwrap(), (job.clone(), Rank(1), request));
    assert_eq!(call::decode_spawn_answer(call::encode_spawn_answer(&Ok(job.clone()))), Ok(job));
    let failed = Err(SpawnError::Failed { reason: "full".into() });
    assert_eq!(call::decode_spawn_answer(call::encode_spawn_answer(&failed)), failed);
}

fn unsaid() -> foreign::Unsaid<'static> {
    let secret = Bytes::from_static(&[7; spec::SECRET_LEN]);
    foreign::Unsaid { node_id: "node1", address: "10.0.0.3:50052", uid: 1000, secret }
}

fn peer(node: u32, first_rank: u32, num_ranks: u32) -> proto::PeerInfo {
    let (node_id, grpc_address) = (format!("node{node}"), format!("10.0.0.{}:50052", node + 2));
    proto::PeerInfo { node_id, grpc_address, first_rank, num_ranks }
}

fn foreign_request() -> proto::LaunchProcessesRequest {
    proto::LaunchProcessesRequest {
        launch_id: "abc".into(),
        allocation_id: "alloc".into(),
        entrypoint: "./app".into(),
        args: vec!["-v".into()],
        tasks_per_node: 3,
        first_rank: 4,
        world_size: 10,
        env: [("A".to_owned(), "1".to_owned())].into(),
        peers: vec![peer(0, 0, 4), peer(1, 4, 3), peer(2, 7, 3)],
        ..Default::default()
    }
}

#[test]
fn a_request_without_a_spec_means_the_same_as_one_with() {
    let (launch, node) = foreign::launch_spec(&foreign_request(), &unsaid()).unwrap();
    assert_eq!((launch.uid, node), (1000, 1));
    let session = spec::decode(launch, NodeIndex(node)).unwrap();
    assert_eq!(session.job.placement, Placement::block(&[4, 3, 3]));
    assert_eq!(session.hosts, ["node0", "node1", "node2"]);
    assert_eq!(session.address.as_deref(), Some("10.0.0.3"));
    assert_eq!(session.apps[0].args, ["-v"]);
    assert_eq!(session.pmi.family, PmiFamily::Auto);
    let alone = proto::LaunchProcessesRequest { peers: Vec::new(), first_rank: 0, world_size: 3, ..foreign_request() };
    let (launch, node) = foreign::launch_spec(&alone, &unsaid()).unwrap();
    assert_eq!(spec::decode(launch, NodeIndex(node)).unwrap().job.placement, Placement::one_node(3));
}

#[test]
fn a_request_whose_peers_do_not_add_up_is_refused() {
    let check = |change: fn(&mut proto::LaunchProcessesRequest), expected: &str| {
        let mut wrong = foreign_request();
        change(&mut wrong);
        assert_eq!(foreign::launch_spec(&wrong, &unsaid()).unwrap_err().to_string(), expected);
    };
    check(|request| drop(request.peers.remove(1)), "this node is node1; possible is one of the peers node[0,2]");
    check(
        |request| request.peers[2].first_rank = 6,
        "the first rank of a peer is 6; possible is 7, after those before",
    );
    check(|request| request.world_size = 12, "the number of ranks is 12; possible is 10 as among the peers");
    check(|request| request.first_rank = 5, "the first rank of this node is 5; possible is 4 as among the peers");
    check(|request| request.head_node_index = 1, "the head of the fences is node 1; possible is node 0");
    check(|request| request.entrypoint.clear(), "the message has no entrypoint");
    check(|request| request.peers.clear(), "the first rank of a peer is 4; possible is 0, after those before");
}

#[test]
fn a_job_needs_a_name_that_can_be_one() {
    let wrong = proto::Job { id: "a b".into(), ..job::encode(&session().job) };
    assert!(job::decode(wrong, 3).unwrap_err().to_string().starts_with("the job: a job id holds"));
}

#[test]
fn what_launches_bring_to_a_meeting_comes_out_of_it() {
    let introduced = MetJob {
        namespace: "kvs_abc_0.secret".to_owned(),
        job: Job { placement: Placement::block(&[2, 1]), ..Job::on_one_node(JobId::new("kvs_abc_0").unwrap(), 3) },
        hosts: vec!["node0".to_owned(), "node1".to_owned()],
    };
    let segments: Vec<Segment> = vec![[("a key", "a value")].into_iter().collect(), Segment::default()];
    let call = meeting::encode(Meeting {
        name: "connect".to_owned(),
        epoch: Epoch(4),
        others: vec!["kvs_def_0.secret".to_owned()],
        nodes: vec![NodeIndex(0), NodeIndex(3)],
        jobs: vec![introduced.clone()],
        segments: segments.clone(),
    });
    assert_eq!((call.epoch, fence::decode_nodes(&call.node_gaps).unwrap()), (4, vec![NodeIndex(0), NodeIndex(3)]));
    let answer = |jobs, segments| proto::MeetAnswer { number: 1 << 63, jobs, segments, ..Default::default() };
    let met = meeting::decode_answer(answer(call.jobs.clone(), call.segments.clone()));
    assert_eq!(met, Ok(Met { number: 1 << 63, jobs: vec![introduced], segments }));

    let mut wrong = call.jobs;
    wrong[0].hosts = "node0".to_owned();
    let refused = meeting::decode_answer(answer(wrong, call.segments)).unwrap_err();
    assert!(refused.to_string().contains("a node of the job is 1"), "{refused}");
    for error in [
        MeetError::NotFound,
        MeetError::TooMuch { reason: "5 bytes".to_owned() },
        MeetError::Unavailable { reason: "nobody is there".to_owned() },
    ] {
        assert_eq!(meeting::decode_answer(meeting::encode_error(&error)), Err(error));
    }
}

//! Commands to a session, and its calls: fences, names, spawns, rendezvous.

use bytes::Bytes;
use pmi_core::fence::{FenceError, Scope};
use pmi_core::ids::Epoch;
use pmi_core::kvs::Segment;
use pmi_core::services::{
    Lifetime, MeetError, Meeting, Met, MetJob, NameCall, NameError, NamePeer, NameRange, NameRequest, NameUser, Names,
    Program, Publisher, SpawnApp, SpawnError, SpawnRequest,
};

use super::super::command::Command;
use super::super::{call, command, fence, meeting};
use super::*;
use crate::gathered::NodeSelection;
use crate::input_piece::InputPiece;
use crate::rank_ranges::RankRanges;
use crate::session_io::Control;
use crate::spawn::SpawnOrder;
use pmi_core::deaths::{Death, DeathKind};

/// Decodes a command, and checks that it matches a pattern. A command has channels, which cannot be compared.
macro_rules! check {
    ($what:expr, $expected:pat $(if $guard:expr)?) => {{
        let got = command::decode(proto::NodeCommand { what: Some($what), ..Default::default() }, 3).unwrap();
        assert!(matches!(&got, $expected $(if $guard)?), "{got:?}");
    }};
}

#[test]
fn commands_name_their_ranks_and_nodes() {
    use Command::Control as Of;
    use proto::node_command::What;
    let one_to_three = "1-3".parse::<RankRanges>().unwrap();
    let spawned = JobId::new("kvs_a_0.s1").unwrap();
    check!(What::Signal(10), Of(Control::Signal(10)));
    let ranks = vec![proto::RankRange { first: 1, last: 3 }];
    let signal = proto::SignalRanks { signal: 10, ranks: ranks.clone() };
    check!(What::SignalRanks(signal), Of(Control::SignalRanks(10, ranks)) if *ranks == one_to_three);
    check!(What::End(2), Of(Control::End(2)));
    check!(What::Kill(9), Of(Control::Kill(9)));
    check!(What::GiveUp(proto::Nothing {}), Of(Control::GiveUp));
    check!(What::AskProgress(4), Of(Control::AskProgress(4)));
    check!(What::Release(proto::Nothing {}), Of(Control::Release));
    let late = proto::RankSelection { ranks };
    check!(What::LookAtStacks(late), Of(Control::LookAtStacks(ranks)) if *ranks == one_to_three);
    let deaths = vec![proto::Death { rank: 3, kind: proto::DeathKind::WithItsNode.into() }];
    let death = Death { rank: Rank(3), kind: DeathKind::NodeLost };
    check!(What::Deaths(proto::Deaths { deaths }), Of(Control::Deaths(deaths)) if *deaths == [death]);
    check!(What::Disown("kvs_a_0.s1".into()), Of(Control::Disown(job)) if *job == spawned);
    check!(What::JobOver("kvs_a_0.s1".into()), Of(Control::JobOver(job)) if *job == spawned);
    check!(What::Stdin(Bytes::from_static(b"in")), Command::Stdin(bytes) if bytes == "in");
    check!(What::StdinEnd(proto::Nothing {}), Command::StdinEnd);
    let nodes = vec![proto::NodeRange { first: 0, last: 2 }];
    let piece = |nodes| proto::InputPiece { offset: 7, data: Bytes::from_static(b"in"), is_last: true, nodes };
    let (bytes, nodes_of_piece) = (Bytes::from_static(b"in"), NodeSelection::of([0, 1, 2]).unwrap());
    let expected = InputPiece { offset: 7, bytes, is_last: true, nodes: nodes_of_piece };
    check!(What::Input(piece(nodes)), Command::Input(piece) if *piece == expected);
    check!(What::OutputCredit(8), Command::OutputCredit(8));
    assert!(command::decode(proto::NodeCommand::default(), 3).is_err());
    for nodes in [vec![], vec![proto::NodeRange { first: 0, last: 3 }]] {
        let command = proto::NodeCommand { what: Some(What::Input(piece(nodes))), ..Default::default() };
        assert!(command::decode(command, 3).is_err(), "no nodes, or one that there is not");
    }
    let nobody = proto::SignalRanks { signal: 10, ranks: Vec::new() };
    assert!(
        command::decode(proto::NodeCommand { what: Some(What::SignalRanks(nobody)), ..Default::default() }, 3).is_err()
    );
}

#[test]
fn spawn_orders_travel_and_are_checked() {
    let order = SpawnOrder {
        job: Job { spawner: Some(JobId::new("parent").unwrap()), ..session().job },
        apps: session().apps,
        cpu_bind: "cores".parse().unwrap(),
        parent_rank: Rank(2),
        first_shown: Rank(10),
    };
    let sent = |nodes| {
        let what = Some(proto::node_command::What::Spawn(command::encode_spawn(&order)));
        command::decode(proto::NodeCommand { what, ..Default::default() }, nodes)
    };
    let Command::Control(Control::Spawn(got)) = sent(3).unwrap() else { panic!("not a spawn") };
    assert_eq!(got, order);
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
fn answers_about_names_and_spawns_travel() {
    for sent in [
        Ok(Bytes::from_static(b"port")),
        Err(NameError::AlreadyPublished { holder: "rank 0 of launch a".into() }),
        Err(NameError::NotPublisher { holder: "rank 0 of launch a".into() }),
        Err(NameError::Ambiguous { launches: vec!["a".into(), "b".into()] }),
        Err(NameError::TooLong { bytes: 70_000 }),
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

fn any_bytes() -> impl Strategy<Value = Bytes> {
    any::<Vec<u8>>().prop_map(Bytes::from)
}

fn any_pairs() -> impl Strategy<Value = Vec<(Bytes, Bytes)>> {
    proptest::collection::vec((any_bytes(), any_bytes()), 0..3)
}

fn any_range() -> impl Strategy<Value = NameRange> {
    let peer = ("[a-z_0-9]{0,9}", proptest::option::of(any::<u32>())).prop_map(|(job, rank)| NamePeer { job, rank });
    prop_oneof![
        Just(NameRange::User),
        Just(NameRange::Session),
        Just(NameRange::Node),
        Just(NameRange::Job),
        Just(NameRange::Process),
        Just(NameRange::Host),
        proptest::collection::vec(peer, 0..3).prop_map(NameRange::Listed),
    ]
}

fn any_name_call() -> impl Strategy<Value = NameRequest> {
    let lifetime = prop_oneof![Just(Lifetime::FirstRead), Just(Lifetime::Withdrawn), Just(Lifetime::Process)];
    let publisher = prop_oneof![Just(Publisher::Itself), Just(Publisher::AnyOfLaunch)];
    let call = prop_oneof![
        (any_bytes(), any_bytes(), lifetime, any_range())
            .prop_map(|(service, port, lifetime, range)| NameCall::Publish { service, port, lifetime, range }),
        (any_bytes(), proptest::option::of(any_time()), any_range())
            .prop_map(|(service, timeout, range)| NameCall::Lookup { service, timeout, range }),
        (any_bytes(), publisher).prop_map(|(service, publisher)| NameCall::Unpublish { service, publisher }),
        Just(NameCall::Leave),
    ];
    let user = ("[a-z]{0,9}", "[a-z]{0,9}", any::<u32>(), "[a-z]{0,9}", any::<(u64, u64)>());
    let user = user.prop_map(|(launch, job, rank, host, (name, line))| NameUser {
        launch,
        job,
        rank,
        host,
        program: Program { name, line },
    });
    (user, call).prop_map(|(user, call)| NameRequest { user, call })
}

fn any_app() -> impl Strategy<Value = SpawnApp> {
    let args = proptest::collection::vec(any_bytes(), 0..3);
    let directory = proptest::option::of(any_bytes());
    (any_bytes(), args, any::<u32>(), any_pairs(), any_pairs(), directory).prop_map(
        |(program, args, ranks, info, variables, directory)| SpawnApp {
            program,
            args,
            ranks,
            info,
            variables,
            directory,
        },
    )
}

proptest! {
    #[test]
    fn calls_to_the_name_service_travel(sent in any_name_call()) {
        prop_assert_eq!(call::decode_name(call::encode_name(sent.clone())).unwrap(), sent);
    }

    #[test]
    fn spawns_travel(apps in proptest::collection::vec(any_app(), 0..3), preput in any_pairs(), rank in any_rank()) {
        let job = JobId::new("kvs_a_0").unwrap();
        let request = SpawnRequest { apps, preput, parent: Some(job.clone()) };
        let sent = call::encode_spawn(&job, rank, &request);
        prop_assert_eq!(call::decode_spawn(sent).unwrap(), (job, rank, request));
    }

    #[test]
    fn nodes_travel_as_gaps(nodes in proptest::collection::btree_set(0_u32..1 << 20, 0..20)) {
        let nodes: Vec<_> = nodes.into_iter().map(NodeIndex).collect();
        prop_assert_eq!(fence::decode_nodes(&fence::encode_nodes(&nodes)).unwrap(), nodes);
    }

    #[test]
    fn selections_of_ranks_travel(ends in proptest::collection::vec(any::<(u32, u32)>(), 1..20)) {
        let ends: Vec<_> = ends.into_iter().map(|(one, other)| (one.min(other), one.max(other))).collect();
        let sent = RankRanges::new(&ends).unwrap();
        prop_assert_eq!(command::decode_ranges(&command::encode_ranges(&sent)).unwrap(), sent);
    }
}

#[test]
fn commands_that_mean_nothing_are_refused_by_name() {
    use proto::node_command::What;
    let check = |what: Option<What>, expected: &str| {
        assert_eq!(refusal(command::decode(proto::NodeCommand { what, ..Default::default() }, 3)), expected);
    };
    let ranks = |ranges: &[(u32, u32)]| {
        let ranks = ranges.iter().map(|&(first, last)| proto::RankRange { first, last }).collect();
        Some(What::SignalRanks(proto::SignalRanks { signal: 10, ranks }))
    };
    check(None, "the message has no command");
    check(ranks(&[]), "no rank is named; 0-3,8 names five");
    check(ranks(&[(3, 1)]), "the range of ranks from 3 to 1 is empty; the smaller number comes first");
    check(ranks(&[(0, 0); 1025]), "there are 1025 ranges of ranks; at most 1024 can be named at once");
    check(Some(What::Disown(String::new())), "the job to end: a job id has 1 to 63 bytes, not 0");
    check(Some(What::Spawn(proto::SpawnOrder::default())), "the message has no job");
    let job = Some(proto::Job { blocks: Vec::new(), ..super::super::job::encode(&session().job) });
    let order = proto::SpawnOrder { job, ..Default::default() };
    check(Some(What::Spawn(order)), "the number of ranks is 0; possible is 1 to 2147483647");
}

#[test]
fn calls_that_mean_nothing_are_refused_by_name() {
    let name = |call| refusal(call::decode_name(call));
    assert_eq!(
        name(proto::NameCall { kind: 9, ..Default::default() }),
        "the kind of a name call is 9; possible is 0 to 3"
    );
    let kind = proto::name_call::Kind::Lookup.into();
    let error = name(proto::NameCall { kind, patience_ms: Some(u64::MAX), ..Default::default() });
    assert!(error.starts_with("the timeout of a lookup is 18446744073709551615 ms"), "{error}");
    let user = Some(proto::NameUser { host: "h".repeat(300), ..Default::default() });
    assert_eq!(
        name(proto::NameCall { user, ..Default::default() }),
        "the length of an id in a name call is 300; possible is at most 256 bytes"
    );
    let range = |kind, peers: usize| {
        let range = Some(proto::NameRange { kind, peers: vec![proto::NamePeer::default(); peers] });
        name(proto::NameCall { range, ..Default::default() })
    };
    assert_eq!(range(9, 0), "the range of a name is 9; possible is 0 to 6");
    let most = "the range of a name is 1025; possible is at most 1024 processes of jobs with names of 256 bytes";
    assert_eq!(range(5, 1025), most);
    assert_eq!(
        name(proto::NameCall { lifetime: 9, ..Default::default() }),
        "the lifetime of a name is 9; possible is 0 to 2"
    );
    let error = refusal(call::decode_spawn(proto::SpawnCall::default()));
    assert_eq!(error, "the job that spawns: a job id has 1 to 63 bytes, not 0");
    let error = refusal(fence::decode_scope(proto::FenceScope { kind: 9, ..Default::default() }));
    assert_eq!(error, "the kind of a fence is 9; possible is 0 to 3");
    let kind = proto::fence_scope::Kind::Group.into();
    let error = refusal(fence::decode_scope(proto::FenceScope { kind, node_gaps: vec![1, 0], ..Default::default() }));
    assert_eq!(error, "a node of a fence is 1; possible is a new one, below 1048576");
}

/// The answer comes from a newer or faulty API server. The call fails, and the session continues.
#[test]
fn answers_that_mean_nothing_fail_their_calls_alone() {
    let reason = "it answered with 77, which means nothing here".to_owned();
    let answer = proto::NameAnswer { outcome: 77, ..Default::default() };
    assert_eq!(call::decode_name_answer(answer), Err(NameError::Unavailable { reason }));
    let unnamed = call::decode_spawn_answer(proto::SpawnAnswer::default());
    let reason = JobId::new("").unwrap_err().to_string();
    assert_eq!(unnamed, Err(SpawnError::Failed { reason }));
    let answer = proto::MeetAnswer { outcome: 77, ..Default::default() };
    let reason = "the answer 77 means nothing here".to_owned();
    assert_eq!(meeting::decode_answer(answer), Err(MeetError::Unavailable { reason }));
    let check = |answer: proto::MeetAnswer, expected: &str| {
        let Err(MeetError::Unavailable { reason }) = meeting::decode_answer(answer) else { panic!("{expected}") };
        assert_eq!(reason, expected);
    };
    let met = |job| proto::MeetAnswer { jobs: vec![job], ..Default::default() };
    let hosts = |hosts: &str| proto::MetJob { hosts: hosts.to_owned(), ..Default::default() };
    check(met(hosts("node0")), "the message has no job that is met");
    let unreadable = hostlist::expand("node[").unwrap_err();
    check(met(hosts("node[")), &format!("the nodes of a job: {unreadable}"));
    let garbage = proto::MeetAnswer { segments: vec!["no segment".into()], ..Default::default() };
    check(garbage, &Segment::decode("no segment".into()).unwrap_err().to_string());
}

#[test]
fn a_fence_that_fails_without_a_lost_node_keeps_its_reason() {
    let failed = FenceError::BadSegment { epoch: Epoch(4), reason: "torn".into() };
    let got = fence::decode_fault(fence::encode_fault(&failed), Epoch(4));
    let FenceError::BadSegment { epoch: Epoch(4), reason } = got else { panic!("{got}") };
    assert!(reason.contains("torn"), "{reason}");
}

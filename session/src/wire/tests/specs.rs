//! Launch specs, session starts and surveys.

use bytes::Bytes;
use cxi_fabric::environment::Provider;
use pmi_transport::signature::{Serial, Signature};
use prost::Message;

use super::super::order::StartOrder;
use super::super::{cxi, job, settings as wire_settings, spec, start};
use super::*;
use crate::cxi::{CxiSurvey, SurveyedNic, SurveyedService};
use crate::fabric::NodeFabric;

#[test]
fn a_session_spec_travels() {
    let sent = launch().encode_to_vec();
    let got = spec::decode(proto::LaunchSpec::decode(&*sent).unwrap(), NodeIndex(1)).unwrap();
    // These types do not implement equality.
    assert_eq!(got, session());
    assert_eq!(got.secret.to_string(), "000102030405060708090a0b0c0d0e0f");
    assert_eq!(spec::addresses(&launch().addresses, 3).unwrap()[2], "10.0.0.4:50052");
    assert_eq!(spec::nodes(&launch().nodes).unwrap(), session().hosts);
}

/// The form for users has neither secret nor environment.
#[test]
fn a_placed_launch_travels_without_its_secret() {
    let sent = proto::LaunchSpec { secret: Bytes::new(), environment: Vec::new(), ..launch() };
    let got = placed::decode(sent.clone()).unwrap();
    let settings = LaunchSettings { environment: Vec::new(), ..settings() };
    assert_eq!(got, PlacedLaunch { settings, ..placed_launch() });
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
    assert!(placed::encode(&launch, &ClusterTerms { addresses, ..terms() }).encoded_len() < 420);
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

#[test]
fn a_job_needs_a_name_that_can_be_one() {
    let wrong = proto::Job { id: "a b".into(), ..job::encode(&session().job) };
    assert!(job::decode(wrong, 3).unwrap_err().to_string().starts_with("the job: a job id holds"));
}

fn any_family() -> impl Strategy<Value = PmiFamily> {
    use PmiFamily::*;
    prop_oneof![Just(Auto), Just(Pmi1), Just(Pmi2), Just(Pmix), Just(None)]
}

fn any_stdin() -> impl Strategy<Value = StdinTarget> {
    prop_oneof![
        Just(StdinTarget::None),
        Just(StdinTarget::All),
        any_rank().prop_map(StdinTarget::Rank),
        any::<(u16, u16)>().prop_map(|(rows, columns)| StdinTarget::Terminal(TerminalSize { rows, columns })),
        "[a-z/]{1,9}%[rtlnNjJ%]".prop_map(|text| StdinTarget::File(Template::parse(text.as_ref()).unwrap())),
    ]
}

fn any_timeouts() -> impl Strategy<Value = Timeouts> {
    let optional = || proptest::option::of(any_time());
    let signal = (any::<i32>(), any_time()).prop_map(|(signal, ahead)| LimitSignal { signal, ahead });
    let usual = (any_time(), any_time(), any_time(), any_time(), any_time());
    let limits = (optional(), optional(), optional(), proptest::option::of(signal), optional());
    (usual, limits).prop_map(|(usual, (prompt, fence, time_limit, limit_signal, after_first_exit))| {
        let (silent, stuck, grace_after_failure, grace_after_interrupt, output_end) = usual;
        Timeouts {
            silent,
            stuck,
            grace_after_failure,
            grace_after_interrupt,
            output_end,
            prompt,
            fence,
            time_limit,
            limit_signal,
            after_first_exit,
        }
    })
}

fn any_settings() -> impl Strategy<Value = LaunchSettings> {
    let job_memory = prop_oneof![Just(JobMemory::Shared), Just(JobMemory::Off)];
    let entrance = prop_oneof![Just(Entrance::Socket), Just(Entrance::Port)];
    let exchange = prop_oneof![Just(DataExchange::Auto), Just(DataExchange::Full), Just(DataExchange::Lazy)];
    let restarts = prop_oneof![Just(Restarts::Unexpected), Just(Restarts::Keep), Just(Restarts::Fresh)];
    let pmi = (any_family(), entrance, any::<bool>(), job_memory, exchange, restarts).prop_map(
        |(family, entrance, group_barriers, job_memory, exchange, restarts)| PmiSpec {
            family,
            entrance,
            group_barriers,
            job_memory,
            exchange,
            restarts,
        },
    );
    let bind = proptest::sample::select(vec!["none", "cores:cpus=2:over=sockets", "rank", "map:0-1,4+6"]);
    let environment = proptest::collection::vec(("[A-Z]{1,5}", ".{0,5}"), 0..4);
    let flags = any::<(bool, bool, bool, bool, bool, bool)>();
    (environment, pmi, flags, bind, any_stdin(), any_timeouts(), any_shell_limits()).prop_map(
        |(environment, pmi, flags, bind, stdin, timeouts, shell_limits)| {
            let (pmi_trace, slurm_environment, bears_ranks, bears_nodes, stops, fails) = flags;
            LaunchSettings {
                environment: environment.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
                pmi,
                pmi_trace,
                slurm_environment,
                rank_variables: !bears_ranks,
                keeps_transports: bears_ranks,
                cpu_bind: bind.parse().unwrap(),
                mem_bind: if slurm_environment { "local".parse().unwrap() } else { MemBind::None },
                gpu_bind: if pmi_trace { GpuBind::Map(vec!["0-1".parse().unwrap()]) } else { GpuBind::None },
                stdin,
                stdout: if bears_nodes { RankOutput::Terminal } else { RankOutput::Pipe },
                failed_ranks: if bears_ranks { FailedRanks::AreBorne } else { FailedRanks::EndLaunch },
                lost_nodes: if bears_nodes { LostNodes::AreBorne } else { LostNodes::EndLaunch },
                overdue_release: if fails { OverdueRelease::Fail } else { OverdueRelease::Warn },
                timeouts,
                shell_limits,
                node_memory: std::num::NonZeroU64::new(u64::from(stops) << 40),
                temporary: match (fails, stops) {
                    (false, _) => TemporaryFiles::AsUsual,
                    (true, stops) => TemporaryFiles::OfLaunch { below: stops.then(|| "/scratch".into()) },
                },
                at_exec: if stops { AtExec::Stop } else { AtExec::Run },
                ancestors: if fails { vec![1, u64::MAX] } else { Vec::new() },
            }
        },
    )
}

fn any_shell_limits() -> impl Strategy<Value = ShellLimits> {
    let too_high = prop_oneof![Just(TooHigh::Lowered), Just(TooHigh::Told)];
    let soft = (proptest::sample::select(LimitedResource::ALL), any::<u64>());
    let soft = soft.prop_map(|(resource, value)| SoftLimit { resource, value });
    let priority = (proptest::option::of(-20..20), proptest::option::of(-1000..=1000));
    let priority = priority.prop_map(|(niceness, oom_score_adjust)| Priority { niceness, oom_score_adjust });
    (proptest::collection::vec(soft, 0..4), any::<Option<u32>>(), priority, too_high)
        .prop_map(|(soft, umask, priority, too_high)| ShellLimits { soft, umask, priority, too_high })
}

proptest! {
    #[test]
    fn settings_of_every_kind_travel(settings in any_settings()) {
        let sent = wire_settings::encode(&settings).encode_to_vec();
        let mut got = proto::LaunchSpec::decode(&*sent).unwrap();
        prop_assert_eq!(wire_settings::take(&mut got).unwrap(), settings);
    }

    /// Specs from the API server pass through relays, which are not trusted.
    #[test]
    fn a_spec_of_any_bytes_is_refused_or_names_the_node_that_reads_it(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        node in 0_u32..4,
    ) {
        if let Ok(launch) = proto::LaunchSpec::decode(&*bytes)
            && let Ok(session) = spec::decode(launch, NodeIndex(node))
        {
            prop_assert!(session.node == NodeIndex(node) && session.node.index() < session.hosts.len());
        }
    }

    #[test]
    fn placements_travel(counts in proptest::collection::vec(0_u32..5, 1..20)) {
        let ranks: u32 = counts.iter().sum();
        prop_assume!(ranks > 0);
        let placement = Placement::block(&counts);
        let sent = Job { placement: placement.clone(), apps: vec![App { ranks, appnum: 0 }], ..session().job };
        prop_assert_eq!(job::decode(job::encode(&sent), counts.len()).unwrap().placement, placement);
    }
}

/// A launch from a client that sends no timeouts.
#[test]
fn a_launch_without_timeouts_gets_the_default_ones() {
    let mut silent = proto::LaunchSpec::default();
    assert_eq!(wire_settings::take(&mut silent).unwrap(), LaunchSettings::default());
}

#[test]
fn each_timeout_that_no_clock_can_add_is_refused_by_its_name() {
    let check = |change: fn(&mut proto::Patience, u64), name: &str| {
        let mut wrong = launch();
        change(wrong.patience.as_mut().unwrap(), u64::MAX);
        let expected = format!("{name} is {} ms; possible is at most {} ms", u64::MAX, TIME_MAX.as_millis());
        assert_eq!(refusal(spec::decode(wrong, NodeIndex(1))), expected);
    };
    check(|times, wrong| times.silent_ms = wrong, "the timeout of silent ranks");
    check(|times, wrong| times.stuck_ms = wrong, "the timeout of a start-up");
    check(|times, wrong| times.after_failure_ms = wrong, "the grace after a failure");
    check(|times, wrong| times.after_interrupt_ms = wrong, "the grace after an interrupt");
    check(|times, wrong| times.output_end_ms = wrong, "the time for the rest of the output");
    check(|times, wrong| times.prompt_ms = Some(wrong), "the timeout of an open line");
    check(|times, wrong| times.fence_ms = Some(wrong), "the timeout of a fence");
    check(|times, wrong| times.after_first_exit_ms = Some(wrong), "the time after the first exit");
    check(
        |times, wrong| times.limit_signal = Some(proto::LimitSignal { signal: 10, ahead_ms: wrong }),
        "the time from a signal to the time limit",
    );
    check(|times, wrong| times.timeout_ms = Some(wrong), "the time limit");
}

#[test]
fn a_node_is_reached_by_the_host_part_of_its_address() {
    let address = |addresses: &str| {
        let launch = proto::LaunchSpec { addresses: addresses.to_owned(), ..launch() };
        spec::decode(launch, NodeIndex(1)).unwrap().address().unwrap().to_owned()
    };
    assert_eq!(address("a:1,b:2,c:3"), "b");
    assert_eq!(address("a,b,c"), "b", "an address without a port");
    assert_eq!(address("10.0.0.[1-3]:7"), "10.0.0.2");
    let alone = PlacedLaunch { hosts: vec!["node0".into()], ..placed_launch() };
    let job = Job { placement: Placement::one_node(10), ..alone.job.clone() };
    let launch = placed::encode(&PlacedLaunch { job, ..alone }, &terms());
    assert_eq!(spec::decode(launch, NodeIndex(0)).unwrap().address(), None, "nobody else is there");
}

fn order() -> StartOrder {
    let spec = launch().encode_to_vec().into();
    StartOrder { serial: Serial(9), spec, node: NodeIndex(1), signature: Signature::default(), nics: None }
}

/// The launch in an agent's message is ignored.
fn session_start() -> proto::StartSession {
    proto::StartSession {
        spec: Bytes::from_static(b"\xff"),
        node_index: 7,
        environment: vec![proto::Variable { name: "LD_PRELOAD".into(), value: "1".into() }],
        fabric: Some(proto::NodeFabric { provider: "verbs".to_owned(), credentials: None }),
    }
}

#[test]
fn a_session_start_travels() {
    let got = start::decode(order(), session_start().encode_to_vec()).unwrap();
    assert_eq!(got.spec, session());
    assert_eq!((got.output_window, got.stdin_window), (65_536, 7));
    assert_eq!(got.fabric, NodeFabric { provider: Some(Provider::Verbs), claims: None });
    let bare = proto::StartSession { fabric: None, ..session_start() };
    assert_eq!(start::decode(order(), bare.encode_to_vec()).unwrap().fabric, NodeFabric::default());
}

#[test]
fn a_session_start_that_is_none_is_refused() {
    let check = |order: StartOrder, start: proto::StartSession, expected: &str| {
        let seen = refusal(start::decode(order, start.encode_to_vec()));
        assert!(seen.starts_with(expected), "{seen}");
    };
    let spec = |spec: &'static [u8]| StartOrder { spec: Bytes::from_static(spec), ..order() };
    check(spec(b"\xff"), session_start(), "the message cannot be read: ");
    check(spec(b""), session_start(), "the receiving node is 1; possible is one of 0 nodes");
    let elsewhere = StartOrder { node: NodeIndex(3), ..order() };
    check(elsewhere, session_start(), "the receiving node is 3; possible is one of 3 nodes");
    let fabric = Some(proto::NodeFabric::default());
    let nowhere = proto::StartSession { fabric, ..session_start() };
    check(order(), nowhere, "the provider is ; possible is cxi or verbs");
    let seen = refusal(start::decode(order(), Bytes::from_static(b"\xff")));
    assert!(seen.starts_with("the message cannot be read: "), "{seen}");
}

#[test]
fn surveys_travel() {
    let service = |owner: Option<&str>| SurveyedService {
        svc_id: 11,
        vnis: vec![1024, 1025],
        uids: vec![1000],
        owner: owner.map(str::to_owned),
    };
    let nic = |is_up, services| SurveyedNic { name: "cxi0".to_owned(), is_up, services };
    for survey in [
        CxiSurvey::default(),
        CxiSurvey { trouble: Some("no driver".to_owned()), ..CxiSurvey::default() },
        CxiSurvey {
            backend: "libcxi".to_owned(),
            nics: vec![nic(true, vec![service(Some("launch")), service(None)]), nic(false, Vec::new())],
            trouble: None,
        },
    ] {
        assert_eq!(cxi::decode(cxi::encode(survey.clone())), survey);
    }
}

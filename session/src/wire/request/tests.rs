use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::settings::{DataExchange, Entrance, JobMemory, Restarts, StdinTarget};
use crate::template::Template;

fn program(name: &str, ranks: u32) -> ProgramRequest {
    let app = AppSpec {
        program: name.into(),
        args: vec!["-x".into(), "".into()],
        directory: "/work".into(),
        set: vec![("A".into(), "1".into())],
        remove: vec!["B*".to_owned()],
        process_set: Some("app://ocean".parse().unwrap()),
    };
    ProgramRequest { app, ranks: NonZeroU32::new(ranks), number: ranks }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// A line of a hostfile; `slots` is not 0.
fn slots(node: &str, slots: u32) -> HostSlots {
    HostSlots { node: node.to_owned(), slots: NonZeroU32::new(slots).unwrap() }
}

fn request() -> LaunchRequest {
    LaunchRequest {
        programs: Programs::new(vec![program("a", 2), program("b", 3)]).unwrap(),
        placement: PlacementRequest::default(),
        universe_size: Some(UniverseSize::Number(12)),
        settings: LaunchSettings {
            environment: vec![("PATH".into(), "/bin".into())],
            pmi: PmiSpec {
                family: PmiFamily::Pmi2,
                entrance: Entrance::Port,
                group_barriers: false,
                job_memory: JobMemory::Off,
                exchange: DataExchange::Full,
                restarts: Restarts::Fresh,
            },
            pmi_trace: true,
            slurm_environment: true,
            rank_variables: false,
            keeps_transports: true,
            stdin: StdinTarget::File(Template::parse("/in.%t".as_ref()).unwrap()),
            ..LaunchSettings::default()
        },
        ownership: Ownership::Client,
    }
}

fn plane(ranks: u32) -> Distribution {
    Distribution::Plane(NonZeroU32::new(ranks).unwrap())
}

/// Encodes and decodes a request.
fn travelled(request: &LaunchRequest) -> LaunchRequest {
    let sent = encode(request, "7f3k".to_owned()).encode_to_vec();
    let got = proto::LaunchTasksRequest::decode(&*sent).unwrap();
    assert_eq!(got.allocation_id, "7f3k");
    decode(got).unwrap()
}

#[test]
fn requests_travel() {
    let check = |request: LaunchRequest| assert_eq!(travelled(&request), request);
    check(request());
    check(LaunchRequest { ownership: Ownership::Detached, universe_size: None, ..request() });
    check(LaunchRequest { universe_size: Some(UniverseSize::Slots), ..request() });
    check(LaunchRequest { programs: Programs::new(vec![program("a", 0)]).unwrap(), ..request() });
    let placements = [
        PlacementRequest { nodes: NonZeroU32::new(3), tasks_per_node: NonZeroU32::new(4), ..Default::default() },
        PlacementRequest { candidates: Candidates::Listed(names(&["node4", "node1"])), ..Default::default() },
        PlacementRequest { relative: 2, distribution: Some(plane(4)), ..Default::default() },
        PlacementRequest { except: names(&["node7"]), distribution: Some(Distribution::Cyclic), ..Default::default() },
    ];
    placements.into_iter().for_each(|placement| check(LaunchRequest { placement, ..request() }));
    for distribution in [None, Some(Distribution::Block), Some(Distribution::Cyclic), Some(plane(2))] {
        let candidates = Candidates::Hostfile(vec![slots("node1", 2), slots("node0", 1), slots("node1", 1)]);
        check(LaunchRequest {
            placement: PlacementRequest { candidates, distribution, ..Default::default() },
            ..request()
        });
    }
}

/// A server of an older version compares a nonzero `num_tasks` with the ranks of the programs.
#[test]
fn ranks_are_sent_once() {
    let sent = encode(&request(), String::new());
    let spec = sent.spec.unwrap();
    assert_eq!((sent.num_tasks, sent.tasks_per_node), (0, 0));
    let ranks: Vec<u32> = spec.job.unwrap().apps.iter().map(|app| app.ranks).collect();
    assert_eq!(ranks, [2, 3]);
    assert_eq!((spec.launch_id.as_str(), spec.secret.len(), spec.nodes.as_str()), ("", 0, ""));
}

#[test]
fn ranks_may_be_given_twice_if_they_are_the_same() {
    let sized = |ranks: &[u32], num_tasks| {
        let programs = ranks.iter().map(|&ranks| program("a", ranks)).collect();
        let request = LaunchRequest { programs: Programs::new(programs).unwrap(), ..request() };
        let sent = proto::LaunchTasksRequest { num_tasks, ..encode(&request, String::new()) };
        decode(sent).map(|request| request.programs.size()).map_err(|error| error.to_string())
    };
    assert_eq!(sized(&[0], 0), Ok(None));
    assert_eq!(sized(&[0], 5), Ok(Some(5)));
    assert_eq!(sized(&[2, 3], 5), Ok(Some(5)));
    assert_eq!(sized(&[2, 3], 6), Err("num_tasks is 6; possible is 0, or 5 as in the programs".to_owned()));
}

fn plain(num_tasks: u32) -> proto::LaunchTasksRequest {
    proto::LaunchTasksRequest { num_tasks, entrypoint: "./app".to_owned(), ..Default::default() }
}

#[test]
fn plain_fields_alone_are_a_detached_launch_of_one_program() {
    let request = proto::LaunchTasksRequest {
        args: names(&["-v", "x"]),
        env: [("A".to_owned(), "1".to_owned())].into(),
        tasks_per_node: 2,
        pmi_mode: "pmix".to_owned(),
        ..plain(4)
    };
    let got = decode(request).unwrap();
    assert_eq!(got.ownership, Ownership::Detached);
    assert_eq!((got.programs.size(), got.placement.tasks_per_node), (Some(4), NonZeroU32::new(2)));
    let app = &got.programs.iter().next().unwrap().app;
    assert_eq!((app.program.to_str(), app.args.len(), app.directory.to_str()), (Some("./app"), 2, Some("/")));
    assert_eq!(app.set, [("A".into(), "1".into())]);
    assert_eq!(got.settings.environment, [("PATH".into(), PLAIN_PATH.into())]);
    assert_eq!(got.settings.pmi.family, PmiFamily::Pmix);
}

#[test]
fn the_design_documents_pmi2_serves_whatever_ranks_speak() {
    let check = |mode: &str, expected: PmiFamily| {
        let got = decode(proto::LaunchTasksRequest { pmi_mode: mode.to_owned(), ..plain(1) }).unwrap();
        assert_eq!(got.settings.pmi.family, expected, "{mode}");
    };
    check("", PmiFamily::Auto);
    check("auto", PmiFamily::Auto);
    check("pmi2", PmiFamily::Auto);
    check("pmi1", PmiFamily::Pmi1);
    check("none", PmiFamily::None);
}

#[test]
fn what_no_launch_can_be_made_of_is_refused_in_words() {
    let check = |change: fn(&mut proto::LaunchTasksRequest), expected: &str| {
        let mut wrong = encode(&request(), String::new());
        change(&mut wrong);
        assert_eq!(decode(wrong).unwrap_err().to_string(), expected);
    };
    fn spec(request: &mut proto::LaunchTasksRequest) -> &mut proto::LaunchSpec {
        request.spec.as_mut().unwrap()
    }
    fn placement(request: &mut proto::LaunchTasksRequest) -> &mut proto::PlacementRequest {
        request.placement.as_mut().unwrap()
    }
    check(|wrong| spec(wrong).job = None, "the number of programs is 2; possible is 0 as in the job");
    check(|wrong| drop(spec(wrong).apps.pop()), "the number of programs is 1; possible is 2 as in the job");
    check(|wrong| spec(wrong).apps[0].program.clear(), "the message has no program");
    check(
        |wrong| spec(wrong).apps[0].directory = "here".into(),
        "the directory of a program is \"here\"; possible is an absolute path",
    );
    check(|wrong| spec(wrong).pmi_family = 9, "the kind of PMI is 9; possible is 0 (auto) to 4 (none)");
    check(
        |wrong| spec(wrong).patience.as_mut().unwrap().timeout_ms = Some(u64::MAX),
        "the time limit is 18446744073709551615 ms; possible is at most 31622400000 ms",
    );
    check(
        |wrong| spec(wrong).stdin.as_mut().unwrap().target = Some(proto::stdin_target::Target::File("%".into())),
        "the file for standard input: a percent sign at the end of a file name has no meaning; write %% for the sign itself",
    );
    check(
        |wrong| {
            spec(wrong).apps.clear();
            spec(wrong).job.as_mut().unwrap().apps.clear();
        },
        "the launch has no program",
    );
    check(
        |wrong| spec(wrong).job.as_mut().unwrap().apps[0].ranks = i32::MAX as u32,
        "the programs have 2147483650 ranks together; MPI counts up to 2147483647",
    );
    check(
        |wrong| placement(wrong).distribution = 9,
        "the distribution is 9; possible is 0 (block), 1 (cyclic), 3 (plane) or, with a hostfile, 2 (explicit)",
    );
    check(
        |wrong| placement(wrong).set_distribution(proto::Distribution::Explicit),
        "the distribution is explicit without a hostfile; possible is block, cyclic, plane, or one with a hostfile",
    );
    check(
        |wrong| placement(wrong).set_distribution(proto::Distribution::Plane),
        "the number of ranks of a plane is 0; possible is 1 or more",
    );
    check(
        |wrong| {
            placement(wrong).only = "node0".to_owned();
            placement(wrong).hosts = vec![proto::HostSlots { node: "node0".to_owned(), slots: 1 }];
        },
        "both a node list and a hostfile name the nodes to use; give one of them",
    );
    for list in ["node[", "node[0-65536]"] {
        let mut wrong = encode(&request(), String::new());
        placement(&mut wrong).only = list.to_owned();
        assert!(decode(wrong).unwrap_err().to_string().starts_with("the nodes to use: "), "{list}");
    }
    let error = decode(proto::LaunchTasksRequest { pmi_mode: "pmi3".to_owned(), ..plain(1) }).unwrap_err();
    assert_eq!(error.to_string(), "pmi_mode is \"pmi3\"; possible is auto, pmi1, pmi2, pmix and none");
    let error = decode(proto::LaunchTasksRequest::default()).unwrap_err();
    assert_eq!(error.to_string(), "the message has no program");
}

/// A hostfile without slots has no room. It does not mean all nodes.
#[test]
fn a_hostfile_without_slots_stays_a_hostfile() {
    let line = proto::HostSlots { node: "node0".to_owned(), slots: 0 };
    let placement = proto::PlacementRequest { hosts: vec![line], ..Default::default() };
    let got = decode(proto::LaunchTasksRequest { placement: Some(placement), ..plain(1) }).unwrap();
    assert_eq!(got.placement.candidates, Candidates::Hostfile(Vec::new()));
}

proptest! {
    /// Any user with access to the API server can send requests.
    #[test]
    fn bytes_that_are_a_request_of_some_kind_are_taken_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(request) = proto::LaunchTasksRequest::decode(&*bytes)
            && let Ok(request) = decode(request)
        {
            prop_assert_eq!(travelled(&request), request);
        }
    }
}

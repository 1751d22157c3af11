use std::ffi::OsString;
use std::time::Duration;

use lattice_session::settings::{
    DataExchange, Entrance, JobMemory, PmiFamily, Restarts, StdinTarget, TemporaryFiles, Timeouts,
};
use pmi_core::ids::Rank;

use super::settings::PROMPT;
use std::path::PathBuf;

use super::*;
use crate::prepared::tests::{commanded, commanded_on, machine};

fn requested(line: &str) -> Result<LaunchRequest, RequestError> {
    commanded(line).map(|command| command.request)
}

fn refused(line: &str, expected: &str) {
    match requested(line) {
        Err(error) => assert!(error.to_string().contains(expected), "{line}: {error}"),
        Ok(_) => panic!("{line} was not refused"),
    }
}

#[test]
fn ranks_are_counted_as_far_as_they_can_be() {
    let check = |line: &str, expected: &[Option<u32>]| {
        let request = requested(line).unwrap();
        let ranks: Vec<_> = request.programs.iter().map(|program| program.ranks.map(NonZeroU32::get)).collect();
        assert_eq!(ranks, expected, "{line}");
    };
    check("true", &[Some(1)]);
    check("-N 2 --tasks-per-node 3 true", &[None]);
    check("-N 2 --tasks-per-node 3 -n 5 true", &[Some(5)]);
    check("true : -n 3 true", &[Some(1), Some(3)]);
    refused("-n 2147483647 true : -n 2147483647 true", "4294967294 ranks together");
}

/// Regression: the flag without a value ignored the variable.
#[test]
fn temporary_files_are_where_the_flag_says_else_the_variable() {
    let mut machine = machine();
    machine.environment.push(("LATTICE_TMPDIR".into(), "/scratch".into()));
    let check = |line: &str, machine: &Machine, expected: Option<&str>| {
        let temporary = commanded_on(line, machine).unwrap().request.settings.temporary;
        assert_eq!(temporary, TemporaryFiles::OfLaunch { below: expected.map(PathBuf::from) }, "{line}");
    };
    check("--tmpdir true", &machine, Some("/scratch"));
    check("--tmpdir=/fast true", &machine, Some("/fast"));
    machine.environment.pop();
    check("--tmpdir true", &machine, None);
}

#[test]
fn nodes_are_named_as_the_user_named_them() {
    let placement = requested("-N 3 -w node[2,0-1] -x node7 --distribution cyclic true").unwrap().placement;
    assert_eq!(placement.nodes, NonZeroU32::new(3));
    assert_eq!(placement.candidates, Candidates::Listed(["node2", "node0", "node1"].map(str::to_owned).to_vec()));
    assert_eq!(placement.except, ["node7"]);
    assert_eq!(placement.distribution, Some(lattice_session::request::Distribution::Cyclic));
    let hosts = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(hosts.path(), "node0 slots=4\nnode1:2\n").unwrap();
    let placement = requested(&format!("--hostfile {} true", hosts.path().display())).unwrap().placement;
    let Candidates::Hostfile(hosts) = placement.candidates else { panic!("{:?}", placement.candidates) };
    let hosts: Vec<_> = hosts.iter().map(|host| (host.node.as_str(), host.slots.get())).collect();
    assert_eq!(hosts, [("node0", 4), ("node1", 2)]);
    refused(
        "--hostfile /nonexistent true",
        "cannot read the hostfile /nonexistent: No such file or directory (os error 2)\ntry: ",
    );
}

#[test]
fn ranks_that_share_have_slots_whatever_the_hostfile_says() {
    let slots = |line: &str| match requested(line).unwrap().placement.candidates {
        Candidates::Hostfile(hosts) => hosts.iter().map(|host| host.slots.get()).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(slots("--host a:2,b:1 -n 6 -O true"), [4, 3]);
    assert_eq!(slots("--host a:2,b:1 -n 3 -O true"), [2, 1]);
    assert_eq!(slots("--host a:2,b:1 -n 6 true"), [2, 1]);
    assert_eq!(slots("--host a:2,b:1 -O true"), [2, 1], "all slots are filled");
}

#[test]
fn a_detached_launch_waits_for_nobodys_input() {
    assert_eq!(requested("true").unwrap().settings.stdin, StdinTarget::Rank(Rank(0)));
    assert_eq!(requested("--detach true").unwrap().settings.stdin, StdinTarget::None);
    assert!(matches!(requested("--detach --stdin in true").unwrap().settings.stdin, StdinTarget::File(_)));
}

#[test]
fn the_fence_has_a_time_limit_if_it_is_asked_for() {
    assert_eq!(requested("true").unwrap().settings.timeouts.fence, None);
    assert_eq!(requested("--fence-timeout 30s true").unwrap().settings.timeouts.fence, Some(Duration::from_secs(30)));
    refused("--fence-timeout 0 true", "--fence-timeout: the time must be more than 0");
    refused("--fence-timeout 1 --pmi none true", "--fence-timeout and --pmi=none exclude each other");
}

#[test]
fn a_file_for_standard_input_is_named_from_our_directory() {
    let StdinTarget::File(template) = requested("--stdin in.%t true").unwrap().settings.stdin else {
        panic!("no file")
    };
    assert_eq!(template.to_text(), "/in.%r");
}

#[test]
fn a_reader_that_there_is_not_is_refused_as_soon_as_ranks_are_counted() {
    refused("-n 2 --stdin 2 true", "--stdin 2: there is no such rank; the job has ranks 0 to 1");
    refused("--stdin 2 true", "the job has rank 0 alone");
    assert!(requested("--fill --stdin 2 true").is_ok(), "the nodes will tell");
}

#[test]
fn what_is_done_with_a_request_is_no_part_of_it() {
    let [start, plan] = ["-n 2 true", "--dry-run -n 2 true"].map(|line| commanded(line).unwrap());
    assert_eq!((start.action, plan.action), (Action::Start, Action::Plan));
    assert_eq!(start.request, plan.request);
    assert!(commanded("--pmi-trace t true").unwrap().request.settings.pmi_trace);
    assert!(!start.request.settings.pmi_trace);
}

#[test]
fn every_protocol_and_entrance_is_asked_for_by_its_flag() {
    let check = |flags: &str, family, entrance, group_barriers| {
        let pmi = requested(&format!("{flags} true")).unwrap().settings.pmi;
        assert_eq!((pmi.family, pmi.entrance, pmi.group_barriers), (family, entrance, group_barriers), "{flags}");
    };
    check("", PmiFamily::Auto, Entrance::Socket, false);
    check("--pmi pmi1", PmiFamily::Pmi1, Entrance::Socket, false);
    check("--pmi pmi2 --pmi-port", PmiFamily::Pmi2, Entrance::Port, false);
    check("--pmi pmix", PmiFamily::Pmix, Entrance::Socket, false);
    check("--pmi none", PmiFamily::None, Entrance::Socket, false);
    check("--pmi-group-barriers", PmiFamily::Auto, Entrance::Socket, true);
    let memory = |flags: &str| requested(&format!("{flags} true")).unwrap().settings.pmi.job_memory;
    assert_eq!((memory(""), memory("--no-job-memory")), (JobMemory::Shared, JobMemory::Off));
    let restarts = |flags: &str| {
        let pmi = requested(&format!("{flags} true")).unwrap().settings.pmi;
        (pmi.restarts, pmi.entrance, pmi.job_memory)
    };
    assert_eq!(restarts(""), (Restarts::Unexpected, Entrance::Socket, JobMemory::Shared));
    assert_eq!(restarts("--restartable"), (Restarts::Keep, Entrance::Port, JobMemory::Off));
    assert_eq!(restarts("--restartable=fresh"), (Restarts::Fresh, Entrance::Port, JobMemory::Off));
    let exchange = |flags: &str| requested(&format!("{flags} true")).unwrap().settings.pmi.exchange;
    assert_eq!(exchange(""), DataExchange::Auto);
    assert_eq!((exchange("--exchange=full"), exchange("--exchange lazy")), (DataExchange::Full, DataExchange::Lazy));
}

#[test]
fn flags_that_would_do_nothing_without_pmi_are_refused_by_name() {
    let flags = [
        "--pmi-trace t",
        "--pmi-port",
        "--restartable",
        "--pmi-group-barriers",
        "--no-job-memory",
        "--exchange lazy",
        "--universe-size 4",
        "--fence-timeout 1",
    ];
    for flag in flags {
        let name = flag.split(' ').next().unwrap_or_default();
        let expected =
            format!("{name} and --pmi=none exclude each other: without PMI there is nothing that it could change");
        refused(&format!("{flag} --pmi none true"), &expected);
    }
}

#[test]
fn time_limits_have_defaults_and_no_limit_is_nothing() {
    let timeouts = |flags: &str| requested(&format!("{flags} true")).unwrap().settings.timeouts;
    let (none, default) = (timeouts(""), Timeouts::default());
    assert_eq!(
        (none.time_limit, none.stuck, none.grace_after_failure),
        (None, default.stuck, default.grace_after_failure)
    );
    assert_eq!(timeouts("--timeout 10m").time_limit, Some(Duration::from_secs(600)));
    for none in ["--time 0", "--time UNLIMITED", "-t 0:00"] {
        assert_eq!(timeouts(none).time_limit, None, "{none}");
    }
    assert_eq!(timeouts("--time 1:30").time_limit, Some(Duration::from_secs(90)));
    assert_eq!(timeouts("--stuck-after 1m").stuck, Duration::from_secs(60));
    let waits = timeouts("--kill-wait 2s");
    assert_eq!(
        (waits.grace_after_failure, waits.grace_after_interrupt),
        (Duration::from_secs(2), Duration::from_secs(2))
    );
    assert_eq!(timeouts("--kill-wait 0").grace_after_failure, Duration::ZERO, "ranks may be killed at once");
    assert_eq!((none.output_end, timeouts("--output-end 0").output_end), (default.output_end, Duration::ZERO));
    for flag in ["--timeout", "--stuck-after", "--fence-timeout"] {
        refused(&format!("{flag} 0 true"), &format!("{flag}: the time must be more than 0"));
    }
}

/// A prompt of a rank is shown at once on a terminal. A program that reads JSON gets whole lines.
#[test]
fn a_prompt_is_shown_to_those_who_watch() {
    let machine = |watched| Machine { watched, ..machine() };
    let prompt = |line: &str, machine| commanded_on(line, &machine).unwrap().request.settings.timeouts.prompt;
    assert_eq!(prompt("true", machine(true)), Some(PROMPT));
    assert_eq!(prompt("-n 2 true", machine(false)), None);
    assert_eq!(prompt("-n 1 true", machine(false)), Some(PROMPT), "no other rank tears its lines");
    assert_eq!(prompt("--json true", machine(true)), None);
    assert_eq!(prompt("-u true", machine(false)), Some(Duration::ZERO));
    assert_eq!(prompt("--unbuffered --collapse true", machine(true)), None);
}

#[test]
fn a_variable_keeps_the_value_that_was_set_last_and_bytes_of_any_kind() {
    let programs = requested("--env A=1 --env A=2 --env HERE --env B= true").unwrap().programs;
    let set = &programs.iter().next().unwrap().app.set;
    let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
    assert_eq!(set, &[pair("A", "1"), pair("A", "2"), pair("HERE", "x"), pair("B", "")]);
}

#[test]
fn output_is_asked_for_as_its_flags_say() {
    let output = |flags: &str| commanded(&format!("{flags} true")).unwrap().output;
    let plain = output("");
    assert!(
        plain.stdout.is_none()
            && plain.stderr.is_none()
            && plain.label == LineLabel::None
            && !plain.json
            && !plain.show_map
    );
    let files = output("--output o.%t --error e.%t --append");
    assert_eq!(files.stdout.unwrap().to_text(), "o.%r");
    assert!(files.stderr.is_some() && files.append);
    let shown = output("-l --timestamp --show-map --pmi-trace t");
    assert!(shown.label == LineLabel::Rank && shown.timestamp && shown.show_map);
    assert_eq!(shown.pmi_trace, Some("t".into()));
}

/// Regression: without a number of ranks, a line started one rank in an allocation of Lattice, and one rank in each slot in allocations of other
/// managers.
#[test]
fn a_line_without_a_number_of_ranks_is_one_rank_wherever_its_nodes_come_from() {
    let ours = machine();
    let mut of_others = machine();
    of_others.environment.push(("LATTICE_HOSTS".into(), "a:4,b:2".into()));
    for (line, ranks, is_usual, is_filled) in [
        ("true", Some(1), true, false),
        ("-w a true", Some(1), true, false),
        ("--pty true", Some(1), true, false),
        ("-n 1 true", Some(1), false, false),
        ("-n 6 true", Some(6), false, false),
        ("-N 2 true", None, false, false),
        ("--tasks-per-node 2 true", None, false, false),
        ("--host a:3 true", None, false, false),
        ("--fill true", None, false, true),
        ("-N 2 --fill true", None, false, true),
        ("true : true", Some(2), false, false),
    ] {
        for machine in [&ours, &of_others] {
            let command = commanded_on(line, machine).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!((command.request.programs.size(), command.count == Count::Usual), (ranks, is_usual), "{line}");
            let fills_cores = command.per_object.is_some();
            let fills_slots =
                line.contains("--fill") && matches!(command.request.placement.candidates, Candidates::Hostfile(_));
            assert_eq!(fills_cores || fills_slots, is_filled, "{line}");
        }
        let placement = commanded_on(line, &of_others).unwrap().request.placement;
        let is_of_nodes = line.starts_with("-N 2 true") || line.starts_with("--tasks-per-node");
        assert!(!is_of_nodes || placement.candidates == Candidates::All, "{line}: one rank on each node");
    }
    let refusal = commanded_on("--fill true : true", &ours).unwrap_err().to_string();
    assert!(refusal.starts_with("--fill is for one program"), "{refusal}");
}

use std::os::unix::fs::PermissionsExt;

use std::ffi::OsString;

use lattice_session::spec::StdinTarget;

use super::*;
use pmi_core::job::{Block, Placement};

use crate::args::{self, Command};
use crate::limits::Limits;

fn machine() -> Machine {
    let limits = Limits { processes: vec![("pid_max".to_owned(), 1000)], descriptors: Some(100_000) };
    let environment = vec![("PATH".into(), "/usr/bin:/bin".into()), ("HERE".into(), "x".into())];
    Machine { host: "node3".to_owned(), directory: "/".into(), environment, limits, watched: false }
}

/// The request of a line of flags, on an imaginary machine.
pub(crate) fn requested(line: &str) -> Result<LaunchRequest, RequestError> {
    requested_on(line, &machine())
}

fn requested_on(line: &str, machine: &Machine) -> Result<LaunchRequest, RequestError> {
    let words = ["lattice", "launch"].into_iter().chain(line.split_whitespace());
    match args::parse(words.map(OsString::from)).unwrap_or_else(|error| panic!("{error}")).command {
        Command::Launch(args) => LaunchRequest::new(&args, machine),
        other => panic!("{line} became {other:?}"),
    }
}

fn placed_on(line: &str, machine: &Machine) -> Result<PlacedLaunch, RequestError> {
    PlacedLaunch::here(requested_on(line, machine)?, machine)
}

/// The launch of a line of flags, on an imaginary machine.
pub(crate) fn placed(line: &str) -> Result<PlacedLaunch, RequestError> {
    placed_on(line, &machine())
}

fn refused(line: &str, expected: &str) {
    match placed(line) {
        Err(error) => assert!(error.to_string().contains(expected), "{line}: {error}"),
        Ok(_) => panic!("{line} was not refused"),
    }
}

#[test]
fn ranks_are_counted_from_either_flag() {
    let check = |line: &str, expected: &[u32]| {
        let request = placed(line).unwrap();
        let counts: Vec<u32> = request.spec.job.apps.iter().map(|app| app.ranks).collect();
        assert_eq!(counts, expected, "{line}");
        assert_eq!(request.seats.len() as u32, request.spec.job.size());
    };
    check("true", &[1]);
    check("-n 4 true", &[4]);
    check("--tasks-per-node 3 true", &[3]);
    check("-n 2 --tasks-per-node 3 true", &[2]);
    check("-n 2 true : -n 3 false : true", &[2, 3, 1]);
    refused("-n 8 --tasks-per-node 4 true", "8 ranks do not fit on 1 node with --tasks-per-node=4: use -n 4 or fewer");
    refused("-n 2 --tasks-per-node 3 true : -n 2 true", "4 ranks do not fit on 1 node");
    refused("-n 2147483647 true : -n 2147483647 true", "4294967294 ranks together");
    refused("-n 1001 true", "1001 ranks do not fit on this machine: pid_max is 1000, which is enough for 1000 ranks");
}

#[test]
fn every_program_has_its_own_settings() {
    let line = "-n 2 --env A=1 --env HERE true x : -n 1 --env-remove PATH --chdir usr bin/env --label";
    let request = placed(line).unwrap();
    let [first, second] = request.spec.apps.as_slice() else { panic!("{:?}", request.spec.apps) };
    assert_eq!((first.program.to_str(), first.args.as_slice()), (Some("true"), &["x".into()][..]));
    assert_eq!(first.set, [("A".into(), "1".into()), ("HERE".into(), "x".into())]);
    assert_eq!(first.directory, Path::new("/"));
    assert_eq!((second.remove.as_slice(), second.directory.as_path()), (&["PATH".to_owned()][..], Path::new("/usr")));
    let appnums: Vec<i32> = (0..3).map(|rank| request.spec.job.appnum(Rank(rank))).collect();
    assert_eq!(appnums, [0, 0, 1]);
    let programs: Vec<_> = request.seats.iter().map(|seat| (seat.app, seat.program.to_str().unwrap())).collect();
    assert_eq!(programs, [(0, "/usr/bin/true"), (0, "/usr/bin/true"), (1, "/usr/bin/env")]);
    refused("--env NOWHERE true", "--env NOWHERE: there is no such variable to pass on");
}

#[test]
fn programs_are_looked_up_as_their_ranks_will_see_the_path() {
    let code =
        |line: &str| crate::failure::Failure::from(crate::launch::LaunchError::from(placed(line).unwrap_err())).code;
    assert_eq!(code("no-such-program"), 127);
    assert_eq!(code("--env PATH=/nowhere true"), 127);
    assert_eq!(code("/etc/passwd"), 126);
    assert_eq!(code("--chdir /nowhere true"), 125);
    assert!(placed("--env-remove PA* true").is_ok(), "without PATH, the system's own directories are searched");
}

#[test]
fn flags_that_exclude_each_other_are_refused() {
    refused("--pmi none --pmi-trace /dev/null true", "--pmi-trace and --pmi=none exclude each other");
    refused("--pmi none --pmi-port true", "--pmi-port and --pmi=none exclude each other");
    refused("--pmi pmi2 --pmi-group-barriers true", "group barriers are a part of PMI 1.2");
    refused("--append true", "--append needs --output or --error");
    refused("--timeout 0 true", "--timeout: the time must be more than 0");
    refused("--cpu-bind map:60000 true", "CPU 60000");
    assert!(placed("--kill-wait 0 true").is_ok());
}

#[test]
fn standard_input_is_checked_for_every_rank() {
    let directory = tempfile::tempdir().unwrap();
    let unreadable = directory.path().join("in.2");
    for name in ["in.0", "in.1", "in.2"] {
        std::fs::write(directory.path().join(name), "").unwrap();
    }
    std::fs::set_permissions(&unreadable, PermissionsExt::from_mode(0o000)).unwrap();
    let machine = Machine { directory: directory.path().to_owned(), ..machine() };
    let spec = |line: &str| placed_on(line, &machine).map(|request| request.spec.stdin);
    assert_eq!(spec("-n 2 --stdin in.%r true").unwrap(), StdinTarget::File(directory.path().join("in.%r")));
    assert!(spec("-n 4 --stdin in.%r true").unwrap_err().to_string().contains("in.3: No such file"));
    assert!(spec("--stdin . true").unwrap_err().to_string().contains("is a directory"));
    // Root may read everything.
    if !nix::unistd::geteuid().is_root() {
        assert!(spec("-n 3 --stdin in.%r true").unwrap_err().to_string().contains("in.2: Permission denied"));
    }
    assert_eq!(spec("-n 2 --stdin 1 true").unwrap(), StdinTarget::Rank(Rank(1)));
    refused("-n 4 --stdin 4 true", "--stdin 4: there is no such rank; the job has ranks 0 to 3");
}

#[test]
fn nodes_are_chosen_where_there_are_several() {
    assert!(placed("-N 1 --distribution cyclic true").is_ok());
    refused(
        "-N 2 true",
        "--nodes needs the nodes of an allocation; this launch has none, and stays on this machine\ntry: --alloc",
    );
    refused("-w node1 true", "--nodelist needs the nodes of an allocation");
    refused("-x node1 true", "--exclude needs the nodes of an allocation");
    refused("--detach true", "--detach needs the nodes of an allocation");
}

#[test]
fn seats_follow_the_placement_of_the_server() {
    let mut spec = placed("-n 3 true : -n 2 false").unwrap().spec;
    spec.hosts = vec!["node0".to_owned(), "node1".to_owned()];
    let block = |first_node, nodes| Block { first_node: NodeIndex(first_node), nodes, ranks_per_node: 1 };
    spec.job.placement = Placement::default();
    [block(0, 2), block(0, 2), block(0, 1)].into_iter().for_each(|block| spec.job.placement.push(block));
    let launch = PlacedLaunch::elsewhere(spec, OutputRequest::default());
    let seats: Vec<_> =
        launch.seats.iter().map(|seat| (seat.rank.0, seat.node.0, seat.local_rank.0, seat.app)).collect();
    assert_eq!(seats, [(0, 0, 0, 0), (1, 1, 0, 0), (2, 0, 1, 0), (3, 1, 1, 1), (4, 0, 2, 1)]);
    assert_eq!(launch.seats[4].program, Path::new("false"));
}

#[test]
fn output_files_are_named_for_every_rank() {
    let request = placed("-n 2 --output %j/out.%r --error all true").unwrap();
    let id = &request.spec.launch_id;
    let file = |rank: usize, stream| request.output_file(&request.seats[rank], stream);
    assert_eq!(file(1, Stream::Stdout), Some(PathBuf::from(format!("{id}/out.1"))));
    assert_eq!(file(1, Stream::Stderr), Some(PathBuf::from("all")));
    assert_eq!(request.output_files().len(), 3);
}

/// As with srun, `%t` is the task: its number in the launch, not on its node.
#[test]
fn ranks_of_different_nodes_do_not_share_a_file_named_by_task() {
    let mut launch = placed("-n 4 --output out.%t --error %N/err true").unwrap();
    launch.spec.hosts = vec!["node0.cluster".to_owned(), "node1.cluster".to_owned()];
    launch.spec.job.placement = Placement::block(&[2, 2]);
    let launch = PlacedLaunch::elsewhere(launch.spec, launch.output);
    let files =
        |stream| -> Vec<PathBuf> { launch.seats.iter().filter_map(|seat| launch.output_file(seat, stream)).collect() };
    assert_eq!(files(Stream::Stdout), ["out.0", "out.1", "out.2", "out.3"].map(PathBuf::from));
    assert_eq!(files(Stream::Stderr), ["node0/err", "node0/err", "node1/err", "node1/err"].map(PathBuf::from));
}

#[test]
fn launch_ids_are_new_each_time_and_make_job_ids() {
    let (one, other) = (placed("true").unwrap().spec, placed("true").unwrap().spec);
    assert_ne!(one.launch_id, other.launch_id);
    assert_eq!(one.launch_id.len(), 10);
    assert_eq!(one.job.id.as_str(), format!("kvs_{}_0", one.launch_id));
}

use std::os::unix::fs::PermissionsExt;

use std::ffi::OsString;

use lattice_console::limits::Limits;
use lattice_render::OutputRequest;
use lattice_session::event::Stream;
use lattice_session::settings::StdinTarget;
use lattice_session::shell_limits::SoftLimit;
use lattice_session::template::Template;

use super::*;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::job::Block;
use rank_spawner::{LimitedResource, Priority, ProgramFailure};

use crate::args::{self, Command};

/// An imaginary machine.
pub(crate) fn machine() -> Machine {
    let limits = Limits { processes: vec![("pid_max".to_owned(), 1000)], descriptors: Some(100_000) };
    let environment = vec![("PATH".into(), "/usr/bin:/bin".into()), ("HERE".into(), "x".into())];
    let soft = |resource| SoftLimit { resource, value: 7 };
    Machine {
        host: "node3".to_owned(),
        directory: "/".into(),
        environment,
        limits,
        soft_limits: LimitedResource::ALL.iter().copied().map(soft).collect(),
        umask: Some(0o027),
        priority: Priority::default(),
        watched: false,
        terminal: None,
    }
}

/// The command of a line of flags, on an imaginary machine.
pub(crate) fn commanded(line: &str) -> Result<LaunchCommand, RequestError> {
    commanded_on(line, &machine())
}

pub(crate) fn commanded_on(line: &str, machine: &Machine) -> Result<LaunchCommand, RequestError> {
    let words = ["lattice", "launch"].into_iter().chain(line.split_whitespace());
    match args::parse(words.map(OsString::from)).unwrap_or_else(|error| panic!("{error}")).command {
        Command::Launch(args) => LaunchCommand::new(&args, machine),
        other => panic!("{line} became {other:?}"),
    }
}

fn prepared_on(line: &str, machine: &Machine) -> Result<PreparedLaunch, RequestError> {
    on_this_machine(commanded_on(line, machine)?, machine)
}

/// The launch of a line of flags, on an imaginary machine.
pub(crate) fn prepared(line: &str) -> Result<PreparedLaunch, RequestError> {
    prepared_on(line, &machine())
}

fn refused(line: &str, expected: &str) {
    match prepared(line) {
        Err(error) => assert!(error.to_string().contains(expected), "{line}: {error}"),
        Ok(_) => panic!("{line} was not refused"),
    }
}

#[test]
fn ranks_are_counted_from_either_flag() {
    let check = |line: &str, expected: &[u32]| {
        let request = prepared(line).unwrap();
        let counts: Vec<u32> = request.placed.job.apps.iter().map(|app| app.ranks).collect();
        assert_eq!(counts, expected, "{line}");
        assert_eq!(request.ranks.len() as u32, request.placed.job.size());
    };
    check("true", &[1]);
    check("-n 4 true", &[4]);
    check("--tasks-per-node 3 true", &[3]);
    check("-n 2 --tasks-per-node 3 true", &[2]);
    check("-n 2 true : -n 3 false : true", &[2, 3, 1]);
    refused(
        "-n 8 --tasks-per-node 4 true",
        "8 ranks do not fit on 1 node with --tasks-per-node=4\ntry: -n 4, or fewer",
    );
    refused("-n 2 --tasks-per-node 3 true : -n 2 true", "4 ranks do not fit on 1 node");
    refused("-n 2147483647 true : -n 2147483647 true", "4294967294 ranks together");
    refused("-n 1001 true", "1001 ranks do not fit on this machine: pid_max is 1000, which is enough for 1000 ranks");
}

#[test]
fn a_refusal_ends_with_what_to_type() {
    for line in [
        "--chdir /nonexistent true",
        "--stdin /nonexistent true",
        "--multi-prog /nonexistent",
        "--rankfile /nonexistent -n 2 true",
        "--env-file /nonexistent true",
        "--hostfile /nonexistent true",
        "--timeout 0 true",
        "--fence-timeout 0 true",
        "--signal=USR1@60 true",
        "no-such-program",
    ] {
        let error = prepared(line).unwrap_err().to_string();
        let last = error.lines().last().unwrap_or_default();
        assert!(last.starts_with("try: "), "{line}: {error}");
    }
}

#[test]
fn every_program_has_its_own_settings() {
    let line = "-n 2 --env A=1 --env HERE true x : -n 1 --env-remove PATH --chdir usr bin/env --label";
    let request = prepared(line).unwrap();
    let [first, second] = request.placed.apps.as_slice() else { panic!("{:?}", request.placed.apps) };
    assert_eq!((first.program.to_str(), first.args.as_slice()), (Some("true"), &["x".into()][..]));
    assert_eq!(first.set, [("A".into(), "1".into()), ("HERE".into(), "x".into())]);
    assert_eq!(first.directory, Path::new("/"));
    assert_eq!((second.remove.as_slice(), second.directory.as_path()), (&["PATH".to_owned()][..], Path::new("/usr")));
    let appnums: Vec<i32> = (0..3).map(|rank| request.placed.job.appnum(Rank(rank))).collect();
    assert_eq!(appnums, [0, 0, 1]);
    let programs: Vec<_> = request.ranks.iter().map(|row| (row.place.app, row.program.to_str().unwrap())).collect();
    assert_eq!(programs, [(0, "/usr/bin/true"), (0, "/usr/bin/true"), (1, "/usr/bin/env")]);
    refused("--env NOWHERE true", "--env NOWHERE: there is no such variable to pass on");
}

#[test]
fn programs_are_looked_up_as_their_ranks_will_see_the_path() {
    let failure = |line: &str| prepared(line).unwrap_err().program_failure();
    assert_eq!(failure("no-such-program"), Some(ProgramFailure::NotFound));
    assert_eq!(failure("--env PATH=/nowhere true"), Some(ProgramFailure::NotFound));
    assert_eq!(failure("/etc/passwd"), Some(ProgramFailure::CannotExecute));
    assert_eq!(failure("--chdir /nowhere true"), None);
    assert!(prepared("--env-remove PA* true").is_ok(), "without PATH, the system's own directories are searched");
}

#[test]
fn flags_that_exclude_each_other_are_refused() {
    refused("--pmi none --pmi-trace /dev/null true", "--pmi-trace and --pmi=none exclude each other");
    refused("--pmi none --pmi-port true", "--pmi-port and --pmi=none exclude each other");
    refused("--pmi pmi2 --pmi-group-barriers true", "group barriers are a part of PMI 1.2");
    refused("--append true", "--append needs --output or --error");
    refused("--tee true", "--tee needs --output or --error");
    refused("--timeout 0 true", "--timeout: the time must be more than 0");
    refused("--cpu-bind map:60000 true", "CPU 60000");
    assert!(prepared("--kill-wait 0 true").is_ok());
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
    let spec = |line: &str| prepared_on(line, &machine).map(|launch| launch.placed.settings.stdin);
    assert_eq!(
        spec("-n 2 --stdin in.%r true").unwrap(),
        StdinTarget::File(Template::parse(directory.path().join("in.%r").as_os_str()).unwrap())
    );
    assert!(spec("-n 4 --stdin in.%r true").unwrap_err().to_string().contains("in.3: No such file"));
    assert!(spec("--stdin . true").unwrap_err().to_string().contains("is a directory"));
    // Root can read every file.
    if !nix::unistd::geteuid().is_root() {
        assert!(spec("-n 3 --stdin in.%r true").unwrap_err().to_string().contains("in.2: Permission denied"));
    }
    assert_eq!(spec("-n 2 --stdin 1 true").unwrap(), StdinTarget::Rank(Rank(1)));
    refused("-n 4 --stdin 4 true", "--stdin 4: there is no such rank; the job has ranks 0 to 3");
}

#[test]
fn nodes_are_chosen_where_there_are_several() {
    assert!(prepared("-N 1 --distribution cyclic true").is_ok());
    refused(
        "-N 2 true",
        "--nodes needs the nodes of an allocation; this launch has none, and stays on this machine\ntry: --alloc",
    );
    refused("-w node1 true", "--nodelist (mpiexec's -hosts): node1 is not this machine, which is node3");
    refused("-x HERE true", "-x HERE: -x leaves nodes out, and HERE is a variable");
    refused("-x A=1 true", "-x A=1: -x leaves nodes out");
    refused("--host node3:2,node1 true", "--hostfile, --host or --rankfile: node1 is not this machine");
    for limit in ["", "--time 0 "] {
        refused(
            &format!("{limit}--signal=USR1@60 true"),
            "--signal: the launch has no time limit before which the signal could be sent; a time of 0 is none\ntry: --time LIMIT",
        );
    }
    refused("-x node1 true", "--exclude needs the nodes of an allocation");
    refused("--detach true", "--detach needs the nodes of an allocation");
}

#[test]
fn this_machine_is_a_node_that_can_be_named() {
    let check = |line: &str, ranks: u32| assert_eq!(prepared(line).unwrap().placed.job.size(), ranks, "{line}");
    check("-w node3 true", 1);
    check("-w localhost -n 2 true", 2);
    check("-N 1 -w node3.cluster.example -n 2 true", 2);
    check("--host localhost:4 true", 4);
    check("-H node3:2,localhost -n 2 true", 2);
    refused(
        "--host localhost:2 -n 3 true",
        "3 ranks do not fit: --hostfile, --host or --rankfile gives this machine 2 slots",
    );
    let hosts = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(hosts.path(), "localhost slots=4\n").unwrap();
    check(&format!("--hostfile {} true", hosts.path().display()), 4);
    check(&format!("--hostfile {} -n 2 true", hosts.path().display()), 2);
}

#[test]
fn slots_are_the_universe_of_those_that_ask_for_it() {
    let check = |flags: &str, size: Option<u32>| {
        let line = format!("{flags} -n 2 true");
        assert_eq!(prepared(&line).unwrap().placed.job.universe_size, size, "{line}");
    };
    check("", None);
    check("--universe-size 9", Some(9));
    check("--universe-size slots --host localhost:4,node3:3", Some(7));
    check("--universe-size slots --tasks-per-node 5", Some(5));
    // The launch can have more ranks than the machine has slots.
    let cpus = usable_cpus().get() as u32;
    check("--universe-size slots", Some(cpus.max(2)));
}

#[test]
fn a_launch_on_a_cluster_shows_places_and_programs_as_they_were_given() {
    let mut placed = prepared("-n 3 true : -n 2 false").unwrap().placed;
    placed.hosts = vec!["node0".to_owned(), "node1".to_owned()];
    let block = |first_node, nodes| Block { first_node: NodeIndex(first_node), nodes, ranks_per_node: 1 };
    placed.job.placement = Placement::default();
    [block(0, 2), block(0, 2), block(0, 1)].into_iter().for_each(|block| placed.job.placement.push(block));
    let launch = PreparedLaunch::on_cluster(placed, OutputRequest::default());
    let rows: Vec<_> = launch
        .ranks
        .iter()
        .map(|row| (row.place.rank.0, row.place.node.0, row.place.local_rank.0, row.place.app))
        .collect();
    assert_eq!(rows, [(0, 0, 0, 0), (1, 1, 0, 0), (2, 0, 1, 0), (3, 1, 1, 1), (4, 0, 2, 1)]);
    assert_eq!(launch.ranks[4].program, Path::new("false"));
    assert!(launch.ranks.iter().all(|row| row.cpus.is_none()), "only its node knows them");
}

#[test]
fn output_files_are_named_for_every_rank() {
    let request = prepared("-n 2 --output %j/out.%r --error all true").unwrap();
    let id = &request.placed.launch_id;
    let file = |rank: usize, stream| request.output_file(&request.ranks[rank], stream);
    assert_eq!(file(1, Stream::Stdout), Some(PathBuf::from(format!("{id}/out.1"))));
    assert_eq!(file(1, Stream::Stderr), Some(PathBuf::from("all")));
    assert_eq!(request.output_files().len(), 3);
}

/// As with srun, `%t` is the number of the task in the launch, not on its node.
#[test]
fn ranks_of_different_nodes_do_not_share_a_file_named_by_task() {
    let mut launch = prepared("-n 4 --output out.%t --error %N/err true").unwrap();
    launch.placed.hosts = vec!["node0.cluster".to_owned(), "node1.cluster".to_owned()];
    launch.placed.job.placement = Placement::block(&[2, 2]);
    let launch = PreparedLaunch::on_cluster(launch.placed, launch.output);
    let files =
        |stream| -> Vec<PathBuf> { launch.ranks.iter().filter_map(|row| launch.output_file(row, stream)).collect() };
    assert_eq!(files(Stream::Stdout), ["out.0", "out.1", "out.2", "out.3"].map(PathBuf::from));
    assert_eq!(files(Stream::Stderr), ["node0/err", "node0/err", "node1/err", "node1/err"].map(PathBuf::from));
}

#[test]
fn launch_ids_are_new_each_time_and_make_job_ids() {
    let (one, other) = (prepared("true").unwrap().placed, prepared("true").unwrap().placed);
    assert_ne!(one.launch_id, other.launch_id);
    assert_eq!(one.launch_id.len(), 10);
    assert_eq!(one.job.id.as_str(), format!("kvs_{}_0", one.launch_id));
}

#[test]
fn memory_and_gpus_that_this_machine_does_not_have_are_refused_before_a_start() {
    refused("--mem-bind map_mem:999 true", "--mem-bind: ");
    refused("--gpu-bind map:999 true", "--gpu-bind: ");
}

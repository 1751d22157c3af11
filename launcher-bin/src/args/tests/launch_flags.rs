//! Flags of `lattice launch`: each in all its spellings, in any order.

use lattice_console::Verbosity;
use proptest::prelude::*;

use lattice_dialects::idle::Allocation;

use super::*;

#[test]
fn every_spelling_of_a_flag_means_the_same() {
    let check = |spellings: &[&str], seen: fn(LaunchArgs) -> String, expected: &str| {
        for spelling in spellings {
            let args = launch(&format!("{spelling} ./a -n 9"));
            assert_eq!(args.first.command, ["./a", "-n", "9"], "{spelling}");
            assert_eq!(seen(args), expected, "{spelling}");
        }
    };
    let ranks = ["-n 3", "-n3", "-n=3", "--ntasks 3", "--ntasks=3", "-np 3", "-np3", "-np=3", "--np 3", "--np=3"];
    check(&ranks, |args| format!("{:?}", args.first.ranks), "Some(3)");
    let per_node = ["--tasks-per-node 3", "--tasks-per-node=3", "--ntasks-per-node 3", "--ntasks-per-node=3"];
    check(&per_node, |args| format!("{:?}", args.placement.tasks_per_node), "Some(3)");
    let nodes = ["-N 2", "-N2", "-N=2", "--nodes 2", "--nodes=2"];
    check(&nodes, |args| format!("{:?}", args.placement.nodes.map(|nodes| nodes.most)), "Some(2)");
    let range = |args: LaunchArgs| format!("{:?}", args.placement.nodes.map(|nodes| (nodes.least, nodes.most)));
    check(&["-N 1-2", "--nodes=1-2"], range, "Some((1, 2))");
    let list = ["-w n[0-1]", "-wn[0-1]", "--nodelist n[0-1]", "--nodelist=n[0-1]"];
    check(&list, |args| format!("{:?}", args.placement.nodelist), "Some(\"n[0-1]\")");
    let exclude = ["-x n3", "-xn3", "--exclude n3", "--exclude=n3"];
    check(&exclude, |args| format!("{:?}", args.placement.exclude), "Some(\"n3\")");
    check(&["-l", "--label"], |args| format!("{:?}", args.streams.label), "Some(Rank)");
    check(&["--hostfile h", "--hostfile=h"], |args| format!("{:?}", args.placement.hostfile), "Some(\"h\")");
    check(&["--alloc 7f3k", "--alloc=7f3k"], |args| format!("{:?}", args.cluster.alloc), "Some(\"7f3k\")");
    check(&["--api unix:/x", "--api=unix:/x"], |args| format!("{:?}", args.cluster.api.api), "Some(\"unix:/x\")");
    check(&["--env A=1", "--env=A=1"], |args| format!("{:?}", args.first.env[0].value), "Some(\"1\")");
    check(&["--chdir /tmp", "--chdir=/tmp"], |args| format!("{:?}", args.first.chdir), "Some(\"/tmp\")");
    check(
        &["--timeout 90", "--timeout=90s", "--timeout 1m30s"],
        |args| format!("{:?}", args.time.timeout),
        "Some(90s)",
    );
    let wait = ["-W 5", "-W5", "-W=5", "--wait 5", "--wait=5s"];
    check(&wait, |args| format!("{:?}", args.time.wait), "Some(5s)");
    let borne = ["-K0", "-K=0", "--kill-on-bad-exit=0"];
    check(&borne, |args| format!("{:?}", args.failures.kill_on_bad_exit), "No");
    check(&["-k", "--no-kill"], |args| args.failures.no_kill.to_string(), "true");
    let ends = ["-K", "-K1", "-K=1", "--kill-on-bad-exit", "--kill-on-bad-exit=1", ""];
    check(&ends, |args| format!("{:?}", args.failures.kill_on_bad_exit), "Yes");
    check(
        &["--timeout 90 --signal USR1@30", "--signal=10@30s --timeout 90"],
        |args| format!("{:?}", args.time.signal),
        "Some(SignalAhead { signal: SIGUSR1, ahead: 30s })",
    );
    let bind = ["--cpu-bind cores", "--cpu-bind=cores", "--cpu-bind=core", "--cpu-bind verbose,cores"];
    check(&bind, |args| args.placement.cpu_bind.unwrap().bind.unwrap().to_string(), "cores");
    let each = ["-c 4", "-c4", "-c=4", "--cpus-per-task 4", "--cpus-per-task=4"];
    check(&each, |args| format!("{:?}", args.placement.cpus_per_task), "Some(4)");
    check(&["-O", "--overcommit"], |args| args.placement.overcommit.to_string(), "true");
    check(&["-t 10", "-t10", "--time 10:00", "--time=10m"], |args| format!("{:?}", args.time.time), "Some(600s)");
    let directory = ["-D /x", "-D/x", "--chdir /x", "--wdir=/x", "-wdir /x", "-wd /x", "--cwd /x"];
    check(&directory, |args| format!("{:?}", args.first.chdir), "Some(\"/x\")");
    let file = |template: Option<Template>| format!("{:?}", template.map(|template| template.to_text()));
    assert_eq!(file(launch("-o o.%t ./a").streams.output), file(launch("--output=o.%t ./a").streams.output));
    assert_eq!(file(launch("-e e.%t ./a").streams.error), file(launch("--error e.%t ./a").streams.error));
    check(&["-i none", "--input=none", "--stdin none"], |args| format!("{:?}", args.streams.stdin), "None");
    check(
        &["-m cyclic", "--distribution=cyclic"],
        |args| format!("{:?}", args.placement.distribution.unwrap().nodes),
        "Some(Cyclic)",
    );
    check(&["--mpi=pmix", "--mpi pmix_v4", "--pmi=pmix"], |args| format!("{:?}", args.pmi.pmi), "Pmix");
    let hosts = ["-H a:2", "--host=a:2", "-host a:2"];
    check(&hosts, |args| args.placement.host.unwrap().0[0].slots.unwrap().to_string(), "2");
}

#[test]
fn flags_that_are_left_out_have_their_defaults() {
    let args = launch("./a");
    assert_eq!((args.first.ranks, args.placement.nodes, args.placement.tasks_per_node), (None, None, None));
    assert_eq!((args.pmi.pmi, args.streams.stdin), (Pmi::Auto, Stdin::Rank(0)));
    assert_eq!((args.placement.cpu_bind, args.placement.cpus_per_task), (None, None));
    assert_eq!(args.placement.distribution, None);
    assert_eq!((args.time.timeout, args.time.kill_wait, args.time.stuck_after), (None, None, None));
    assert!(!args.cluster.detach && !args.streams.json && !args.placement.dry_run && !args.pmi.pmi_port);
}

#[test]
fn of_a_flag_that_is_given_twice_the_last_one_counts_and_variables_all_do() {
    let twice = launch("-n 2 -N 3 --label --pmi auto -n 4 -N 1 --label=node --pmi pmi2 ./a");
    assert_eq!((twice.first.ranks, twice.placement.nodes.map(|nodes| nodes.most)), (Some(4), Some(1)));
    assert_eq!(format!("{:?} {:?}", twice.streams.label, twice.pmi.pmi), "Some(Node) Pmi2");
    assert!(launch("--show-map --show-map ./a").placement.show_map);
    let names: Vec<_> = launch("--env A=1 --env B --env A=2 ./a").first.env.into_iter().map(|set| set.name).collect();
    assert_eq!(names, ["A", "B", "A"], "the last one counts where ranks are started");
}

#[test]
fn flags_that_contradict_each_other_are_refused_in_either_order() {
    for (one, other) in [
        ("-l", "--json"),
        ("--timestamp", "--json"),
        ("--hostfile h", "-w n0"),
        ("--hostfile h", "--tasks-per-node 2"),
        ("--detach", "-l"),
        ("--detach", "--timestamp"),
        ("--detach", "--output o"),
        ("--detach", "--error e"),
        ("--detach", "--pmi-trace t"),
    ] {
        refused(&format!("lattice launch {one} {other} ./a"), "cannot be used with");
        refused(&format!("lattice launch {other} {one} ./a"), "cannot be used with");
    }
}

/// Scripts for srun have these flags, and must still run.
#[test]
fn flags_of_srun_that_are_ignored_are_taken_and_noted() {
    let args = launch("-p debug --account=a -J name --mem=4G --gres=none -s -I ./a -p x");
    let notes = |allocation, verbosity| args.idle.notes(allocation, verbosity).collect::<Vec<String>>();
    let all = notes(Allocation::Given, Verbosity::Verbose);
    assert_eq!(all.len(), 6, "{all:?}");
    assert_eq!(
        all[0],
        "note: --account is ignored: there are no accounts, partitions, classes of service and reservations"
    );
    let memory = "note: --mem is ignored: no memory limit is set; an allocation has whole nodes";
    assert_eq!(notes(Allocation::Given, Verbosity::Normal), [memory]);
    assert_eq!(notes(Allocation::Missing, Verbosity::Normal).len(), 2, "-p would have chosen nodes");
    assert!(notes(Allocation::Missing, Verbosity::Quiet).is_empty());
    assert_eq!(args.first.command, ["./a", "-p", "x"]);
    assert_eq!(launch("./a").idle.notes(Allocation::Missing, Verbosity::Verbose).count(), 0);
}

#[test]
fn how_failures_of_others_end_a_rank_is_a_yes_or_no() {
    refused("lattice launch --kill-on-bad-exit=2 ./a", "invalid value '2'");
}

#[test]
fn a_program_that_is_missing_is_asked_for() {
    for line in ["lattice launch", "lattice launch -n 4", "lattice launch --label --", "lattice launch ./a : -n 1"] {
        refused(line, "required arguments were not provided:\n  <PROGRAM [ARGS]>...");
    }
}

#[test]
fn verbosity_may_stand_before_the_command_and_behind() {
    let check = |line: &str, quiet: bool, verbose: bool| {
        let cli = parsed(line).unwrap();
        assert_eq!((cli.verbosity.quiet, cli.verbosity.verbose), (quiet, verbose), "{line}");
    };
    check("lattice launch ./a -v -q", false, false);
    check("lattice -v launch ./a", false, true);
    check("lattice launch -v ./a", false, true);
    check("lattice --quiet launch ./a", true, false);
    check("lattice nodes -q", true, false);
}

proptest! {
    /// Users type flags in any order.
    #[test]
    fn the_order_of_flags_means_nothing(flags in Just(vec![
        "-n 4", "-N 2", "--label", "--env A=1", "--chdir /tmp", "--pmi pmi2", "--timeout 5m", "--output o.%t", "--stdin none",
        "-x node3", "--show-map", "-v",
    ]).prop_shuffle()) {
        let shuffled = parsed(&format!("lattice launch {} ./a -n 1", flags.join(" "))).unwrap();
        let mut sorted = flags.clone();
        sorted.sort_unstable();
        let expected = parsed(&format!("lattice launch {} ./a -n 1", sorted.join(" "))).unwrap();
        prop_assert_eq!(format!("{shuffled:?}"), format!("{expected:?}"));
    }

    /// All words after the program are its own, even flags and commands of Lattice.
    #[test]
    fn words_of_the_program_are_never_read(words in proptest::collection::vec("(-{0,2}[a-zN]{1,6}(=[a-z0-9]{1,2})?|launch|-np|-hosts|--)", 0..6)) {
        let args = launch(&format!("-n 2 ./a {}", words.join(" ")));
        prop_assert_eq!(args.first.ranks, Some(2));
        prop_assert_eq!(&args.first.command[1..], words.iter().map(OsString::from).collect::<Vec<_>>());
    }

    /// No words of a user cause a panic, or mean anything other than a command line.
    #[test]
    fn any_words_are_a_command_line_or_an_error(words in proptest::collection::vec("[-a-z0-9:=\\[\\]%]{0,6}", 0..6)) {
        let line = ["lattice".to_owned(), "launch".to_owned()].into_iter().chain(words).map(OsString::from);
        if let Ok(Cli { command, .. }) = parse(line) {
            prop_assert!(matches!(command, Command::Launch(args) if !args.first.command.is_empty()));
        }
    }
}

mod book;
mod commands;
mod dialects;
mod foreign;
mod launch_flags;
mod letters;
mod masks;

use std::ffi::OsStr;

use lattice_console::exit;
use lattice_session::settings::Timeouts;
use lattice_session::template::Template;

use super::*;

fn parsed(line: &str) -> Result<Cli, String> {
    parse(line.split_whitespace().map(OsString::from)).map_err(|error| error.to_string())
}

fn launch(line: &str) -> LaunchArgs {
    match parsed(&format!("lattice launch {line}")).unwrap().command {
        Command::Launch(launch) => launch.into_inner(),
        other => panic!("{line} became {other:?}"),
    }
}

fn refused(line: &str, expected: &str) {
    match parsed(line) {
        Err(text) => assert!(text.contains(expected), "{line}: {text}"),
        Ok(cli) => panic!("{line} became {cli:?}"),
    }
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn everything_after_the_program_belongs_to_it() {
    let check = |line: &str, ranks: Option<u32>, command: &[&str]| {
        let launch = launch(line);
        assert_eq!(launch.first.command, command, "{line}");
        assert_eq!(launch.first.ranks, ranks, "{line}");
    };
    check("./a", None, &["./a"]);
    check("-n 4 ./a -n 2 --label -- -x", Some(4), &["./a", "-n", "2", "--label", "--", "-x"]);
    check("-n4 -- ./a -x", Some(4), &["./a", "-x"]);
    check("--ntasks=4 -- -odd name", Some(4), &["-odd", "name"]);
    check("-np 4 ./a -np 2", Some(4), &["./a", "-np", "2"]);
    check("--np 4 ./a", Some(4), &["./a"]);
}

#[test]
fn spellings_of_other_launchers_are_understood() {
    let launch = launch("-l -np 3 --ntasks-per-node 2 ./a : -np 2 ./b -help");
    assert_eq!(launch.streams.label, Some(Label::Rank));
    assert_eq!((launch.first.ranks, launch.placement.tasks_per_node), (Some(3), Some(2)));
    assert_eq!(
        (launch.more[0].program.ranks, &launch.more[0].program.command[..]),
        (Some(2), &["./b".into(), "-help".into()][..])
    );
    let help = parse(["lattice", "launch", "-help"].map(OsString::from)).unwrap_err();
    assert_eq!(help.kind(), ErrorKind::DisplayHelp);
    assert!(help.to_string().contains("Exit codes:"));
}

#[test]
fn words_of_other_launchers_are_refused_with_what_to_type() {
    let check = |line: &str, word: &str, tip: &str| {
        let error = parse(line.split(' ').map(OsString::from)).unwrap_err();
        assert!(error.use_stderr(), "{line} must not look like success");
        let text = error.to_string();
        assert!(text.contains(&format!("'{word}'")), "{line}: {text}");
        assert_eq!(text.matches("tip: ").count(), 1, "{line}: {text}");
        assert!(text.contains(&format!("  tip: {tip}")), "{line}: {text}");
    };
    check("lattice launch -hosts localhost -n 2 hostname", "-hosts", "type --host HOST:N,..., or -w NODES");
    check("lattice launch -ppn 2 ./a", "-ppn", "type --tasks-per-node K");
    check("lattice launch --bind-to core ./a", "--bind-to", "type --cpu-bind=none|threads|cores");
    check("lattice dev-cluster -n 2 -- true", "-n", "type -N for a number of nodes");
    check("lattice -n 4 hostname", "-n", "did you mean: lattice launch -n 4 hostname");
    check("lattice ./a.out x", "./a.out", "did you mean: lattice launch ./a.out x");
    check("lattice start -n 4 ./a.out", "-n", "did you mean: lattice launch -n 4 ./a.out");
    check("lattice -v scancel abc", "scancel", "did you mean: lattice cancel");
    check("lattice luanch ./a", "luanch", "a similar subcommand exists: 'launch'");
    check("lattice launch --lable ./a", "--lable", "a similar argument exists: '--label'");
}

#[test]
fn a_tip_that_cannot_help_is_not_given() {
    for line in ["lattice launch --no-such-flag ./a", "lattice launch -Z ./a", "lattice status --no-such x"] {
        let error = parsed(line).unwrap_err();
        assert!(error.contains("unexpected argument '-") && !error.contains("tip: "), "{line}: {error}");
    }
    let error = parsed("lattice nosuchcommandatall").unwrap_err();
    assert!(error.contains("unrecognized subcommand") && !error.contains("tip: "), "{error}");
}

#[test]
fn programs_are_split_at_a_lone_colon() {
    let launch = launch("--label -n 2 ./a x : -n 1 --env A=1 --chdir /tmp ./b : ./c a:b --label");
    assert_eq!(launch.streams.label, Some(Label::Rank));
    let commands: Vec<_> = launch.more.iter().map(|program| program.program.command.clone()).collect();
    assert_eq!(commands, [vec!["./b"], vec!["./c", "a:b", "--label"]]);
    assert_eq!(launch.more[0].program.ranks, Some(1));
    assert_eq!(launch.more[0].program.chdir, Some("/tmp".into()));
    assert_eq!(launch.more[0].program.env, [EnvSetting { name: "A".into(), value: Some("1".into()) }]);
}

#[test]
fn flags_of_the_whole_launch_stand_before_the_first_program() {
    let expected = "--label holds for the whole launch, not for one program; it must stand before the first program";
    refused("lattice launch ./a : --label ./b", expected);
    refused("lattice launch ./a : --pmi=none ./b", "--pmi holds for the whole launch");
    refused("lattice launch ./a : -v ./b", "-v holds for the whole launch");
    refused("lattice launch ./a : --nonsense ./b", "unexpected argument '--nonsense'");
    refused("lattice launch ./a :", "required arguments were not provided");
    refused("lattice launch : ./b", "required arguments were not provided");
}

#[test]
fn wrong_values_are_refused_with_what_is_possible() {
    let check = |flags: &str, expected: &str| refused(&format!("lattice launch {flags} ./a"), expected);
    check("-n 0", "a job has at least 1 rank");
    check("-n x", "it is not a positive whole number");
    check("-n -3", "'-3' for '--ntasks <N>': it is not a positive whole number");
    check("-N -3", "a number of nodes from 1 to 4294967295 is possible");
    check("--timeout -3", "not a duration");
    check("-w node[3", "'node[3' for '--nodelist <NODES>': ");
    check("-x node[3-1]", "'node[3-1]' for '--exclude <NODES>': ");
    check("-n 3000000000", "MPI counts ranks up to 2147483647");
    check("-n 99999999999999", "MPI counts ranks up to 2147483647");
    check("--env =1", "the name of the variable is missing");
    check("--env-remove A*B", "`*` is possible at the end of a name only");
    check("--pmi pmi3", "auto, pmi1, pmi2, pmix, none");
    check("--output a%A", "%A has no meaning in a file name");
    check("--stdin in%A", "%A has no meaning in a file name");
    check("--timeout 10:00", "not a duration of at most 366 days; 30, 30s, 500ms, 5m, 1h30m and 2d are");
    check("--lable", "--label");
    check("--json --label", "cannot be used with");
    check("-N 0", "a number of nodes from 1 to 4294967295 is possible");
    check("-N 3-2", "a number of nodes from 1 to 4294967295 is possible, or MIN-MAX, or all");
    check("-N x", "a number of nodes from 1 to 4294967295 is possible, or MIN-MAX, or all");
    check("-w node1 --hostfile hosts", "cannot be used with");
    check("--rankfile r --exclude node1", "cannot be used with");
    check("--rankfile r -N 2", "cannot be used with");
    check("--rankfile r --rank-by slot", "cannot be used with");
    check("--distribution plane", "`block`, `cyclic` and `plane=N` are possible");
    check("--distribution block:plane=2", "after a `:` `block`, `cyclic` and `fcyclic` are possible");
    check("--distribution plane=0", "needs the number of ranks");
    check("-c 0", "invalid value '0'");
    check("--cpu-bind racks", "l3caches, numa, sockets");
    check("-q -v", "cannot be used with");
}

#[test]
fn a_list_of_nodes_that_is_empty_does_not_mean_all() {
    for (command, flag) in [("launch", "-w"), ("launch", "-x"), ("alloc create", "-w"), ("cxi clean", "--gone")] {
        let words = ["lattice"].into_iter().chain(command.split(' ')).chain([flag, ""]);
        let error = parse(words.map(OsString::from)).unwrap_err().to_string();
        assert!(error.contains("it names no node; a list such as node[0-3,7] does"), "{command} {flag}: {error}");
    }
}

#[test]
fn an_id_that_is_empty_is_missing() {
    for command in ["status", "proctable", "attach", "cancel", "signal --ranks 0", "alloc release"] {
        let words = ["lattice"].into_iter().chain(command.split(' ')).chain([""]);
        let error = parse(words.map(OsString::from)).unwrap_err().to_string();
        assert!(error.contains("a value is required for '"), "{command}: {error}");
    }
}

#[test]
fn protocols_are_listed_whatever_else_is_asked_for() {
    for line in ["lattice launch --pmi=list", "lattice launch -n 4 --pmi list ./a"] {
        let answer = parse(line.split(' ').map(OsString::from)).unwrap_err();
        assert!(!answer.use_stderr(), "{line}");
        let text = answer.to_string();
        let listed: Vec<_> = text.trim_start_matches("error: ").lines().take(5).map(|line| &line[..6]).collect();
        assert!(text.contains("\n\nThis build serves PMI-1.1, "), "{text}");
        assert_eq!(listed, ["auto  ", "pmi1  ", "pmi2  ", "pmix  ", "none  "], "{line}");
    }
}

#[test]
fn standard_input_goes_where_it_is_sent() {
    let check = |value: &str, expected: Stdin| {
        assert_eq!(launch(&format!("--stdin {value} ./a")).streams.stdin, expected);
    };
    check("none", Stdin::None);
    check("all", Stdin::All);
    check("7", Stdin::Rank(7));
    check("./7", Stdin::File("./7".into(), Template::parse(OsStr::new("./7")).unwrap()));
    assert_eq!(launch("./a").streams.stdin, Stdin::Rank(0));
}

#[test]
fn help_has_the_exit_codes_and_examples() {
    let error = parsed("lattice launch --help").unwrap_err();
    for exit::ExitCode { codes, cause, .. } in exit::TABLE {
        assert!(error.contains(&format!("  {codes:<8} {cause}")), "{codes} is not in {error}");
    }
    for heading in
        ["For each program", "Placement", "Cluster", "PMI", "Input and output", "Time", "Exit codes", "Examples"]
    {
        assert!(error.contains(heading), "{heading} is not in {error}");
    }
    assert_eq!(error.matches("\n  lattice launch ").count(), 3);
    let default = Timeouts::default();
    for time in [default.stuck, default.grace_after_failure, default.grace_after_interrupt, default.output_end] {
        assert!(error.contains(&format!("{time:?}")), "{time:?} is not in {error}");
    }
}

//! The command line: each flag is defined once, and parser, help, man page and completions come from that definition.
//!
//! Only the shape of a single flag is checked here; whether they make sense together and on this machine is
//! [`crate::request`]'s business. The programs of a launch are split at each lone `:` before clap sees them, so that every
//! program has its own `-n`, `--env`, `--env-remove` and `--chdir`.

mod cluster;
#[cfg(feature = "dev-cluster")]
pub(crate) mod dev_cluster;
mod launch;
mod other_launchers;
pub(crate) mod pki;
mod pmi;
pub(crate) mod pmi_command;
mod tips;
mod value;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::builder::NonEmptyStringValueParser;
use clap::error::{ContextKind, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

pub use self::cluster::{
    AbortArgs, AllocCommand, AttachArgs, CreateArgs, CxiCommand, Nodes, NodesArgs, NodesCommand, Requeue, ServerArgs,
    SignalArgs, TableArgs,
};
#[cfg(feature = "dev-cluster")]
pub use self::dev_cluster::DevClusterArgs;
pub use self::launch::{
    ClusterArgs, Distribution, LaunchArgs, PlacementArgs, PmiArgs, ProgramArgs, StreamArgs, TimeArgs,
};
use self::other_launchers::translate;
pub use self::pki::PkiCommand;
pub use self::pmi::Pmi;
pub use self::pmi_command::PmiCommand;
use self::tips::{About, improved};
pub use self::value::{EnvSetting, EnvSettingError, NodeListError, RankCountError, Stdin};

/// Separator of the programs of a launch.
const SEPARATOR: &str = ":";

/// Starts MPI programs and wires them up: one command, no SSH, whatever MPI they were built with.
#[derive(Debug, Parser)]
#[command(name = "lattice", version, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Cli {
    /// Say nothing but what failed, and why.
    #[arg(short, long, global = true, conflicts_with = "verbose", display_order = LAST)]
    pub quiet: bool,
    /// Say what is set, started and ended.
    #[arg(short, long, global = true, display_order = LAST)]
    pub verbose: bool,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `lattice`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program as the ranks of a job.
    #[command(after_help = launch::after_help(), override_usage = launch::USAGE)]
    Launch(Box<LaunchArgs>),
    /// Make, show and release allocations: nodes of a cluster to launch on.
    #[command(subcommand)]
    Alloc(AllocCommand),
    /// Show the nodes of the cluster, drain them and resume them.
    Nodes(NodesArgs),
    /// Show your launches on the cluster; administrators see everybody's.
    Launches {
        /// Also those that have ended.
        #[arg(long)]
        all: bool,
        /// Server and form of the answer.
        #[command(flatten)]
        table: TableArgs,
    },
    /// Show how far each rank of a launch has come, node by node.
    Status {
        /// The launch.
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        launch: String,
        /// Server and form of the answer.
        #[command(flatten)]
        table: TableArgs,
    },
    /// Follow a launch that runs already; Ctrl-C leaves it running.
    Attach(AttachArgs),
    /// Send a signal to ranks of a launch.
    #[command(
        after_help = "Examples:\n  lattice signal k3jq09zmf2 USR1\n  lattice signal k3jq09zmf2 STOP --ranks 0-3,8"
    )]
    Signal(SignalArgs),
    /// End a launch.
    Abort(AbortArgs),
    /// Print where each rank of a launch runs, for debuggers.
    Proctable {
        /// The launch.
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        launch: String,
        /// Server and form of the answer.
        #[command(flatten)]
        table: TableArgs,
    },
    /// Look after fabric credentials; for administrators.
    #[command(subcommand)]
    Cxi(CxiCommand),
    /// Run a command, or your shell, in a cluster that is made on this machine and ends with it.
    #[cfg(feature = "dev-cluster")]
    #[command(after_help = DEV_CLUSTER_AFTER_HELP)]
    DevCluster(DevClusterArgs),
    /// Talk PMI to the launcher of this process, as one rank of its job.
    #[command(after_help = "Example:\n  lattice launch -n 4 lattice pmi exchange")]
    Pmi(PmiCommand),
    /// Make the certificates by which the API server, node agents and remote users prove who they are.
    Pki(PkiCommand),
    /// Serve a cluster: its nodes, allocations and launches.
    #[cfg(feature = "api")]
    Api(lattice_api_server::args::ApiArgs),
    /// Print the completions of a shell.
    #[command(after_help = "Example:\n  lattice completions bash > ~/.local/share/bash-completion/completions/lattice")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print a man page in roff.
    #[command(after_help = "Example:\n  lattice man launch | man -l -")]
    Man {
        /// The command to describe, such as `launch`; else lattice as a whole.
        command: Vec<String>,
    },
}

/// Flags of every command stand behind its own.
const LAST: usize = 900;

const AFTER_HELP: &str = "Environment:\n  \
    LATTICE_ALLOC_ID   the allocation to launch in, as --alloc\n  \
    LATTICE_API_URL    the API server, as --api; else `api` in ~/.config/lattice/config.toml\n  \
    LATTICE_SLURM_ENV  1 for what --slurm-env does\n  \
    LATTICE_LOG        what to log on standard error, such as info or lattice=debug\n\n\
    Example:\n  \
    lattice launch -n 4 ./a.out";

#[cfg(feature = "dev-cluster")]
const DEV_CLUSTER_AFTER_HELP: &str = "Examples:\n  \
    lattice dev-cluster --nodes 4 -- lattice launch -n 8 ./a.out\n  \
    lattice dev-cluster";

/// Reads a command line; its first word is the name that we were called by.
///
/// # Errors
/// Returns clap's error for a wrong command line, and also for `--help` and `--version`, as clap does.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let words: Vec<OsString> = words.into_iter().collect();
    match launch_position(&words) {
        Some(position) => parse_launch(&words, position).map_err(|error| improved(error, About::Launch, &words)),
        None => Cli::try_parse_from(&words).map_err(|error| improved(error, About::Other, &words)),
    }
}

/// Position of the word `launch`, if that is the command.
fn launch_position(words: &[OsString]) -> Option<usize> {
    let position = words.iter().skip(1).position(|word| !word.as_bytes().starts_with(b"-"))? + 1;
    (words[position] == "launch").then_some(position)
}

/// Reads a launch, whose own words begin behind `position`.
fn parse_launch(words: &[OsString], position: usize) -> Result<Cli, clap::Error> {
    let mut programs = words.split(|word| word == SEPARATOR);
    let mut first = programs.next().unwrap_or_default().to_vec();
    translate(first.get_mut(position + 1..).unwrap_or_default(), launch_definition)?;
    let mut cli = Cli::try_parse_from(first)?;
    if let Command::Launch(launch) = &mut cli.command {
        launch.more = programs.map(parse_program).collect::<Result<_, _>>()?;
    }
    Ok(cli)
}

/// The definition of `lattice launch` with the flags that every command has.
fn launch_definition() -> clap::Command {
    let mut cli = Cli::command();
    cli.build();
    cli.find_subcommand("launch").expect("it is a variant of Command").clone()
}

/// The definition of a program behind a `:`.
fn program_definition() -> clap::Command {
    ProgramArgs::augment_args(clap::Command::new("lattice launch ... :"))
        .no_binary_name(true)
        .disable_help_flag(true)
        .override_usage("lattice launch ... : [PROGRAM OPTIONS] PROGRAM [ARGS]...")
}

/// Reads what stands between two `:`.
fn parse_program(words: &[OsString]) -> Result<ProgramArgs, clap::Error> {
    let mut words = words.to_vec();
    translate(&mut words, program_definition)?;
    let mut command = program_definition();
    let matches = command.try_get_matches_from_mut(words).map_err(|error| match flag_of_launch(&error) {
        Some(flag) => command.error(
            ErrorKind::UnknownArgument,
            format!("{flag} holds for the whole launch, not for one program; it must stand before the first program"),
        ),
        None => error,
    })?;
    ProgramArgs::from_arg_matches(&matches)
}

/// The flag that `error` complains about, if `lattice launch` has it.
fn flag_of_launch(error: &clap::Error) -> Option<String> {
    let flag = error.get(ContextKind::InvalidArg)?.to_string();
    let cli = Cli::command();
    let launch = cli.find_subcommand("launch")?;
    let known = launch.get_arguments().chain(cli.get_arguments()).any(|arg| {
        arg.get_long().is_some_and(|long| flag.strip_prefix("--") == Some(long))
            || arg.get_short().is_some_and(|short| flag == format!("-{short}"))
    });
    (known && error.kind() == ErrorKind::UnknownArgument).then_some(flag)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use lattice_session::settings::Timeouts;
    use lattice_session::template::Template;

    use super::*;
    use crate::exit;

    fn parsed(line: &str) -> Result<Cli, String> {
        parse(line.split_whitespace().map(OsString::from)).map_err(|error| error.to_string())
    }

    fn launch(line: &str) -> LaunchArgs {
        match parsed(&format!("lattice launch {line}")).unwrap().command {
            Command::Launch(launch) => *launch,
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
        assert!(launch.streams.label);
        assert_eq!((launch.first.ranks, launch.placement.tasks_per_node), (Some(3), Some(2)));
        assert_eq!((launch.more[0].ranks, &launch.more[0].command[..]), (Some(2), &["./b".into(), "-help".into()][..]));
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
        let nodes = "nodes are those of an allocation: -w NODES, with --alloc ID";
        check("lattice launch -hosts localhost -n 2 hostname", "-hosts", nodes);
        check("lattice launch -host h hostname", "-host", nodes);
        check("lattice launch ./a : -host h ./b", "-host", nodes);
        check("lattice launch -H h:2 hostname", "-H", nodes);
        check("lattice launch --export=ALL,X=1 ./a", "--export", "type --env NAME=VALUE");
        check("lattice launch -wdir /tmp ./a", "-wdir", "type --chdir DIR");
        check("lattice launch -ppn 2 ./a", "-ppn", "type --tasks-per-node K");
        check("lattice launch --wait=10 ./a", "--wait", "type --timeout TIME");
        check("lattice launch --mpi=pmix ./a", "--mpi", "type --pmi=");
        check("lattice launch --pty bash", "--pty", "leave it out: ranks have no terminal here");
        check("lattice launch -c2 ./a", "-c", "type --cpu-bind=map:LIST");
        check("lattice dev-cluster -n 2 -- true", "-n", "type -N for a number of nodes");
        check("lattice -n 4 hostname", "-n", "did you mean: lattice launch -n 4 hostname");
        check("lattice ./a.out x", "./a.out", "did you mean: lattice launch ./a.out x");
        check("lattice run -n 4 ./a.out", "run", "did you mean: lattice launch -n 4 ./a.out");
        check("lattice -v kill abc", "kill", "did you mean: lattice abort");
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
        assert!(launch.streams.label);
        let commands: Vec<_> = launch.more.iter().map(|program| program.command.clone()).collect();
        assert_eq!(commands, [vec!["./b"], vec!["./c", "a:b", "--label"]]);
        assert_eq!(launch.more[0].ranks, Some(1));
        assert_eq!(launch.more[0].chdir, Some("/tmp".into()));
        assert_eq!(launch.more[0].env, [EnvSetting { name: "A".into(), value: Some("1".into()) }]);
    }

    #[test]
    fn flags_of_the_whole_launch_stand_before_the_first_program() {
        let expected =
            "--label holds for the whole launch, not for one program; it must stand before the first program";
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
        check("-N -3", "-3 is not in 1..");
        check("--timeout -3", "not a duration");
        check("-w node[3", "'node[3' for '--nodelist <NODES>': ");
        check("-x node[3-1]", "'node[3-1]' for '--exclude <NODES>': ");
        check("-n 3000000000", "MPI counts ranks up to 2147483647");
        check("-n 99999999999999", "MPI counts ranks up to 2147483647");
        check("--env =1", "the name of the variable is missing");
        check("--env-remove A*B", "`*` is possible at the end of a name only");
        check("--pmi pmi3", "auto, pmi1, pmi2, pmix, none");
        check("--output a%x", "%x has no meaning in a file name");
        check("--stdin in%x", "%x has no meaning in a file name");
        check("--timeout 10:00", "not a duration; 30, 30s, 500ms, 5m, 1h30m and 2d are");
        check("--lable", "--label");
        check("--json --label", "cannot be used with");
        check("-N 0", "0 is not in 1..");
        check("-w node1 --hostfile hosts", "cannot be used with");
        check("--distribution plane", "block, cyclic");
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
        for command in ["status", "proctable", "attach", "abort", "signal --ranks 0", "alloc release"] {
            let words = ["lattice"].into_iter().chain(command.split(' ')).chain([""]);
            let error = parse(words.map(OsString::from)).unwrap_err().to_string();
            assert!(error.contains("a value is required for '<"), "{command}: {error}");
        }
    }

    #[test]
    fn protocols_are_listed_whatever_else_is_asked_for() {
        for line in ["lattice launch --pmi=list", "lattice launch -n 4 --pmi list ./a"] {
            let answer = parse(line.split(' ').map(OsString::from)).unwrap_err();
            assert!(!answer.use_stderr(), "{line}");
            let text = answer.to_string();
            let listed: Vec<_> = text.trim_start_matches("error: ").lines().map(|line| &line[..6]).collect();
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
        for (code, meaning) in exit::TABLE {
            assert!(error.contains(&format!("  {code:<6} {meaning}")), "{code} is not in {error}");
        }
        for heading in
            ["For each program", "Placement", "Cluster", "PMI", "Input and output", "Time", "Exit codes", "Examples"]
        {
            assert!(error.contains(heading), "{heading} is not in {error}");
        }
        assert_eq!(error.matches("\n  lattice launch ").count(), 3);
        let default = Timeouts::default();
        for time in [default.stuck, default.grace_after_failure, default.grace_after_interrupt] {
            assert!(error.contains(&format!("{time:?}")), "{time:?} is not in {error}");
        }
    }
}

//! The command line: each flag is defined once, and parser, help, man page and completions come from that definition.
//!
//! Only the shape of a single flag is checked here; whether they make sense together and on this machine is
//! [`crate::request`]'s business. The programs of a launch are split at each lone `:` before clap sees them, so that every
//! program has its own `-n`, `--env`, `--env-remove` and `--chdir`.

mod cluster;
mod duration;
mod value;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{FalseyValueParser, OsStringValueParser, TypedValueParser};
use clap::error::{ContextKind, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use lattice_agent::template::Template;
use rank_spawner::CpuBind;

pub use self::cluster::{
    AbortArgs, AllocCommand, AttachArgs, CreateArgs, CxiCommand, Nodes, NodesArgs, NodesCommand, Requeue, ServerArgs,
    SignalArgs, TableArgs,
};
pub use self::value::{EnvSetting, EnvSettingError, RankCountError, Stdin};
use self::value::{rank_count, template, variable_pattern};
use crate::api::args::ApiArgs;
use crate::dev_cluster::args::DevClusterArgs;
use crate::exit;
use crate::pki::PkiCommand;
use crate::pmi_command::PmiCommand;

/// What separates the programs of a launch.
const SEPARATOR: &str = ":";

/// Starts MPI programs and wires them up: one command, no SSH, whatever MPI they were built with.
#[derive(Debug, Parser)]
#[command(name = "lattice", version, max_term_width = 100)]
pub struct Cli {
    /// Say nothing but why a launch failed.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Say what is set, started and ended.
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `lattice`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program as the ranks of a job.
    #[command(after_help = launch_after_help(), override_usage = LAUNCH_USAGE)]
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
        /// Where from, and how.
        #[command(flatten)]
        table: TableArgs,
    },
    /// Show how far each rank of a launch has come, node by node.
    Status {
        /// The launch.
        launch: String,
        /// Where from, and how.
        #[command(flatten)]
        table: TableArgs,
    },
    /// Follow a launch that runs already; Ctrl-C leaves it running.
    Attach(AttachArgs),
    /// Send a signal to every rank of a launch.
    #[command(after_help = "Example:\n  lattice signal k3jq09zmf2 USR1")]
    Signal(SignalArgs),
    /// End a launch.
    Abort(AbortArgs),
    /// Print where each rank of a launch runs, for debuggers.
    Proctable {
        /// The launch.
        launch: String,
        /// Where from, and how.
        #[command(flatten)]
        table: TableArgs,
    },
    /// Look after fabric credentials; for administrators.
    #[command(subcommand)]
    Cxi(CxiCommand),
    /// Run a command, or your shell, in a cluster that is made on this machine and ends with it.
    #[command(after_help = DEV_CLUSTER_AFTER_HELP)]
    DevCluster(DevClusterArgs),
    /// Talk PMI to the launcher of this process, as one rank of its job.
    #[command(after_help = "Example:\n  lattice launch -n 4 lattice pmi exchange")]
    Pmi(PmiCommand),
    /// Make the certificates by which the API server, node agents and remote users prove who they are.
    Pki(PkiCommand),
    /// Serve a cluster: its nodes, allocations and launches.
    Api(ApiArgs),
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

const DEV_CLUSTER_AFTER_HELP: &str = "Examples:\n  \
    lattice dev-cluster --nodes 4 -- lattice launch -n 8 ./a.out\n  \
    lattice dev-cluster";

const LAUNCH_USAGE: &str = "lattice launch [OPTIONS] PROGRAM [ARGS]... [: [PROGRAM OPTIONS] PROGRAM [ARGS]...]...";

fn launch_after_help() -> String {
    let examples = "Examples:\n  \
        lattice launch -n 4 ./a.out\n  \
        lattice launch --alloc 7f3k -N 2 --tasks-per-node 8 ./a.out\n  \
        lattice launch --label -n 1 ./ocean : -n 3 --env GRID=fine ./atmosphere";
    format!("{}\n{examples}", exit::help_text())
}

/// The flags of `lattice launch`, and its first program.
#[derive(Clone, Debug, Args)]
pub struct LaunchArgs {
    /// The first program.
    #[command(flatten)]
    pub first: ProgramArgs,
    /// The programs after the first `:`.
    #[arg(skip)]
    pub more: Vec<ProgramArgs>,
    /// Where ranks run.
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// On which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// How ranks find each other.
    #[command(flatten)]
    pub pmi: PmiArgs,
    /// Where their input and output goes.
    #[command(flatten)]
    pub streams: StreamArgs,
    /// When the launch ends.
    #[command(flatten)]
    pub time: TimeArgs,
}

/// The flags that each program has for itself.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "For each program")]
pub struct ProgramArgs {
    /// Start N ranks of the program; else an only one fills --tasks-per-node, --hostfile or --nodes, and others have 1.
    #[arg(short = 'n', long = "ntasks", value_name = "N", value_parser = rank_count)]
    pub ranks: Option<u32>,
    /// Set a variable in its ranks; NAME alone passes on ours even if it would be cleaned away.
    #[arg(long = "env", value_name = "NAME[=VALUE]", value_parser = OsStringValueParser::new().try_map(EnvSetting::parse))]
    pub env: Vec<EnvSetting>,
    /// Take a variable out of their environment; `*` at the end stands for any rest.
    #[arg(long, value_name = "NAME", value_parser = variable_pattern)]
    pub env_remove: Vec<String>,
    /// Start them in DIR.
    #[arg(long, value_name = "DIR")]
    pub chdir: Option<PathBuf>,
    /// The program and its arguments; a lone `:` starts the next program.
    #[arg(value_name = "PROGRAM [ARGS]", required = true, trailing_var_arg = true, num_args = 1..)]
    pub command: Vec<OsString>,
}

/// Where ranks run.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Placement")]
pub struct PlacementArgs {
    /// Use N nodes of the allocation; else as many as the ranks need, up to all.
    #[arg(short = 'N', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes: Option<u32>,
    /// Put at most K ranks on a node; without -n, start K on each.
    #[arg(long, value_name = "K", value_parser = rank_count, conflicts_with = "hostfile")]
    pub tasks_per_node: Option<u32>,
    /// Use only these nodes, in this order, such as node[0-3,7].
    #[arg(short = 'w', long, value_name = "NODES", conflicts_with = "hostfile")]
    pub nodelist: Option<String>,
    /// Use none of these nodes.
    #[arg(short = 'x', long, value_name = "NODES")]
    pub exclude: Option<String>,
    /// Use the nodes in FILE, in its order: lines `HOST slots=N`, `HOST:N` or `HOST`; without -n, start a rank in each slot.
    #[arg(long, value_name = "FILE")]
    pub hostfile: Option<PathBuf>,
    /// `block` fills one node after the other with its share of the ranks, `cyclic` deals them out one by one.
    #[arg(long, value_enum, value_name = "block|cyclic", hide_possible_values = true)]
    pub distribution: Option<Distribution>,
    /// Bind each rank to CPUs: none, cores, threads, or map:LIST with a CPU or range for each.
    #[arg(long, value_name = "BIND", default_value = "none")]
    pub cpu_bind: CpuBind,
    /// Print on standard error where each rank runs, then start them.
    #[arg(long)]
    pub show_map: bool,
    /// Print where each rank would run, and start nothing.
    #[arg(long, conflicts_with = "json")]
    pub dry_run: bool,
}

/// How ranks are dealt out among nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Distribution {
    /// Consecutive ranks share a node.
    Block,
    /// Consecutive ranks sit on different nodes.
    Cyclic,
}

/// On which cluster a launch runs.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// Launch on the nodes of this allocation (else LATTICE_ALLOC_ID); `local` or none: on this machine.
    #[arg(long, value_name = "ID")]
    pub alloc: Option<String>,
    /// The API server.
    #[command(flatten)]
    pub api: ServerArgs,
    /// Start the launch, print its id, and do not follow it; ranks' standard input is empty, unless it is a file.
    #[arg(long, conflicts_with_all = ["json", "output", "error", "label", "timestamp", "pmi_trace"])]
    pub detach: bool,
}

/// How ranks find each other.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "PMI")]
pub struct PmiArgs {
    /// Serve the ranks this protocol: auto (whatever each rank speaks), pmi1, pmi2, pmix or none.
    #[arg(long, value_enum, default_value_t = Pmi::Auto, hide_possible_values = true)]
    pub pmi: Pmi,
    /// Let ranks connect to a loopback port (PMI_PORT), for containers that close inherited descriptors.
    #[arg(long)]
    pub pmi_port: bool,
    /// Offer PMI 1.2 and its group barriers.
    #[arg(long)]
    pub pmi_group_barriers: bool,
    /// Tell ranks that MPI_UNIVERSE_SIZE is N.
    #[arg(long, value_name = "N", value_parser = rank_count)]
    pub universe_size: Option<u32>,
    /// Write every PMI message to FILE, as C> and S> lines.
    #[arg(long, value_name = "FILE")]
    pub pmi_trace: Option<PathBuf>,
    /// Also set SLURM_PROCID, SLURM_NPROCS, SLURM_LOCALID and SLURM_NODELIST in the ranks.
    #[arg(long, env = "LATTICE_SLURM_ENV", value_parser = FalseyValueParser::new())]
    pub slurm_env: bool,
}

/// Where the ranks' input comes from and their output goes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Input and output")]
pub struct StreamArgs {
    /// Give our standard input to one rank, to all, to none, or give each rank FILE (%r, %t, %n, %j as in --output). What ranks
    /// on other machines leave unread of ours is lost for the next command.
    #[arg(long, value_name = "none|RANK|all|FILE", default_value = "0",
          value_parser = OsStringValueParser::new().try_map(Stdin::parse))]
    pub stdin: Stdin,
    /// Start each line with the number of its rank.
    #[arg(long, conflicts_with = "json")]
    pub label: bool,
    /// Start each line with the time.
    #[arg(long, conflicts_with = "json")]
    pub timestamp: bool,
    /// Write standard output to FILE: %r is the rank, %t the rank on its node, %n the node, %j the launch id, %% a %.
    #[arg(long, value_name = "FILE", value_parser = template())]
    pub output: Option<Template>,
    /// Write standard error to FILE; may be the same file.
    #[arg(long, value_name = "FILE", value_parser = template())]
    pub error: Option<Template>,
    /// Keep what is in those files.
    #[arg(long)]
    pub append: bool,
    /// Print what happens as JSON, one event on each line.
    #[arg(long)]
    pub json: bool,
}

/// When the launch ends, and when it speaks up.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Time (30, 30s, 500ms, 5m, 1h30m)")]
pub struct TimeArgs {
    /// End the launch when it has run this long.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub timeout: Option<Duration>,
    /// Report which ranks are missing when start-up takes longer than this.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub stuck_after: Option<Duration>,
    /// End the launch when ranks have waited this long for others in a fence.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub fence_timeout: Option<Duration>,
    /// Leave ranks this long from SIGTERM to SIGKILL.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub kill_wait: Option<Duration>,
}

/// The choices of `--pmi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum Pmi {
    /// Whatever each rank speaks.
    Auto,
    /// PMI-1 only.
    Pmi1,
    /// PMI-2 only.
    Pmi2,
    /// PMIx only.
    Pmix,
    /// None: the ranks are independent programs.
    None,
}

/// Reads a command line; its first word is the name that we were called by.
///
/// # Errors
/// Returns clap's error for a wrong command line, and also for `--help` and `--version`, as clap does.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let words: Vec<OsString> = words.into_iter().collect();
    if !is_launch(&words) {
        return Cli::try_parse_from(words);
    }
    let mut programs = words.split(|word| word == SEPARATOR);
    let mut cli = Cli::try_parse_from(programs.next().unwrap_or_default())?;
    if let Command::Launch(launch) = &mut cli.command {
        launch.more = programs.map(parse_program).collect::<Result<_, _>>()?;
    }
    Ok(cli)
}

fn is_launch(words: &[OsString]) -> bool {
    let command = words.iter().skip(1).find(|word| !word.as_bytes().starts_with(b"-"));
    command.is_some_and(|command| command == "launch")
}

/// Reads what stands between two `:`.
fn parse_program(words: &[OsString]) -> Result<ProgramArgs, clap::Error> {
    let mut command = ProgramArgs::augment_args(clap::Command::new("lattice launch ... :"))
        .no_binary_name(true)
        .disable_help_flag(true)
        .override_usage("lattice launch ... : [PROGRAM OPTIONS] PROGRAM [ARGS]...");
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

    use super::*;

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
        check("-n x", "not a whole number from 1 up");
        check("-n -3", "-3");
        check("-n 3000000000", "MPI counts ranks up to 2147483647");
        check("-n 99999999999999", "MPI counts ranks up to 2147483647");
        check("--env =1", "the name of the variable is missing");
        check("--env-remove A*B", "`*` is possible at the end of a name only");
        check("--pmi pmi3", "auto, pmi1, pmi2, pmix, none");
        check("--output a%x", "%x has no meaning in a file name");
        check("--stdin in%x", "%x has no meaning in a file name");
        check("--timeout 5min", "\"min\" is no unit of time; ms, s, m, h and d are");
        check("--lable", "--label");
        check("--json --label", "cannot be used with");
        check("--json --dry-run", "cannot be used with");
        check("--json --detach", "cannot be used with");
        check("-N 0", "0 is not in 1..");
        check("-w node1 --hostfile hosts", "cannot be used with");
        check("--distribution plane", "block, cyclic");
        check("-q -v", "cannot be used with");
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
    }
}

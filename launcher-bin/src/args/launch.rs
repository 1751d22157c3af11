//! The flags of `lattice launch`, and those that each of its programs has for itself.

use std::ffi::OsString;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{FalseyValueParser, OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use lattice_session::process_set::ProcessSetName;
use lattice_session::request::UniverseSize;
use lattice_session::template::Template;

use super::cluster::ServerArgs;
use super::copies::CopyArgs;
use super::export::Export;
use super::idle::IdleArgs;
use super::node_group::NodeGroupArgs;
use super::placement::PlacementArgs;
use super::pmi::{Exchange, Pmi, PmiParser, Restartable};
use super::propagate::Propagate;
use super::signal::{self, SignalAhead};
use super::value::{EnvSetting, Stdin, rank_count, template, universe_size, variable_pattern};
use super::via::{JoinArgs, WayArgs};
use super::{size, slurm_time};
use crate::exit;
use crate::formatting::parse_duration;

/// Usage of `lattice launch`.
pub(super) const USAGE: &str = "lattice launch [OPTIONS] PROGRAM [ARGS]... [: [PROGRAM OPTIONS] PROGRAM [ARGS]...]...";

/// Text behind the flags in the help.
fn after_help() -> String {
    let examples = "Examples:\n  \
        lattice launch -n 4 ./a.out\n  \
        lattice launch --alloc 7f3k -N 2 --tasks-per-node 8 ./a.out\n  \
        lattice launch --label -n 1 ./ocean : -n 3 --env GRID=fine ./atmosphere";
    format!("{}\n{examples}", exit::help_text())
}

/// The flags of `lattice launch`, and its first program.
#[derive(Clone, Debug, Args)]
#[command(after_help = after_help())]
pub struct LaunchArgs {
    /// The first program.
    #[command(flatten)]
    pub first: ProgramArgs,
    /// The programs behind the first `:`.
    #[arg(skip)]
    pub more: Vec<NextProgramArgs>,
    /// Placement of the ranks.
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// On which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Files that are copied to its nodes.
    #[command(flatten)]
    pub copies: CopyArgs,
    /// Containers of the ranks.
    #[command(flatten)]
    pub container: ContainerArgs,
    /// Wire-up of the ranks.
    #[command(flatten)]
    pub pmi: PmiArgs,
    /// Their standard streams.
    #[command(flatten)]
    pub streams: StreamArgs,
    /// Consequences of failures.
    #[command(flatten)]
    pub failures: FailureArgs,
    /// Time limits.
    #[command(flatten)]
    pub time: TimeArgs,
    /// Programs around the ranks and the launch.
    #[command(flatten)]
    pub scripts: ScriptArgs,
    /// Debuggers of the ranks.
    #[command(flatten)]
    pub debuggers: DebuggerArgs,
    /// Variables and limits of the caller.
    #[command(flatten)]
    pub environment: EnvironmentArgs,
    /// Flags of srun that are ignored here.
    #[command(flatten)]
    pub idle: IdleArgs,
}

/// Variables and limits that ranks get of ours.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Environment")]
pub struct EnvironmentArgs {
    /// Pass on ALL variables of ours, NONE, or those that are named; NAME=VALUE sets one, and a path with a slash those of a file of
    /// such lines. Without ALL, ranks still have HOME, USER, LOGNAME, SHELL and PATH.
    #[arg(long, value_name = "ALL|NONE|NAME[=VALUE]|FILE,...", default_value = "ALL", hide_default_value = true,
          value_parser = OsStringValueParser::new().try_map(Export::parse))]
    pub export: Export,
    /// Set a variable in all ranks, as it is: nothing in it is filled in. NAME alone passes on ours. --env goes before it.
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = OsStringValueParser::new().try_map(EnvSetting::parse))]
    pub env_literal: Vec<EnvSetting>,
    /// Give ranks these soft limits of our shell, up to the hard ones of their nodes: ALL, NONE, or AS, CORE, CPU, DATA, FSIZE, MEMLOCK,
    /// NOFILE, NPROC, RSS, STACK; a warning names those that a node does not allow. Without it, all but MEMLOCK, and nobody is warned.
    #[arg(long, value_name = "LIMITS", num_args = 0..=1, require_equals = true, default_missing_value = "ALL", value_parser = Propagate::parse)]
    pub propagate: Option<Propagate>,
    /// Make a directory on each node for the temporary files of the ranks, which is their TMPDIR and goes with the launch: in DIR, else in
    /// TMPDIR of ours or /tmp.
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = "", env = "LATTICE_TMPDIR", hide_env_values = true,
          value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub tmpdir: Option<PathBuf>,
}

/// The flags that each program has for itself.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "For each program")]
pub struct ProgramArgs {
    /// Number of ranks of the program [default: 1, in an allocation as well, which a note reports there; as many as --tasks-per-node,
    /// --tasks-per, --hostfile, --host, -N or --fill hold, for a single program].
    #[arg(short = 'n', long = "ntasks", alias = "np", value_name = "N", value_parser = rank_count, allow_negative_numbers = true)]
    pub ranks: Option<u32>,
    /// Set a variable in its ranks; NAME alone passes on ours even if it would be cleaned away. In VALUE, {rank}, {size}, {local_rank},
    /// {local_size}, {node}, {nodes}, {host}, {head}, {port}, {node_list} and {launch_id} are filled in for each rank.
    #[arg(long = "env", value_name = "NAME[=VALUE]", value_parser = OsStringValueParser::new().try_map(EnvSetting::parse))]
    pub env: Vec<EnvSetting>,
    /// Take a variable out of their environment; `*` at the end stands for any rest.
    #[arg(long, value_name = "NAME", value_parser = variable_pattern)]
    pub env_remove: Vec<String>,
    /// Set the variables that FILE has on its lines as NAME=VALUE; --env goes before it.
    #[arg(long, value_name = "FILE")]
    pub env_file: Vec<PathBuf>,
    /// Set the variables that programs of a kind expect of their launcher: torch, jax, nccl, or one of ~/.config/lattice/presets.toml;
    /// --env-file and --env go before it.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub preset: Vec<String>,
    /// Have programs that call libpmi.so.0 or libpmi2.so.0 use Lattice's, by LD_PRELOAD and the variables of Intel MPI and flux; on a
    /// cluster they must be at the same place on all nodes (`lattice pmi library`).
    #[arg(long)]
    pub pmi_library: bool,
    /// Call the ranks of the program NAME together: MPI sessions find a process set app://NAME, or NAME if that is a URI. Programs of one
    /// name are one set.
    #[arg(long, value_name = "NAME")]
    pub pset: Option<ProcessSetName>,
    /// The same, with NAME as it is, without app:// before it: mpirun's --pset.
    #[arg(long, value_name = "NAME", value_parser = ProcessSetName::literal, conflicts_with = "pset")]
    pub pset_literal: Option<ProcessSetName>,
    /// Start them in DIR.
    #[arg(short = 'D', long, aliases = ["wdir", "wd", "cwd"], value_name = "DIR")]
    pub chdir: Option<PathBuf>,
    /// The program and its arguments; a lone `:` starts the next program.
    #[arg(value_name = "PROGRAM [ARGS]", required = true, trailing_var_arg = true, num_args = 1..)]
    pub command: Vec<OsString>,
}

/// A program behind a `:`.
#[derive(Clone, Debug, Args)]
pub struct NextProgramArgs {
    /// The program.
    #[command(flatten)]
    pub program: ProgramArgs,
    /// Its nodes.
    #[command(flatten)]
    pub nodes: NodeGroupArgs,
}

/// On which cluster a launch runs.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// Launch on the nodes of this allocation (else LATTICE_ALLOC_ID); `local` or none: on this machine.
    #[arg(long, alias = "jobid", value_name = "ID")]
    pub alloc: Option<String>,
    /// The API server.
    #[command(flatten)]
    pub api: ServerArgs,
    /// The way to the nodes.
    #[command(flatten)]
    pub way: WayArgs,
    /// How nodes join on that way.
    #[command(flatten)]
    pub join: JoinArgs,
    /// Start the launch, print its id (with --json, the line that opens it), and do not follow it; ranks' standard input is empty,
    /// unless it is a file. What they print is kept for `lattice attach`: 64 MiB of it, unless the API server is told otherwise, the
    /// oldest going first.
    #[arg(long, conflicts_with_all = ["output", "error", "label", "timestamp", "summary", "collapse", "pmi_trace"])]
    pub detach: bool,
}

/// Containers that ranks run in.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Containers")]
pub struct ContainerArgs {
    /// Run the programs in a container of IMAGE each, by the runtime of --container-profile.
    #[arg(long, value_name = "IMAGE")]
    pub container: Option<OsString>,
    /// Container runtime: apptainer, singularity, podman, sarus, enroot, uenv, for directories charliecloud, bubblewrap, podman-rootfs, or
    /// one of ~/.config/lattice/containers.toml. Without it, the first of these in PATH here that takes the image; unshare, of
    /// util-linux, only by name.
    #[arg(long, value_name = "NAME", env = "LATTICE_CONTAINER_PROFILE", hide_env_values = true)]
    pub container_profile: Option<String>,
}

/// Wire-up of the ranks.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "PMI")]
pub struct PmiArgs {
    /// Serve the ranks this protocol: auto (whatever each rank speaks), pmi1, pmi2, pmix or none; `list` says what each is.
    #[arg(long, alias = "mpi", value_parser = PmiParser, default_value = "auto", value_name = "PMI", hide_possible_values = true)]
    pub pmi: Pmi,
    /// Let ranks connect to a loopback port (PMI_PORT), for containers that close inherited descriptors.
    #[arg(long)]
    pub pmi_port: bool,
    /// Let all ranks begin again: programs of a rank that are killed and run anew, or restored from a checkpoint, are served like the first
    /// one. They come by their rank's key, as with --pmi-port, and wait in MPI_Init until those of all ranks have come. Keys that were put
    /// before can be read (keep) or not (fresh).
    #[arg(long, value_enum, value_name = "keep|fresh", num_args = 0..=1, require_equals = true, default_missing_value = "keep",
          hide_possible_values = true)]
    pub restartable: Option<Restartable>,
    /// Offer PMI 1.2 and its group barriers.
    #[arg(long)]
    pub pmi_group_barriers: bool,
    /// Let ranks ask for what they could read in shared memory (LATTICE_JOB_MEMORY).
    #[arg(long)]
    pub no_job_memory: bool,
    /// Give the ranks of each job on each node SIZE bytes (or 64K, 64M, 4G) of memory that they share from the start, as descriptor 32
    /// (LATTICE_NODE_MEMORY).
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub node_memory: Option<NonZeroU64>,
    /// How data reaches other nodes in fences of PMIx: auto (small data goes to all at once, large data to those that ask, until so
    /// much was asked for that sending it to all is cheaper), full (to all at once) or lazy (to those that ask).
    #[arg(long, value_enum, default_value = "auto", value_name = "HOW", hide_possible_values = true)]
    pub exchange: Exchange,
    /// Tell ranks that MPI_UNIVERSE_SIZE is N; with "slots", the number of slots of the launch's nodes: those of the hostfile, or a CPU each.
    #[arg(long, value_name = "N", value_parser = universe_size, allow_negative_numbers = true)]
    pub universe_size: Option<UniverseSize>,
    /// Write every PMI message to FILE, as C> and S> lines.
    #[arg(long, value_name = "FILE")]
    pub pmi_trace: Option<PathBuf>,
    /// Also set in the ranks what scripts for Slurm read: SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID, SLURM_NTASKS (and SLURM_NPROCS),
    /// SLURM_NNODES (and SLURM_JOB_NUM_NODES), SLURM_NODELIST, SLURM_JOB_ID and others.
    #[arg(long, env = "LATTICE_SLURM_ENV", value_parser = FalseyValueParser::new())]
    pub slurm_env: bool,
}

/// Standard streams of the ranks.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Input and output")]
pub struct StreamArgs {
    /// Give our standard input to one rank, to all, to none, or give each rank FILE (escapes as in --output). What ranks on other
    /// machines leave unread of ours is lost for the next command.
    #[arg(short = 'i', long, alias = "input", value_name = "none|RANK|all|FILE", default_value = "0",
          value_parser = OsStringValueParser::new().try_map(Stdin::parse))]
    pub stdin: Stdin,
    /// Give rank 0 a terminal of its own, as srun does: for shells, editors, debuggers. What is typed, Ctrl-C and Ctrl-Z included, is for
    /// what runs there; the other ranks read nothing. Without a terminal here, it is fed from standard input.
    #[arg(long, conflicts_with_all = ["stdin", "output", "error", "json", "detach"])]
    pub pty: bool,
    /// Pass on what ranks write as they write it: the standard output of each is a pseudo-terminal, as with srun, so that programs hold
    /// nothing back, and no line waits for its end; otherwise one does, on a terminal for 0.05 s. With `pipe` it stays a pipe. --json
    /// and --collapse are of whole lines.
    #[arg(short, long, value_enum, value_name = "terminal|pipe", num_args = 0..=1, require_equals = true, default_missing_value = "terminal",
          hide_possible_values = true)]
    pub unbuffered: Option<Unbuffered>,
    /// Start each line with the number of its rank, or with the name of its node.
    #[arg(short, long, alias = "tag-output", value_enum, value_name = "rank|node", num_args = 0..=1, require_equals = true,
          default_missing_value = "rank", hide_possible_values = true, conflicts_with = "json")]
    pub label: Option<Label>,
    /// Start each line with the time.
    #[arg(long, conflicts_with = "json")]
    pub timestamp: bool,
    /// Write standard output to FILE. As with srun, %t (or %r) is the rank, %n the number of its node, %N that node's short host
    /// name, %j the launch id, %x the name of the launch, %u the user, %% a percent sign, and %3t has three digits; %l is the rank on its node,
    /// %R the rank with the digits of the last one. A directory with such a letter in its name is created.
    #[arg(short = 'o', long, value_name = "FILE", value_parser = template())]
    pub output: Option<Template>,
    /// Write standard error to FILE; may be the same file.
    #[arg(short = 'e', long, value_name = "FILE", value_parser = template())]
    pub error: Option<Template>,
    /// Name of the launch in names of files (%x) [default: that of the first program].
    #[arg(short = 'J', long, value_name = "NAME", allow_hyphen_values = true)]
    pub job_name: Option<OsString>,
    /// Keep what is in those files.
    #[arg(long)]
    pub append: bool,
    /// Show here, too, what goes to those files.
    #[arg(long, conflicts_with = "json")]
    pub tee: bool,
    /// Show equal lines of several ranks once, begun with the numbers of the ranks, as in [0-62,64].
    #[arg(long, conflicts_with_all = ["label", "timestamp", "json", "pty"])]
    pub collapse: bool,
    /// Say at the end on standard error what the launch took: time, processor time, memory, output.
    #[arg(long)]
    pub summary: bool,
    /// Print what happens as JSON, one event on each line.
    #[arg(long)]
    pub json: bool,
}

/// Standard output of ranks whose output is passed on as it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Unbuffered {
    /// A pseudo-terminal, for which programs hold nothing back.
    Terminal,
    /// A pipe, for bytes that are meant for another program.
    Pipe,
}

/// Beginning of ranks' lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Label {
    /// The number of the rank.
    Rank,
    /// The name of its node.
    Node,
}

/// Consequences of failures of ranks.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Failures")]
pub struct FailureArgs {
    /// With 0, a rank that fails leaves the others running, who are told: the launch fails when all have ended, with the highest
    /// code; with recover, ranks that a signal kills do not count while others end well [default: 1, the first rank that fails ends the
    /// launch].
    #[arg(short = 'K', long, value_enum, value_name = "0|1|recover", num_args = 0..=1, require_equals = true, default_value = "1",
          default_missing_value = "1", hide_possible_values = true, hide_default_value = true)]
    pub kill_on_bad_exit: KillOnBadExit,
    /// A node that is lost leaves the ranks of the others running, who are told: the launch fails when all have ended.
    #[arg(short = 'k', long)]
    pub no_kill: bool,
    /// A rank that does not release a registered resource in the time that it gave itself is named in a warning, or killed as well.
    #[arg(long, value_enum, value_name = "WHAT", default_value = "warn", hide_default_value = true)]
    pub resource_timeout: ResourceTimeout,
}

/// Consequence of a release that takes too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ResourceTimeout {
    /// A warning.
    Warn,
    /// The rank is killed, and so has failed.
    Fail,
}

/// Consequence of the failure of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KillOnBadExit {
    /// The others go on.
    #[value(name = "0")]
    No,
    /// The launch ends.
    #[value(name = "1")]
    Yes,
    /// The others go on, and recover from those that a signal kills.
    #[value(name = "recover")]
    Recover,
}

/// Programs around the ranks and the launch.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Programs around it")]
pub struct ScriptArgs {
    /// Run FILE before each rank, on its node. Of what it prints, `export NAME=VALUE` and `unset NAME` change the rank's environment, and `print
    /// TEXT` is written to its output; if it fails, so does the rank.
    #[arg(long, value_name = "FILE")]
    pub task_prolog: Option<PathBuf>,
    /// Run FILE after each rank, on its node, however it has ended.
    #[arg(long, value_name = "FILE")]
    pub task_epilog: Option<PathBuf>,
    /// Run FILE here before the launch, with the program and its arguments; if it fails, nothing is started. Of what it prints, `export
    /// NAME=VALUE` and `unset NAME` change the environment of all ranks; the rest is shown, of `print TEXT` the TEXT.
    #[arg(long, value_name = "FILE")]
    pub prolog: Option<PathBuf>,
    /// Run FILE here after the launch, with the program and its arguments.
    #[arg(long, value_name = "FILE", conflicts_with = "detach")]
    pub epilog: Option<PathBuf>,
}

/// Debuggers of the ranks.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Debuggers")]
pub struct DebuggerArgs {
    /// Stop each rank before the first instruction of its program. A debugger that runs this command finds the ranks (MPIR), and they go
    /// on when it continues; without one, `lattice signal ID CONT` lets them go.
    #[arg(long)]
    pub stop_at_start: bool,
}

/// Time limits of the launch.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Time (30, 30s, 500ms, 5m, 1h30m)")]
pub struct TimeArgs {
    /// End the launch when it has run this long. Ranks get SIGTERM, at most 3 s later so that their call stacks can be read and shown.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, allow_negative_numbers = true)]
    pub timeout: Option<Duration>,
    /// The same in srun's forms, where a plain number is minutes: 10, 10:30, 1:10:30, 2-12; 0 and UNLIMITED are no limit.
    #[arg(short = 't', long, value_name = "LIMIT", value_parser = slurm_time::parse, conflicts_with = "timeout")]
    pub time: Option<Duration>,
    /// Send ranks SIGNAL so long before the time limit [default time: 60s].
    #[arg(long, value_name = "SIGNAL[@TIME]", value_parser = signal::parse_ahead)]
    pub signal: Option<SignalAhead>,
    /// End the launch this long after its first rank has ended, well or not; 0 is never.
    #[arg(short = 'W', long, value_name = "TIME", value_parser = parse_duration, allow_negative_numbers = true)]
    pub wait: Option<Duration>,
    /// Report which ranks are missing, and where they are, when start-up takes longer than this [default: 30s].
    #[arg(long, value_name = "TIME", value_parser = parse_duration, allow_negative_numbers = true)]
    pub stuck_after: Option<Duration>,
    /// End the launch when ranks have waited this long for others in a fence.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, allow_negative_numbers = true)]
    pub fence_timeout: Option<Duration>,
    /// Leave ranks this long from SIGTERM to SIGKILL [default: 400ms; 5s when interrupted, or when --timeout is over].
    /// On a cluster, no more than 30s if others end the launch.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, allow_negative_numbers = true)]
    pub kill_wait: Option<Duration>,
    /// After the last rank has ended, leave processes that hold a rank's standard output or error this long to pass on the rest, such as tee
    /// [default: 1s].
    #[arg(long, value_name = "TIME", value_parser = parse_duration, allow_negative_numbers = true)]
    pub output_end: Option<Duration>,
}

//! The flags of `lattice launch`, and those that each of its programs has for itself.

use std::ffi::OsString;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{FalseyValueParser, OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use lattice_cluster_client::args::ServerArgs;
use lattice_console::exit;
use lattice_console::formatting::parse_duration;
use lattice_console::signal_value::{self, SignalAhead};
use lattice_console::values::{self, template};
use lattice_dialects::idle::IdleArgs;
use lattice_dialects::slurm_time;
use lattice_private_cluster::via::LaunchFlags;
use lattice_private_cluster::via::args::{HostArgs, JoinArgs, WayArgs};
use lattice_session::process_set::ProcessSetName;
use lattice_session::request::UniverseSize;
use lattice_session::template::Template;

use super::copies::CopyArgs;
use super::export::Export;
use super::node_group::NodeGroupArgs;
use super::placement::PlacementArgs;
use super::pmi::{Exchange, Pmi, PmiParser, Restartable};
use super::propagate::Propagate;
use super::value::{EnvSetting, Stdin, rank_count, universe_size, variable_pattern};
use super::{size, topics};

/// Usage of `lattice launch`.
pub(super) const USAGE: &str = "lattice launch [OPTIONS] PROGRAM [ARGS]... [: [PROGRAM OPTIONS] PROGRAM [ARGS]...]...";

/// Text after the flags in the help.
fn after_help() -> String {
    let examples = "Examples:\n  \
        lattice launch -n 4 ./a.out\n  \
        lattice launch --alloc 7f3k -N 2 --tasks-per-node 8 ./a.out\n  \
        lattice launch --label -n 1 ./ocean : -n 3 --env GRID=fine ./atmosphere";
    format!("{}\n{examples}\n\n{}", exit::help_text(), topics::line())
}

/// The flags of `lattice launch`, and its first program.
#[derive(Clone, Debug, Args)]
#[command(after_help = after_help())]
pub struct LaunchArgs {
    /// The first program.
    #[command(flatten)]
    pub first: ProgramArgs,
    /// The programs after the first `:`.
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

impl LaunchArgs {
    /// The flags that determine the way to its nodes.
    pub(crate) fn way_flags(&self) -> LaunchFlags<'_> {
        let Self { cluster, placement, .. } = self;
        LaunchFlags {
            names_cluster: cluster.alloc.is_some() || cluster.api.api.is_some(),
            detach: cluster.detach,
            way: &cluster.way,
            join: cluster.join,
            hosts: HostArgs {
                nodelist: placement.nodelist.clone(),
                hostfile: placement.hostfile.clone(),
                host: placement.host.clone(),
            },
        }
    }
}

/// Variables and limits that ranks take from the caller.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Environment")]
pub struct EnvironmentArgs {
    /// Export ALL variables of the caller, NONE, or the named ones. NAME=VALUE sets one; a path with a slash is a file of such lines.
    /// Without ALL, ranks still have HOME, USER, LOGNAME, SHELL and PATH.
    #[arg(long, value_name = "ALL|NONE|NAME[=VALUE]|FILE,...", default_value = "ALL", hide_default_value = true,
          value_parser = OsStringValueParser::new().try_map(Export::parse))]
    pub export: Export,
    /// Set a variable in all ranks, without placeholders. NAME alone forwards the current value. --env overrides it.
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = OsStringValueParser::new().try_map(EnvSetting::parse))]
    pub env_literal: Vec<EnvSetting>,
    /// Give ranks these soft limits of the caller, up to the hard limits of their nodes: ALL, NONE, or AS, CORE, CPU, DATA, FSIZE, MEMLOCK,
    /// NOFILE, NPROC, RSS, STACK. Limits that a node does not allow are reported. Default: all but MEMLOCK, without a report.
    #[arg(long, value_name = "LIMITS", num_args = 0..=1, require_equals = true, default_missing_value = "ALL", value_parser = Propagate::parse)]
    pub propagate: Option<Propagate>,
    /// Create a directory on each node for temporary files of the ranks, in DIR [default: TMPDIR of the caller, or /tmp]. It is the TMPDIR
    /// of the ranks, and is removed with the launch.
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = "", env = "LATTICE_TMPDIR", hide_env_values = true,
          value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub tmpdir: Option<PathBuf>,
}

/// The flags that each program has for itself.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "For each program")]
pub struct ProgramArgs {
    /// Number of ranks of the program [default: 1; for a single program, as many as --tasks-per-node, --tasks-per, --hostfile, --host, -N
    /// or --fill hold].
    #[arg(short = 'n', long = "ntasks", visible_alias = "np", value_name = "N", value_parser = rank_count, allow_negative_numbers = true)]
    pub ranks: Option<u32>,
    /// Set a variable in its ranks. NAME alone forwards the current value, even of variables that are normally removed. {rank}, {size},
    /// {local_rank}, {local_size}, {node}, {nodes}, {host}, {head}, {port}, {node_list} and {launch_id} in VALUE are replaced for each
    /// rank.
    #[arg(long = "env", value_name = "NAME[=VALUE]", value_parser = OsStringValueParser::new().try_map(EnvSetting::parse))]
    pub env: Vec<EnvSetting>,
    /// Remove a variable from their environment; `*` at the end matches any rest.
    #[arg(long, value_name = "NAME", value_parser = variable_pattern)]
    pub env_remove: Vec<String>,
    /// Set variables from the lines NAME=VALUE of FILE. --env overrides it.
    #[arg(long, value_name = "FILE")]
    pub env_file: Vec<PathBuf>,
    /// Set the variables that programs of a kind expect of their launcher: torch, jax, nccl, or one of ~/.config/lattice/presets.toml.
    /// --env-file and --env override it.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub preset: Vec<String>,
    /// Make programs that use libpmi.so.0 or libpmi2.so.0 load the libraries of Lattice, by LD_PRELOAD and the variables of Intel MPI and
    /// Flux. On a cluster they must be at the same path on all nodes (`lattice pmi library`).
    #[arg(long)]
    pub pmi_library: bool,
    /// Name of the process set of the program's ranks: MPI sessions find app://NAME, or NAME if it is a URI. Programs with one name form
    /// one set.
    #[arg(long, value_name = "NAME")]
    pub pset: Option<ProcessSetName>,
    /// The same without app:// before NAME: mpirun's --pset.
    #[arg(long, value_name = "NAME", value_parser = ProcessSetName::literal, conflicts_with = "pset")]
    pub pset_literal: Option<ProcessSetName>,
    /// Working directory of the ranks.
    #[arg(short = 'D', long, visible_aliases = ["wdir", "wd", "cwd"], value_name = "DIR")]
    pub chdir: Option<PathBuf>,
    /// The program and its arguments; a single `:` starts the next program.
    #[arg(value_name = "PROGRAM [ARGS]", required = true, trailing_var_arg = true, num_args = 1..)]
    pub command: Vec<OsString>,
}

/// A program after a `:`.
#[derive(Clone, Debug, Args)]
pub struct NextProgramArgs {
    /// The program.
    #[command(flatten)]
    pub program: ProgramArgs,
    /// Its nodes.
    #[command(flatten)]
    pub nodes: NodeGroupArgs,
}

/// The cluster of a launch.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// Launch on the nodes of this allocation [default: LATTICE_ALLOC_ID]; `local` or none: on this machine.
    #[arg(long, visible_alias = "jobid", value_name = "ID")]
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
    /// Start the launch, print its id (with --json, its first event), and return. Standard input of the ranks is empty, unless it is a
    /// file. The last 64 MiB of output are kept for `lattice attach` (a setting of the API server).
    #[arg(long, conflicts_with_all = ["output", "error", "label", "timestamp", "summary", "collapse", "pmi_trace"])]
    pub detach: bool,
}

/// Containers that ranks run in.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Containers")]
pub struct ContainerArgs {
    /// Run each program in a container of IMAGE, by the runtime of --container-profile.
    #[arg(long, value_name = "IMAGE")]
    pub container: Option<OsString>,
    /// Container runtime: apptainer, singularity, podman, sarus, enroot, uenv, for directories charliecloud, bubblewrap, podman-rootfs, or
    /// one of ~/.config/lattice/containers.toml. Default: the first one in PATH that accepts the image. unshare, of util-linux, is used
    /// only if named.
    #[arg(long, value_name = "NAME", env = "LATTICE_CONTAINER_PROFILE", hide_env_values = true)]
    pub container_profile: Option<String>,
}

/// Wire-up of the ranks.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "PMI")]
pub struct PmiArgs {
    /// Protocols that ranks can use: auto (each rank its own), pmi1, pmi2, pmix or none; `list` describes them.
    #[arg(long, visible_alias = "mpi", value_parser = PmiParser, default_value = "auto", value_name = "PMI", hide_possible_values = true)]
    pub pmi: Pmi,
    /// Let ranks connect to a loopback port (PMI_PORT), for containers that close inherited descriptors.
    #[arg(long)]
    pub pmi_port: bool,
    /// Serve programs of a rank again that are killed and run anew, or restored from a checkpoint. They connect by the key of their rank,
    /// as with --pmi-port, and wait in MPI_Init until all ranks have begun again. Keys of the first run can be read (keep) or not (fresh).
    #[arg(long, value_enum, value_name = "keep|fresh", num_args = 0..=1, require_equals = true, default_missing_value = "keep",
          hide_possible_values = true)]
    pub restartable: Option<Restartable>,
    /// Offer PMI 1.2 and its group barriers.
    #[arg(long)]
    pub pmi_group_barriers: bool,
    /// Make ranks send requests for data that they could read in shared memory (LATTICE_JOB_MEMORY).
    #[arg(long)]
    pub no_job_memory: bool,
    /// Shared memory of SIZE bytes (or 64K, 64M, 4G) for the ranks of each job on each node, as descriptor 32 (LATTICE_NODE_MEMORY).
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub node_memory: Option<NonZeroU64>,
    /// Transfer of data between nodes in PMIx fences: full (to all nodes), lazy (to nodes that request it), or auto (small data to all
    /// nodes; large data on request, until a transfer to all is cheaper).
    #[arg(long, value_enum, default_value = "auto", value_name = "HOW", hide_possible_values = true)]
    pub exchange: Exchange,
    /// Value of MPI_UNIVERSE_SIZE: N, or "slots" for the number of slots of the nodes: those of the hostfile, or one for each CPU.
    #[arg(long, value_name = "N", value_parser = universe_size, allow_negative_numbers = true)]
    pub universe_size: Option<UniverseSize>,
    /// Write every PMI message to FILE, as C> and S> lines.
    #[arg(long, value_name = "FILE")]
    pub pmi_trace: Option<PathBuf>,
    /// Also set variables of Slurm in the ranks: SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID, SLURM_NTASKS (and SLURM_NPROCS), SLURM_NNODES
    /// (and SLURM_JOB_NUM_NODES), SLURM_NODELIST, SLURM_JOB_ID and more.
    #[arg(long, env = "LATTICE_SLURM_ENV", value_parser = FalseyValueParser::new())]
    pub slurm_env: bool,
}

/// Standard streams of the ranks.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Input and output")]
pub struct StreamArgs {
    /// Send standard input to one rank, to all, to none, or give each rank FILE (escapes as in --output). Input that ranks on other
    /// machines do not read is lost for the next command.
    #[arg(short = 'i', long, visible_alias = "input", value_name = "none|RANK|all|FILE", default_value = "0",
          value_parser = OsStringValueParser::new().try_map(Stdin::parse))]
    pub stdin: Stdin,
    /// Give rank 0 a terminal, as srun does: for shells, editors, debuggers. Input, Ctrl-C and Ctrl-Z go to its program; the remaining
    /// ranks read nothing. Without a terminal here, standard input is used.
    #[arg(long, conflicts_with_all = ["stdin", "output", "error", "json", "detach"])]
    pub pty: bool,
    /// Forward output of ranks at once: standard output of each is a pseudo-terminal, as with srun, so that programs do not buffer, and
    /// partial lines are not delayed (on a terminal they are otherwise, for 0.05 s). With `pipe` it stays a pipe. --json and --collapse
    /// have whole lines.
    #[arg(short, long, value_enum, value_name = "terminal|pipe", num_args = 0..=1, require_equals = true, default_missing_value = "terminal",
          hide_possible_values = true)]
    pub unbuffered: Option<Unbuffered>,
    /// Start each line with the number of its rank, or with the name of its node.
    #[arg(short, long, visible_alias = "tag-output", value_enum, value_name = "rank|node", num_args = 0..=1, require_equals = true,
          default_missing_value = "rank", hide_possible_values = true, conflicts_with = "json")]
    pub label: Option<Label>,
    /// Start each line with the time.
    #[arg(long, conflicts_with = "json")]
    pub timestamp: bool,
    /// Write standard output to FILE. As with srun, %t (or %r) is the rank, %n the number of its node, %N the short host name of the node,
    /// %j the launch id, %x the name of the launch, %u the user, %% a percent sign, and %3t has three digits. %l is the rank on its node,
    /// %R the rank with as many digits as the last one. A directory with such a placeholder is created.
    #[arg(short = 'o', long, value_name = "FILE", value_parser = template())]
    pub output: Option<Template>,
    /// Write standard error to FILE; may be the same file.
    #[arg(short = 'e', long, value_name = "FILE", value_parser = template())]
    pub error: Option<Template>,
    /// Name of the launch in names of files (%x) [default: that of the first program].
    #[arg(short = 'J', long, value_name = "NAME", allow_hyphen_values = true)]
    pub job_name: Option<OsString>,
    /// Append to those files.
    #[arg(long)]
    pub append: bool,
    /// Print the output as well, in addition to those files.
    #[arg(long, conflicts_with = "json")]
    pub tee: bool,
    /// Print equal lines of several ranks once, after the numbers of the ranks, as in [0-62,64].
    #[arg(long, conflicts_with_all = ["label", "timestamp", "json", "pty"])]
    pub collapse: bool,
    /// Print the resources that the launch used at its end, on standard error: time, processor time, memory, output.
    #[arg(long)]
    pub summary: bool,
    /// Print events as JSON, one on each line.
    #[arg(long)]
    pub json: bool,
}

/// Standard output of ranks with --unbuffered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Unbuffered {
    /// A pseudo-terminal, so that programs do not buffer.
    Terminal,
    /// A pipe, for bytes that another program reads.
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
    /// With 0, the failure of a rank does not end the launch: the remaining ranks are notified, and the launch fails with the highest code
    /// when all have ended. With recover, ranks killed by a signal do not count if the remaining ranks succeed [default: 1, the first
    /// failed rank ends the launch].
    #[arg(short = 'K', long, value_enum, value_name = "0|1|recover", num_args = 0..=1, require_equals = true, default_value = "1",
          default_missing_value = "1", hide_possible_values = true, hide_default_value = true)]
    pub kill_on_bad_exit: KillOnBadExit,
    /// The loss of a node does not end the launch: the remaining ranks are notified, and the launch fails when all have ended.
    #[arg(short = 'k', long)]
    pub no_kill: bool,
    /// Treatment of a rank that does not release a registered resource within its own time limit: a warning, or SIGKILL.
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
    /// The remaining ranks continue.
    #[value(name = "0")]
    No,
    /// The launch ends.
    #[value(name = "1")]
    Yes,
    /// The remaining ranks continue, and recover from the loss of ranks killed by a signal.
    #[value(name = "recover")]
    Recover,
}

/// Programs around the ranks and the launch.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Programs around it")]
pub struct ScriptArgs {
    /// Run FILE before each rank, on its node. In its output, `export NAME=VALUE` and `unset NAME` change the environment of the rank, and
    /// `print TEXT` writes to the rank's output. If it fails, the rank fails.
    #[arg(long, value_name = "FILE")]
    pub task_prolog: Option<PathBuf>,
    /// Run FILE after each rank, on its node, also after a failure.
    #[arg(long, value_name = "FILE")]
    pub task_epilog: Option<PathBuf>,
    /// Run FILE here before the launch, with the program and its arguments; if it fails, nothing is started. In its output, `export
    /// NAME=VALUE` and `unset NAME` change the environment of all ranks; the rest is printed, of `print TEXT` the TEXT.
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
    /// Stop each rank before the first instruction of its program. A debugger that runs this command finds the ranks by MPIR and continues
    /// them; without a debugger, `lattice signal ID CONT` does.
    #[arg(long)]
    pub stop_at_start: bool,
}

/// Time limits of the launch.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Time (30, 30s, 500ms, 2m, 1h, 1h30m)")]
pub struct TimeArgs {
    /// End the launch after this time. Ranks get SIGTERM, at most 3 s later, so that their call stacks can be read and printed.
    #[arg(long, value_name = values::TIME, value_parser = parse_duration, allow_negative_numbers = true)]
    pub timeout: Option<Duration>,
    /// The same in srun's forms, where a plain number is minutes: 10, 10:30, 1:10:30, 2-12; 0 and UNLIMITED are no limit.
    #[arg(short = 't', long, value_name = slurm_time::VALUE_NAME, value_parser = slurm_time::parse, conflicts_with = "timeout")]
    pub time: Option<Duration>,
    /// Send SIGNAL to the ranks this time before the time limit; a plain number is seconds [default time: 60s].
    #[arg(long, value_name = "SIGNAL[@TIME]", value_parser = signal_value::parse_ahead)]
    pub signal: Option<SignalAhead>,
    /// End the launch this time after its first rank has ended, with success or not, as srun does; 0 is never.
    #[arg(short = 'W', long, value_name = values::TIME, value_parser = parse_duration, allow_negative_numbers = true)]
    pub wait: Option<Duration>,
    /// Report the missing ranks and their call stacks if the start-up takes longer than this [default: 30s].
    #[arg(long, value_name = values::TIME, value_parser = parse_duration, allow_negative_numbers = true)]
    pub stuck_after: Option<Duration>,
    /// End the launch if ranks wait longer than this in a fence.
    #[arg(long, value_name = values::TIME, value_parser = parse_duration, allow_negative_numbers = true)]
    pub fence_timeout: Option<Duration>,
    /// Time from SIGTERM to SIGKILL [default: 400ms; 5s after an interrupt, or at --timeout]. On a cluster at most 30s if another client
    /// ends the launch.
    #[arg(long, value_name = values::TIME, value_parser = parse_duration, allow_negative_numbers = true)]
    pub kill_wait: Option<Duration>,
    /// After the end of the last rank, time for processes that hold a rank's standard output or error, such as tee, to forward the rest
    /// [default: 1s].
    #[arg(long, value_name = values::TIME, value_parser = parse_duration, allow_negative_numbers = true)]
    pub output_end: Option<Duration>,
}

//! The command line: each flag is defined once, and parser, help, man page and completions come from that definition.
//!
//! Only the shape of a single flag is checked here; whether they make sense together and on this machine is
//! [`crate::request`]'s business. The programs of a launch are split at each lone `:` before clap sees them, so that every
//! program has its own `-n`, `--env`, `--env-remove` and `--chdir`.

mod batch;
mod batch_line;
mod batch_tasks;
mod cluster;
mod copies;
mod cpu_bind;
mod deferred;
pub(crate) mod dev_cluster;
mod distribution;
pub(crate) mod exec;
mod export;
mod front_end;
mod gpu_bind;
mod hint;
mod idle;
mod launch;
mod list_entries;
mod mem_bind;
mod node_group;
mod other_launchers;
mod overlay;
mod per_object;
pub(crate) mod pki;
mod placement;
mod pmi;
pub(crate) mod pmi_command;
mod propagate;
mod remote_shell;
mod scontrol;
mod signal;
mod size;
mod slurm_time;
mod tips;
mod value;
mod via;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::error::{ContextKind, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

pub use self::batch::{BatchArgs, BatchOptions, BatchScriptArgs, CancelArgs, QueueArgs};
pub(crate) use self::batch::{RUN_SCRIPT, SCRIPT};
pub use self::batch_tasks::TaskArgs;
pub use self::cluster::{
    AbortArgs, AllocCommand, AttachArgs, CreateArgs, CxiCommand, DebugArgs, LaunchTableArgs, LaunchesArgs, Nodes,
    NodesArgs, NodesCommand, Requeue, ServerArgs, ShellArgs, SignalArgs, StacksArgs, TableArgs, TopArgs, TopOrder,
    TopologyFormat,
};
pub use self::copies::{Compression, CopyArgs, Excluded, SendLibs};
pub use self::deferred::Deferred;
pub use self::dev_cluster::DevClusterArgs;
pub use self::distribution::{Distribution, Order};
pub use self::exec::ExecArgs;
pub use self::export::{Export, ExportError};
pub(crate) use self::front_end::distinct;
use self::front_end::{Called, FrontEnd, Translation};
pub use self::front_end::{NamedHosts, WrapArgs};
pub use self::hint::Hint;
pub(crate) use self::idle::Allocation;
pub use self::idle::IdleArgs;
pub use self::launch::{
    ClusterArgs, ContainerArgs, DebuggerArgs, EnvironmentArgs, FailureArgs, KillOnBadExit, Label, LaunchArgs,
    NextProgramArgs, PmiArgs, ProgramArgs, ResourceTimeout, ScriptArgs, StreamArgs, TimeArgs, Unbuffered,
};
pub use self::node_group::NodeGroupArgs;
use self::other_launchers::translate;
pub use self::overlay::{CallArgs, GraphFormat, PingArgs, SetsArgs, SetsCommand};
pub use self::per_object::{Filling, PerObject, RankBy};
pub use self::pki::PkiCommand;
pub use self::placement::PlacementArgs;
pub use self::pmi::{Exchange, Pmi, Restartable};
pub use self::pmi_command::PmiCommand;
pub use self::propagate::Propagate;
pub use self::remote_shell::{RemoteLine, RemoteShellArgs, RemoteShellError, RemoteShellName};
pub use self::scontrol::{ScontrolArgs, ScontrolCommand, Shown};
pub use self::signal::SignalAhead;
use self::tips::{About, improved};
pub use self::value::{EnvSetting, EnvSettingError, NodeCount, NodeListError, RankCountError, Stdin};
pub use self::via::{HostArgs, JoinArgs, StartArgs, Via, ViaParseError, WayArgs};
use crate::console::{Verbosity, report};

/// Separator of the programs of a launch.
const SEPARATOR: &str = ":";

/// Starts MPI programs and wires them up: one command, no SSH, whatever MPI they were built with.
#[derive(Debug, Parser)]
// Of a flag that is given twice the last one counts, as with srun and mpirun: wrappers add theirs behind those of others.
#[command(name = "lattice", version, max_term_width = HELP_WIDTH, after_help = AFTER_HELP, args_override_self = true)]
pub struct Cli {
    /// Amount that is told.
    #[command(flatten)]
    pub verbosity: VerbosityArgs,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
    /// Remarks on its words.
    #[arg(skip)]
    pub remarks: Remarks,
}

/// Remarks on the words of a command line, for the process that carries it out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remarks {
    /// Meaning of a line of another launcher, for `-v`.
    pub notes: Vec<String>,
    /// Words that are ignored though their effect could be missed, or that have another meaning than may be expected.
    pub warnings: Vec<String>,
}

impl Remarks {
    /// Prints those that are due.
    pub(crate) fn report(&self, verbosity: Verbosity) {
        let notes = self.notes.iter().filter(|_| verbosity == Verbosity::Verbose);
        let warnings = self.warnings.iter().filter(|_| verbosity > Verbosity::Quiet);
        notes.chain(warnings).for_each(|remark| report(remark));
    }
}

/// Flags of every command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub struct VerbosityArgs {
    /// Say nothing but what failed, and why.
    #[arg(short, long, global = true, conflicts_with = "verbose", display_order = LAST)]
    pub quiet: bool,
    /// Say what is set, started and ended.
    #[arg(short, long, global = true, display_order = LAST)]
    pub verbose: bool,
}

/// The commands of `lattice`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program as the ranks of a job.
    #[command(alias = "run", override_usage = launch::USAGE)]
    Launch(Deferred<LaunchArgs>),
    /// Run a command on nodes of an allocation, once on each: what a loop over ssh does, without ssh.
    #[command(after_help = exec::AFTER_HELP, override_usage = exec::USAGE)]
    Exec(Deferred<ExecArgs>),
    /// A line of `ssh`, `rsh` or `lattice-mpi-launcher`.
    #[command(skip)]
    RemoteShell(RemoteShellArgs),
    /// A line of `lattice mpiexec --wrap`.
    #[command(skip)]
    Wrap(WrapArgs),
    /// Run a script when nodes are free: in an allocation of its own, on the first of its nodes.
    #[command(after_help = batch::AFTER_HELP)]
    Batch(Deferred<BatchArgs>),
    /// Run the script of a batch job here; the API server calls it.
    #[command(name = batch::RUN_SCRIPT, hide = true)]
    BatchScript(Deferred<BatchScriptArgs>),
    /// Show who waits for nodes and who has some: your batch jobs and allocations; administrators see everybody's.
    #[command(after_help = batch::QUEUE_AFTER_HELP)]
    Queue(Deferred<QueueArgs>),
    /// End batch jobs, allocations or launches, whether they run or wait.
    Cancel(Deferred<CancelArgs>),
    /// Make, show and release allocations: nodes of a cluster to launch on.
    #[command(subcommand)]
    Alloc(Deferred<AllocCommand>),
    /// Show the nodes of the cluster, drain them and resume them.
    Nodes(Deferred<NodesArgs>),
    /// Show your launches on this machine and on the cluster; administrators see everybody's there.
    #[command(aliases = ["ps", "list", "jobs", "ls"])]
    Launches(Deferred<LaunchesArgs>),
    /// Show what the processes of each rank of a launch use: processors, memory, input and output.
    #[command(after_help = TOP_AFTER_HELP)]
    Top(Deferred<TopArgs>),
    /// Show the functions that the ranks of a launch are in, as a tree of callers.
    #[command(after_help = STACKS_AFTER_HELP)]
    Stacks(Deferred<StacksArgs>),
    /// Run gdb on ranks of a launch.
    #[command(override_usage = DEBUG_USAGE, after_help = DEBUG_AFTER_HELP)]
    Debug(Deferred<DebugArgs>),
    /// Show how far each rank of a launch has come, node by node.
    Status(Deferred<LaunchTableArgs>),
    /// Follow a launch that runs already; Ctrl-C leaves it running.
    Attach(Deferred<AttachArgs>),
    /// Send a signal to ranks of a launch.
    #[command(
        after_help = "Examples:\n  lattice signal k3jq09zmf2 USR1\n  lattice signal k3jq09zmf2 STOP --ranks 0-3,8"
    )]
    Signal(Deferred<SignalArgs>),
    /// End a launch.
    #[command(alias = "kill")]
    Abort(Deferred<AbortArgs>),
    /// Print where each rank of a launch runs, for debuggers.
    Proctable(Deferred<LaunchTableArgs>),
    /// Show the sets of this machine that you can call: your launches, and this command itself.
    #[command(after_help = overlay::SETS_AFTER_HELP)]
    Sets(Deferred<SetsArgs>),
    /// Measure how long a call to a process of a launch takes, there and back.
    #[command(after_help = overlay::PING_AFTER_HELP)]
    Ping(Deferred<PingArgs>),
    /// Call a method of a process of a launch, and print its answer.
    #[command(after_help = overlay::CALL_AFTER_HELP)]
    Call(Deferred<CallArgs>),
    /// Look after fabric credentials; for administrators.
    #[command(subcommand)]
    Cxi(Deferred<CxiCommand>),
    /// Run a command, or your shell, in a cluster that is made on this machine and ends with it.
    #[command(after_help = DEV_CLUSTER_AFTER_HELP)]
    DevCluster(Deferred<DevClusterArgs>),
    /// Run a command, or your shell, with the nodes of an allocation of Slurm, PBS, LSF, Grid Engine or Flux, or with hosts that ssh
    /// reaches, ready for `lattice launch`; no daemon and no administrator is needed.
    #[command(after_help = START_AFTER_HELP)]
    Start(Deferred<StartArgs>),
    /// Talk PMI to the launcher of this process, as one rank of its job.
    #[command(after_help = "Example:\n  lattice launch -n 4 lattice pmi exchange")]
    Pmi(Deferred<PmiCommand>),
    /// Make the certificates by which the API server, node agents and remote users prove who they are.
    Pki(Deferred<PkiCommand>),
    /// Serve a cluster: its nodes, allocations and launches.
    Api(Deferred<lattice_api_server::args::ApiArgs>),
    /// Print the names in a list of nodes, or a list of names, as scripts of Slurm's ask scontrol for them.
    #[command(after_help = SCONTROL_AFTER_HELP)]
    Scontrol(Deferred<ScontrolArgs>),
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

/// Columns of a help, at most.
const HELP_WIDTH: usize = 100;
/// Flags of every command stand behind its own.
const LAST: usize = 900;

const AFTER_HELP: &str = "Environment:\n  \
    LATTICE_ALLOC_ID   the allocation to launch in, as --alloc\n  \
    LATTICE_API_URL    the API server, as --api; else `api` in ~/.config/lattice/config.toml\n  \
    LATTICE_SLURM_ENV  1 for what --slurm-env does\n  \
    LATTICE_VIA        the way to the nodes, as --via\n  \
    LATTICE_K8S_PODS   the pods of a launch in Kubernetes, as --host\n  \
    LATTICE_HOSTS      hosts with their slots, as --host, for launches whose flags place no ranks\n  \
    LATTICE_SETS       directory of your sets on this machine; else ~/.lattice/sets\n  \
    LATTICE_LOG        what to log on standard error, such as info or lattice=debug\n\n\
    Lines of other launchers:\n  \
    lattice srun ...     as srun of Slurm; lattice srun --help shows its flags\n  \
    lattice mpiexec ...  as mpiexec and mpirun of MPICH, Intel MPI and Open MPI\n\n\
    Example:\n  \
    lattice launch -n 4 ./a.out";

const START_AFTER_HELP: &str = "Examples:\n  \
    lattice start                                  # in an allocation; ends with your shell\n  \
    lattice start --via ssh --host node1:4,node2:4 -- sh -c 'lattice launch ./first && lattice launch ./second'";

const SCONTROL_AFTER_HELP: &str = "Examples:\n  \
    lattice scontrol show hostnames node[0-2]\n  \
    lattice scontrol show hostlist node0,node1,node2\n\n\
    A shell in an allocation finds this command as scontrol, too, where no other is installed.";

const TOP_AFTER_HELP: &str = "Examples:\n  \
    lattice top\n  \
    lattice top k3jq09zmf2 --sort memory\n  \
    lattice top k3jq09zmf2 --once --json\n\n\
    A rank counts with all processes below it. BUSY is the share of a processor since the table before, 200 % for two; READ and WRITTEN \
    are bytes of system calls. On a terminal, q quits, and r, c, m and i sort by rank, cpu, memory and io.";

const DEBUG_USAGE: &str = "lattice debug [OPTIONS] LAUNCH [-- GDB-OPTIONS...]";

const DEBUG_AFTER_HELP: &str = "Examples:\n  \
    lattice debug k3jq09zmf2 --ranks 0,7\n  \
    lattice debug k3jq09zmf2 --ranks 3 -- -batch -ex 'thread apply all bt'\n\n\
    On a cluster gdb runs on the node of the ranks, within its allocation; for ranks of several nodes here, with a gdbserver on each.";

const STACKS_AFTER_HELP: &str = "Examples:\n  \
    lattice stacks k3jq09zmf2\n  \
    lattice stacks k3jq09zmf2 --full\n\n\
    Ranks in the same functions are shown once, as 0-62,64; where they differ the tree branches, the branch of most ranks first. The node \
    of a rank needs gdb or eu-stack (elfutils). Ranks do not run while they are looked at, a fraction of a second as a rule.";

const DEV_CLUSTER_AFTER_HELP: &str = "Examples:\n  \
    lattice dev-cluster --nodes 4 -- lattice launch -n 8 ./a.out\n  \
    lattice dev-cluster";

impl Cli {
    /// A line of `command` that says nothing else.
    fn of(command: Command) -> Self {
        Self { verbosity: VerbosityArgs::default(), command, remarks: Remarks::default() }
    }
}

/// Reads a command line; its first word is the name that we were called by.
///
/// # Errors
/// Returns clap's error for a wrong command line, and also for `--help` and `--version`, as clap does.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let words: Vec<OsString> = words.into_iter().collect();
    if let Some(Called { front_end, words, verbosity }) = Called::of(&words) {
        if let (FrontEnd::Mpiexec(_), Some(wrapped)) = (front_end, WrapArgs::of(words)) {
            return Ok(Cli::of(Command::Wrap(wrapped)));
        }
        let translation = front_end.translate(words)?;
        return parse_translated(Translation { verbosity: translation.verbosity.or(verbosity), ..translation });
    }
    if let Some((name, rest)) = RemoteShellName::of(&words) {
        return Ok(Cli::of(Command::RemoteShell(name.read(rest)?)));
    }
    let words = scontrol::own_words(&words).unwrap_or(words);
    match launch_position(&words) {
        Some(position) => parse_launch(&words, position).map_err(|error| improved(error, About::Launch, &words)),
        None => Cli::try_parse_from(&words).map_err(|error| improved(error, About::Other, &words)),
    }
}

/// Reads the line of `lattice launch` that a line of another launcher means.
fn parse_translated(translation: Translation) -> Result<Cli, clap::Error> {
    let Translation { words, notes, warnings, verbosity } = translation;
    let words: Vec<OsString> = ["lattice", "launch"].map(OsString::from).into_iter().chain(words).collect();
    let meant = format!("this means: {}", tips::line("launch", &words[2..]));
    let mut cli = parse_launch(&words, 1).map_err(|error| {
        let error = improved(error, About::Launch, &words);
        if !error.use_stderr() {
            return error;
        }
        // It names flags that nobody has typed.
        let text = error.render().to_string();
        clap::Error::raw(error.kind(), format!("{meant}\n{}", text.strip_prefix("error: ").unwrap_or(&text)))
    })?;
    cli.remarks = Remarks { notes: std::iter::once(meant).chain(notes).collect(), warnings };
    cli.verbosity.quiet = verbosity == Some(Verbosity::Quiet);
    cli.verbosity.verbose = verbosity == Some(Verbosity::Verbose);
    Ok(cli)
}

/// Names of the command `launch`.
const LAUNCH: [&str; 2] = ["launch", "run"];

/// Position of the word `launch`, if that is the command.
fn launch_position(words: &[OsString]) -> Option<usize> {
    let position = words.iter().skip(1).position(|word| !word.as_bytes().starts_with(b"-"))? + 1;
    LAUNCH.iter().any(|name| words[position] == *name).then_some(position)
}

/// Reads a launch, whose own words begin behind `position`.
fn parse_launch(words: &[OsString], position: usize) -> Result<Cli, clap::Error> {
    let mut programs = words.split(|word| word == SEPARATOR);
    let mut first = programs.next().unwrap_or_default().to_vec();
    translate(first.get_mut(position + 1..).unwrap_or_default(), launch_definition)?;
    let mut cli = Cli::try_parse_from(first)?;
    if let Command::Launch(launch) = &mut cli.command {
        launch.more = programs.map(parse_program).collect::<Result<_, _>>()?;
        cli.remarks.warnings = launch.first.env.iter().filter_map(EnvSetting::of_several).collect();
    }
    Ok(cli)
}

/// Reads the words of a launch of one program, in which a `:` is a word like any other.
///
/// # Errors
/// Returns clap's error for words that are none of `lattice launch`.
pub(crate) fn launch_of_one_program(words: Vec<OsString>) -> Result<LaunchArgs, clap::Error> {
    let words = ["lattice", "launch"].map(OsString::from).into_iter().chain(words);
    match Cli::try_parse_from(words)?.command {
        Command::Launch(args) => Ok(args.into_inner()),
        other => unreachable!("the first word made {other:?} of a launch"),
    }
}

/// True if `word` is a command, by its name or another one that it has.
pub(crate) fn is_command(word: &str) -> bool {
    Cli::command().find_subcommand(word).is_some()
}

/// Line that prints the help of the command in these words, or of the launcher whose line they are.
pub(crate) fn help_line(words: &[OsString]) -> String {
    if let Some(Called { front_end, .. }) = Called::of(words) {
        return format!("lattice {} --help", front_end.name());
    }
    let mut cli = Cli::command();
    // Commands below others are known then.
    cli.build();
    let (mut line, mut command) = ("lattice".to_owned(), &cli);
    for word in words.iter().skip(1).filter(|word| !word.as_bytes().starts_with(b"-")).map_while(|word| word.to_str()) {
        let Some(below) = command.find_subcommand(word) else { break };
        command = below;
        line = format!("{line} {word}");
    }
    line + " --help"
}

/// The definition of `lattice launch` with the flags that every command has.
fn launch_definition() -> clap::Command {
    let mut cli = Cli::command();
    // clap completes the definition of a command for a line that names it. The error of this line, without a program, is no matter.
    let _ = cli.try_get_matches_from_mut(["lattice", LAUNCH[0]]);
    cli.find_subcommand(LAUNCH[0]).expect("it is a command").clone()
}

/// The definition of a program behind a `:`.
fn program_definition() -> clap::Command {
    NextProgramArgs::augment_args(clap::Command::new("lattice launch ... :"))
        .no_binary_name(true)
        .disable_help_flag(true)
        .override_usage("lattice launch ... : [PROGRAM OPTIONS] PROGRAM [ARGS]...")
}

/// Reads what stands between two `:`.
fn parse_program(words: &[OsString]) -> Result<NextProgramArgs, clap::Error> {
    let mut words = words.to_vec();
    translate(&mut words, program_definition)?;
    let mut command = program_definition();
    let matches = command.try_get_matches_from_mut(words).map_err(|error| match flag_of_launch(&error) {
        Some(flag) => command.error(
            ErrorKind::UnknownArgument,
            format!("{flag} holds for the whole launch, not for one program; it must stand before the first program"),
        ),
        // Its own definition has no help to name.
        None if matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue) => {
            let text = error.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end().to_owned();
            clap::Error::raw(error.kind(), format!("{text}\n\nFor more information, try '--help'.\n"))
        }
        None => error,
    })?;
    NextProgramArgs::from_arg_matches(&matches)
}

/// The flag that `error` complains about, if `lattice launch` has it.
fn flag_of_launch(error: &clap::Error) -> Option<String> {
    let flag = error.get(ContextKind::InvalidArg)?.to_string();
    let known = launch_definition().get_arguments().any(|arg| {
        arg.get_long().is_some_and(|long| flag.strip_prefix("--") == Some(long))
            || arg.get_short().is_some_and(|short| flag == format!("-{short}"))
    });
    (known && error.kind() == ErrorKind::UnknownArgument).then_some(flag)
}

#[cfg(test)]
mod tests;

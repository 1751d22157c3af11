//! The command line. Each flag is defined once: the parser, the help, the man page and the completions use this definition.
//!
//! This module checks the form of single flags. [`crate::request`] checks their combinations, and whether this machine
//! allows them. The words of a launch are split at each lone `:` before clap parses them, so that every program has its own
//! `-n`, `--env`, `--env-remove` and `--chdir`.

mod copies;
mod cpu_bind;
mod deferred;
mod distribution;
pub(crate) mod exec;
mod export;
mod gpu_bind;
mod groups;
mod hint;
mod launch;
mod list_entries;
mod mem_bind;
mod node_group;
mod other_launchers;
mod placement;
mod pmi;
pub(crate) mod pmi_command;
mod propagate;
mod size;
mod tips;
mod topics;
mod value;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::builder::styling::{AnsiColor, Styles};
use clap::error::{ContextKind, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use lattice_commands::args::{
    self as commands, AllocCommand, AttachArgs, BatchArgs, BatchScriptArgs, CancelArgs, CxiCommand, DebugArgs,
    ExplainArgs, LaunchTableArgs, LaunchesArgs, NodesArgs, PkiCommand, QueueArgs, ScontrolArgs, SetCommand, SignalArgs,
    StacksArgs, TableArgs, TopArgs,
};
use lattice_console::formatting::typed_line;
use lattice_console::{Verbosity, report};
use lattice_dialects::remote_shell::{RemoteShellArgs, RemoteShellName};
use lattice_dialects::{Called, SEPARATOR, Translation};
use lattice_private_cluster::dev_cluster::args::DevClusterArgs;
use lattice_private_cluster::via::args::StartArgs;

pub use self::copies::{Compression, CopyArgs, Excluded, SendLibs};
pub use self::deferred::Deferred;
pub use self::distribution::{Distribution, Order};
pub use self::exec::ExecArgs;
pub use self::export::{Export, ExportError};
pub use self::hint::Hint;
pub use self::launch::{
    ClusterArgs, ContainerArgs, DebuggerArgs, EnvironmentArgs, FailureArgs, KillOnBadExit, Label, LaunchArgs,
    NextProgramArgs, PmiArgs, ProgramArgs, ResourceTimeout, ScriptArgs, StreamArgs, TimeArgs, Unbuffered,
};
pub use self::node_group::NodeGroupArgs;
use self::other_launchers::translate;
pub use self::placement::PlacementArgs;
pub use self::pmi::{Exchange, Pmi, Restartable};
pub use self::pmi_command::PmiCommand;
pub use self::propagate::Propagate;
use self::tips::{About, improved};
pub use self::value::{EnvSetting, EnvSettingError, NodeCount, RankCountError, Stdin};

/// Start MPI programs of any MPI library, on one machine or a cluster, without SSH.
#[derive(Debug, Parser)]
// The last occurrence of a repeated flag applies, as with srun and mpirun: wrappers append their flags to the flags of the
// user.
#[command(name = "lattice", version, max_term_width = HELP_WIDTH, help_template = groups::template(STYLES.get_header(), STYLES.get_literal()), styles = STYLES, after_help = AFTER_HELP,
          args_override_self = true)]
pub struct Cli {
    /// Verbosity of Lattice's own messages.
    #[command(flatten)]
    pub verbosity: VerbosityArgs,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
    /// Remarks on the words of the command line.
    #[arg(skip)]
    pub remarks: Remarks,
}

/// Remarks on the words of a command line, for the process that runs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remarks {
    /// Meaning of a line of another launcher, printed with `-v`.
    pub notes: Vec<String>,
    /// Warnings about words that are ignored, or that have another meaning than in other launchers.
    pub warnings: Vec<String>,
}

impl Remarks {
    /// Prints the warnings, unless quiet, and the notes, if verbose.
    pub(crate) fn report(&self, verbosity: Verbosity) {
        let notes = self.notes.iter().filter(|_| verbosity == Verbosity::Verbose);
        let warnings = self.warnings.iter().filter(|_| verbosity > Verbosity::Quiet);
        notes.chain(warnings).for_each(|remark| report(remark));
    }
}

/// Flags of every command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub struct VerbosityArgs {
    /// Print failures only.
    #[arg(short, long, global = true, conflicts_with = "verbose", display_order = LAST)]
    pub quiet: bool,
    /// Print settings, starts and ends.
    #[arg(short, long, global = true, display_order = LAST)]
    pub verbose: bool,
}

/// The commands of `lattice`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program as the ranks of a job.
    #[command(visible_alias = "run", override_usage = launch::USAGE)]
    Launch(Deferred<LaunchArgs>),
    /// Run a command once on each named node of an allocation, without ssh.
    #[command(after_help = exec::AFTER_HELP, override_usage = exec::USAGE)]
    Exec(Deferred<ExecArgs>),
    /// A line of `ssh`, `rsh` or `lattice-mpi-launcher`.
    #[command(skip)]
    RemoteShell(RemoteShellArgs),
    /// Run a script when nodes are free.
    ///
    /// It runs on the first node of its own allocation.
    #[command(after_help = commands::BATCH_AFTER_HELP)]
    Batch(Deferred<BatchArgs>),
    /// Run the script of a batch job here (for calls of the API server).
    #[command(name = commands::RUN_SCRIPT, hide = true)]
    BatchScript(Deferred<BatchScriptArgs>),
    /// Show waiting and running batch jobs and allocations.
    ///
    /// Yours; for administrators, those of all users.
    #[command(after_help = commands::QUEUE_AFTER_HELP)]
    Queue(Deferred<QueueArgs>),
    /// End launches, batch jobs or allocations.
    #[command(visible_aliases = ["abort", "kill"], after_help = commands::CANCEL_AFTER_HELP)]
    Cancel(Deferred<CancelArgs>),
    /// Create, show and release allocations: nodes of a cluster to launch on.
    #[command(subcommand)]
    Alloc(Deferred<AllocCommand>),
    /// Show, drain and resume the nodes of the cluster.
    Nodes(Deferred<NodesArgs>),
    /// Show your launches on this machine and on the cluster.
    ///
    /// For administrators, the launches of all users of the cluster.
    #[command(visible_aliases = ["ps", "list", "jobs", "ls"])]
    Launches(Deferred<LaunchesArgs>),
    /// Show the processor, memory and I/O use of each rank of a launch.
    #[command(after_help = TOP_AFTER_HELP)]
    Top(Deferred<TopArgs>),
    /// Show the call stacks of the ranks of a launch, merged into a tree of callers.
    #[command(after_help = STACKS_AFTER_HELP)]
    Stacks(Deferred<StacksArgs>),
    /// Run gdb on ranks of a launch.
    #[command(override_usage = DEBUG_USAGE, after_help = DEBUG_AFTER_HELP)]
    Debug(Deferred<DebugArgs>),
    /// Show the progress of each rank of a launch, node by node.
    Status(Deferred<LaunchTableArgs>),
    /// Explain an exit code, or print the first cause of a launch with the next step.
    #[command(after_help = commands::EXPLAIN_AFTER_HELP)]
    Explain(Deferred<ExplainArgs>),
    /// Follow a running launch; Ctrl-C detaches from it.
    Attach(Deferred<AttachArgs>),
    /// Send a signal to ranks of a launch.
    #[command(
        after_help = "Examples:\n  lattice signal k3jq09zmf2 USR1\n  lattice signal k3jq09zmf2 STOP --ranks 0-3,8"
    )]
    Signal(Deferred<SignalArgs>),
    /// Print where each rank of a launch runs, for debuggers.
    Proctable(Deferred<LaunchTableArgs>),
    /// Show the sets that you can call, and call their processes.
    ///
    /// A set is a launch of yours on this machine or on the cluster, or this command.
    #[command(subcommand, after_help = commands::SET_AFTER_HELP)]
    Set(Deferred<SetCommand>),
    /// Check this machine, the settings in force and the cluster, with the next step for each fault.
    #[command(after_help = commands::DOCTOR_AFTER_HELP)]
    Doctor(Deferred<TableArgs>),
    /// Manage fabric credentials; for administrators.
    #[command(subcommand)]
    Cxi(Deferred<CxiCommand>),
    /// Run a command, or your shell, in a cluster on this machine.
    ///
    /// The cluster ends with the command.
    #[command(after_help = DEV_CLUSTER_AFTER_HELP)]
    DevCluster(Deferred<DevClusterArgs>),
    /// Run a command, or your shell, with the nodes of another manager, or with hosts of ssh.
    ///
    /// `lattice launch` in it uses the nodes of an allocation of Slurm, PBS, LSF, Grid Engine or Flux, or the hosts. Needs no daemon and no
    /// administrator.
    #[command(after_help = START_AFTER_HELP)]
    Start(Deferred<StartArgs>),
    /// Send PMI requests to the launcher of this process, as a rank of its job.
    #[command(after_help = "Example:\n  lattice launch -n 4 lattice pmi exchange")]
    Pmi(Deferred<PmiCommand>),
    /// Create the certificates of the API server, node agents and remote users.
    Pki(Deferred<PkiCommand>),
    /// Run the API server of a cluster, for its nodes, allocations and launches.
    Api(Deferred<lattice_api_server::args::ApiArgs>),
    /// Expand and fold lists of node names.
    ///
    /// As scontrol of Slurm does for scripts.
    #[command(after_help = SCONTROL_AFTER_HELP)]
    Scontrol(Deferred<ScontrolArgs>),
    /// Print the completion script of a shell.
    #[command(after_help = "Example:\n  lattice completions bash > ~/.local/share/bash-completion/completions/lattice")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print a man page in roff.
    #[command(after_help = "Example:\n  lattice man launch | man -l -")]
    Man {
        /// The command to describe, such as `launch` [default: lattice itself].
        command: Vec<String>,
        /// Write the pages of all commands to this directory.
        #[arg(long, value_name = "DIRECTORY", conflicts_with = "command")]
        all: Option<PathBuf>,
    },
}

/// Colours of the help and of errors on a terminal.
const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());
/// Maximum width of the help, in columns.
const HELP_WIDTH: usize = 100;
/// Position of the flags of every command in the help of a command: after its own flags.
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
    /// A command line of `command`, with the default verbosity and without remarks.
    fn of(command: Command) -> Self {
        Self { verbosity: VerbosityArgs::default(), command, remarks: Remarks::default() }
    }
}

/// Parses a command line. Its first word is the name that this program was called by.
///
/// # Errors
/// Returns clap's error for an invalid command line, and also for `--help` and `--version`, as clap does.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let words: Vec<OsString> = words.into_iter().collect();
    if let Some(called) = Called::of(&words) {
        return parse_translated(called.translate()?);
    }
    if let Some((name, rest)) = RemoteShellName::of(&words) {
        return Ok(Cli::of(Command::RemoteShell(name.read(rest)?)));
    }
    let words = commands::own_words(&words).unwrap_or(words);
    match launch_position(&words) {
        Some(position) => parse_launch(&words, position).map_err(|error| improved(error, About::Launch, &words)),
        None => Cli::try_parse_from(&words).map_err(|error| improved(error, About::Other, &words)),
    }
}

/// Parses the translation of a line of another launcher to `lattice launch`.
fn parse_translated(translation: Translation) -> Result<Cli, clap::Error> {
    let Translation { words, notes, warnings, verbosity } = translation;
    let words: Vec<OsString> = ["lattice", "launch"].map(OsString::from).into_iter().chain(words).collect();
    let meant = format!("this means: {}", typed_line("launch", &words[2..]));
    let mut cli = parse_launch(&words, 1).map_err(|error| {
        let error = improved(error, About::Launch, &words);
        if !error.use_stderr() {
            return error;
        }
        // The error names flags that the user did not type.
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

/// Parses a launch. The word `launch` is at `position`.
fn parse_launch(words: &[OsString], position: usize) -> Result<Cli, clap::Error> {
    let mut programs = words.split(|word| word == SEPARATOR);
    let mut first = programs.next().unwrap_or_default().to_vec();
    translate(first.get_mut(position + 1..).unwrap_or_default(), launch_definition)?;
    if let Some(help) = topics::answer(first.get(position + 1..).unwrap_or_default(), launch_definition) {
        return Err(help);
    }
    let mut cli = Cli::try_parse_from(first)?;
    if let Command::Launch(launch) = &mut cli.command {
        launch.more = programs.map(parse_program).collect::<Result<_, _>>()?;
        cli.remarks.warnings = launch.first.env.iter().filter_map(EnvSetting::of_several).collect();
    }
    Ok(cli)
}

/// Parses the words of a launch of one program. A `:` has no special meaning in them.
///
/// # Errors
/// Returns clap's error for words that `lattice launch` does not accept.
pub(crate) fn launch_of_one_program(words: Vec<OsString>) -> Result<LaunchArgs, clap::Error> {
    let words = ["lattice", "launch"].map(OsString::from).into_iter().chain(words);
    match Cli::try_parse_from(words)?.command {
        Command::Launch(args) => Ok(args.into_inner()),
        other => unreachable!("the first word made {other:?} of a launch"),
    }
}

/// True if `word` is the name or an alias of a command.
pub(crate) fn is_command(word: &str) -> bool {
    Cli::command().find_subcommand(word).is_some()
}

/// Command line that prints the help for the command in these words, or for the other launcher that they call.
pub(crate) fn help_line(words: &[OsString]) -> String {
    if let Some(called) = Called::of(words) {
        return format!("lattice {} --help", called.name());
    }
    let mut cli = Cli::command();
    // This defines the subcommands of deferred commands.
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
    // clap completes the definition of a command when a line names it. The error of this line, which has no program, is
    // ignored.
    let _ = cli.try_get_matches_from_mut(["lattice", LAUNCH[0]]);
    cli.find_subcommand(LAUNCH[0]).expect("it is a command").clone()
}

/// The definition of a program after a `:`.
fn program_definition() -> clap::Command {
    NextProgramArgs::augment_args(clap::Command::new("lattice launch ... :"))
        .no_binary_name(true)
        .disable_help_flag(true)
        .override_usage("lattice launch ... : [PROGRAM OPTIONS] PROGRAM [ARGS]...")
}

/// Parses the words between two `:`.
fn parse_program(words: &[OsString]) -> Result<NextProgramArgs, clap::Error> {
    let mut words = words.to_vec();
    translate(&mut words, program_definition)?;
    let mut command = program_definition();
    let matches = command.try_get_matches_from_mut(words).map_err(|error| match flag_of_launch(&error) {
        Some(flag) => command.error(
            ErrorKind::UnknownArgument,
            format!("{flag} holds for the whole launch, not for one program; it must stand before the first program"),
        ),
        // The definition of a program has no help flag, so the tip names that of the launch.
        None if matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue) => {
            let text = error.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end().to_owned();
            clap::Error::raw(error.kind(), format!("{text}\n\nFor more information, try '--help'.\n"))
        }
        None => error,
    })?;
    NextProgramArgs::from_arg_matches(&matches)
}

/// The flag that `error` rejects, if `lattice launch` has it.
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

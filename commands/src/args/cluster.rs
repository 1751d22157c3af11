//! The commands about a cluster, and the flags that they share.

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand, ValueEnum};
use lattice_cluster_client::args::ServerArgs;
use lattice_console::formatting::TIME_MAX;
use lattice_console::signal_value;
use lattice_console::values::{self, node_list, whole};
use lattice_dialects::slurm_time;
use lattice_session::rank_ranges::RankRanges;
use nix::sys::signal::Signal;

/// Flags of every command that calls the API server.
#[derive(Clone, Debug, Args)]
pub struct TableArgs {
    /// The API server.
    #[command(flatten)]
    pub api: ServerArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The flags of commands that show one launch.
#[derive(Clone, Debug, Args)]
pub struct LaunchTableArgs {
    /// The launch.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub launch: String,
    /// Server and form of the answer.
    #[command(flatten)]
    pub table: TableArgs,
}

/// End of the help of `lattice doctor`.
pub const DOCTOR_AFTER_HELP: &str = "Examples:\n  \
    lattice doctor\n  \
    lattice doctor --json | jq '.checks[] | select(.state != \"ok\")'\n\n\
    Each line is ok, warning or error. The exit code is 1 if there is an error, else 0. With -q, only warnings and errors are printed.";

/// End of the help of `lattice explain`.
pub const EXPLAIN_AFTER_HELP: &str = "Examples:\n  \
    lattice explain 139\n  \
    lattice explain k3jq09zmf2\n\n\
    A cluster keeps the record of a launch after its end. This machine has launches that run.";

/// The flags of `lattice explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    /// The exit code, 0 to 255, or the launch.
    #[arg(value_name = "CODE|LAUNCH", value_parser = NonEmptyStringValueParser::new())]
    pub word: String,
    /// Server and form of the answer.
    #[command(flatten)]
    pub table: TableArgs,
}

/// The commands about allocations.
#[derive(Clone, Debug, Subcommand)]
pub enum AllocCommand {
    /// Make an allocation, and print its id.
    #[command(after_help = CREATE_AFTER_HELP)]
    Create(CreateArgs),
    /// Run your shell, or a command, in an allocation: an unchanged mpirun or mpiexec in it starts its ranks on all nodes.
    #[command(after_help = SHELL_AFTER_HELP)]
    Shell(ShellArgs),
    /// Show your allocations; for administrators, the allocations of all users.
    List {
        /// Also those that have ended.
        #[arg(long)]
        all: bool,
        /// Server and form of the answer.
        #[command(flatten)]
        table: TableArgs,
    },
    /// Show one allocation.
    Show {
        /// The allocation; else the one in LATTICE_ALLOC_ID.
        id: Option<String>,
        /// Print the variables of a shell in it, as lines for `eval`, instead.
        #[arg(long, conflicts_with = "json")]
        shell_env: bool,
        /// Server and form of the answer.
        #[command(flatten)]
        table: TableArgs,
    },
    /// End an allocation, and every launch in it.
    Release {
        /// The allocation; never taken from the environment.
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        id: String,
        /// Server and form of the answer.
        #[command(flatten)]
        table: TableArgs,
    },
}

const CREATE_AFTER_HELP: &str = "Examples:\n  \
    export LATTICE_ALLOC_ID=$(lattice alloc create -N 4)       # for lattice launch, exec and srun\n  \
    eval \"$(lattice alloc create -N 4 --shell-env)\"           # for an unchanged mpirun or mpiexec as well";

const SHELL_AFTER_HELP: &str = "Examples:\n  \
    lattice alloc shell -N 4\n  \
    lattice alloc shell -N 4 -- mpirun ./a.out";

/// The flags of `lattice alloc shell`.
#[derive(Clone, Debug, Args)]
pub struct ShellArgs {
    /// Make an allocation of N nodes that are free, and release it at the end.
    #[arg(short = 'N', long = "nodes", value_name = "N", value_parser = whole(1..=u32::MAX), allow_negative_numbers = true, conflicts_with = "list")]
    pub count: Option<u32>,
    /// Make one of exactly these nodes, such as node[0-3,7].
    #[arg(short = 'w', long = "nodelist", value_name = "NODES", value_parser = node_list)]
    pub list: Option<String>,
    /// Use this allocation, which is there already (else the one in LATTICE_ALLOC_ID).
    #[arg(long = "alloc", value_name = "ID", conflicts_with_all = ["count", "list"])]
    pub id: Option<String>,
    /// If the nodes are not up and free now, wait for them in the queue.
    #[arg(long)]
    pub wait: bool,
    /// End the allocation after this time, such as 30 (minutes), 2:00:00 or 90s.
    #[arg(short, long, value_name = slurm_time::VALUE_NAME, value_parser = slurm_time::allocation_limit)]
    pub time: Option<Duration>,
    /// The API server.
    #[command(flatten)]
    pub api: ServerArgs,
    /// The command and its arguments; else your shell.
    #[arg(value_name = "COMMAND", last = true)]
    pub command: Vec<OsString>,
}

/// The flags of `lattice alloc create`.
#[derive(Clone, Debug, Args)]
pub struct CreateArgs {
    /// Nodes of the allocation.
    #[command(flatten)]
    pub nodes: Nodes,
    /// Queue the allocation again after a failure: never, on-node-failure or on-any-failure.
    #[arg(long, value_enum, default_value_t = Requeue::Never, value_name = "WHEN", hide_possible_values = true)]
    pub requeue: Requeue,
    /// For this user; administrators only.
    #[arg(long, value_name = "UID")]
    pub uid: Option<u32>,
    /// If the nodes are not up and free now, wait for them in the queue.
    #[arg(long)]
    pub wait: bool,
    /// End it after this time, such as 30 (minutes), 2:00:00 or 90s.
    #[arg(short, long, value_name = slurm_time::VALUE_NAME, value_parser = slurm_time::allocation_limit)]
    pub time: Option<Duration>,
    /// Print the variables of a shell in the allocation, as lines for `eval`, instead of its id: with them an unchanged mpirun or mpiexec starts
    /// its ranks on the nodes. Their files are in ~/.local/state/lattice until `lattice alloc release`.
    #[arg(long, conflicts_with = "json")]
    pub shell_env: bool,
    /// Server and form of the answer.
    #[command(flatten)]
    pub table: TableArgs,
}

/// Nodes of an allocation: a number or a list.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Nodes {
    /// N nodes that are free.
    #[arg(short = 'N', long = "nodes", value_name = "N", value_parser = whole(1..=u32::MAX), allow_negative_numbers = true)]
    pub count: Option<u32>,
    /// Exactly these nodes, such as node[0-3,7].
    #[arg(short = 'w', long = "nodelist", value_name = "NODES", value_parser = node_list)]
    pub list: Option<String>,
}

/// Arguments of `lattice nodes`.
#[derive(Clone, Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "-v adds what each node is: its kind, what Lattice can do for ranks there, GPUs and NICs."
)]
pub struct NodesArgs {
    /// The action; without one, the nodes are shown.
    #[command(subcommand)]
    pub command: Option<NodesCommand>,
    /// Show the hardware of the nodes: each kind of node with its cores, caches, memory and devices; of the named nodes only, or of a
    /// launch, with its ranks in their cores.
    #[arg(long, value_name = "NODES|LAUNCH", num_args = 0..=1, value_parser = node_list)]
    pub topology: Option<Option<String>>,
    /// Form of --topology: text, svg (a drawing of one kind or node), json or xml (one kind, as hwloc reads it).
    #[arg(
        long,
        value_enum,
        value_name = "FORM",
        requires = "topology",
        conflicts_with = "json",
        hide_possible_values = true
    )]
    pub format: Option<TopologyFormat>,
    /// Server and form of the answer.
    #[command(flatten)]
    pub table: TableArgs,
}

/// Form in which kinds of nodes are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopologyFormat {
    /// Lines for people.
    Text,
    /// A drawing.
    Svg,
    /// All that is known, for programs.
    Json,
    /// The form that hwloc and `lstopo` read.
    Xml,
}

/// Actions of administrators on nodes.
#[derive(Clone, Debug, Subcommand)]
pub enum NodesCommand {
    /// Start no new work on nodes; running work continues. For administrators.
    #[command(after_help = "Example:\n  lattice nodes drain 'node[3-4]' --reason 'new memory on Monday'")]
    Drain {
        /// The nodes, such as node[3-4].
        #[arg(value_parser = node_list)]
        nodes: String,
        /// Reason, shown by `lattice nodes`.
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// Server and form of the answer.
        #[command(flatten)]
        table: TableArgs,
    },
    /// Use drained nodes again. For administrators.
    Resume {
        /// The nodes, such as node[3-4].
        #[arg(value_parser = node_list)]
        nodes: String,
        /// Server and form of the answer.
        #[command(flatten)]
        table: TableArgs,
    },
}

/// The flags of `lattice launches`.
#[derive(Clone, Debug, Args)]
pub struct LaunchesArgs {
    /// Also those that have ended.
    #[arg(long)]
    pub all: bool,
    /// Server and form of the answer.
    #[command(flatten)]
    pub table: TableArgs,
}

/// Policy for queueing an allocation again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Requeue {
    /// Never: a failed launch leaves it as it is.
    Never,
    /// After the loss of one of its nodes.
    OnNodeFailure,
    /// After the failure of a launch in it.
    OnAnyFailure,
}

/// The commands about fabric credentials.
#[derive(Clone, Debug, Subcommand)]
pub enum CxiCommand {
    /// Show the services that are held at the fabric manager, or being given back.
    List(TableArgs),
    /// Check the manager, the journal and the NICs of every node, and report faults; changes nothing.
    #[command(after_help = "The exit code is 0 if nothing is wrong, and 1 if something is.")]
    Doctor(TableArgs),
    /// Carry out due work at once: delete services at the manager, and end those left on nodes.
    Clean {
        /// Print the work, and do nothing.
        #[arg(long)]
        dry_run: bool,
        /// These nodes are gone for good, such as node[3-4]: nothing can be left on them.
        #[arg(long, value_name = "NODES", value_parser = node_list)]
        gone: Option<String>,
        /// Server and form of the answer.
        #[command(flatten)]
        table: TableArgs,
    },
}

/// The flags of `lattice attach`.
#[derive(Clone, Debug, Args)]
pub struct AttachArgs {
    /// The launch.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub launch: String,
    /// Start each line with the number of its rank.
    #[arg(short, long, conflicts_with = "json")]
    pub label: bool,
    /// Start each line with the time.
    #[arg(long, conflicts_with = "json")]
    pub timestamp: bool,
    /// Print events as JSON, one on each line, as `lattice launch --json`.
    #[arg(long)]
    pub json: bool,
    /// The API server.
    #[command(flatten)]
    pub api: ServerArgs,
}

/// Shortest interval of tables, since each table queries all nodes of the launch.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// The flags of `lattice top`.
#[derive(Clone, Debug, Args)]
pub struct TopArgs {
    /// The launch [default: the only one].
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub launch: Option<String>,
    /// Print one table and end; the same where the output is no terminal, and with --json.
    #[arg(long)]
    pub once: bool,
    /// Time from one table to the next.
    #[arg(long, value_name = values::TIME, value_parser = values::time(INTERVAL_MIN, TIME_MAX), default_value = "2s", allow_negative_numbers = true)]
    pub interval: Duration,
    /// First the ranks that use most of this: rank (none of it: in their order), cpu, memory or io.
    #[arg(long, value_enum, value_name = "BY", default_value = "rank", hide_possible_values = true)]
    pub sort: TopOrder,
    /// Server and form of the answer.
    #[command(flatten)]
    pub table: TableArgs,
}

/// The flags of `lattice debug`.
#[derive(Clone, Debug, Args)]
pub struct DebugArgs {
    /// The launch.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub launch: String,
    /// The ranks, such as 0,7 [default: 0]. Each is an inferior of the one debugger, and all of them go on together. gdb runs on their node;
    /// for ranks of several nodes it runs here, and needs a gdbserver on each of them.
    #[arg(long, value_name = "LIST")]
    pub ranks: Option<RankRanges>,
    /// Further options of gdb.
    #[arg(value_name = "GDB-OPTIONS", last = true)]
    pub arguments: Vec<OsString>,
    /// The API server.
    #[command(flatten)]
    pub api: ServerArgs,
}

/// The flags of `lattice stacks`.
#[derive(Clone, Debug, Args)]
pub struct StacksArgs {
    /// The launch.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub launch: String,
    /// Show the stack of every thread with files, lines and what it does in the kernel, instead of a tree.
    #[arg(long, conflicts_with = "json")]
    pub full: bool,
    /// Server and form of the answer.
    #[command(flatten)]
    pub table: TableArgs,
}

/// Order of ranks in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopOrder {
    /// By number.
    Rank,
    /// By processors kept busy, then by processor time.
    Cpu,
    /// By resident memory.
    Memory,
    /// By bytes read and written.
    Io,
}

/// The flags of `lattice signal`.
#[derive(Clone, Debug, Args)]
pub struct SignalArgs {
    /// The launch.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub launch: String,
    /// The signal: a name with or without SIG, or a number.
    #[arg(value_name = "SIGNAL", value_parser = signal_value::parse)]
    pub signal: Signal,
    /// The ranks that receive it, such as 0-3,8 [default: all].
    #[arg(long, value_name = "LIST")]
    pub ranks: Option<RankRanges>,
    /// Server and form of the answer.
    #[command(flatten)]
    pub table: TableArgs,
}

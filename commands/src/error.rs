//! Failures of commands.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use hostlist::HostlistError;
use lattice_cluster_client::ClusterError;
use lattice_console::OutputError;
use lattice_console::machine::MachineError;
use lattice_local_launches::LocalError;
use lattice_overlay::address::Uid;
use lattice_overlay::error::CallError;
use lattice_session::set::SetError;
use nix::sys::signal::Signal;

use super::batch::ScriptError;

/// Failure of a command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The cluster refused the request, or is unreachable.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The id matches no launch on this machine, and no API server can be queried for it.
    #[error(
        "no launch of yours on this machine has the id {id}, and there is no API server that could know it: {error}\n\
         try: lattice launches, which shows those that run; --api or LATTICE_API_URL, if it is on a cluster"
    )]
    NotHere {
        /// The id.
        id: String,
        /// First line of the error about the API server.
        error: String,
    },
    /// A number is no exit code.
    #[error(
        "{word} is no exit code; exit codes are 0 to 255\ntry: the code that `echo $?` prints, or the id of a launch"
    )]
    NoExitCode {
        /// The number.
        word: String,
    },
    /// A word is no exit code, and matches no launch.
    #[error(
        "{word} is no exit code (0 to 255), and no launch of yours that runs on this machine; no API server could know it: {error}\n\
         try: lattice launches, which shows those that run; a launch on this machine leaves no record, but its last line on standard error has its cause"
    )]
    NotExplained {
        /// The word.
        word: String,
        /// First line of the error about the API server.
        error: String,
    },
    /// No allocation is named.
    #[error("no allocation is named\ntry: its id, or LATTICE_ALLOC_ID; lattice alloc list shows them")]
    NoAllocation,
    /// The allocation has ended.
    #[error(
        "allocation {id} is over: it is {state}\ntry: -N NODES for a new one; if LATTICE_ALLOC_ID names it still, unset that"
    )]
    AllocationOver {
        /// Id of the allocation.
        id: String,
        /// Its state.
        state: &'static str,
    },
    /// A command in an allocation cannot be started.
    #[error("cannot run {}: {error}\ntry: the path of a program, such as ./NAME", command.display())]
    Shell {
        /// Program of the command.
        command: OsString,
        /// System error.
        error: io::Error,
    },
    /// The script of a batch job cannot be used.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// The launch request for its script is invalid.
    #[error("{0}")]
    Request(Box<dyn std::error::Error + Send + Sync>),
    /// The facts about this machine cannot be read.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A script has no exit code: it ended without one, or never started.
    #[error("job {id} has no exit code: {}", if cause.is_empty() { "it was cancelled before it began" } else { cause })]
    BatchWithoutEnd {
        /// Id of the job.
        id: String,
        /// Cause, as reported by the API server.
        cause: String,
    },
    /// `LATTICE_BATCH_SCRIPT` is not set: the API server did not start this process.
    #[error("there is no script in LATTICE_BATCH_SCRIPT: `lattice batch` has the API server run this command")]
    NoScript,
    /// An output file of a script cannot be opened.
    #[error("cannot write the output of the script to {}: {error}", path.display())]
    BatchOutput {
        /// The file.
        path: PathBuf,
        /// System error.
        error: io::Error,
    },
    /// A queued allocation ended before it ran.
    #[error("allocation {id} is {state}, and has never run")]
    EndedInQueue {
        /// Id of the allocation.
        id: String,
        /// Its state.
        state: &'static str,
    },
    /// A signal ended the command before it used its allocation.
    #[error("{signal} before anything was started in allocation {id}")]
    Interrupted {
        /// Id of the allocation.
        id: String,
        /// The signal.
        signal: Signal,
    },
    /// No nodes are named.
    #[error(
        "no nodes are named, and SLURM_JOB_NODELIST, SLURM_NODELIST and LATTICE_NODELIST are not set\ntry: a list such as node[0-3,7]"
    )]
    NoNodeList,
    /// A text is not a valid list of nodes.
    #[error("{0}\ntry: a list such as node[0-3,7]")]
    NodeList(#[from] HostlistError),
    /// A name matches no launch, and no node that has reported its inventory.
    #[error(
        "{node} is no known launch, and no node with an inventory\n\
         try: lattice nodes, or lattice launches; the agent of a node sends it when it registers"
    )]
    NoInventory {
        /// The node.
        node: String,
    },
    /// The format shows one kind of node, and there are several.
    #[error(
        "there are {number} kinds of nodes, and this form shows one\ntry: --topology with a node of one kind, such as of {one} or {other}"
    )]
    SeveralKinds {
        /// Number of kinds.
        number: usize,
        /// Nodes of one of them.
        one: String,
        /// Nodes of another one.
        other: String,
    },
    /// The format shows one node, and the launch has several.
    #[error("the launch runs on {number} nodes, and this form shows one\ntry: --format text or json")]
    SeveralNodes {
        /// Number of nodes.
        number: usize,
    },
    /// The format shows the ranks of a launch, and none of them runs.
    #[error("no rank of launch {launch} runs")]
    NoRanks {
        /// The launch.
        launch: String,
    },
    /// The requested kind of node is unknown, or its description is incomplete.
    #[error("the kind of node is not known, or not as a whole\ntry: lattice nodes -v, which has the reason")]
    NoTemplate,
    /// This command cannot become a set, or cannot find other sets.
    #[error(transparent)]
    Set(#[from] SetError),
    /// A call to a process of a set failed.
    #[error("{to}: {error}")]
    Call {
        /// The process.
        to: Uid,
        /// Reason.
        error: CallError,
    },
    /// No launch is named, and none runs.
    #[error(
        "no launch of yours runs on this machine or on a cluster that it knows\n\
         try: lattice launches --all, which also shows those of a cluster that have ended"
    )]
    NoLaunch,
    /// No launch is named, and several run.
    #[error("several launches run: {ids}\ntry: the id of one; lattice launches shows what they are")]
    SeveralLaunches {
        /// Their ids.
        ids: String,
    },
    /// All ranks have ended.
    #[error("no rank of launch {launch} runs\ntry: lattice status {launch}, which has their ends")]
    NothingRuns {
        /// Id of the launch.
        launch: String,
    },
    /// The command names a rank that the launch does not have.
    #[error(
        "launch {launch} has no rank {rank}; it has ranks 0 to {last}\ntry: --ranks with some of them; lattice status {launch} shows all"
    )]
    NoSuchRank {
        /// Id of the launch.
        launch: String,
        /// The rank.
        rank: u32,
        /// Its last rank.
        last: u32,
    },
    /// The launch has none of the named ranks.
    #[error("launch {launch} has none of these ranks\ntry: lattice status {launch}")]
    NoSuchRanks {
        /// Id of the launch.
        launch: String,
    },
    /// Ranks to debug have ended, or have not started.
    #[error("of launch {launch} these ranks do not run: {ranks}\ntry: lattice status {launch}")]
    RanksDoNotRun {
        /// Id of the launch.
        launch: String,
        /// The ranks.
        ranks: String,
    },
    /// More ranks than one debugger can reasonably handle.
    #[error(
        "{count} ranks are too many for one gdb, which holds up to {max} here\ntry: lattice stacks for a look at all of them"
    )]
    RanksInDebugger {
        /// Number of ranks.
        count: usize,
        /// Limit.
        max: usize,
    },
    /// gdb cannot be executed.
    #[error(
        "cannot run gdb: {error}\ntry: install it, with a package named gdb; lattice stacks also takes eu-stack of elfutils"
    )]
    NoDebugger {
        /// System error.
        error: io::Error,
    },
    /// A launch on this machine does not answer, has ended, or refuses the request.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// Writing to standard output failed.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The runtime or a file of the command cannot be used.
    #[error(transparent)]
    Io(#[from] io::Error),
}

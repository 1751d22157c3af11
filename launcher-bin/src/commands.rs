//! The commands that ask the API server something, or launches on this machine, and print the answer: as a table, or as JSON with the same
//! facts for programs.

mod alloc;
mod batch;
mod control;
mod cxi;
mod debug;
mod in_allocation;
mod launch_topology;
mod launches;
mod nodes;
mod overlay;
mod own_sets;
mod queue;
mod scontrol;
mod set_graph;
mod sets;
mod stacks;
mod status;
mod top;
mod topology;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use hostlist::HostlistError;
use lattice_overlay::address::Uid;
use lattice_overlay::error::CallError;
use lattice_session::set::SetError;
use nix::sys::signal::Signal;

pub(crate) use self::alloc::alloc;
pub(crate) use self::batch::{ScriptError, batch, run_script};
pub(crate) use self::control::{abort, signal};
pub(crate) use self::cxi::cxi;
pub(crate) use self::debug::debug;
pub(crate) use self::launches::launches;
pub(crate) use self::nodes::nodes;
pub(crate) use self::overlay::{call, ping};
pub(crate) use self::queue::{cancel, queue};
pub(crate) use self::scontrol::scontrol;
pub(crate) use self::sets::sets;
pub(crate) use self::stacks::stacks;
pub(crate) use self::status::{proctable, status};
pub(crate) use self::top::top;
use crate::args::ServerArgs;
use crate::cluster::{ApiServer, Cluster, ClusterError};
use crate::console::OutputError;
use crate::local_launches::{self, LocalError, LocalLaunch};
use crate::machine::MachineError;
use crate::request::RequestError;
use crate::runtime;

/// Failure of a question.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CommandError {
    /// The cluster refused it, or cannot be reached.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The id is of no launch of this machine, and there is nobody to ask about others.
    #[error(
        "no launch of yours on this machine has the id {id}, and there is no API server that could know it: {error}\n\
         try: lattice launches, which shows those that run; --api or LATTICE_API_URL, if it is on a cluster"
    )]
    NotHere {
        /// The id.
        id: String,
        /// Words about the API server.
        error: String,
    },
    /// Nobody said which allocation.
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
        /// Its program.
        command: OsString,
        /// Error of the system.
        error: io::Error,
    },
    /// The script of a batch job cannot be used.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// The launch of its script cannot be asked for.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Nobody knows where we are.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A script has ended, or was never started, and has no exit code.
    #[error("job {id} has no exit code: {}", if cause.is_empty() { "it was cancelled before it began" } else { cause })]
    BatchWithoutEnd {
        /// Id of the job.
        id: String,
        /// Words of the API server.
        cause: String,
    },
    /// The API server did not start us.
    #[error("there is no script in LATTICE_BATCH_SCRIPT: `lattice batch` has the API server run this command")]
    NoScript,
    /// A file for the output of a script cannot be opened.
    #[error("cannot write the output of the script to {}: {error}", path.display())]
    BatchOutput {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// An allocation that was waited for has ended.
    #[error("allocation {id} is {state}, and has never run")]
    EndedInQueue {
        /// Id of the allocation.
        id: String,
        /// Its state.
        state: &'static str,
    },
    /// Somebody ended the command before it had a use for its allocation.
    #[error("{signal} before anything was started in allocation {id}")]
    Interrupted {
        /// Id of the allocation.
        id: String,
        /// The signal.
        signal: Signal,
    },
    /// Nobody said which nodes.
    #[error(
        "no nodes are named, and SLURM_JOB_NODELIST, SLURM_NODELIST and LATTICE_NODELIST are not set\ntry: a list such as node[0-3,7]"
    )]
    NoNodeList,
    /// A text is no list of nodes.
    #[error("{0}\ntry: a list such as node[0-3,7]")]
    NodeList(#[from] HostlistError),
    /// A name is of no node that has told something of itself, and of no launch.
    #[error(
        "{node} is no launch that is known, and no node that has told what it is\n\
         try: lattice nodes, or lattice launches; a node tells it when its agent registers"
    )]
    NoInventory {
        /// The node.
        node: String,
    },
    /// A form that shows one kind of node was asked for, and there are several.
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
    /// A form that shows one node was asked for, and the launch has several.
    #[error("the launch runs on {number} nodes, and this form shows one\ntry: --format text or json")]
    SeveralNodes {
        /// Number of nodes.
        number: usize,
    },
    /// A picture of a launch was asked for, and nothing of it runs.
    #[error("no rank of launch {launch} runs")]
    NoRanks {
        /// The launch.
        launch: String,
    },
    /// Nobody has told the kind of node that was asked for.
    #[error("the kind of node is not known, or not as a whole\ntry: lattice nodes -v, which says why")]
    NoTemplate,
    /// This command cannot be a set, or does not find the others.
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
    /// Nobody said which launch, and there is none.
    #[error(
        "no launch of yours runs on this machine or on a cluster that it knows\n\
         try: lattice launches --all, which also shows those of a cluster that have ended"
    )]
    NoLaunch,
    /// Nobody said which launch, and there are several.
    #[error("several launches run: {ids}\ntry: the id of one; lattice launches shows what they are")]
    SeveralLaunches {
        /// Their ids.
        ids: String,
    },
    /// All ranks have ended.
    #[error("no rank of launch {launch} runs\ntry: lattice status {launch}, which says how they ended")]
    NothingRuns {
        /// Id of the launch.
        launch: String,
    },
    /// A rank that the launch does not have is named.
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
    /// The launch has no such ranks.
    #[error("launch {launch} has none of these ranks\ntry: lattice status {launch}")]
    NoSuchRanks {
        /// Id of the launch.
        launch: String,
    },
    /// Ranks that are to be debugged have ended, or have not started.
    #[error("of launch {launch} these ranks do not run: {ranks}\ntry: lattice status {launch}")]
    RanksDoNotRun {
        /// Id of the launch.
        launch: String,
        /// The ranks.
        ranks: String,
    },
    /// More ranks than a debugger can reasonably hold.
    #[error(
        "{count} ranks are too many for one gdb, which holds up to {max} here\ntry: lattice stacks for a look at all of them"
    )]
    RanksInDebugger {
        /// Number of ranks.
        count: usize,
        /// Limit.
        max: usize,
    },
    /// There is no debugger here.
    #[error(
        "cannot run gdb: {error}\ntry: install it, with a package named gdb; lattice stacks also takes eu-stack of elfutils"
    )]
    NoDebugger {
        /// Error of the system.
        error: io::Error,
    },
    /// A launch on this machine does not do what it is asked.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// Standard output cannot be written to.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The runtime or a file of the command cannot be used.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Asks the cluster that `args` names.
fn ask<T>(
    args: &ServerArgs,
    question: impl AsyncFnOnce(Cluster) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    let server = ApiServer::find(args.api.as_deref(), &environment())?;
    runtime::block_on(async { question(server.connect()?).await })?
}

/// The same about one launch, which is none of this machine's.
fn ask_about<T>(
    id: &str,
    args: &ServerArgs,
    question: impl AsyncFnOnce(Cluster) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    ask(args, question).map_err(|error| match error {
        CommandError::Cluster(error) if error.is_absence() => not_here(id, &error),
        other => other,
    })
}

/// The refusal of an id that is of no launch of this machine, where no API server can be asked.
pub(crate) fn not_here(id: &str, error: &ClusterError) -> CommandError {
    let text = error.to_string();
    // What to do about the API server is said in other words.
    let error = text.lines().next().unwrap_or_default().to_owned();
    CommandError::NotHere { id: id.to_owned(), error }
}

/// The launch of this id on this machine, unless an API server is named that must have it.
fn here(id: &str, args: &ServerArgs) -> Option<LocalLaunch> {
    if args.api.is_some() { None } else { local_launches::find(id, &environment()) }
}

fn environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}

/// The nodes that the API server folded into a list; what cannot be read is shown as it came.
fn node_names(list: &str) -> Vec<String> {
    hostlist::expand(list).unwrap_or_else(|_| vec![list.to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_cannot_be_read_is_shown_as_it_came() {
        assert_eq!(node_names("node[0-2]"), ["node0", "node1", "node2"]);
        assert_eq!(node_names("node["), ["node["]);
        assert_eq!(node_names(""), [""; 0]);
    }

    #[test]
    fn a_refusal_says_what_to_type() {
        assert!(CommandError::NoAllocation.to_string().ends_with("lattice alloc list shows them"));
        assert_eq!(CommandError::from(io::Error::from(io::ErrorKind::BrokenPipe)).to_string(), "broken pipe");
        let nobody = ClusterError::Unreachable {
            url: "unix:/run/lattice/api.sock".to_owned(),
            reason: "gone".to_owned(),
            is_unheard: true,
        };
        let expected = "no launch of yours on this machine has the id zz, and there is no API server that could know it: \
            cannot reach the API server at unix:/run/lattice/api.sock: gone\ntry: lattice launches, ";
        assert!(not_here("zz", &nobody).to_string().starts_with(expected));
    }
}

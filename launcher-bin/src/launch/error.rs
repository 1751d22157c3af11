//! Reasons why a launch does not start, or why contact to it is lost.

use std::io;
use std::path::PathBuf;

use lattice_cluster_client::ClusterError;
use lattice_console::OutputError;
use lattice_console::machine::MachineError;
use lattice_local_launches::LocalError;
use lattice_render::FileError;
use lattice_render::trace::TraceError;
use nix::sys::signal::Signal;
use rank_spawner::{KeeperError, ProgramFailure};

use super::broadcast::BroadcastError;
use crate::prepared::{NodeBindError, ObjectsError};
use crate::request::{NodeGroupError, RequestError};

/// Failure to start a launch, or to keep contact to it. After the start, any event becomes a part of its
/// [`lattice_session::event::Report`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The request is invalid, or not possible on this machine.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Files could not be copied to the nodes.
    #[error(transparent)]
    Broadcast(#[from] BroadcastError),
    /// A node cannot bind its ranks as asked.
    #[error(transparent)]
    Bind(#[from] NodeBindError),
    /// Ranks cannot be placed by objects of the nodes.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    /// Programs cannot get nodes of their own.
    #[error(transparent)]
    NodeGroup(#[from] NodeGroupError),
    /// The facts about this machine cannot be read.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The cluster refused the launch, or is unreachable.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A launch on this machine is over, or does not answer.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// A program that runs before or after the launch fails.
    #[error("{flag} {} {reason}\ntry: {remedy}", path.display())]
    Script {
        /// Flag that names it.
        flag: &'static str,
        /// The program.
        path: PathBuf,
        /// Reason, in words.
        reason: String,
        /// Suggested command.
        remedy: String,
    },
    /// A signal arrived before this process was attached to the launch.
    #[error("interrupted by {signal} before the launch had started")]
    Interrupted {
        /// The signal.
        signal: Signal,
    },
    /// The API server is no longer reachable.
    #[error(
        "launch {launch} was lost sight of: {source}\n\
         try: lattice attach {launch}"
    )]
    LostSight {
        /// The launch.
        launch: String,
        /// Last failure of a call.
        source: Box<ClusterError>,
    },
    /// A file for ranks' output cannot be opened.
    #[error(transparent)]
    OutputFile(#[from] FileError),
    /// The trace file cannot be opened.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The keeper, which cleans up if this process is killed, cannot be started.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
    /// The limit of open files cannot be changed.
    #[error("cannot change the limit of open files: {0}")]
    DescriptorLimit(#[source] nix::Error),
    /// Writing to standard output failed.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// Signals or threads of this process, or its standard input, cannot be used.
    #[error("cannot set up the launch: {0}")]
    Setup(#[from] io::Error),
}

impl LaunchError {
    /// Class of failure of a program that cannot be executed; `None` for every other reason.
    pub fn program_failure(&self) -> Option<ProgramFailure> {
        match self {
            Self::Request(error) => error.program_failure(),
            _ => None,
        }
    }
}

//! A cluster of one user, which exists while one command runs. It has its own directory, its own certificates, an API server that is a
//! child of this process, and one allocation of all its nodes.
//!
//! ```text
//! keeper, directory ──> daemons ──> allocation ──> command
//!                                                     │
//!  removed  <──  swept: no process left  <──  agents, then API server  <── released  <─┘
//! ```
//!
//! The caller decides where the agents run and how they are started: on this machine ([`dev_cluster`](crate::dev_cluster)), or by programs
//! of another resource manager ([`via`](crate::via)). After a failure at any point, all removal steps still run. If this program is killed,
//! the keeper kills the other processes and removes the directory.

mod allocation;
mod command;
mod daemons;
mod directory;
mod log_end;
mod settings;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lattice_console::foreground::Signals;
use lattice_console::{exit, report, runtime};
use lattice_dialects::mpirun_setup::{MpirunSetup, Slots};
use nix::sys::prctl::set_dumpable;
use pmi_core::ids::JobId;
use rank_spawner::{Keeper, KeeperError, LaunchTag, Orphans, OwnDirectory, SweepScope, become_subreaper, sweep};

pub use self::allocation::AllocationError;
pub(crate) use self::allocation::Holder;
pub(crate) use self::command::{ClusterCommand, Words};
pub use self::daemons::DaemonError;
pub(crate) use self::daemons::{Daemons, Role};
pub(crate) use self::directory::{Access, Directory};
pub(crate) use self::log_end::said;
pub(crate) use self::settings::ApiSettings;

/// Name of the API server's files.
pub(crate) const API: &str = "api";

/// Time limit for the end of processes that are left after the stop of the daemons.
const SWEEP_WITHIN: Duration = Duration::from_secs(5);

/// Failure to create a cluster, or to run the command in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrivateClusterError {
    /// The program of the agent is not found.
    #[error("there is no lattice-agent beside {}, nor in PATH; build or install it", beside.display())]
    NoAgent {
        /// Path of this program.
        beside: PathBuf,
    },
    /// The keeper, which cleans up if this process is killed, cannot be started.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
    /// The files of the cluster cannot be created.
    #[error("cannot make the files of the cluster in {}: {error}", directory.display())]
    Files {
        /// Directory of the files.
        directory: PathBuf,
        /// System error.
        error: io::Error,
    },
    /// A daemon does not run.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// The nodes cannot be allocated.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// The command cannot be started.
    #[error(
        "cannot run {command}: {error}\ntry: the path of a program, such as ./NAME; or no program at all, for a shell"
    )]
    Command {
        /// Program of the command.
        command: String,
        /// System error.
        error: io::Error,
    },
    /// Signals, threads or processes cannot be set up.
    #[error("cannot set up the cluster: {0}")]
    Setup(#[from] io::Error),
}

impl PrivateClusterError {
    /// Exit code of a command that ends with this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Command { error, .. } => exit::of_exec(error),
            _ => exit::OURS,
        }
    }
}

/// Finds the program of this name: in the directory of this program, else in `PATH`.
pub(crate) fn find_program(name: &str) -> io::Result<Option<PathBuf>> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let ours = std::env::current_exe()?;
    let mut candidates = std::iter::once(ours.with_file_name(name))
        .chain(std::env::split_paths(&path).map(|directory| directory.join(name)));
    Ok(candidates.find(|candidate| candidate.is_file()))
}

/// Finds the program of the agent.
pub(crate) fn agent_program() -> Result<PathBuf, PrivateClusterError> {
    match find_program("lattice-agent")? {
        Some(agent) => Ok(agent),
        None => Err(PrivateClusterError::NoAgent { beside: std::env::current_exe()? }),
    }
}

/// Base of a cluster: a directory, and guards that remove all leftovers.
pub(crate) struct Ground {
    pub(crate) directory: Directory,
    /// Tag of all processes of the cluster, except ranks, which have the tag of their launch.
    pub(crate) tag: LaunchTag,
    keeper: Keeper,
}

impl Ground {
    /// Runs `work` with a directory that users in `access` can traverse. Removes the directory and all processes afterwards.
    ///
    /// Must be called while this process has one thread.
    ///
    /// # Errors
    /// Fails if the directory or its guards cannot be created, and if `work` does.
    pub(crate) fn lend<E: From<PrivateClusterError>>(
        access: Access,
        work: impl FnOnce(&Self) -> Result<u8, E>,
    ) -> Result<u8, E> {
        let keeper = Keeper::fork().map_err(PrivateClusterError::from)?;
        // This process creates the keys of all nodes, so it must not be traced or dumped. Programs that it executes can be, by their user.
        set_dumpable(false).map_err(io::Error::from).map_err(PrivateClusterError::from)?;
        let ground = Self::prepare(access, keeper)?;
        let code = work(&ground);
        ground.clear()?;
        code
    }

    fn prepare(access: Access, keeper: Keeper) -> Result<Self, PrivateClusterError> {
        become_subreaper().map_err(io::Error::from)?;
        let directory = Directory::create(access).map_err(files_in(&Directory::parent()))?;
        let tag = JobId::new(&directory.name()).map(LaunchTag::new).map_err(io::Error::other)?;
        let guarded = keeper.guard(&tag).and_then(|()| keeper.guard_directory(directory.made()));
        let ground = Self { directory, tag, keeper };
        match guarded {
            Ok(()) => Ok(ground),
            Err(errno) => {
                let failure = files_in(ground.directory.path())(errno.into());
                ground.clear()?;
                Err(failure)
            }
        }
    }

    /// Makes the keeper remove a further directory if this process is killed.
    ///
    /// # Errors
    /// Fails if the keeper is gone, or does not read.
    pub(crate) fn guard_directory(&self, directory: &OwnDirectory) -> io::Result<()> {
        Ok(self.keeper.guard_directory(directory)?)
    }

    /// Kills all remaining processes, and removes the directory.
    fn clear(self) -> Result<(), PrivateClusterError> {
        self.end_what_is_left()?;
        let path = self.directory.path().to_owned();
        self.directory.remove().map_err(files_in(&path))?;
        Ok(self.keeper.done().map_err(io::Error::from)?)
    }

    /// Kills background processes of the command, and processes that a killed agent left.
    fn end_what_is_left(&self) -> io::Result<()> {
        let except = [self.keeper.pid()];
        let everything = SweepScope { tag: &self.tag, ranks: &[], orphans: Orphans::Claim { except: &except } };
        let swept = sweep(&everything, SWEEP_WITHIN)?;
        for survivor in swept.survivors {
            report(&format!("process {} ({}) cannot be killed", survivor.pid, survivor.name));
        }
        Ok(())
    }

    /// Runs `work`, which starts daemons, and then stops the daemons in order.
    ///
    /// # Errors
    /// As `work`.
    pub(crate) fn live<E: From<PrivateClusterError>>(
        &self,
        work: impl AsyncFnOnce(&mut Daemons<'_>, &mut Signals) -> Result<u8, E>,
    ) -> Result<u8, E> {
        let lived = runtime::block_on(async {
            let mut signals = Signals::listen().map_err(PrivateClusterError::from)?;
            let mut daemons = Daemons::new(self.tag.clone(), Some(&self.keeper));
            let code = work(&mut daemons, &mut signals).await;
            daemons.stop().await;
            code
        });
        lived.map_err(PrivateClusterError::from)?
    }

    /// Converts an error of writing the cluster's files.
    pub(crate) fn files(&self) -> impl Fn(io::Error) -> PrivateClusterError {
        files_in(self.directory.path())
    }

    /// A command that runs in an allocation of these nodes, with these additional variables.
    pub(crate) fn command<'a>(
        &'a self,
        words: Words<'a>,
        (allocation, slots): (&str, &[Slots]),
        mut environment: Vec<(&'static str, OsString)>,
        daemons: &Daemons<'_>,
    ) -> ClusterCommand<'a> {
        environment.extend([
            ("LATTICE_API_URL", allocation::url(&self.directory.api_socket()).into()),
            ("LATTICE_ALLOC_ID", allocation.into()),
            (LaunchTag::VARIABLE, self.tag.value().into()),
        ]);
        let (daemons, keeper) = (daemons.pids().collect(), self.keeper.pid());
        let mpirun = match words {
            Words::Given(_) => MpirunSetup::write(self.directory.mpirun(), slots)
                .inspect_err(|error| report(&format!("mpirun will not find the nodes: {error}")))
                .ok(),
            // An mpirun that a rank starts is for the node of the rank.
            Words::OfThisProgram(_) => None,
        };
        ClusterCommand { words, environment, mpirun, daemons, keeper, tag: &self.tag }
    }
}

fn files_in(directory: &Path) -> impl Fn(io::Error) -> PrivateClusterError + use<> {
    let directory = directory.to_owned();
    move |error| PrivateClusterError::Files { directory: directory.clone(), error }
}

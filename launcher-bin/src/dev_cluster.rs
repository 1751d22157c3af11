//! `lattice dev-cluster`: a whole cluster on this machine, for as long as one command runs.
//!
//! ```text
//! plan ──> directory ──> network ──> certificates, configurations ──> daemons ──> allocation ──> command
//!                                                                                                   │
//!              removed  <──  swept: nothing below us  <──  agents, then API server  <── released  <─┘
//! ```
//!
//! The way back is gone whatever fails on the way there. When this program is killed, the keeper kills the rest and
//! removes the directory; networks end with the last process in them.

mod allocation;
mod certificates;
mod command;
mod config;
mod daemons;
mod directory;
mod fabric;
mod isolation;
mod netlink;
mod network;
mod plan;

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lattice_pki::PkiError;
use nix::unistd::geteuid;
use pmi_core::ids::JobId;
use rank_spawner::{Keeper, KeeperError, LaunchTag, Orphans, SweepScope, become_subreaper, sweep};

use self::allocation::{AllocationError, Holder};
use self::command::{ClusterCommand, Signals};
use self::daemons::{DaemonError, Daemons};
use self::directory::Directory;
use self::fabric::Fabric;
use self::isolation::{Confinement, Isolation};
use self::network::{Network, NetworkError};
use self::plan::{Kind, Plan};
use crate::args::DevClusterArgs;
use crate::console::{Verbosity, report};
use crate::exit;

/// The name of the API server's files.
const API: &str = "api";
/// The name of the fabric manager's.
const FABRIC: &str = "fabric";

/// Limit for the end of processes that are left when everything was stopped.
const SWEEP_WITHIN: Duration = Duration::from_secs(5);

/// Failure to make a cluster, or to run the command in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevClusterError {
    /// The loopback interface has no room.
    #[error("cannot listen on loopback addresses for the daemons: {0}")]
    Addresses(#[source] io::Error),
    /// There is no agent to run.
    #[error("there is no lattice-agent beside {}, nor in PATH; build or install it", beside.display())]
    NoAgent {
        /// This program.
        beside: PathBuf,
    },
    /// There is no fabric manager to run.
    #[error(
        "there is no fake-fabric-manager beside {}, nor in PATH; build it with `cargo build -p fake-fabric-manager`",
        beside.display()
    )]
    NoFabricManager {
        /// This program.
        beside: PathBuf,
    },
    /// Nobody would clean up after us.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
    /// The files of the cluster cannot be made.
    #[error("cannot make the files of the cluster in {}: {error}", directory.display())]
    Files {
        /// Directory of the files.
        directory: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The nodes' network cannot be made.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The daemons cannot be given certificates.
    #[error("cannot make certificates: {0}")]
    Certificates(#[from] PkiError),
    /// A daemon does not run.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// The cluster does not come to life.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// The command cannot be started.
    #[error("cannot run {command}: {error}")]
    Command {
        /// Its program.
        command: String,
        /// Error of the system.
        error: io::Error,
    },
    /// Signals, threads or processes cannot be used as they must be.
    #[error("cannot set up the cluster: {0}")]
    Setup(#[from] io::Error),
}

/// Makes a cluster, runs the command in it, and takes the cluster away again; returns the command's exit code.
///
/// Must be called while this process has one thread.
///
/// # Errors
/// Fails if the cluster cannot be made, or the command not be started. Then, too, nothing is left.
pub fn run(args: &DevClusterArgs, verbosity: Verbosity) -> Result<u8, DevClusterError> {
    let keeper = Keeper::fork()?;
    become_subreaper().map_err(io::Error::from)?;
    let kind = if geteuid().is_root() && !args.loopback { Kind::Namespaces } else { Kind::Loopback };
    let plan = Plan::new(kind, args.nodes).map_err(DevClusterError::Addresses)?;
    let programs = Programs::find(Fabric::of(args))?;
    let files = |error| DevClusterError::Files { directory: std::env::temp_dir(), error };
    let directory = Directory::create().map_err(files)?;
    let tag = tag_of(&directory)?;
    let guarded = keeper.guard(&tag).and_then(|()| keeper.guard_directory(directory.path()));
    let cluster = Cluster { args, plan, programs, directory: &directory, tag: &tag, keeper: &keeper, verbosity };
    let code = match guarded {
        Ok(()) => cluster.live(),
        Err(errno) => Err(files(errno.into())),
    };
    end_what_is_left(&tag, &keeper)?;
    directory.remove().map_err(files)?;
    keeper.done().map_err(io::Error::from)?;
    code
}

/// The mark of everything that belongs to the cluster; ranks have their launch's instead.
fn tag_of(directory: &Directory) -> io::Result<LaunchTag> {
    JobId::new(&directory.name()).map(LaunchTag::new).map_err(io::Error::other)
}

/// Kills what the command left in the background, and what a killed agent left.
fn end_what_is_left(tag: &LaunchTag, keeper: &Keeper) -> io::Result<()> {
    let except = [keeper.pid()];
    let everything = SweepScope { tag, ranks: &[], orphans: Orphans::Claim { except: &except } };
    let swept = sweep(&everything, SWEEP_WITHIN)?;
    for survivor in swept.survivors {
        report(&format!("process {} ({}) cannot be killed", survivor.pid, survivor.name));
    }
    Ok(())
}

/// The daemons' programs.
#[derive(Debug)]
struct Programs {
    lattice: PathBuf,
    agent: PathBuf,
    /// `None` in a cluster without a fabric.
    fabric_manager: Option<PathBuf>,
}

impl Programs {
    /// This very program, and the others beside it, else in `PATH`.
    fn find(fabric: Fabric) -> Result<Self, DevClusterError> {
        let lattice = std::env::current_exe()?;
        let beside = || lattice.clone();
        let agent = find("lattice-agent", &lattice).ok_or_else(|| DevClusterError::NoAgent { beside: beside() })?;
        let fabric_manager = match fabric {
            Fabric::Fake => find("fake-fabric-manager", &lattice)
                .map(Some)
                .ok_or_else(|| DevClusterError::NoFabricManager { beside: beside() })?,
            Fabric::None => None,
        };
        Ok(Self { lattice, agent, fabric_manager })
    }
}

/// The program of this name beside `ours`, else in `PATH`.
fn find(name: &str, ours: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = std::iter::once(ours.with_file_name(name))
        .chain(std::env::split_paths(&path).map(|directory| directory.join(name)));
    candidates.find(|candidate| candidate.is_file())
}

/// A cluster whose directory is there, and nothing else yet.
struct Cluster<'a> {
    args: &'a DevClusterArgs,
    plan: Plan,
    programs: Programs,
    directory: &'a Directory,
    tag: &'a LaunchTag,
    keeper: &'a Keeper,
    verbosity: Verbosity,
}

impl Cluster<'_> {
    /// Starts everything, runs the command, stops everything.
    fn live(&self) -> Result<u8, DevClusterError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut signals = Signals::listen()?;
            let mut daemons = Daemons::new(self.tag.clone());
            let code = self.run(&mut daemons, &mut signals).await;
            daemons.stop().await;
            code
        })
    }

    async fn run(&self, daemons: &mut Daemons, signals: &mut Signals) -> Result<u8, DevClusterError> {
        self.start_daemons(daemons)?;
        let holder = Holder::new(&self.directory.api_socket())?;
        let allocation = tokio::select! {
            allocation = holder.allocate(&self.plan, daemons) => allocation?,
            number = signals.any() => return Ok(exit::by_signal(number as i32)),
        };
        self.greet();
        let code = self.command(&allocation, daemons).run(signals).await.map_err(|error| self.not_run(error));
        self.release(&holder).await;
        code
    }

    /// Ends what runs, and gives back what it was lent, while there is somebody to give it to.
    async fn release(&self, holder: &Holder) {
        holder.release_all().await;
        if self.args.fabric
            && let Err(left) = holder.fabric_is_given_back().await
            && self.verbosity != Verbosity::Quiet
        {
            report(&format!("not everything of the fabric is given back: {left}"));
        }
    }

    /// Makes the network and whatever the daemons need to know, and starts them.
    fn start_daemons(&self, daemons: &mut Daemons) -> Result<(), DevClusterError> {
        let network = match self.plan.kind {
            Kind::Namespaces => Some(Network::new(&self.plan)?),
            Kind::Loopback => None,
        };
        certificates::issue(&self.plan, self.directory)?;
        let files = |error| DevClusterError::Files { directory: self.directory.path().to_owned(), error };
        config::write(&self.plan, self.directory, Fabric::of(self.args)).map_err(files)?;
        let api = network.as_ref().map_or(Confinement::Here, |network| Confinement::Network(network.switch.as_fd()));
        if let Some(program) = &self.programs.fabric_manager {
            fabric::prepare(&self.plan, self.directory).map_err(files)?;
            let manager = fabric::manager(program, &self.plan, self.directory, self.args.fabric_faults.as_ref());
            daemons.start(FABRIC, manager, self.directory, &api)?;
        }
        let mut server = Command::new(&self.programs.lattice);
        server.arg("api").arg("--config").arg(self.directory.config(API));
        daemons.start(API, server, self.directory, &api)?;
        let (hosts, stop_over) = (self.directory.hosts(), self.directory.empty());
        for (index, node) in self.plan.nodes.iter().enumerate() {
            let place = network.as_ref().map_or(Confinement::Here, |network| {
                let network = network.nodes[index].as_fd();
                Confinement::Node(Isolation { network, host_name: &node.name, hosts: &hosts, stop_over: &stop_over })
            });
            let mut agent = Command::new(&self.programs.agent);
            agent.arg("--config").arg(self.directory.config(&node.name));
            daemons.start(&node.name, agent, self.directory, &place)?;
        }
        Ok(())
    }

    fn command(&self, allocation: &str, daemons: &Daemons) -> ClusterCommand<'_> {
        ClusterCommand {
            words: &self.args.command,
            environment: vec![
                ("LATTICE_API_URL", allocation::url(&self.directory.api_socket()).into()),
                ("LATTICE_ALLOC_ID", allocation.into()),
                ("LATTICE_DEV_CLUSTER", self.directory.path().into()),
                (LaunchTag::VARIABLE, self.tag.value().into()),
            ],
            daemons: daemons.pids().collect(),
            keeper: self.keeper.pid(),
            tag: self.tag,
        }
    }

    /// Tells a person where they are; a command is told nothing that it did not ask for.
    fn greet(&self) {
        let is_shell = self.args.command.is_empty() && io::stdin().is_terminal();
        if self.verbosity == Verbosity::Verbose || (is_shell && self.verbosity == Verbosity::Normal) {
            let nodes = self.plan.hostlist();
            let place = match self.plan.kind {
                Kind::Namespaces => "each in a network of its own",
                Kind::Loopback => "all on loopback addresses of this machine",
            };
            report(&format!("{nodes} are up, {place}; logs are in {}", self.directory.path().display()));
        }
        if is_shell && self.verbosity == Verbosity::Normal {
            report("try: lattice launch -n 8 hostname; the cluster ends with this shell");
        }
    }

    fn not_run(&self, error: io::Error) -> DevClusterError {
        let command = self.args.command.first().map_or("your shell".into(), |word| word.to_string_lossy().into_owned());
        DevClusterError::Command { command, error }
    }
}

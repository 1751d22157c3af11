//! `lattice dev-cluster`: a whole cluster on this machine, while one command runs.
//!
//! ```text
//! plan ──> private cluster's directory ──> network ──> certificates, configurations ──> daemons ──> allocation ──> command
//! ```
//!
//! [`ground`](crate::ground) has the parts that it shares with similar clusters. Networks end with the last process in
//! them.

pub mod args;
mod certificates;
mod config;
mod fabric;
mod isolation;
mod netlink;
mod network;
mod plan;

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::thread::available_parallelism;
use std::time::Duration;

use lattice_console::foreground::Signals;
use lattice_console::{Verbosity, exit, report};
use lattice_dialects::mpirun_setup::Slots;
use lattice_pki::PkiError;
use nix::unistd::geteuid;
use tokio::runtime::Handle;

use self::args::DevClusterArgs;
use self::fabric::Fabric;
use self::isolation::{Confinement, Isolation};
use self::network::{Network, NetworkError};
use self::plan::{HEAD, Kind, Plan};
use crate::ground::{
    API, Access, AllocationError, ClusterCommand, DaemonError, Daemons, Ground, Holder, PrivateClusterError, Role,
    Words, agent_program, find_program,
};

/// The name of the fabric manager's files.
const FABRIC: &str = "fabric";

/// Time limit for the start and registration of all daemons, on a loaded machine.
const UP_WITHIN: Duration = Duration::from_secs(60);

/// Failure to create a cluster, or to run the command in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevClusterError {
    /// The daemons cannot listen on the loopback interface.
    #[error("cannot listen on loopback addresses for the daemons: {0}")]
    Addresses(#[source] io::Error),
    /// The program of the fabric manager is not found.
    #[error(
        "there is no fake-fabric-manager beside {}, nor in PATH; build it with `cargo build -p fake-fabric-manager`",
        beside.display()
    )]
    NoFabricManager {
        /// Path of this program.
        beside: PathBuf,
    },
    /// The network of the nodes cannot be created.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// Certificates for the daemons cannot be created.
    #[error("cannot make certificates: {0}")]
    Certificates(#[from] PkiError),
    /// A part that all private clusters share cannot be set up.
    #[error(transparent)]
    Cluster(#[from] PrivateClusterError),
}

impl From<DaemonError> for DevClusterError {
    fn from(error: DaemonError) -> Self {
        Self::Cluster(error.into())
    }
}

impl From<AllocationError> for DevClusterError {
    fn from(error: AllocationError) -> Self {
        Self::Cluster(error.into())
    }
}

/// Creates a cluster, runs the command in it, and removes the cluster; returns the command's exit code.
///
/// Must be called while this process has one thread.
///
/// # Errors
/// Fails if the cluster cannot be created, or the command cannot be started. Nothing is left then.
pub fn run(args: &DevClusterArgs, verbosity: Verbosity) -> Result<u8, DevClusterError> {
    let kind = if geteuid().is_root() && !args.loopback { Kind::Namespaces } else { Kind::Loopback };
    let plan = Plan::new(kind, args.nodes).map_err(DevClusterError::Addresses)?;
    let programs = Programs::find(Fabric::of(args))?;
    // Agents of a user other than root serve no other user.
    let access = if geteuid().is_root() { Access::Everybody } else { Access::Owner };
    Ground::lend(access, |ground| Cluster { args, plan, programs, ground, verbosity }.live())
}

/// Programs of the daemons.
#[derive(Debug)]
struct Programs {
    lattice: PathBuf,
    agent: PathBuf,
    /// `None` in a cluster without a fabric.
    fabric_manager: Option<PathBuf>,
}

impl Programs {
    /// Finds this program, and the other programs: in the same directory, else in `PATH`.
    fn find(fabric: Fabric) -> Result<Self, DevClusterError> {
        let lattice = std::env::current_exe().map_err(PrivateClusterError::from)?;
        let fabric_manager = match fabric {
            Fabric::Fake => match find_program("fake-fabric-manager").map_err(PrivateClusterError::from)? {
                None => return Err(DevClusterError::NoFabricManager { beside: lattice }),
                found => found,
            },
            Fabric::None => None,
        };
        Ok(Self { lattice, agent: agent_program()?, fabric_manager })
    }
}

/// A cluster of which only the directory exists.
struct Cluster<'a> {
    args: &'a DevClusterArgs,
    plan: Plan,
    programs: Programs,
    ground: &'a Ground,
    verbosity: Verbosity,
}

impl Cluster<'_> {
    /// Starts the daemons, runs the command, and stops the daemons.
    fn live(&self) -> Result<u8, DevClusterError> {
        self.ground.live(async |daemons: &mut Daemons<'_>, signals: &mut Signals| self.run(daemons, signals).await)
    }

    async fn run(&self, daemons: &mut Daemons<'_>, signals: &mut Signals) -> Result<u8, DevClusterError> {
        let network = self.start_daemons(daemons)?;
        let holder = Holder::new(&self.ground.directory.api_socket())?;
        let nodes: Vec<String> = self.plan.nodes.iter().map(|node| node.name.clone()).collect();
        let look = |_: &[String]| daemons.check().map_err(DevClusterError::from);
        let allocation = tokio::select! {
            allocation = holder.allocate(&nodes, UP_WITHIN, look) => allocation?,
            number = signals.end() => return Ok(exit::by_signal(number as i32)),
        };
        self.greet();
        let place = network
            .as_ref()
            .map_or(Confinement::Here, |network| Confinement::Head(self.isolation(&network.switch, HEAD)));
        // Another thread starts the command.
        let runtime = Handle::current();
        let start = |command: &mut tokio::process::Command| {
            place.within(|| {
                let _entered = runtime.enter();
                command.spawn()
            })
        };
        let code = self.command(&allocation, daemons).run(signals, start).await;
        self.release(&holder).await;
        Ok(code?)
    }

    /// Ends launches, and returns fabric resources while the daemons still run.
    async fn release(&self, holder: &Holder) {
        holder.release_all().await;
        if self.args.fabric
            && let Err(left) = holder.fabric_is_given_back().await
            && self.verbosity != Verbosity::Quiet
        {
            report(&format!("not everything of the fabric is given back: {left}"));
        }
    }

    /// Creates the network and the files of the daemons, and starts them.
    fn start_daemons(&self, daemons: &mut Daemons<'_>) -> Result<Option<Network>, DevClusterError> {
        let network = match self.plan.kind {
            Kind::Namespaces => Some(Network::new(&self.plan)?),
            Kind::Loopback => None,
        };
        let (directory, files) = (&self.ground.directory, self.ground.files());
        certificates::issue(&self.plan, directory)?;
        config::write(&self.plan, directory, Fabric::of(self.args)).map_err(&files)?;
        let api = network.as_ref().map_or(Confinement::Here, |network| Confinement::Network(network.switch.as_fd()));
        if let Some(program) = &self.programs.fabric_manager {
            fabric::prepare(&self.plan, directory).map_err(&files)?;
            let manager = fabric::manager(program, &self.plan, directory, self.args.fabric_faults.as_ref());
            daemons.start((FABRIC, Role::Head), manager, directory, |command| api.start(command))?;
        }
        let mut server = Command::new(&self.programs.lattice);
        server.arg("api").arg("--config").arg(directory.config(API));
        daemons.start((API, Role::Head), server, directory, |command| api.start(command))?;
        for (index, node) in self.plan.nodes.iter().enumerate() {
            let place = network.as_ref().map_or(Confinement::Here, |network| {
                Confinement::Node(self.isolation(&network.nodes[index], &node.name))
            });
            let mut agent = Command::new(&self.programs.agent);
            agent.arg("--config").arg(directory.config(&node.name));
            daemons.start((&node.name, Role::Agent), agent, directory, |command| place.start(command))?;
        }
        Ok(network)
    }

    fn isolation<'a>(&self, network: &'a OwnedFd, host_name: &'a str) -> Isolation<'a> {
        let (hosts, stop_over) = (self.ground.directory.hosts(), self.ground.directory.empty());
        Isolation { network: network.as_fd(), host_name, hosts, stop_over }
    }

    /// The command. Each node has the number of CPUs of this machine as slots.
    fn command(&self, allocation: &str, daemons: &Daemons<'_>) -> ClusterCommand<'_> {
        let environment = vec![("LATTICE_DEV_CLUSTER", self.ground.directory.path().into())];
        let slots = available_parallelism().map_or(1, |cpus| cpus.get() as u32);
        let slots: Vec<Slots> = self.plan.nodes.iter().map(|node| Slots { node: node.name.clone(), slots }).collect();
        self.ground.command(Words::Given(&self.args.command), (allocation, &slots), environment, daemons)
    }

    /// Reports the location of the cluster to an interactive user. For other commands, only with `-v`.
    fn greet(&self) {
        let is_shell = self.args.command.is_empty() && io::stdin().is_terminal();
        if self.verbosity == Verbosity::Verbose || (is_shell && self.verbosity == Verbosity::Normal) {
            let nodes = self.plan.hostlist();
            let place = match self.plan.kind {
                Kind::Namespaces => "each in a network of its own",
                Kind::Loopback => "all on loopback addresses of this machine",
            };
            report(&format!("{nodes} are up, {place}; logs are in {}", self.ground.directory.path().display()));
        }
        if is_shell && self.verbosity == Verbosity::Normal {
            report("try: lattice launch --fill hostname; the cluster ends with this shell");
        }
    }
}

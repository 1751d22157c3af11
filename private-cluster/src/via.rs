//! `--via` and `lattice start`: a cluster on nodes of another resource manager or on named hosts. An ordinary user creates it, and it
//! exists while one command runs.
//!
//! ```text
//! way ──> nodes and slots ──> API server, here ──> agents, by srun, ssh and so on ──> allocation ──> command
//! --via, or    variables of the      temporary CA          one program for all nodes,         the launch itself,
//! found        manager, or hosts     a port of the kernel  or one for each                    or a shell
//! ```
//!
//! [`ground`](crate::ground) has the parts that it shares with similar clusters. Agents receive their settings over the
//! standard input of the program that starts them. So no secret is in arguments, variables or files. The exception is PBS, where agents
//! read a private file in the home directory. Agents end when that input ends.

pub mod args;
mod head;
mod joining;
mod key_exchange;
mod means;
mod nodes;
mod way;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use lattice_console::environment::HOSTS;
use lattice_console::foreground::Signals;
use lattice_console::formatting::count;
use lattice_console::{Verbosity, exit, report};
use lattice_dialects::hostfile::HostfileError;
use lattice_pki::PkiError;

use self::args::{StartArgs, Via, ViaParseError};
use self::head::Head;
pub use self::head::HeadError;
use self::joining::Joining;
pub use self::joining::JoiningError;
use self::means::Means;
use self::nodes::Nodes;
pub use self::nodes::NodesError;
pub use self::way::{LaunchFlags, Way};
use crate::ground::{Access, AllocationError, Daemons, Ground, Holder, PrivateClusterError, Words, agent_program};

/// Time limit for the whole cluster, in addition to that of each node.
const UP_WITHIN: Duration = Duration::from_secs(600);

/// Failure to create a cluster on other nodes, or to run the command in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ViaError {
    /// The nodes are unknown.
    #[error(transparent)]
    Nodes(#[from] NodesError),
    /// The hostfile cannot be used.
    #[error(transparent)]
    Hostfile(#[from] HostfileError),
    /// The value of `LATTICE_VIA` is not a way.
    #[error("LATTICE_VIA: {0}\ntry: unset LATTICE_VIA, or LATTICE_VIA with one of these")]
    Variable(#[from] ViaParseError),
    /// No flag, variable or allocation names a way to nodes.
    #[error(
        "no allocation of slurm, pbs, lsf, sge, flux or k8s is found in the environment\n\
         try: lattice start --via ssh --host node1:4,node2:4"
    )]
    NoWay,
    /// Hosts are named, and a manager gives the nodes.
    #[error(
        "--host, --hostfile and --nodelist have no effect with {via}, which gives the nodes of its allocation\n\
         try: lattice start without them, and -w NODES at a launch; or --via ssh, for other hosts"
    )]
    HostsOfManager {
        /// The manager.
        via: String,
    },
    /// `--detach`: the launch would outlive this command, and its cluster does not.
    #[error(
        "--detach: the cluster that --via {via} makes ends with this command\ntry: lattice start --via {via}, and launch there"
    )]
    Detached {
        /// Value of `--via`.
        via: String,
    },
    /// The program that starts agents is not found.
    #[error(
        "cannot find {program}, which is to start an agent on each node\n\
         try: --via ssh with --host or --hostfile, --via 'COMMAND {{host}} {{command}}', or --via none for this machine alone"
    )]
    NoProgram {
        /// Name of the program.
        program: String,
    },
    /// Certificates for the daemons cannot be created.
    #[error("cannot make certificates")]
    Certificates(#[from] PkiError),
    /// The API server does not start.
    #[error(transparent)]
    Head(#[from] HeadError),
    /// Not all nodes join.
    #[error(transparent)]
    Joining(#[from] JoiningError),
    /// A part that all private clusters share cannot be set up.
    #[error(transparent)]
    Cluster(#[from] PrivateClusterError),
}

impl From<AllocationError> for ViaError {
    fn from(error: AllocationError) -> Self {
        Self::Cluster(error.into())
    }
}

/// Creates a cluster by this way, and runs a launch in it; returns the exit code of the launch. `words` is the command line of the launch,
/// with the name of this program first.
///
/// Must be called while this process has one thread.
///
/// # Errors
/// Fails if the cluster cannot be created. Nothing is left then.
pub fn launch(way: &Way, words: &[OsString], verbosity: Verbosity) -> Result<u8, ViaError> {
    run(way, Words::OfThisProgram(words), verbosity)
}

/// `lattice start`: creates a cluster, and runs a command or a shell in it; returns its exit code.
///
/// Must be called while this process has one thread.
///
/// # Errors
/// As [`launch`].
pub fn start(args: &StartArgs, verbosity: Verbosity) -> Result<u8, ViaError> {
    run(&Way::of_start(args)?, Words::Given(&args.command), verbosity)
}

fn run(way: &Way, words: Words<'_>, verbosity: Verbosity) -> Result<u8, ViaError> {
    let nodes = way.nodes()?;
    let agent = agent_program()?;
    if verbosity == Verbosity::Verbose {
        report(&way.in_words(&nodes));
    }
    Ground::lend(Access::Owner, |ground| {
        let mut means = if is_here(way.via(), &nodes) { Means::here() } else { Means::of(way.via()) };
        means.patience = way.join.join_timeout.unwrap_or(means.patience);
        let cluster = Cluster { means, way, nodes: &nodes, agent, words, ground, verbosity };
        ground.live(async |daemons: &mut Daemons<'_>, signals: &mut Signals| cluster.live(daemons, signals).await)
    })
}

/// Returns true if this machine is the only node of a manager's job. The manager's programs are not needed then, and need not be installed.
fn is_here(via: &Via, nodes: &Nodes) -> bool {
    matches!(via, Via::Slurm | Via::Pbs | Via::Lsf | Via::Sge) && nodes.are_this_machine()
}

/// A cluster of which only the directory exists.
struct Cluster<'a> {
    way: &'a Way,
    means: Means,
    nodes: &'a Nodes,
    agent: PathBuf,
    words: Words<'a>,
    ground: &'a Ground,
    verbosity: Verbosity,
}

impl Cluster<'_> {
    /// Starts the daemons, and runs the command.
    async fn live(&self, daemons: &mut Daemons<'_>, signals: &mut Signals) -> Result<u8, ViaError> {
        let holder = Holder::new(&self.ground.directory.api_socket())?;
        let joined = async {
            let quickened = self.quickened();
            let head = Head::start(self.ground, self.way.join.port_range, daemons)?;
            let means = quickened.await;
            let mut joining = Joining::new(&means, self.nodes, &self.agent, &head, self.ground);
            // The programs that start agents load while the API server does.
            joining.look(&[], daemons)?;
            let limit = UP_WITHIN + means.patience;
            let allocation = holder.allocate(&self.nodes.names, limit, |up| joining.look(up, daemons)).await?;
            Ok::<_, ViaError>((allocation, self.nodes.with_cores(&holder.cores().await?)))
        };
        let (allocation, nodes) = tokio::select! {
            joined = joined => joined?,
            signal = signals.end() => {
                report(&format!("{signal} before all nodes had joined; what has begun is ended, which takes up to 5 s"));
                return Ok(exit::by_signal(signal as i32));
            }
        };
        self.greet();
        let command = self.ground.command(self.words, (&allocation, &nodes.slots()), environment(&nodes), daemons);
        let code = command.run(signals, tokio::process::Command::spawn).await;
        holder.release_all().await;
        Ok(code?)
    }

    /// The means, with arguments for `ssh` that reduce its work. The query for these arguments has started when this returns.
    fn quickened(&self) -> impl Future<Output = Means> + use<> {
        let ssh = (*self.way.via() == Via::Ssh).then_some(self.nodes.names.first()).flatten();
        let (words, means) = (ssh.map(|host| key_exchange::ask(host)), self.means.clone());
        async move {
            match words {
                Some(words) => means.with_words(words.await),
                None => means,
            }
        }
    }

    /// Reports the location of the cluster to an interactive user. For other commands, only with `-v`.
    fn greet(&self) {
        let is_shell = matches!(self.words, Words::Given([])) && io::stdin().is_terminal();
        if self.verbosity == Verbosity::Verbose || (is_shell && self.verbosity == Verbosity::Normal) {
            let (nodes, via) = (count(self.nodes.names.len() as u64, "node"), self.way.via());
            report(&format!("{nodes} joined by {via}; logs are in {}", self.ground.directory.path().display()));
        }
        if is_shell && self.verbosity == Verbosity::Normal {
            report("try: lattice launch hostname; the cluster ends with this shell");
        }
    }
}

/// Slots, for launches without other placement.
fn environment(nodes: &Nodes) -> Vec<(&'static str, OsString)> {
    nodes.slots_in_words().map(|hosts| (HOSTS, hosts.into())).into_iter().collect()
}

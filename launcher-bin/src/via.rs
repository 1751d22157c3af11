//! `--via` and `lattice start`: a cluster on nodes that somebody else gives, made by their user alone, for as long as one command runs.
//!
//! ```text
//! way ──> nodes and slots ──> API server, here ──> agents, by the means of others ──> allocation ──> command
//! --via, or    variables of the      throw-away CA         one program for all nodes,         the launch itself,
//! found        manager, or hosts     a port of the kernel  or one for each                    or a shell
//! ```
//!
//! What it shares with other clusters of that kind is [`private_cluster`](crate::private_cluster)'s. What agents need to know reaches
//! them over the standard input of the program that starts them, so that no secret stands in arguments, variables or files; when that
//! ends, they do.

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

use lattice_pki::PkiError;

use self::head::Head;
pub use self::head::HeadError;
use self::joining::Joining;
pub use self::joining::JoiningError;
use self::means::Means;
use self::nodes::Nodes;
pub use self::nodes::NodesError;
pub use self::way::Way;
use crate::args::{StartArgs, Via, ViaParseError};
use crate::console::{Verbosity, report};
use crate::exit;
use crate::foreground::Signals;
use crate::formatting::count;
use crate::hostfile::HostfileError;
use crate::private_cluster::{
    Access, AllocationError, Daemons, Ground, Holder, PrivateClusterError, Words, agent_program,
};

/// Time limit for the whole cluster, beyond that of each node.
const UP_WITHIN: Duration = Duration::from_secs(600);

/// Failure to make a cluster of other people's nodes, or to run the command in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ViaError {
    /// The nodes are not known.
    #[error(transparent)]
    Nodes(#[from] NodesError),
    /// The hostfile cannot be used.
    #[error(transparent)]
    Hostfile(#[from] HostfileError),
    /// `LATTICE_VIA` is no way.
    #[error("LATTICE_VIA: {0}\ntry: unset LATTICE_VIA, or LATTICE_VIA with one of these")]
    Variable(#[from] ViaParseError),
    /// Nothing says how nodes are reached.
    #[error(
        "no allocation of slurm, pbs, lsf, sge, flux or k8s is found in the environment\n\
         try: lattice start --via ssh --host node1:4,node2:4"
    )]
    NoWay,
    /// A launch that outlives this command has no cluster then.
    #[error(
        "--detach: the cluster that --via {via} makes ends with this command\ntry: lattice start --via {via}, and launch there"
    )]
    Detached {
        /// The way.
        via: String,
    },
    /// The program that would start agents is not there.
    #[error(
        "cannot find {program}, which is to start an agent on each node\n\
         try: --via ssh with --host or --hostfile, --via 'COMMAND {{host}} {{command}}', or --via none for this machine alone"
    )]
    NoProgram {
        /// Name of the program.
        program: String,
    },
    /// The daemons cannot be given certificates.
    #[error("cannot make certificates")]
    Certificates(#[from] PkiError),
    /// The API server does not come to life.
    #[error(transparent)]
    Head(#[from] HeadError),
    /// Not all nodes join.
    #[error(transparent)]
    Joining(#[from] JoiningError),
    /// What all such clusters have cannot be had.
    #[error(transparent)]
    Cluster(#[from] PrivateClusterError),
}

impl From<AllocationError> for ViaError {
    fn from(error: AllocationError) -> Self {
        Self::Cluster(error.into())
    }
}

/// Makes a cluster by that way, and carries out the words of a launch in it, the first of which is the name of this program; returns the
/// exit code of the launch.
///
/// Must be called while this process has one thread.
///
/// # Errors
/// Fails if the cluster cannot be made. Then, too, nothing is left.
pub fn launch(way: &Way, words: &[OsString], verbosity: Verbosity) -> Result<u8, ViaError> {
    run(way, Words::OfThisProgram(words), verbosity)
}

/// `lattice start`: makes a cluster, and runs a command or a shell in it; returns its exit code.
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

/// Returns true for a job of a manager whose only node is this machine: the manager's programs are not needed, and need not be there.
fn is_here(via: &Via, nodes: &Nodes) -> bool {
    matches!(via, Via::Slurm | Via::Pbs | Via::Lsf | Via::Sge) && nodes.are_this_machine()
}

/// A cluster whose directory is there, and nothing else yet.
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
    /// Starts everything, and runs the command.
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

    /// The means, with words for `ssh` that spare it work. The question for them is on its way when this returns.
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

    /// Tells a person where they are; a command is told nothing that it did not ask for.
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

/// The slots, for launches that say nothing else about places.
fn environment(nodes: &Nodes) -> Vec<(&'static str, OsString)> {
    nodes.slots_in_words().map(|hosts| (crate::request::HOSTS_VARIABLE, hosts.into())).into_iter().collect()
}

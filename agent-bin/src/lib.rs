//! The node agent: admits launches, starts their sessions, relays requests, and reports.
//!
//! [`run`] composes the program of [`Args`]: settings, fork server with its gate, log and [`daemon`], or a command for an operator of the node.
//! The crate `lattice-session` implements one node's part of one launch.
#![forbid(unsafe_code)]

mod args;
mod cxi_command;
pub mod daemon;
mod exit;
mod floor;
mod gate;
mod invitation;
mod join;
mod nics;
mod oci_hook;
mod pam;
mod runtime_lock;

use std::any::Any;
use std::error::Error;
use std::path::PathBuf;

use clap::CommandFactory;
use cxi_fabric::node::NodeBackend;
use cxi_fabric::secret::keep_out_of_core_dumps;
use lattice_daemon::build::Build;
use lattice_inventory::ThisNode;
use lattice_session::session_process::{self, Terms};
use pmi_transport::error_chain::chain;
use rank_spawner::{
    Capabilities, DescriptorPlan, ForkServer, ForkServerError, Gate, Privileges, Roles, Survival, become_user,
};
use tracing::level_filters::LevelFilter;

pub use self::args::Args;
use self::args::Command;
use self::daemon::{Config, Prior, ShareTopology};
pub use self::exit::Exit;

/// Result of the program, for its `main` to print.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// Text for standard output.
    pub text: String,
    /// Problems for standard error, one per line.
    pub problems: Vec<String>,
    /// Exit code.
    pub exit: Exit,
}

/// The facts about this build, as the answer of `--version -v`.
pub fn build() -> Answer {
    let build =
        Build { program: "lattice-agent", version: env!("CARGO_PKG_VERSION"), pmi: lattice_session::PMI_VERSIONS };
    Answer { text: build.to_string(), problems: Vec::new(), exit: Exit::Success }
}

/// Runs `args`: the daemon until a signal stops it, or a command. Must be called first in `main`, while the process has one thread.
pub fn run(args: Args) -> Answer {
    run_as(env!("CARGO_PKG_VERSION"), args)
}

/// Like [`run`], as a program of another version; for tests of upgrades.
pub fn run_as(version: &'static str, args: Args) -> Answer {
    carried_out(version, &args).unwrap_or_else(|error| Answer {
        text: String::new(),
        problems: vec![chain(&*error)],
        exit: Exit::Failure,
    })
}

/// Number of connections of sessions, users and the API server that an agent reserves its table of open files for. The table has 32 KiB.
const DESCRIPTORS: DescriptorPlan = DescriptorPlan { ranks: 0, others: 3_900 };

fn carried_out(version: &'static str, args: &Args) -> Result<Answer, Box<dyn Error>> {
    let success = |text| Answer { text, problems: Vec::new(), exit: Exit::Success };
    match &args.command {
        Some(Command::Cxi(command)) => return Ok(cxi_command::run(command, args.file(), args.overrides())?),
        Some(Command::Join(args)) => return join::run(version, args).map(|()| success(String::new())),
        Some(Command::Listen(args)) => {
            log_to_stderr();
            return Ok(args.run().map(|()| success(String::new()))?);
        }
        Some(Command::Invite(args)) => {
            log_to_stderr();
            return Ok(args.run().map(|()| success(String::new()))?);
        }
        Some(Command::OciHook) => return Ok(oci_hook::run().map(|()| success(String::new()))?),
        Some(Command::Man { all }) => {
            return Ok(clap_mangen::generate_to(Args::command(), all).map(|()| success(String::new()))?);
        }
        None => {}
    }
    let config = Config { version, ..Config::load(args.file(), args.overrides())? };
    if args.check_config {
        gate::of(&config, args.file())?;
        give_up_root(&config)?;
        daemon::check(&config)?;
        return Ok(success(format!(
            "lattice-agent: the settings of {} make sense; its API server is {}\n",
            config.node_id, config.api
        )));
    }
    keep_out_of_core_dumps()?;
    // Precedes all threads, keys and connections: session processes are copies of this process in its present state.
    let forks = fork_server(&config, gate::of(&config, args.file())?)?;
    DESCRIPTORS.reserve();
    log_to_stderr();
    // Devices may have changed. Sessions use the inventory that is stored here.
    let this_node = ThisNode::default();
    this_node.read_anew();
    let prior = Prior::gather(config, forks, this_node)?;
    give_up_root(&prior.config)?;
    daemon::run(prior)?;
    Ok(success(String::new()))
}

/// Becomes the daemon's user permanently, if it has one. Precedes all keys and connections.
fn give_up_root(config: &Config) -> Result<(), Box<dyn Error>> {
    let Some(user) = &config.user else { return Ok(()) };
    become_user(user, &Privileges::default())?;
    // The change of user may have enabled core dumps again.
    Ok(keep_out_of_core_dumps()?)
}

fn fork_server(config: &Config, gate: Box<dyn Gate>) -> Result<ForkServer, ForkServerError> {
    // Detects the processor's features once for all session processes. If they are emulated, as in virtual machines, the detection takes as long
    // as a fork.
    #[cfg(target_arch = "x86_64")]
    std::hint::black_box(std::arch::is_x86_feature_detected!("avx2"));
    let survival = |directory: &PathBuf| Survival { directory: directory.clone(), lease: config.agent_lease };
    let terms = Terms {
        setuid_programs: config.setuid_programs,
        limits: config.limits.clone(),
        agent_lease: config.agent_lease,
        pam: config.pam.clone(),
        topology_in_environment: config.share_topology == ShareTopology::Env,
        log: log_of_session,
    };
    let survival = config.runtime_dir.as_ref().map(survival);
    let pam = config.pam.clone().map(pam::role);
    let raisable = raisable(config);
    let roles = Roles { main: session_process::main(terms, nics::errand::of(config)), pam, raisable };
    ForkServer::fork(roles, gate, survival.as_ref())
}

/// Capabilities that processes of the fork server can raise with these settings: sessions of root, PAM modules, and the processes for CXI
/// services.
fn raisable(config: &Config) -> Capabilities {
    let root =
        if config.pam.is_some() || config.refuse_user(0).is_none() { Capabilities::ALL } else { Capabilities::NONE };
    let fabric = if config.fabric.backend == NodeBackend::None { Capabilities::NONE } else { Capabilities::SYS_ADMIN };
    root | fabric
}

/// Log level of the agent and its sessions without a filter.
const LEVEL: LevelFilter = LevelFilter::INFO;

fn log_to_stderr() {
    lattice_daemon::log::start(Some(LEVEL));
}

/// Starts the log of a session process, on the standard error of its agent, which may be full.
fn log_of_session() -> Box<dyn Any> {
    Box::new(lattice_daemon::log::start_when_needed(LEVEL))
}

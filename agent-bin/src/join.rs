//! `lattice-agent join`: a temporary agent, in a cluster that one user creates for that user's launches.
//!
//! ```text
//! fork server ──> membership, from standard input ──> credentials, in memory ──> an API server that answers ──> daemon
//! ```
//!
//! The agent reads no settings files and leaves no files. It fixes no port, although a range may be set. It ends when its standard input ends,
//! and on SIGTERM. It also ends when the API server has ended, or has not answered for the time of a lease.

mod credentials;
mod head;
mod membership;

use std::error::Error;
use std::time::Duration;

use cxi_fabric::node::NodeFabricConfig;
use lattice_inventory::ThisNode;
use lattice_session::session_process::{self, Terms};
use nix::unistd::Uid;
use pmi_transport::address::Address;
use rank_spawner::ForkServer;

use self::credentials::Held;
pub(crate) use self::membership::JoinArgs;
use self::membership::Member;
use crate::daemon::{self, Config, Prior, ShareTopology, WhenStopped};
use crate::gate::Open;

/// Joins the cluster and serves it until the node is no longer wanted. Must be called while this process has one thread.
///
/// # Errors
/// Fails if the membership is not usable, if no address of the API server answers, or if the daemon fails.
pub(crate) fn run(version: &'static str, args: &JoinArgs) -> Result<(), Box<dyn Error>> {
    cxi_fabric::secret::keep_out_of_core_dumps()?;
    // Precedes all threads, keys and connections: session processes are copies of this process in its present state.
    let terms = Terms {
        setuid_programs: false,
        limits: Vec::new(),
        agent_lease: Duration::ZERO,
        pam: None,
        topology_in_environment: false,
        log: crate::log_of_session,
    };
    let forks = ForkServer::fork(session_process::main(terms, Box::new(|_, _, _| {})), Box::new(Open), None)?;
    crate::DESCRIPTORS.reserve();
    crate::log_to_stderr();
    let Member { name, api, ca, credentials, port_range, left } = membership::read(args)?;
    let held = Held::new(&ca, &credentials)?;
    let found = head::find(&api, &name, &held.files())?;
    let config = Config {
        version,
        node_id: name,
        listen: Address::Tcp { host: found.here.to_string(), port: 0 },
        port_range,
        socket: None,
        advertise: None,
        api: found.api,
        tls: Some(held.files()),
        user: None,
        starter: Uid::effective(),
        // If root creates the cluster, it launches as root. No other user becomes root through it.
        allow_root: Uid::effective().is_root(),
        min_uid: lattice_daemon::MIN_UID,
        setuid_programs: false,
        limits: Vec::new(),
        pam: None,
        share_topology: ShareTopology::default(),
        metrics: None,
        fabric: NodeFabricConfig::default(),
        runtime_dir: None,
        agent_lease: Duration::ZERO,
        when_stopped: WhenStopped::End,
    };
    // The inventory that was stored since the last boot is sufficient for a while.
    daemon::run_until(Prior::gather(config, forks, ThisNode::default())?, left)?;
    Ok(())
}

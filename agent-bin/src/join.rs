//! `lattice-agent join`: an agent of a cluster that one user makes for himself, for as long as it is wanted.
//!
//! ```text
//! fork server ──> membership, from standard input ──> credentials, in memory ──> an API server that answers ──> daemon
//! ```
//!
//! Nothing is read from settings files, no port is fixed (but a range may be), and nothing is left: the agent ends when its standard input does, on SIGTERM,
//! when the API server has ended, and when that has not been heard for the time of a lease.

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

/// Joins the cluster and works for it until it is not wanted any more. To be called while this process has one thread.
///
/// # Errors
/// Fails if the membership cannot be used, if no address of the API server answers, and if the daemon fails.
pub(crate) fn run(version: &'static str, args: &JoinArgs) -> Result<(), Box<dyn Error>> {
    cxi_fabric::secret::keep_out_of_core_dumps()?;
    // Before any thread, any key and any connection: session processes are copies of what this process is now.
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
        // Whoever makes the cluster as root launches as root; nobody else becomes root by it.
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
    // What was kept of the node since its kernel was started will do for a while.
    daemon::run_until(Prior::gather(config, forks, ThisNode::default())?, left)?;
    Ok(())
}

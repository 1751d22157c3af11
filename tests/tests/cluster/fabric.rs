//! Fabric credentials, from a manager through the API server and the agents to the ranks, and their release. The manager is a
//! real HTTP server with configurable faults, and the NICs are directories. All other parts are real.

mod backends;
mod clocks;
mod crashes;
mod life;
mod manager_faults;
mod nics;
mod rights;

use lattice_tests::{Command, lattice, script_in};

/// Functions with which scripts inspect a fabric, and cause faults.
const LOOKING: &str = include_str!("../../scripts/fabric.sh");

/// Returns a script in a cluster of two nodes that share the loopback interface.
pub(super) fn with_fabric(script: &str) -> Command {
    with_fabric_on(2, "--loopback", script)
}

/// The same with `nodes` nodes, and flags of `lattice dev-cluster`.
fn with_fabric_on(nodes: u32, flags: &str, script: &str) -> Command {
    let cluster = lattice("dev-cluster --fabric").words(flags).words(&format!("--nodes {nodes} --"));
    script_in(cluster, &format!("{LOOKING}\n{script}"))
}

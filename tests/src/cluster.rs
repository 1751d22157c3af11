//! Clusters on this machine for tests. `lattice dev-cluster` creates and removes a separate cluster for each test.

use std::fs;

use crate::command::{Command, lattice};

/// Returns a command for a cluster of `nodes` nodes. The caller must append the command that runs in the cluster.
pub fn cluster(nodes: u32) -> Command {
    // UCX, below MPICH, writes to standard output about connections that a peer closed first.
    lattice("dev-cluster --nodes").arg(nodes.to_string()).words("--").env("UCX_LOG_LEVEL", "fatal")
}

/// Functions in bash with which test scripts inspect their cluster.
const LOOKING_AROUND: &str = include_str!("../scripts/observation.sh");

/// Returns a command that runs a bash script in a cluster of `nodes` nodes. The caller may append the arguments `$1` and so on.
pub fn script_on(nodes: u32, script: &str) -> Command {
    script_in(cluster(nodes), script)
}

/// The same in a given cluster: a command that ends before the words of the command in the cluster.
pub fn script_in(cluster: Command, script: &str) -> Command {
    cluster.bash(&format!("{LOOKING_AROUND}\n{script}"))
}

/// Returns a command that runs only `lattice launch` with these flags in a cluster. The caller must append the program.
pub fn launch_on(nodes: u32, flags: &str) -> Command {
    cluster(nodes).words("lattice launch").words(flags)
}

/// Returns the names of this machine's network interfaces, sorted.
pub fn interfaces() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/net").expect("/sys is mounted").flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

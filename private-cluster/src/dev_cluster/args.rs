//! The flags of `lattice dev-cluster`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

/// Maximum number of nodes of a cluster on one machine: the hosts of its /24 network, except the addresses of its daemons.
pub const NODES_MAX: i64 = 250;

/// The flags of `lattice dev-cluster`, and the command that runs in the cluster.
#[derive(Clone, Debug, Args)]
pub struct DevClusterArgs {
    /// Number of nodes, which are named node0, node1 and so on.
    #[arg(short = 'N', long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=NODES_MAX), allow_negative_numbers = true)]
    pub nodes: u8,
    /// Put all nodes on loopback addresses of this machine, even as root, where each node could have its own network.
    #[arg(long)]
    pub loopback: bool,
    /// Simulate a fabric, to test credentials: a simulated fabric manager, and directories as NICs.
    #[arg(long)]
    pub fabric: bool,
    /// Simulate faults of the fabric manager by the rules in FILE, as in docs/dev/testing.md.
    #[arg(long, value_name = "FILE", requires = "fabric")]
    pub fabric_faults: Option<PathBuf>,
    /// Command to run in the cluster, and its arguments; else your shell.
    #[arg(value_name = "COMMAND [ARGS]", trailing_var_arg = true, num_args = 0..)]
    pub command: Vec<OsString>,
}

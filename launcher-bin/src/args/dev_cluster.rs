//! The flags of `lattice dev-cluster`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

/// The most nodes of a cluster on one machine: the hosts of its /24 network, without those of its daemons.
pub(crate) const NODES_MAX: i64 = 250;

/// The flags of `lattice dev-cluster`, and the command that runs in the cluster.
#[derive(Clone, Debug, Args)]
pub struct DevClusterArgs {
    /// Make so many nodes, node0 and on.
    #[arg(short = 'N', long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=NODES_MAX), allow_negative_numbers = true)]
    pub nodes: u8,
    /// Put all nodes on loopback addresses of this machine, also where we are root and could give each its own network.
    #[arg(long)]
    pub loopback: bool,
    /// Give the cluster a fabric to try credentials with: a manager that is not one, and NICs that are directories.
    #[arg(long)]
    pub fabric: bool,
    /// Faults of the fabric manager: a file of rules, as in docs/fabric.md.
    #[arg(long, value_name = "FILE", requires = "fabric")]
    pub fabric_faults: Option<PathBuf>,
    /// Command to run in the cluster, and its arguments; else your shell.
    #[arg(value_name = "COMMAND [ARGS]", trailing_var_arg = true, num_args = 0..)]
    pub command: Vec<OsString>,
}

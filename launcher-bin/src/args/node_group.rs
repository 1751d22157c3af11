//! Nodes of one program of several: `lattice launch -N 1 ./master : -N 4 --tasks-per-node 8 ./worker`.

use clap::Args;
use lattice_console::values::node_list;
use lattice_dialects::hostfile::{self, Hosts};

use super::value::{node_count, rank_count};

/// Nodes of one program. The first program of a launch uses the flags of the whole launch instead.
#[derive(Clone, Debug, Default, Args)]
pub struct NodeGroupArgs {
    /// Run the program on N nodes that no other program of the launch uses.
    #[arg(short = 'N', long, value_name = "N", value_parser = node_count, allow_negative_numbers = true)]
    pub nodes: Option<u32>,
    /// Put at most K of its ranks on a node; without -n, start K on each.
    #[arg(long, visible_alias = "ntasks-per-node", value_name = "K", value_parser = rank_count, allow_negative_numbers = true)]
    pub tasks_per_node: Option<u32>,
    /// Run the program on these nodes.
    #[arg(short = 'w', long, value_name = "NODES", value_parser = node_list)]
    pub nodelist: Option<String>,
    /// Run the program on these hosts, filling one after the other: HOST or HOST:N, separated by commas.
    #[arg(short = 'H', long, value_name = "HOSTS", value_parser = hostfile::parse_hosts, conflicts_with_all = ["nodes", "nodelist", "tasks_per_node"])]
    pub host: Option<Hosts>,
}

impl NodeGroupArgs {
    /// True if the program has nodes of its own.
    pub(crate) fn is_given(&self) -> bool {
        let Self { nodes, tasks_per_node, nodelist, host } = self;
        nodes.is_some() || tasks_per_node.is_some() || nodelist.is_some() || host.is_some()
    }
}

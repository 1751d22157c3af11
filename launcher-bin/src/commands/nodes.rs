//! `lattice nodes`: the nodes of the cluster.

use std::time::Duration;

use pmi_transport::proto::v1 as proto;
use proto::NodeState;
use serde::Serialize;

use super::{CommandError, ask, print_json};
use crate::args::TableArgs;
use crate::table::{Align, Table};
use crate::{human, print};

/// A node as it is printed for programs.
#[derive(Debug, Serialize)]
struct Node<'a> {
    id: &'a str,
    state: &'static str,
    grpc_address: &'a str,
    network_addresses: &'a [String],
    cores: u32,
    memory_bytes: u64,
    capabilities: &'a [String],
    version: &'a str,
    heard_ms_ago: u64,
    launches: u32,
}

/// Shows the nodes of the cluster; returns the exit code.
pub(crate) fn nodes(args: &TableArgs) -> Result<u8, CommandError> {
    let answer = ask(&args.api, async |cluster| {
        Ok(cluster.ask(cluster.nodes().list_nodes(proto::ListNodesRequest {})).await?)
    })?;
    if args.json {
        return print_json(&answer.nodes.iter().map(Node::from).collect::<Vec<_>>());
    }
    Ok(print(table(&answer.nodes).as_bytes())?)
}

fn table(nodes: &[proto::Node]) -> String {
    let mut table = Table::new([
        ("NODE", Align::Left),
        ("STATE", Align::Left),
        ("CORES", Align::Right),
        ("MEMORY", Align::Right),
        ("LAUNCHES", Align::Right),
        ("HEARD", Align::Right),
        ("AGENT", Align::Left),
        ("VERSION", Align::Left),
    ]);
    for node in nodes {
        table.push([
            node.id.clone(),
            state(node.state()).to_owned(),
            node.cores.to_string(),
            human::size(node.memory_bytes),
            node.launches.to_string(),
            format!("{} ago", human::duration(Duration::from_millis(node.heard_ms_ago))),
            node.grpc_address.clone(),
            node.version.clone(),
        ]);
    }
    table.to_string()
}

impl<'a> From<&'a proto::Node> for Node<'a> {
    fn from(node: &'a proto::Node) -> Self {
        Self {
            id: &node.id,
            state: state(node.state()),
            grpc_address: &node.grpc_address,
            network_addresses: &node.network_addresses,
            cores: node.cores,
            memory_bytes: node.memory_bytes,
            capabilities: &node.capabilities,
            version: &node.version,
            heard_ms_ago: node.heard_ms_ago,
            launches: node.launches,
        }
    }
}

fn state(state: NodeState) -> &'static str {
    match state {
        NodeState::Unspecified => "unknown",
        NodeState::Up => "up",
        NodeState::Lost => "lost",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_shown_in_a_table_and_as_json() {
        let node = proto::Node {
            id: "node3".to_owned(),
            state: NodeState::Lost.into(),
            grpc_address: "10.0.0.5:50052".to_owned(),
            cores: 8,
            memory_bytes: 1 << 34,
            heard_ms_ago: 4200,
            version: "0.1.0".to_owned(),
            ..proto::Node::default()
        };
        let text = table(std::slice::from_ref(&node));
        assert_eq!(
            text,
            "NODE   STATE  CORES    MEMORY  LAUNCHES      HEARD  AGENT           VERSION\n\
             node3  lost       8  16.0 GiB         0  4.2 s ago  10.0.0.5:50052  0.1.0\n"
        );
        let json = serde_json::to_value(Node::from(&node)).unwrap();
        assert_eq!((&json["state"], &json["heard_ms_ago"]), (&"lost".into(), &4200.into()));
    }
}

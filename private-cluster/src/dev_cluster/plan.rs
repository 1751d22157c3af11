//! Layout of a cluster on this machine: names and addresses of its nodes and daemons. This module creates nothing.
//!
//! ```text
//! namespaces   node0 10.20.0.1    node1 10.20.0.2    ...    API server 10.20.0.254, on the bridge between them
//! loopback     node0 127.A.B.1    node1 127.A.B.2    ...    API server 127.A.B.254; A and B where all of them are free
//! ```

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::process;

/// Ports of the daemons, as on any cluster.
const API_PORT: u16 = 50051;
const AGENT_PORT: u16 = 50052;
const FABRIC_PORT: u16 = 50053;

/// Last byte of the API server's address.
const API_HOST: u8 = 254;
/// Last byte of the fabric manager's address, on the loopback interface.
const FABRIC_HOST: u8 = 253;

/// Network of the nodes. It is isolated, so any prefix works.
const NAMESPACE_PREFIX: [u8; 3] = [10, 20, 0];

/// Maximum number of loopback networks to try.
const ATTEMPTS: u32 = 64;

/// Name of the machine on which the command runs, if each node is a machine of its own.
pub(super) const HEAD: &str = "head";

/// Network of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Each node in its own namespaces; requires root.
    Namespaces,
    /// All nodes on the loopback interface of this machine.
    Loopback,
}

/// A cluster to create.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    pub(super) nodes: Vec<Node>,
    /// Address of the API server for agents.
    pub(super) api: SocketAddrV4,
    /// Address of the fabric manager, if there is one. It is local to the API server, as keys are sent unencrypted.
    pub(super) fabric: SocketAddrV4,
}

/// A node of the cluster.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    /// Address of its agent.
    pub(super) agent: SocketAddrV4,
}

impl Plan {
    /// Plans a cluster of `count` nodes, at most [`NODES_MAX`](super::args::NODES_MAX).
    ///
    /// # Errors
    /// Fails if no network of the loopback interface is free: its ports are in use, or access to them is denied.
    pub(super) fn new(kind: Kind, count: u8) -> io::Result<Self> {
        match kind {
            Kind::Namespaces => Ok(Self::with_prefix(kind, count, NAMESPACE_PREFIX)),
            Kind::Loopback => Self::on_loopback(count),
        }
    }

    fn on_loopback(count: u8) -> io::Result<Self> {
        let plan = |attempt| Self::with_prefix(Kind::Loopback, count, loopback_prefix(attempt));
        let mut plans = (1..ATTEMPTS).map(plan);
        let first = plan(0);
        match first.is_free() {
            Ok(()) => Ok(first),
            Err(refusal) => plans.find(|plan| plan.is_free().is_ok()).ok_or(refusal),
        }
    }

    fn with_prefix(kind: Kind, count: u8, [a, b, c]: [u8; 3]) -> Self {
        let address = |host, port| SocketAddrV4::new(Ipv4Addr::new(a, b, c, host), port);
        let node = |index: u8| Node { name: format!("node{index}"), agent: address(index + 1, AGENT_PORT) };
        let fabric = match kind {
            // The API server's own loopback interface.
            Kind::Namespaces => SocketAddrV4::new(Ipv4Addr::LOCALHOST, FABRIC_PORT),
            Kind::Loopback => address(FABRIC_HOST, FABRIC_PORT),
        };
        Self { kind, nodes: (0..count).map(node).collect(), api: address(API_HOST, API_PORT), fabric }
    }

    /// Checks that every address can be bound at present.
    fn is_free(&self) -> io::Result<()> {
        let mut addresses = self.nodes.iter().map(|node| node.agent).chain([self.api, self.fabric]);
        addresses.try_for_each(|address| TcpListener::bind(address).map(drop))
    }

    /// Names of all nodes, as a hostlist.
    pub(super) fn hostlist(&self) -> String {
        match &self.nodes[..] {
            [only] => only.name.clone(),
            nodes => format!("node[0-{}]", nodes.len() - 1),
        }
    }

    /// Content of `/etc/hosts` on every node.
    pub(super) fn hosts_file(&self) -> String {
        let mut text = String::from("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n");
        text += &format!("{} {HEAD}\n", self.api.ip());
        for node in &self.nodes {
            text += &format!("{} {}\n", node.agent.ip(), node.name);
        }
        text
    }
}

/// First three bytes of a loopback network. A cluster that starts at the same time tries the same network only at another attempt.
fn loopback_prefix(attempt: u32) -> [u8; 3] {
    // The multiplication spreads neighbouring process numbers. 127.0 is left to other programs.
    let number = process::id().wrapping_add(attempt).wrapping_mul(2_654_435_761) >> 16;
    let [_, _, high, low] = number.to_be_bytes();
    [127, high.max(1), low]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_names_and_addresses_in_order() {
        let plan = Plan::new(Kind::Namespaces, 250).unwrap();
        assert_eq!(plan.nodes[0].name, "node0");
        assert_eq!(plan.nodes[0].agent, "10.20.0.1:50052".parse().unwrap());
        assert_eq!(plan.nodes[249].agent, "10.20.0.250:50052".parse().unwrap());
        assert_eq!(plan.api, "10.20.0.254:50051".parse().unwrap());
        assert!(plan.hosts_file().contains("\n10.20.0.250 node249\n"));
    }

    #[test]
    fn a_hostlist_names_every_node() {
        assert_eq!(Plan::new(Kind::Namespaces, 1).unwrap().hostlist(), "node0");
        assert_eq!(Plan::new(Kind::Namespaces, 12).unwrap().hostlist(), "node[0-11]");
    }

    #[test]
    fn a_loopback_network_in_use_is_passed_over() {
        let first = Plan::with_prefix(Kind::Loopback, 2, loopback_prefix(0));
        let _in_use = TcpListener::bind(first.nodes[1].agent).unwrap();
        let plan = Plan::new(Kind::Loopback, 2).unwrap();
        assert!(plan.api.ip().is_loopback());
        assert_ne!(plan.api, first.api);
    }

    proptest::proptest! {
        /// No two daemons of a cluster share an address, whatever its size.
        #[test]
        fn addresses_differ(count in 1_u8..=250) {
            let plan = Plan::new(Kind::Namespaces, count).unwrap();
            let all: std::collections::HashSet<_> =
                plan.nodes.iter().map(|node| node.agent).chain([plan.api, plan.fabric]).collect();
            proptest::prop_assert_eq!(all.len(), usize::from(count) + 2);
            proptest::prop_assert_eq!(plan.hosts_file().lines().count(), usize::from(count) + 3);
        }

        #[test]
        fn loopback_networks_are_never_that_of_localhost(attempt in 0_u32..100_000) {
            let [first, second, _] = loopback_prefix(attempt);
            proptest::prop_assert_eq!(first, 127);
            proptest::prop_assert_ne!(second, 0);
        }
    }
}

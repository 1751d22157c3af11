//! Names and addresses of nodes as users write them: the registered name, the registered name with or without a domain, an address of the
//! node, or a name that resolves to one.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::{Instant, timeout};

use super::allocation::NodeFacts;
use super::cluster::Cluster;
use super::error::ClusterError;

/// Time limit to resolve the names of a list, or a single name.
const RESOLVED_WITHIN: Duration = Duration::from_secs(3);

impl Cluster {
    /// Returns the node among `nodes` that `host` names; `None` if `host` is none of them, or may be several.
    ///
    /// # Errors
    /// Fails if the nodes must be queried, and the API server is unreachable.
    pub async fn node_called(&self, host: &str, nodes: &[String]) -> Result<Option<String>, ClusterError> {
        if let Some(node) = called(host, nodes) {
            return Ok(Some(node.clone()));
        }
        let addresses = addresses(host).await;
        match addresses.is_empty() {
            true => Ok(None),
            false => Ok(at(&addresses, nodes, &self.node_facts().await?)),
        }
    }

    /// Replaces each host of a list by the registered name of its node. A host that is not a node stays unchanged. So do an unreadable
    /// list, and names for which no time is left.
    ///
    /// # Errors
    /// Fails if the API server cannot be reached.
    pub async fn registered_names(&self, list: &str) -> Result<String, ClusterError> {
        let hosts = hostlist::expand(list).unwrap_or_default();
        if hosts.is_empty() {
            return Ok(list.to_owned());
        }
        let nodes: Vec<String> = self.node_facts().await?.into_iter().map(|node| node.name).collect();
        let known: HashSet<&String> = nodes.iter().collect();
        if hosts.iter().all(|host| known.contains(host)) {
            return Ok(list.to_owned());
        }
        let until = Instant::now() + RESOLVED_WITHIN;
        let mut names = Vec::with_capacity(hosts.len());
        for host in hosts {
            let is_known = known.contains(&host) || Instant::now() >= until;
            let called = if is_known { None } else { self.node_called(&host, &nodes).await? };
            names.push(called.unwrap_or(host));
        }
        Ok(hostlist::fold(&names))
    }
}

/// The node with this name, else the only node with this name apart from the domain.
fn called<'a>(host: &str, nodes: &'a [String]) -> Option<&'a String> {
    let mut alike = nodes.iter().filter(|node| hostlist::is_same_host(node, host));
    let only = alike.next().filter(|_| alike.next().is_none());
    nodes.iter().find(|node| *node == host).or(only)
}

/// Addresses of a host, which may itself be an address; empty for a name that does not resolve.
async fn addresses(host: &str) -> Vec<IpAddr> {
    if let Ok(address) = host.parse() {
        return vec![address];
    }
    match timeout(RESOLVED_WITHIN, lookup_host((host, 0))).await {
        Ok(Ok(found)) => found.map(|address| address.ip()).collect(),
        Ok(Err(_)) | Err(_) => Vec::new(),
    }
}

/// The only node that has one of these addresses.
fn at(addresses: &[IpAddr], nodes: &[String], facts: &[NodeFacts]) -> Option<String> {
    let has = |node: &NodeFacts| {
        let known = node.addresses.iter().filter_map(|known| known.parse::<IpAddr>().ok());
        known.map(|known| known.to_canonical()).any(|known| addresses.iter().any(|it| it.to_canonical() == known))
    };
    let mut found = facts.iter().filter(|node| nodes.contains(&node.name) && has(node));
    found.next().filter(|_| found.next().is_none()).map(|node| node.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(nodes: &[(&str, &[&str])]) -> Vec<NodeFacts> {
        let node = |(name, addresses): &(&str, &[&str])| NodeFacts {
            name: (*name).to_owned(),
            cores: 1,
            addresses: addresses.iter().map(|address| (*address).to_owned()).collect(),
        };
        nodes.iter().map(node).collect()
    }

    #[test]
    fn a_node_is_called_by_its_name_with_a_domain_or_without() {
        let nodes = ["node0", "node1.site", "node2.a", "node2.b"].map(str::to_owned);
        for (host, expected) in [
            ("node0", Some("node0")),
            ("node0.site", Some("node0")),
            ("node1", Some("node1.site")),
            ("node1.site", Some("node1.site")),
            ("node2", None),
            ("node2.b", Some("node2.b")),
            ("node3", None),
        ] {
            assert_eq!(called(host, &nodes).map(String::as_str), expected, "{host}");
        }
    }

    #[test]
    fn an_address_is_that_of_the_only_node_that_has_it() {
        let all = facts(&[("a", &["10.0.0.1", "fd00::1"]), ("b", &["10.0.0.2", "127.0.0.1"]), ("c", &["127.0.0.1"])]);
        let nodes = ["a", "b", "c"].map(str::to_owned);
        for (address, expected) in [
            ("10.0.0.1", Some("a")),
            ("fd00:0::1", Some("a")),
            ("::ffff:10.0.0.2", Some("b")),
            ("127.0.0.1", None),
            ("10.0.0.9", None),
        ] {
            assert_eq!(at(&[address.parse().unwrap()], &nodes, &all).as_deref(), expected, "{address}");
        }
        assert_eq!(at(&["10.0.0.1".parse().unwrap()], &nodes[1..], &all), None, "a is not in the allocation");
    }
}

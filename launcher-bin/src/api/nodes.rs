//! The nodes: who registered, who was heard lately, who is lost. Pure; the time is handed in.
//!
//! ```text
//! (unknown) ──register──> Up ──no heartbeat for LOST_AFTER──> Lost ──register──> Up
//! ```
//! An agent that starts anew has a new incarnation: what ran under the old one is gone.

use std::collections::BTreeMap;

use pmi_transport::address::{Address, AddressError};
use pmi_transport::identity::is_node_name;
use pmi_transport::patience::LOST_AFTER;
use pmi_transport::proto::v1::{Node, NodeState, RegisterNodeRequest};
use tokio::time::Instant;

/// The most nodes.
const NODES_MAX: usize = 1 << 16;
/// The most network addresses, and capabilities, of a node; each at most this long.
const WORDS_MAX: usize = 64;
const WORD_MAX: usize = 256;

/// All nodes that ever registered.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    nodes: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    told: RegisterNodeRequest,
    heard: Instant,
    state: NodeState,
}

/// What a registration says of the node's past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Nothing was known of the node.
    First,
    /// It is as it was.
    Again,
    /// The agent was started anew: nothing of what ran under the one before is left.
    Anew,
}

/// A registration that is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegisterError {
    #[error("{id:?} cannot be a node's name: letters, digits, '-', '_' and '.' can")]
    Name { id: String },
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("{address} cannot be reached by other nodes; register host:port")]
    NoTcp { address: Address },
    #[error("a node has at most {WORDS_MAX} addresses and capabilities of {WORD_MAX} bytes each")]
    TooMuch,
    #[error("there are {NODES_MAX} nodes already")]
    Full,
}

impl Registry {
    /// An agent is there.
    pub(crate) fn register(&mut self, told: RegisterNodeRequest, now: Instant) -> Result<Arrival, RegisterError> {
        check(&told)?;
        let before = self.nodes.get(&told.node_id);
        if before.is_none() && self.nodes.len() >= NODES_MAX {
            return Err(RegisterError::Full);
        }
        let arrival = match before {
            None => Arrival::First,
            Some(entry) if entry.told.incarnation == told.incarnation => Arrival::Again,
            Some(_) => Arrival::Anew,
        };
        self.nodes.insert(told.node_id.clone(), Entry { told, heard: now, state: NodeState::Up });
        Ok(arrival)
    }

    /// An agent still is there. Returns whether it must register again.
    pub(crate) fn heartbeat(&mut self, id: &str, incarnation: u64, now: Instant) -> bool {
        match self.nodes.get_mut(id) {
            Some(entry) if entry.told.incarnation == incarnation && entry.state == NodeState::Up => {
                entry.heard = now;
                false
            }
            _ => true,
        }
    }

    /// The nodes that were not heard for too long, each told once.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<String> {
        let late = |entry: &Entry| entry.state == NodeState::Up && now.duration_since(entry.heard) > LOST_AFTER;
        let mut lost = Vec::new();
        for (id, entry) in self.nodes.iter_mut().filter(|(_, entry)| late(entry)) {
            entry.state = NodeState::Lost;
            lost.push(id.clone());
        }
        lost
    }

    /// What a node that is up said of itself.
    pub(crate) fn up(&self, id: &str) -> Option<&RegisterNodeRequest> {
        self.nodes.get(id).filter(|entry| entry.state == NodeState::Up).map(|entry| &entry.told)
    }

    /// The state of a node, if it ever registered.
    pub(crate) fn state(&self, id: &str) -> Option<NodeState> {
        self.nodes.get(id).map(|entry| entry.state)
    }

    /// The names of the nodes that are up.
    pub(crate) fn all_up(&self) -> impl Iterator<Item = &String> {
        self.nodes.iter().filter(|(_, entry)| entry.state == NodeState::Up).map(|(id, _)| id)
    }

    /// All nodes for those who ask; `launches` counts those of a node.
    pub(crate) fn list(&self, now: Instant, launches: impl Fn(&str) -> u32) -> Vec<Node> {
        let node = |(id, entry): (&String, &Entry)| Node {
            id: id.clone(),
            state: entry.state.into(),
            grpc_address: entry.told.grpc_address.clone(),
            network_addresses: entry.told.network_addresses.clone(),
            cores: entry.told.cores,
            memory_bytes: entry.told.memory_bytes,
            capabilities: entry.told.capabilities.clone(),
            version: entry.told.version.clone(),
            heard_ms_ago: now.duration_since(entry.heard).as_millis() as u64,
            launches: launches(id),
        };
        self.nodes.iter().map(node).collect()
    }
}

fn check(told: &RegisterNodeRequest) -> Result<(), RegisterError> {
    if !is_node_name(&told.node_id) {
        return Err(RegisterError::Name { id: told.node_id.chars().take(WORD_MAX).collect() });
    }
    let address: Address = told.grpc_address.parse()?;
    if matches!(address, Address::Unix(_)) {
        return Err(RegisterError::NoTcp { address });
    }
    let too_much = |words: &[String]| words.len() > WORDS_MAX || words.iter().any(|word| word.len() > WORD_MAX);
    if too_much(&told.network_addresses) || too_much(&told.capabilities) || told.version.len() > WORD_MAX {
        return Err(RegisterError::TooMuch);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pmi_transport::patience::HEARTBEAT;

    use super::*;

    fn agent(id: &str, incarnation: u64) -> RegisterNodeRequest {
        let grpc_address = "127.0.0.1:50052".to_owned();
        RegisterNodeRequest { node_id: id.to_owned(), grpc_address, incarnation, ..Default::default() }
    }

    #[tokio::test]
    async fn a_node_that_is_not_heard_is_lost_once() {
        let (mut registry, start) = (Registry::default(), Instant::now());
        assert_eq!(registry.register(agent("a", 1), start).unwrap(), Arrival::First);
        assert_eq!(registry.register(agent("b", 1), start).unwrap(), Arrival::First);
        assert!(!registry.heartbeat("a", 1, start + 3 * HEARTBEAT));
        assert!(registry.expire(start + LOST_AFTER).is_empty());
        assert_eq!(registry.expire(start + 2 * LOST_AFTER - HEARTBEAT), ["b"]);
        assert!(registry.expire(start + 2 * LOST_AFTER - HEARTBEAT).is_empty());
        assert!(registry.up("b").is_none());
        assert!(registry.heartbeat("b", 1, start + 2 * LOST_AFTER), "it must register again");
        assert_eq!(registry.register(agent("b", 1), start + 2 * LOST_AFTER).unwrap(), Arrival::Again);
        assert!(registry.up("b").is_some());
    }

    #[tokio::test]
    async fn an_agent_that_was_started_anew_is_told_from_one_that_returns() {
        let (mut registry, now) = (Registry::default(), Instant::now());
        assert_eq!(registry.register(agent("a", 1), now).unwrap(), Arrival::First);
        assert_eq!(registry.register(agent("a", 1), now).unwrap(), Arrival::Again);
        assert!(registry.heartbeat("a", 2, now));
        assert_eq!(registry.register(agent("a", 2), now).unwrap(), Arrival::Anew);
    }

    #[tokio::test]
    async fn strange_registrations_are_refused() {
        let mut registry = Registry::default();
        let mut check = |change: fn(&mut RegisterNodeRequest), expected: &str| {
            let mut told = agent("a", 1);
            change(&mut told);
            let error = registry.register(told, Instant::now()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(|told| told.node_id = "a,b".to_owned(), "cannot be a node's name");
        check(|told| told.grpc_address = "here".to_owned(), "no address");
        check(|told| told.grpc_address = "unix:/a".to_owned(), "cannot be reached");
        check(|told| told.capabilities = vec!["x".repeat(1000)], "at most 64");
    }
}

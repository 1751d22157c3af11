//! The nodes: who registered, who was heard lately, who is lost, and on which of them something new may begin. Pure; the time is
//! handed in.
//!
//! ```text
//! (unknown) ──register──> Up ──no heartbeat for LOST_AFTER──> Lost ──register──> Up
//! ```
//! An agent that starts anew has a new incarnation: what ran under the old one is gone. Beside its state, a node may be drained:
//! something new begins on nodes that are up and not drained.

use lattice_session::timeouts::LOST_AFTER;
use pmi_transport::address::{Address, AddressError};
use pmi_transport::identity::is_node_name;
use pmi_transport::proto::v1::{Drain, Node, NodeState, RegisterNodeRequest};
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;

use super::versions::{self, Fit};

/// The most nodes, and the most names in a list of them.
pub(crate) const NODES_MAX: usize = 1 << 16;
/// The most network addresses, and capabilities, of a node; each at most this long.
const WORDS_MAX: usize = 64;
const WORD_MAX: usize = 256;

/// All nodes that ever registered.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    nodes: BTreeMap<String, Entry>,
    /// By node; also those of nodes that have not registered yet.
    drains: BTreeMap<String, Drain>,
}

#[derive(Debug)]
struct Entry {
    told: RegisterNodeRequest,
    heard: Instant,
    state: NodeState,
}

/// News that a registration brings of the node's past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Nothing was known of the node.
    First,
    /// The node is as it was.
    Again,
    /// The agent was started anew: nothing of what ran under the one before is left.
    Anew,
}

/// Why nothing new can begin on a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unready {
    #[error("has not registered")]
    Unknown,
    #[error("is lost")]
    Lost,
    #[error("is drained: {reason}")]
    Drained { reason: String },
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
    #[error(
        "an agent of version {theirs} and an API server of version {} do not work together; use an agent of {}",
        versions::OURS,
        versions::series()
    )]
    Version { theirs: String },
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

    /// Returns the registration of a node that is up.
    pub(crate) fn up(&self, id: &str) -> Option<&RegisterNodeRequest> {
        self.nodes.get(id).filter(|entry| entry.state == NodeState::Up).map(|entry| &entry.told)
    }

    /// Returns the registration of a node on which something new may begin.
    pub(crate) fn ready(&self, id: &str) -> Result<&RegisterNodeRequest, Unready> {
        let entry = self.nodes.get(id).ok_or(Unready::Unknown)?;
        match self.drains.get(id) {
            _ if entry.state != NodeState::Up => Err(Unready::Lost),
            Some(drain) => Err(Unready::Drained { reason: drain.reason.clone() }),
            None => Ok(&entry.told),
        }
    }

    /// The names of the nodes on which something new may begin.
    pub(crate) fn all_ready(&self) -> impl Iterator<Item = &String> {
        self.nodes.keys().filter(|id| self.ready(id).is_ok())
    }

    /// Returns true if a node registered since the server was started.
    pub(crate) fn is_known(&self, id: &str) -> bool {
        self.nodes.contains_key(id)
    }

    /// The names of all nodes that registered since the server was started, or are drained.
    pub(crate) fn all_known(&self) -> BTreeSet<&String> {
        self.nodes.keys().chain(self.drains.keys()).collect()
    }

    /// Nothing new begins on a node from now on.
    pub(crate) fn drain(&mut self, drain: Drain) {
        self.drains.insert(drain.node.clone(), drain);
    }

    /// A node is not drained any more.
    pub(crate) fn resume(&mut self, id: &str) {
        self.drains.remove(id);
    }

    /// The names of the nodes that are up, and drained.
    pub(crate) fn all_drained(&self) -> impl Iterator<Item = &String> {
        self.drains.keys().filter(|id| self.up(id).is_some())
    }

    /// All nodes for those who ask, also such as are drained before they register; `launches` counts those of a node.
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
            drain: self.drains.get(id).cloned(),
        };
        let unknown = self.drains.iter().filter(|(id, _)| !self.nodes.contains_key(*id));
        let unknown = unknown.map(|(id, drain)| Node { id: id.clone(), drain: Some(drain.clone()), ..Node::default() });
        let mut nodes: Vec<Node> = self.nodes.iter().map(node).chain(unknown).collect();
        nodes.sort_by(|one, other| one.id.cmp(&other.id));
        nodes
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
    match versions::fit(&told.version) {
        Fit::Never => Err(RegisterError::Version { theirs: told.version.clone() }),
        Fit::Same | Fit::Other => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lattice_session::timeouts::HEARTBEAT;

    use super::*;
    use crate::clock::Reading;

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
    async fn a_time_in_which_nobody_could_be_heard_does_not_count() {
        let (mut registry, start) = (Registry::default(), Instant::now());
        let mut clock = Reading::new(start);
        registry.register(agent("a", 1), clock.at(start)).unwrap();
        registry.register(agent("b", 1), clock.at(start + HEARTBEAT)).unwrap();
        let awake = start + HEARTBEAT + 2 * LOST_AFTER;
        assert!(registry.expire(clock.at(awake)).is_empty());
        let mut expired = Vec::new();
        for passed in 1..=LOST_AFTER.as_millis() as u32 / 250 {
            let now = clock.at(awake + passed * Duration::from_millis(250));
            assert!(!registry.heartbeat("b", 1, now));
            expired.extend(registry.expire(now).into_iter().map(|node| (passed, node)));
        }
        let time = (LOST_AFTER - HEARTBEAT).as_millis() as u32 / 250 + 1;
        assert_eq!(expired, [(time, "a".to_owned())], "it had the time that it would have had, and no more");
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
        check(|told| told.version = "999.0.0".to_owned(), "an agent of version 999.0.0 and an API server of version");
    }

    #[tokio::test]
    async fn nothing_new_begins_on_a_node_that_is_drained() {
        let (mut registry, start) = (Registry::default(), Instant::now());
        let drain = |node: &str| Drain { node: node.to_owned(), reason: "new memory".to_owned(), ..Drain::default() };
        let ready = |registry: &Registry| registry.all_ready().cloned().collect::<Vec<_>>();
        registry.register(agent("a", 1), start).unwrap();
        registry.register(agent("b", 1), start).unwrap();
        registry.drain(drain("a"));
        registry.drain(drain("c"));
        assert_eq!(ready(&registry), ["b"]);
        assert_eq!(registry.ready("a").unwrap_err().to_string(), "is drained: new memory");
        assert!(registry.up("a").is_some(), "what runs there goes on");
        assert_eq!(registry.ready("c").unwrap_err(), Unready::Unknown);
        let listed = registry.list(start, |_| 0);
        let drained: Vec<_> = listed.iter().map(|node| (node.id.as_str(), node.drain.is_some())).collect();
        assert_eq!(drained, [("a", true), ("b", false), ("c", true)]);
        // It holds for the next agent as well, until it is undone.
        registry.register(agent("a", 2), start).unwrap();
        assert_eq!(ready(&registry), ["b"]);
        registry.resume("a");
        assert_eq!(ready(&registry), ["a", "b"]);
        registry.expire(start + 2 * LOST_AFTER);
        assert_eq!(registry.ready("a").unwrap_err(), Unready::Lost);
    }
}

//! The nodes: who registered, who was heard lately, who is lost, and on which of them something new may begin. Pure; the time is
//! handed in, and so is how the port of an agent that is not heard answers.
//!
//! ```text
//!                             port refuses: no agent, but a machine             the lease is over, or the machine is silent
//! (unknown) ──register──> Up ───────────────────────────────────────> Away ─────────────────────────────────────────────┐
//!                         ^ └── port accepts twice, or nobody answers ───┼──────────────────────────────────> Lost <──────┘
//!                         └───────────────── register ───────────────────┴────────────────────────────────────┘
//! ```
//! A node is looked at when no heartbeat came for `LOST_AFTER`. A port that accepts is that of an agent which hangs, or of one that was
//! just started and is about to register; so it is asked twice. While its agent is away its launches go on. An agent that starts anew
//! has a new incarnation, and says which launches of the old one it has taken up: all others are gone. Beside its state, a node may be
//! drained: something new begins on nodes that are up and not drained. A node whose certificate is revoked is lost at once.

mod registration;
mod rivals;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use lattice_session::timeouts::{HEARTBEAT, LOST_AFTER, PORT_AGAIN};
use tokio::time::Instant;

use self::registration::check;
pub(crate) use self::registration::{NodeFacts, RegisterError, Registration};
use self::rivals::Rival;

/// The most nodes, and the most names in a list of them.
pub(crate) const NODES_MAX: usize = 1 << 17;

/// All nodes that ever registered.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    nodes: BTreeMap<String, Entry>,
    /// By node; also those of nodes that have not registered yet.
    drains: BTreeMap<String, Drain>,
    expected: Expected,
    /// Nodes that registered for the first time, as far as that is known, since [`Registry::take_new`] was called.
    new: Vec<String>,
}

/// Nodes that had registered with an earlier server, and not with this one yet.
#[derive(Debug, Default)]
struct Expected {
    nodes: BTreeSet<String>,
    /// The time from which on they are not expected any more.
    until: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    facts: NodeFacts,
    incarnation: u64,
    /// Certificate that its agent showed last, in DER; empty without one.
    certificate: Bytes,
    heard: Instant,
    state: NodeState,
    /// Its port is asked again after this time; `None` while it is being asked.
    look_after: Option<Instant>,
    /// It accepted when it was asked last, and nothing was heard since.
    accepts: bool,
    /// Incarnation of the agent that this one took the place of.
    replaced: Option<u64>,
    /// Agent that was refused last, as this one is the node.
    rival: Option<Rival>,
}

/// State of a node that has registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeState {
    Up,
    /// Its agent does not run, and its launches go on.
    Away,
    /// No heartbeat came for too long.
    Lost,
}

/// Node that was not heard for too long, whose port is to be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Suspect {
    /// The name of the node.
    pub node: String,
    /// The address of its agent.
    pub address: String,
}

/// Answer of an agent's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortAnswer {
    /// Somebody listens there.
    Accepted,
    /// The machine says that nobody does.
    Refused,
    /// Nobody answers.
    Nothing,
}

/// Change of the state of a node that was not heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// Its agent is away.
    Away,
    /// It is lost.
    Lost {
        /// What was seen, in words.
        reason: &'static str,
    },
}

/// A note that nothing new is to begin on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Drain {
    /// The name of the node.
    pub node: String,
    pub reason: String,
    /// The caller who drained it.
    pub by: String,
    /// When, in seconds since 1970.
    pub since: u64,
}

/// A node as those who ask are told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The name of the node.
    pub node: String,
    /// `None` if it has not registered since the server was started.
    pub presence: Option<Presence>,
    /// `None` if it is not drained.
    pub drain: Option<Drain>,
}

/// A node that has registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Presence {
    pub state: NodeState,
    pub facts: NodeFacts,
    /// Time since its last heartbeat.
    pub heard_ago: Duration,
    /// The number of launches on it.
    pub launches: u32,
    /// Address of another agent that says it is this node, and was refused lately.
    pub rival: Option<String>,
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
    #[error("is away: its agent does not run")]
    Away,
    #[error("is lost")]
    Lost,
    #[error("is drained: {reason}")]
    Drained { reason: String },
}

impl Registry {
    /// An agent is there.
    ///
    /// # Errors
    /// See the variants of [`RegisterError`]; then nothing is changed.
    pub(crate) fn register(&mut self, registration: Registration, now: Instant) -> Result<Arrival, RegisterError> {
        check(&registration)?;
        let Registration { node, incarnation, launches: _, facts } = registration;
        let before = self.nodes.get(&node);
        if before.is_none() && self.nodes.len() >= NODES_MAX {
            return Err(RegisterError::Full);
        }
        let arrival = match before {
            None => Arrival::First,
            Some(entry) if entry.incarnation == incarnation => Arrival::Again,
            Some(_) => Arrival::Anew,
        };
        let replaced = before.and_then(|entry| match arrival {
            Arrival::Anew => Some(entry.incarnation),
            Arrival::First | Arrival::Again => entry.replaced,
        });
        let rival = before.and_then(|entry| entry.rival.clone());
        if !self.expected.nodes.remove(&node) && arrival == Arrival::First {
            self.new.push(node.clone());
        }
        self.nodes.insert(
            node,
            Entry {
                facts,
                incarnation,
                certificate: Bytes::new(),
                heard: now,
                state: NodeState::Up,
                look_after: Some(now),
                accepts: false,
                replaced,
                rival,
            },
        );
        Ok(arrival)
    }

    /// The agent of a node has shown this certificate, in DER.
    pub(crate) fn shown(&mut self, id: &str, certificate: &[u8]) {
        if let Some(entry) = self.nodes.get_mut(id).filter(|entry| entry.certificate != certificate) {
            entry.certificate = Bytes::copy_from_slice(certificate);
        }
    }

    /// Nodes whose certificates are revoked are lost from now on; returns those that were not before.
    pub(crate) fn lose_revoked(&mut self, is_revoked: impl Fn(&[u8]) -> bool) -> Vec<String> {
        let is_out = |entry: &Entry| entry.state != NodeState::Lost && is_revoked(&entry.certificate);
        let out = self.nodes.iter_mut().filter(|(_, entry)| is_out(entry));
        out.map(|(node, entry)| {
            entry.state = NodeState::Lost;
            node.clone()
        })
        .collect()
    }

    /// An agent still is there. Returns whether it must register again.
    pub(crate) fn heartbeat(&mut self, id: &str, incarnation: u64, now: Instant) -> bool {
        match self.nodes.get_mut(id) {
            Some(entry) if entry.incarnation == incarnation && entry.state == NodeState::Up => {
                entry.heard = now;
                entry.accepts = false;
                false
            }
            _ => true,
        }
    }

    /// At most `max` nodes that were not heard for too long, and whose ports are to be asked now; each is to be judged afterwards.
    pub(crate) fn suspects(&mut self, max: usize, now: Instant) -> Vec<Suspect> {
        let is_due = |entry: &Entry| entry.look_after.is_some_and(|time| now >= time);
        let is_late = |entry: &Entry| entry.state != NodeState::Lost && now.duration_since(entry.heard) > LOST_AFTER;
        let late = self.nodes.iter_mut().filter(|(_, entry)| is_late(entry) && is_due(entry)).take(max);
        let suspect = |(node, entry): (&String, &mut Entry)| {
            entry.look_after = None;
            Suspect { node: node.clone(), address: entry.facts.grpc_address.clone() }
        };
        late.map(suspect).collect()
    }

    /// The port of a suspect has answered. Returns the change of its state, if it changes; its agent may be away for `lease` since it was
    /// heard.
    pub(crate) fn judge(&mut self, id: &str, answer: PortAnswer, lease: Duration, now: Instant) -> Option<Judgement> {
        let entry = self.nodes.get_mut(id).filter(|entry| entry.look_after.is_none())?;
        entry.look_after = Some(now + HEARTBEAT);
        let silent_for = now.duration_since(entry.heard);
        let judgement = match (entry.state, answer) {
            // It was heard meanwhile.
            _ if silent_for <= LOST_AFTER => return None,
            (NodeState::Lost, _) => return None,
            (NodeState::Up, PortAnswer::Accepted) if !entry.accepts => {
                entry.accepts = true;
                entry.look_after = Some(now + PORT_AGAIN);
                return None;
            }
            (NodeState::Up | NodeState::Away, PortAnswer::Nothing) | (NodeState::Up, PortAnswer::Accepted) => {
                Judgement::Lost { reason: "no heartbeat came for too long" }
            }
            (NodeState::Up | NodeState::Away, _) if silent_for > lease => {
                Judgement::Lost { reason: "its agent ended, and none took its place in time" }
            }
            (NodeState::Up, PortAnswer::Refused) => Judgement::Away,
            // An agent that starts registers soon.
            (NodeState::Away, PortAnswer::Refused | PortAnswer::Accepted) => return None,
        };
        entry.state = match judgement {
            Judgement::Away => NodeState::Away,
            Judgement::Lost { .. } => NodeState::Lost,
        };
        Some(judgement)
    }

    /// Returns the facts of a node that is up.
    pub(crate) fn up(&self, id: &str) -> Option<&NodeFacts> {
        self.nodes.get(id).filter(|entry| entry.state == NodeState::Up).map(|entry| &entry.facts)
    }

    /// Returns the facts of a node on which something new may begin.
    ///
    /// # Errors
    /// Why nothing can begin there.
    pub(crate) fn ready(&self, id: &str) -> Result<&NodeFacts, Unready> {
        let entry = self.nodes.get(id).ok_or(Unready::Unknown)?;
        match self.drains.get(id) {
            _ if entry.state == NodeState::Away => Err(Unready::Away),
            _ if entry.state == NodeState::Lost => Err(Unready::Lost),
            Some(drain) => Err(Unready::Drained { reason: drain.reason.clone() }),
            None => Ok(&entry.facts),
        }
    }

    /// The names of the nodes on which something new may begin.
    pub(crate) fn all_ready(&self) -> impl Iterator<Item = &String> {
        self.nodes.keys().filter(|id| self.ready(id).is_ok())
    }

    /// These nodes had registered with an earlier server; their agents come back until this time, if they do.
    pub(crate) fn expect(&mut self, nodes: impl IntoIterator<Item = String>, until: Instant) {
        self.expected = Expected { nodes: nodes.into_iter().collect(), until: Some(until) };
    }

    /// Returns true if a node had registered with an earlier server, and its agent may still come back.
    pub(crate) fn is_expected(&self, id: &str) -> bool {
        self.expected.nodes.contains(id)
    }

    /// The nodes that are expected no more, as their time is over.
    pub(crate) fn give_up_expected(&mut self, now: Instant) -> Vec<String> {
        match self.expected.until {
            Some(until) if now >= until => std::mem::take(&mut self.expected).nodes.into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Nodes that have registered since the last call, and that no server knew before.
    pub(crate) fn take_new(&mut self) -> Vec<String> {
        std::mem::take(&mut self.new)
    }

    /// The names of the nodes on which something new may begin as soon as their agents are back.
    pub(crate) fn all_coming(&self) -> impl Iterator<Item = &String> {
        let away = self.nodes.iter().filter(|(_, entry)| entry.state == NodeState::Away).map(|(id, _)| id);
        away.chain(&self.expected.nodes).filter(|id| !self.drains.contains_key(*id))
    }

    /// The number of nodes that have registered, with this server or an earlier one.
    pub(crate) fn count_known(&self) -> usize {
        self.nodes.len() + self.expected.nodes.len()
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

    /// All nodes for those who ask, by name, also such as are drained before they register; `launches` counts those of a node.
    pub(crate) fn list(&self, now: Instant, launches: impl Fn(&str) -> u32) -> Vec<Listed> {
        let presence = |(node, entry): (&String, &Entry)| Presence {
            state: entry.state,
            facts: entry.facts.clone(),
            heard_ago: now.duration_since(entry.heard),
            launches: launches(node),
            rival: entry.rival(now),
        };
        let listed = |node: &String| Listed {
            node: node.clone(),
            presence: self.nodes.get_key_value(node).map(presence),
            drain: self.drains.get(node).cloned(),
        };
        self.all_known().into_iter().map(listed).collect()
    }

    /// The number of nodes in a state.
    pub(crate) fn count(&self, state: NodeState) -> usize {
        self.nodes.values().filter(|entry| entry.state == state).count()
    }
}

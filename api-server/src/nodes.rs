//! The nodes: which agents registered, which sent heartbeats lately, which nodes are lost, and on which nodes new work (allocations and
//! launches) can begin. This module is pure: callers pass in the time and the result of a probe of an agent's port.
//!
//! ```text
//!                             port refuses: no agent, but a machine             the lease is over, or the machine is silent
//! (unknown) ──register──> Up ───────────────────────────────────────> Away ─────────────────────────────────────────────┐
//!                         ^ └── port accepts twice, or does not answer ──┼──────────────────────────────────> Lost <──────┘
//!                         └───────────────── register ───────────────────┴────────────────────────────────────┘
//! ```
//! The server probes the port of an agent when no heartbeat arrives for `LOST_AFTER`. A port that accepts belongs to an agent that hangs,
//! or to one that has just started and is about to register. Therefore the server probes it twice. While an agent is away, the launches of
//! its node continue. A restarted agent has a new incarnation and reports the launches that it took over from its predecessor. All other
//! launches of the predecessor are gone. In addition to its state, a node can be drained: new work begins only on nodes that are up and not
//! drained. A node with a revoked certificate is lost at once.

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

/// Limit of the number of nodes, and of the number of names in a list of nodes.
pub(crate) const NODES_MAX: usize = 1 << 17;

/// All nodes that ever registered.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    nodes: BTreeMap<String, Entry>,
    /// Drains by node, including nodes that have not registered yet.
    drains: BTreeMap<String, Drain>,
    expected: Expected,
    /// Nodes that registered for the first time since the last call of [`Registry::take_new`], as far as this server can determine.
    new: Vec<String>,
}

/// Nodes that registered with an earlier server, and not yet with this one.
#[derive(Debug, Default)]
struct Expected {
    nodes: BTreeSet<String>,
    /// Time from which this server no longer expects the nodes.
    until: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    facts: NodeFacts,
    incarnation: u64,
    /// Last certificate that the agent presented, in DER; empty without one.
    certificate: Bytes,
    heard: Instant,
    state: NodeState,
    /// Time after which the port is probed again; `None` during a probe.
    look_after: Option<Instant>,
    /// The port accepted the last probe, and no heartbeat has arrived after it.
    accepts: bool,
    /// Incarnation of the agent that this one replaced.
    replaced: Option<u64>,
    /// Agent that was refused last because this agent serves the node.
    rival: Option<Rival>,
}

/// State of a node that has registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeState {
    Up,
    /// Its agent does not run; its launches continue.
    Away,
    /// No heartbeat arrived for too long.
    Lost,
}

/// Node without recent heartbeats; its port must be probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Suspect {
    /// The name of the node.
    pub node: String,
    /// The address of its agent.
    pub address: String,
}

/// Result of a probe of an agent's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortAnswer {
    /// A process accepts connections on the port.
    Accepted,
    /// The machine refuses the connection: no process listens on the port.
    Refused,
    /// No answer arrives.
    Nothing,
}

/// Change of the state of a node after a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// Its agent is away.
    Away,
    /// The node is lost.
    Lost {
        /// Observation that led to the decision, in words.
        reason: &'static str,
    },
}

/// Exclusion of a node from new work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Drain {
    /// The name of the node.
    pub node: String,
    pub reason: String,
    /// Caller that drained the node.
    pub by: String,
    /// Time of the drain, in seconds since 1970.
    pub since: u64,
}

/// A node as the server lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The name of the node.
    pub node: String,
    /// `None` if the node has not registered since the server was started.
    pub presence: Option<Presence>,
    /// `None` if the node is not drained.
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
    /// Address of another agent that registered under the name of this node lately, and was refused.
    pub rival: Option<String>,
}

/// Relation of a registration to the earlier state of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The node was unknown.
    First,
    /// The same agent has registered before.
    Again,
    /// The agent was restarted: launches of its predecessor that the registration does not list are gone.
    Anew,
}

/// Reason why new work cannot begin on a node.
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
    /// Registers an agent.
    ///
    /// # Errors
    /// See the variants of [`RegisterError`]. On an error the registry is unchanged.
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

    /// Stores the certificate that the agent of a node presented, in DER.
    pub(crate) fn shown(&mut self, id: &str, certificate: &[u8]) {
        if let Some(entry) = self.nodes.get_mut(id).filter(|entry| entry.certificate != certificate) {
            entry.certificate = Bytes::copy_from_slice(certificate);
        }
    }

    /// Marks nodes with revoked certificates as lost. Returns the nodes that were not lost before.
    pub(crate) fn lose_revoked(&mut self, is_revoked: impl Fn(&[u8]) -> bool) -> Vec<String> {
        let is_out = |entry: &Entry| entry.state != NodeState::Lost && is_revoked(&entry.certificate);
        let out = self.nodes.iter_mut().filter(|(_, entry)| is_out(entry));
        out.map(|(node, entry)| {
            entry.state = NodeState::Lost;
            node.clone()
        })
        .collect()
    }

    /// Records a heartbeat of an agent. Returns true if the agent must register again.
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

    /// Returns at most `max` nodes that sent no recent heartbeat and are due for a probe of their ports. Each result must be passed to
    /// [`Self::judge`].
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

    /// Applies the result of a probe. Returns the change of the node's state, if any. An agent can be away for `lease` after its last
    /// heartbeat.
    pub(crate) fn judge(&mut self, id: &str, answer: PortAnswer, lease: Duration, now: Instant) -> Option<Judgement> {
        let entry = self.nodes.get_mut(id).filter(|entry| entry.look_after.is_none())?;
        entry.look_after = Some(now + HEARTBEAT);
        let silent_for = now.duration_since(entry.heard);
        let judgement = match (entry.state, answer) {
            // A heartbeat arrived during the probe.
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

    /// Returns the facts of a node on which new work can begin.
    ///
    /// # Errors
    /// Returns the reason why the node is not ready.
    pub(crate) fn ready(&self, id: &str) -> Result<&NodeFacts, Unready> {
        let entry = self.nodes.get(id).ok_or(Unready::Unknown)?;
        match self.drains.get(id) {
            _ if entry.state == NodeState::Away => Err(Unready::Away),
            _ if entry.state == NodeState::Lost => Err(Unready::Lost),
            Some(drain) => Err(Unready::Drained { reason: drain.reason.clone() }),
            None => Ok(&entry.facts),
        }
    }

    /// The names of the nodes on which new work can begin.
    pub(crate) fn all_ready(&self) -> impl Iterator<Item = &String> {
        self.nodes.keys().filter(|id| self.ready(id).is_ok())
    }

    /// Expects these nodes, which registered with an earlier server, to register before this time.
    pub(crate) fn expect(&mut self, nodes: impl IntoIterator<Item = String>, until: Instant) {
        self.expected = Expected { nodes: nodes.into_iter().collect(), until: Some(until) };
    }

    /// Returns true if a node registered with an earlier server, and may still register with this one.
    pub(crate) fn is_expected(&self, id: &str) -> bool {
        self.expected.nodes.contains(id)
    }

    /// Removes and returns the nodes that are no longer expected because their time has passed.
    pub(crate) fn give_up_expected(&mut self, now: Instant) -> Vec<String> {
        match self.expected.until {
            Some(until) if now >= until => std::mem::take(&mut self.expected).nodes.into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Removes and returns the nodes that registered since the last call and were unknown to every earlier server.
    pub(crate) fn take_new(&mut self) -> Vec<String> {
        std::mem::take(&mut self.new)
    }

    /// The names of the nodes on which new work can begin as soon as their agents are back.
    pub(crate) fn all_coming(&self) -> impl Iterator<Item = &String> {
        let away = self.nodes.iter().filter(|(_, entry)| entry.state == NodeState::Away).map(|(id, _)| id);
        away.chain(&self.expected.nodes).filter(|id| !self.drains.contains_key(*id))
    }

    /// The number of nodes that have registered with this server or an earlier one.
    pub(crate) fn count_known(&self) -> usize {
        self.nodes.len() + self.expected.nodes.len()
    }

    /// Returns true if a node has registered since the server was started.
    pub(crate) fn is_known(&self, id: &str) -> bool {
        self.nodes.contains_key(id)
    }

    /// The names of all nodes that have registered since the server was started, or are drained.
    pub(crate) fn all_known(&self) -> BTreeSet<&String> {
        self.nodes.keys().chain(self.drains.keys()).collect()
    }

    /// Drains a node: no new work begins on it.
    pub(crate) fn drain(&mut self, drain: Drain) {
        self.drains.insert(drain.node.clone(), drain);
    }

    /// Ends the drain of a node.
    pub(crate) fn resume(&mut self, id: &str) {
        self.drains.remove(id);
    }

    /// The names of the nodes that are up, and drained.
    pub(crate) fn all_drained(&self) -> impl Iterator<Item = &String> {
        self.drains.keys().filter(|id| self.up(id).is_some())
    }

    /// All nodes by name, including drained nodes that have not registered; `launches` returns the number of launches on a node.
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

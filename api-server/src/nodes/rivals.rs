//! Agents that register under the name of a node that another agent serves, for example from a cloned image or a copied configuration. The
//! first agent keeps the name as long as its heartbeats arrive. A restarted agent replaces its predecessor at once if it has the same
//! address, or if no process listens at the former address.

use std::time::Duration;

use lattice_session::timeouts::HEARTBEAT;
use tokio::time::Instant;

use super::{Entry, NodeState, Registration, Registry, Suspect};

/// Time after a heartbeat during which the agent certainly runs: one heartbeat may be late.
const THERE: Duration = Duration::from_millis(HEARTBEAT.as_millis() as u64 * 5 / 2);
/// Time for which a refused agent is listed. A refused agent retries every second.
const SHOWN: Duration = Duration::from_secs(10);

/// Agent that was refused because another agent serves its node.
#[derive(Clone, Debug)]
pub(super) struct Rival {
    address: String,
    at: Instant,
}

impl Registry {
    /// Returns the agent that serves this node, if it sent a heartbeat lately and is not the registering agent. The port of that agent is
    /// not probed here.
    pub(crate) fn contested(&self, registration: &Registration, now: Instant) -> Option<Suspect> {
        let Registration { node, incarnation, facts, .. } = registration;
        let entry =
            self.nodes.get(node).filter(|entry| entry.state == NodeState::Up && entry.incarnation != *incarnation)?;
        let is_there = now.duration_since(entry.heard) <= THERE;
        // A replaced agent has ended. If it registers again, two agents compete for the node.
        let is_other = entry.facts.grpc_address != facts.grpc_address || entry.replaced == Some(*incarnation);
        (is_there && is_other).then(|| Suspect { node: node.clone(), address: entry.facts.grpc_address.clone() })
    }

    /// Records that an agent at this address was refused because another agent serves the node. Returns true if that is new.
    pub(crate) fn refuse_rival(&mut self, node: &str, address: &str, now: Instant) -> bool {
        let Some(entry) = self.nodes.get_mut(node) else { return false };
        let is_news = entry.rival(now).is_none_or(|known| known != address);
        entry.rival = Some(Rival { address: address.to_owned(), at: now });
        is_news
    }
}

impl Entry {
    /// Address of an agent that was refused lately.
    pub(super) fn rival(&self, now: Instant) -> Option<String> {
        let rival = self.rival.as_ref().filter(|rival| now.duration_since(rival.at) <= SHOWN)?;
        Some(rival.address.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::registration;
    use super::*;

    fn agent(incarnation: u64, address: &str) -> Registration {
        let plain = registration("a");
        let facts = super::super::NodeFacts { grpc_address: address.to_owned(), ..plain.facts };
        Registration { incarnation, facts, ..plain }
    }

    #[test]
    fn an_agent_keeps_its_name_while_it_is_heard() {
        let (mut registry, start) = (Registry::default(), Instant::now());
        assert!(registry.contested(&agent(1, "10.0.0.1:1"), start).is_none());
        registry.register(agent(1, "10.0.0.1:1"), start).unwrap();
        let contested = |registry: &Registry, agent: &Registration, after: Duration| {
            registry.contested(agent, start + after).map(|first| first.address)
        };
        let first = Some("10.0.0.1:1".to_owned());
        assert_eq!(contested(&registry, &agent(2, "10.0.0.2:1"), 2 * HEARTBEAT), first);
        // No conflict: the first agent sent no recent heartbeat, was restarted, or changed its address.
        assert_eq!(contested(&registry, &agent(2, "10.0.0.2:1"), 3 * HEARTBEAT), None);
        assert_eq!(contested(&registry, &agent(2, "10.0.0.1:1"), HEARTBEAT), None);
        assert_eq!(contested(&registry, &agent(1, "10.0.0.2:1"), HEARTBEAT), None);
        assert!(!registry.heartbeat("a", 1, start + 2 * HEARTBEAT));
        assert_eq!(contested(&registry, &agent(2, "10.0.0.2:1"), 3 * HEARTBEAT), first);
    }

    #[test]
    fn an_agent_whose_place_was_taken_does_not_take_it_back() {
        let (mut registry, start) = (Registry::default(), Instant::now());
        for incarnation in [1, 2] {
            assert!(registry.contested(&agent(incarnation, "node:1"), start).is_none());
            registry.register(agent(incarnation, "node:1"), start).unwrap();
        }
        assert!(registry.contested(&agent(1, "node:1"), start).is_some());
        registry.register(agent(2, "node:1"), start).unwrap();
        assert!(registry.contested(&agent(1, "node:1"), start).is_some());
        assert!(registry.contested(&agent(1, "node:1"), start + 3 * HEARTBEAT).is_none());
    }

    #[test]
    fn a_rival_is_shown_for_a_while() {
        let (mut registry, start) = (Registry::default(), Instant::now());
        registry.register(agent(1, "10.0.0.1:1"), start).unwrap();
        assert!(registry.refuse_rival("a", "10.0.0.2:1", start));
        assert!(!registry.refuse_rival("a", "10.0.0.2:1", start));
        let rival = |registry: &Registry, now| registry.list(now, |_| 0).remove(0).presence.unwrap().rival;
        assert_eq!(rival(&registry, start + SHOWN).as_deref(), Some("10.0.0.2:1"));
        registry.register(agent(1, "10.0.0.1:1"), start).unwrap();
        assert_eq!(rival(&registry, start).as_deref(), Some("10.0.0.2:1"));
        assert_eq!(rival(&registry, start + 2 * SHOWN), None);
    }
}

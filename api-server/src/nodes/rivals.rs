//! Agents that say they are a node which another one is already: a cloned image, a copied configuration. The first one keeps the name for
//! as long as it is heard. An agent that is started anew takes the place of the one before at once: it has the same address, or nothing
//! listens at the former one any more.

use std::time::Duration;

use lattice_session::timeouts::HEARTBEAT;
use tokio::time::Instant;

use super::{Entry, NodeState, Registration, Registry, Suspect};

/// Time since the last heartbeat within which an agent is there for certain: one beat may be late.
const THERE: Duration = Duration::from_millis(HEARTBEAT.as_millis() as u64 * 5 / 2);
/// Time for which an agent that was refused is told of: it tries each second.
const SHOWN: Duration = Duration::from_secs(10);

/// An agent that was refused, as another one is its node.
#[derive(Clone, Debug)]
pub(super) struct Rival {
    address: String,
    at: Instant,
}

impl Registry {
    /// Returns the agent that is this node already, if one was heard lately that is not the agent which registers, as far as can be told
    /// without asking its port.
    pub(crate) fn contested(&self, registration: &Registration, now: Instant) -> Option<Suspect> {
        let Registration { node, incarnation, facts, .. } = registration;
        let entry =
            self.nodes.get(node).filter(|entry| entry.state == NodeState::Up && entry.incarnation != *incarnation)?;
        let is_there = now.duration_since(entry.heard) <= THERE;
        // An agent that another one has taken the place of has ended, unless there are two.
        let is_other = entry.facts.grpc_address != facts.grpc_address || entry.replaced == Some(*incarnation);
        (is_there && is_other).then(|| Suspect { node: node.clone(), address: entry.facts.grpc_address.clone() })
    }

    /// An agent at this address was refused, as another one is this node. Returns true if that is news.
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
        // It was not heard any more, is started anew, or has another address.
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

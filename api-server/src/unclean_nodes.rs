//! Nodes on which something of a launch may be left that is over: a node that was given up although its agent is there, or that claims a
//! launch which nobody expects there any more. Its allocation keeps the node until the agent says that nothing is left, or is
//! lost itself. Pure.
//!
//! ```text
//!         given up, or claims what nobody expects            a heartbeat without the launch
//! (clean) ──────────────────────────────────────> unclean ──────────────────────────────> (clean)
//!                                                    └──the agent is lost, or was started anew──^
//! ```

use std::collections::{BTreeMap, BTreeSet};

/// The launches of which something may be left, by node.
#[derive(Debug, Default)]
pub(crate) struct UncleanNodes {
    by_node: BTreeMap<String, BTreeSet<String>>,
}

impl UncleanNodes {
    /// Something of a launch may be left on a node.
    pub(crate) fn add(&mut self, node: &str, launch: &str) {
        self.by_node.entry(node.to_owned()).or_default().insert(launch.to_owned());
    }

    /// The agent of a node says which launches are at work there. Returns whether less is left than before.
    pub(crate) fn on_heartbeat(&mut self, node: &str, at_work: &[String]) -> bool {
        let Some(launches) = self.by_node.get_mut(node) else { return false };
        let before = launches.len();
        launches.retain(|launch| at_work.contains(launch));
        let after = launches.len();
        if after == 0 {
            self.by_node.remove(node);
        }
        after < before
    }

    /// The agent of a node is lost, or was started anew. Returns whether anything was left there.
    pub(crate) fn forget(&mut self, node: &str) -> bool {
        self.by_node.remove(node).is_some()
    }

    /// Returns true if something of this launch may be left on the node.
    pub(crate) fn has(&self, node: &str, launch: &str) -> bool {
        self.by_node.get(node).is_some_and(|launches| launches.contains(launch))
    }

    /// Returns true if something of any launch may be left on the node.
    pub(crate) fn has_any(&self, node: &str) -> bool {
        self.by_node.contains_key(node)
    }

    /// The nodes among these on which anything may be left.
    pub(crate) fn among(&self, nodes: &[String]) -> Vec<String> {
        nodes.iter().filter(|node| self.by_node.contains_key(*node)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_free_when_its_agent_says_so_or_is_gone() {
        let mut unclean = UncleanNodes::default();
        unclean.add("a", "1");
        unclean.add("a", "2");
        unclean.add("b", "1");
        assert!(!unclean.on_heartbeat("a", &["1".to_owned(), "2".to_owned(), "3".to_owned()]), "all are still there");
        assert!(unclean.on_heartbeat("a", &["2".to_owned()]) && unclean.has("a", "2") && !unclean.has("a", "1"));
        assert!(unclean.on_heartbeat("a", &[]) && !unclean.on_heartbeat("a", &[]));
        assert_eq!(unclean.among(&["a".to_owned(), "b".to_owned()]), ["b"]);
        assert!(unclean.forget("b") && !unclean.forget("b"));
        assert!(unclean.by_node.is_empty());
    }
}

//! Nodes that may still hold parts of a launch that is over. Such a node was given up although its agent runs, or claims a launch that the
//! server does not expect there. The allocation keeps the node until the agent reports that nothing is left, or is lost itself. Pure.
//!
//! ```text
//!         given up, or claims an unknown launch              a heartbeat without the launch
//! (clean) ──────────────────────────────────────> unclean ──────────────────────────────> (clean)
//!                                                    └──the agent is lost, or was restarted─────^
//! ```

use crate::launch_id::LaunchId;
use std::collections::{BTreeMap, BTreeSet};

/// By node, the launches that may have parts left there.
#[derive(Debug, Default)]
pub(crate) struct UncleanNodes {
    by_node: BTreeMap<String, BTreeSet<LaunchId>>,
}

impl UncleanNodes {
    /// Records that a part of a launch may be left on a node.
    pub(crate) fn add(&mut self, node: &str, launch: &LaunchId) {
        self.by_node.entry(node.to_owned()).or_default().insert(launch.clone());
    }

    /// Processes the agent's list of launches that still have processes on its node. Returns true if fewer launches are left than before.
    pub(crate) fn on_heartbeat(&mut self, node: &str, at_work: &[String]) -> bool {
        let Some(launches) = self.by_node.get_mut(node) else { return false };
        let before = launches.len();
        launches.retain(|launch| at_work.iter().any(|at_work| **at_work == **launch));
        let after = launches.len();
        if after == 0 {
            self.by_node.remove(node);
        }
        after < before
    }

    /// Removes a node because its agent is lost, or was restarted. Returns true if anything was left there.
    pub(crate) fn forget(&mut self, node: &str) -> bool {
        self.by_node.remove(node).is_some()
    }

    /// Returns true if a part of this launch may be left on the node.
    pub(crate) fn has(&self, node: &str, launch: &LaunchId) -> bool {
        self.by_node.get(node).is_some_and(|launches| launches.contains(launch))
    }

    /// Returns true if a part of any launch may be left on the node.
    pub(crate) fn has_any(&self, node: &str) -> bool {
        self.by_node.contains_key(node)
    }

    /// The nodes among these that may hold parts of any launch.
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
        unclean.add("a", &"1".into());
        unclean.add("a", &"2".into());
        unclean.add("b", &"1".into());
        assert!(!unclean.on_heartbeat("a", &["1".to_owned(), "2".to_owned(), "3".to_owned()]), "all are still there");
        assert!(
            unclean.on_heartbeat("a", &["2".to_owned()])
                && unclean.has("a", &"2".into())
                && !unclean.has("a", &"1".into())
        );
        assert!(unclean.on_heartbeat("a", &[]) && !unclean.on_heartbeat("a", &[]));
        assert_eq!(unclean.among(&["a".to_owned(), "b".to_owned()]), ["b"]);
        assert!(unclean.forget("b") && !unclean.forget("b"));
        assert!(unclean.by_node.is_empty());
    }
}

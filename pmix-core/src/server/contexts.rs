//! Context ids of groups, by which MPI libraries tell communicators apart.
//!
//! ```text
//!  63         50 49          32 31             0
//! ┌─────────────┬──────────────┬────────────────┐
//! │ launch, hash│ node + 1     │ number, from 1 │
//! └─────────────┴──────────────┴────────────────┘
//! ```
//! Nodes of a launch give out different ids without asking each other. Ranks of two launches that have connected meet in groups as well, so
//! that a part is of the launch; no launch has more nodes than its part has room for.

use std::hash::{DefaultHasher, Hash, Hasher};

use pmi_core::ids::NodeIndex;

/// Position of the launch's part, and of the node's, in bits.
const LAUNCH_AT: u32 = 50;
const NODE_AT: u32 = 32;

/// Context ids that a node has given out.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    given: u64,
}

impl Contexts {
    /// An id that no other node of the launch gives out, nor this one again. `launch` is a name that no other launch has.
    pub(super) fn next(&mut self, launch: &str, node: NodeIndex) -> u64 {
        self.given += 1;
        let mut hasher = DefaultHasher::new();
        launch.hash(&mut hasher);
        (hasher.finish() >> LAUNCH_AT << LAUNCH_AT) | (u64::from(node.0) + 1) << NODE_AT | self.given
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_differ_between_launches_nodes_and_groups() {
        let mut ids = BTreeSet::new();
        for launch in ["kvs_1_0.secret", "kvs_2_0.other"] {
            for node in [0, 1, 131_071] {
                let mut contexts = Contexts::default();
                ids.extend((0..3).map(|_| contexts.next(launch, NodeIndex(node))));
            }
        }
        assert_eq!(ids.len(), 2 * 3 * 3);
    }
}

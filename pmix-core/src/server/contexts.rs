//! Context ids of groups, by which MPI libraries distinguish communicators.
//!
//! ```text
//!  63            32 31          n n-1         0
//! ┌────────────────┬─────────────┬─────────────┐
//! │ launch         │ node        │ number >= 1 │   n = 32 minus the bits of the launch's node numbers
//! └────────────────┴─────────────┴─────────────┘
//! ```
//! Nodes of a launch assign different ids without communication. Ranks of two connected launches also form groups, so one part of an id
//! identifies the launch: the id of its set, if it has one. A launch of 131,072 nodes, the maximum, has 32,767 numbers for each node; a
//! launch of 16 nodes has 268,435,455. After the last number, the first one follows.

use std::hash::{DefaultHasher, Hash, Hasher};

use pmi_core::ids::NodeIndex;

use super::jobs::Jobs;

/// Context ids that a node has assigned.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    given: u32,
    /// Prefix of the ids; `None` means a hash of the first namespace.
    pub(super) launch_number: Option<u32>,
}

/// Number for a launch without an assigned one. `launch` is a name that no other launch has.
fn hash(launch: &str) -> u32 {
    let mut hasher = DefaultHasher::new();
    launch.hash(&mut hasher);
    (hasher.finish() >> 32) as u32
}

impl Contexts {
    /// Returns a context id that no other node uses. Of the ids of several nodes, the id of the first one takes effect.
    pub(super) fn next_of(&mut self, jobs: &Jobs) -> u64 {
        let first = jobs.first().map(|job| &job.namespace);
        let (launch, node) = first.map_or(("", NodeIndex(0)), |namespace| (&namespace.name, namespace.node));
        let nodes = first.map_or(1, |namespace| namespace.hosts.len() as u32);
        let launch = self.launch_number.unwrap_or_else(|| hash(launch));
        self.next(launch, node, nodes)
    }

    /// Returns an id that no other node of the launch assigns. This node repeats it only after it has assigned all of its numbers.
    fn next(&mut self, launch: u32, node: NodeIndex, nodes: u32) -> u64 {
        let last_node = nodes.saturating_sub(1).max(node.0);
        let number_bits = last_node.leading_zeros();
        let numbers = u32::MAX.checked_shr(32 - number_bits).unwrap_or(0).max(1);
        self.given = self.given % numbers + 1;
        let node = node.0.checked_shl(number_bits).unwrap_or(0);
        u64::from(launch) << 32 | u64::from(node | self.given)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ten_thousand_ids_of_two_launches_and_their_nodes_all_differ() {
        for nodes in [1, 2, 16, 131_072] {
            let mut ids = BTreeSet::new();
            let chosen = BTreeSet::from([0, nodes / 2, nodes - 1]);
            for launch in [4_099_098, 4_099_099] {
                for &node in &chosen {
                    let mut contexts = Contexts::default();
                    ids.extend((0..10_000).map(|_| contexts.next(launch, NodeIndex(node), nodes)));
                }
            }
            assert_eq!(ids.len(), 2 * chosen.len() * 10_000, "{nodes} nodes");
            assert!(ids.iter().all(|id| [4_099_098, 4_099_099].contains(&(id >> 32))), "{nodes} nodes");
            assert!(ids.iter().all(|id| id & 0xffff_ffff != 0), "{nodes} nodes");
        }
    }

    #[test]
    fn after_the_last_number_comes_the_first_and_no_other_node_is_touched() {
        let (last, mut contexts) = (NodeIndex(131_071), Contexts::default());
        let ids: BTreeSet<u64> = (0..40_000).map(|_| contexts.next(7, last, 131_072)).collect();
        assert_eq!(ids.len(), 32_767);
        assert!(ids.iter().all(|id| (id & 0xffff_ffff) >> 15 == 131_071));
    }

    #[test]
    fn launches_without_a_number_have_different_hashes() {
        assert_ne!(hash("kvs_1_0.secret"), hash("kvs_2_0.other"));
    }
}

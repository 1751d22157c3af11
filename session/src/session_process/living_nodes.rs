//! Nodes that still have a living rank of a job. The fences of the job are among these nodes.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use pmi_core::fence::Scope;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::job::{Job, Placement};
use tokio::sync::watch;

/// Nodes of one job with living ranks.
#[derive(Debug)]
pub(super) struct LivingNodes {
    placement: Placement,
    ranks: Mutex<LivingRanks>,
    /// Number of nodes before the first death.
    all: usize,
    /// In order.
    nodes: watch::Sender<Arc<[NodeIndex]>>,
}

/// Number of living ranks of each node with at least one.
#[derive(Debug)]
struct LivingRanks {
    by_node: BTreeMap<NodeIndex, u32>,
    dead: HashSet<Rank>,
}

impl LivingNodes {
    /// All nodes with a rank of the job.
    pub(super) fn of(job: &Job) -> Self {
        let mut by_node = BTreeMap::new();
        for block in job.placement.blocks() {
            for node in block.first_node.0..block.first_node.0 + block.nodes {
                *by_node.entry(NodeIndex(node)).or_default() += block.ranks_per_node;
            }
        }
        let nodes = watch::Sender::new(by_node.keys().copied().collect());
        Self {
            placement: job.placement.clone(),
            all: by_node.len(),
            ranks: Mutex::new(LivingRanks { by_node, dead: HashSet::new() }),
            nodes,
        }
    }

    /// Records the death of a rank.
    pub(super) fn die(&self, rank: Rank) {
        let mut ranks = self.ranks.lock();
        let Some(node) = self.placement.node_of(rank).filter(|_| ranks.dead.insert(rank)) else { return };
        let left = ranks.by_node.get_mut(&node).map(|left| {
            *left -= 1;
            *left
        });
        if left == Some(0) {
            ranks.by_node.remove(&node);
            self.nodes.send_replace(ranks.by_node.keys().copied().collect());
        }
    }

    /// Number of nodes of a fence before the first death.
    pub(super) fn count_all(&self, scope: &Scope) -> usize {
        match scope {
            Scope::Group { nodes, .. } | Scope::Foreign { nodes, .. } => nodes.len(),
            _ => self.all,
        }
    }

    /// Returns a receiver of changes of the living nodes.
    pub(super) fn watch(&self) -> watch::Receiver<Arc<[NodeIndex]>> {
        self.nodes.subscribe()
    }
}

/// Living nodes of a fence, in order.
pub(super) fn members(scope: &Scope, living: &[NodeIndex]) -> Vec<NodeIndex> {
    match scope {
        Scope::Group { nodes, .. } | Scope::Foreign { nodes, .. } => {
            nodes.iter().copied().filter(|node| living.binary_search(node).is_ok()).collect()
        }
        _ => living.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use pmi_core::ids::JobId;

    use super::*;

    fn nodes(nodes: &[u32]) -> Vec<NodeIndex> {
        nodes.iter().copied().map(NodeIndex).collect()
    }

    #[test]
    fn a_node_is_left_out_when_its_last_rank_has_died() {
        let job = Job::on_one_node(JobId::new("j").unwrap(), 5);
        let living = LivingNodes::of(&Job { placement: Placement::block(&[2, 0, 1, 2]), ..job.clone() });
        let seen = |living: &LivingNodes| living.watch().borrow().to_vec();
        assert_eq!(seen(&living), nodes(&[0, 2, 3]));
        for rank in [3, 3, 99] {
            living.die(Rank(rank));
        }
        assert_eq!(seen(&living), nodes(&[0, 2, 3]), "rank 4 lives");
        living.die(Rank(4));
        living.die(Rank(2));
        assert_eq!(seen(&living), nodes(&[0]));
        // The first node is no exception.
        let living = LivingNodes::of(&Job { placement: Placement::block(&[1, 1, 1]), ..job });
        living.die(Rank(0));
        assert_eq!(seen(&living), nodes(&[1, 2]));
    }

    #[test]
    fn a_fence_of_some_nodes_is_among_those_of_them_that_live() {
        let living = nodes(&[0, 2, 5]);
        let group = Scope::Group { name: "g".into(), nodes: nodes(&[0, 3, 5]).into() };
        assert_eq!((members(&group, &living), members(&Scope::World, &living)), (nodes(&[0, 5]), nodes(&[0, 2, 5])));
    }
}

//! A question to the sessions of several nodes about their ranks, and the combined answers.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use pmi_core::ids::NodeIndex;

use crate::call_stacks::RankStack;
use crate::event::RankProgress;
use crate::timeouts;

/// Question to a set of nodes, sent to the first of them. The receiver asks the other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatherOrder {
    /// The nodes.
    pub nodes: NodeSelection,
    /// Extent of their answers.
    pub detail: GatherDetail,
    /// Time limit for all answers.
    pub time: Duration,
}

/// Extent of an answer about ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatherDetail {
    /// Progress of the ranks, and the resources that their processes use.
    Usage,
    /// Call stacks of the ranks, in addition to their progress.
    Stacks,
}

impl GatherDetail {
    /// Time that a node may take to inspect its ranks.
    pub fn look(self) -> Duration {
        match self {
            Self::Usage => Duration::ZERO,
            Self::Stacks => timeouts::CALL_STACKS,
        }
    }
}

/// Nodes of a launch, in ascending order, each once; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSelection(Vec<RangeInclusive<u32>>);

/// Refusal of nodes as a selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nodes must be named in ascending order and each once, below {limit}; at least one must be named")]
pub struct SelectionError {
    /// Number of nodes of the launch.
    pub limit: u32,
}

impl NodeSelection {
    /// Selection of these nodes, which must be ascending; `None` without any.
    pub fn of(nodes: impl IntoIterator<Item = u32>) -> Option<Self> {
        let mut ranges: Vec<RangeInclusive<u32>> = Vec::new();
        for node in nodes {
            match ranges.last_mut() {
                Some(last) if *last.end() + 1 == node => *last = *last.start()..=node,
                _ => ranges.push(node..=node),
            }
        }
        (!ranges.is_empty()).then_some(Self(ranges))
    }

    /// Selection of these ranges, of a launch on `limit` nodes.
    ///
    /// # Errors
    /// Fails if a range is empty or out of order, if the launch does not have a node, or if no node is selected.
    pub fn new(ranges: Vec<RangeInclusive<u32>>, limit: u32) -> Result<Self, SelectionError> {
        let each = ranges.iter().all(|range| range.start() <= range.end() && *range.end() < limit);
        let in_order = ranges.is_sorted_by(|one, next| one.end() < next.start());
        if ranges.is_empty() || !each || !in_order {
            return Err(SelectionError { limit });
        }
        Ok(Self(ranges))
    }

    /// The ranges of consecutive nodes.
    pub fn ranges(&self) -> &[RangeInclusive<u32>] {
        &self.0
    }

    /// Returns true if the selection contains the node.
    pub fn contains(&self, node: u32) -> bool {
        self.0.iter().any(|range| range.contains(&node))
    }

    /// All nodes, in order.
    pub fn nodes(&self) -> impl Iterator<Item = u32> {
        self.0.iter().cloned().flatten()
    }
}

/// Answers of several nodes. Nothing is known about a missing node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gathered {
    /// The answers, one for each node.
    pub nodes: Vec<NodeAnswer>,
    /// Call stacks, if requested.
    pub stacks: Option<GatheredStacks>,
    /// Reasons why nodes are missing. If many are missing, only some are listed.
    pub unheard: Vec<Unheard>,
}

/// Answer of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAnswer {
    /// The node.
    pub node: NodeIndex,
    /// Its ranks.
    pub ranks: Vec<RankAnswer>,
    /// Number of its ranks that were omitted for lack of room.
    pub left_out: u32,
}

/// Progress of a rank with its program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankAnswer {
    /// Its progress.
    pub progress: RankProgress,
    /// Path of the rank's program; empty if unknown.
    pub program: Bytes,
}

/// Call stacks of ranks of several nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatheredStacks {
    /// Distinct call stacks, ordered by their lowest rank.
    pub stacks: Vec<RankStack>,
    /// Number of ranks that were omitted for lack of room.
    pub left_out: u32,
}

/// A node that has not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unheard {
    /// The node.
    pub node: NodeIndex,
    /// Reason.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_range_of_a_selection() {
        let selection = NodeSelection::of([0, 1, 2, 5, 7, 8]).unwrap();
        assert_eq!(selection.ranges(), [0..=2, 5..=5, 7..=8]);
        assert_eq!(selection.nodes().collect::<Vec<_>>(), [0, 1, 2, 5, 7, 8]);
        assert_eq!(NodeSelection::new(selection.ranges().to_vec(), 9), Ok(selection));
        assert_eq!(NodeSelection::of([]), None);
    }

    #[test]
    fn a_selection_that_could_name_a_node_twice_is_refused() {
        let error = Err(SelectionError { limit: 9 });
        let (backwards, whole) = (RangeInclusive::new(3, 2), 0..=u32::MAX);
        for ranges in [vec![], vec![backwards], vec![whole], vec![0..=3, 3..=4], vec![5..=6, 1..=2], vec![8..=9]] {
            assert_eq!(NodeSelection::new(ranges, 9), error);
        }
    }
}

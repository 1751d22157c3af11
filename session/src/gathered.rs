//! Question to the sessions of several nodes about their ranks, and what they have told together.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use pmi_core::ids::NodeIndex;

use crate::call_stacks::RankStack;
use crate::event::RankProgress;
use crate::timeouts;

/// Question to some nodes, for the first of them. Who gets it asks the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatherOrder {
    /// The nodes.
    pub nodes: NodeSelection,
    /// Extent of their answers.
    pub detail: GatherDetail,
    /// Time for the answer of all.
    pub time: Duration,
}

/// Extent of an answer about ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatherDetail {
    /// What they do, and what their processes use.
    Usage,
    /// The functions that they are in, beside what they do.
    Stacks,
}

impl GatherDetail {
    /// Time that a node may take to look at its ranks.
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

/// Reason why nodes are no selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nodes must be named in ascending order and each once, below {limit}; at least one must be named")]
pub struct SelectionError {
    /// Number of nodes of the launch.
    pub limit: u32,
}

impl NodeSelection {
    /// Selection of these nodes, which are ascending; `None` without any.
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
    /// Refuses ranges that are empty or not in order, a node that the launch does not have, and a selection of none.
    pub fn new(ranges: Vec<RangeInclusive<u32>>, limit: u32) -> Result<Self, SelectionError> {
        let each = ranges.iter().all(|range| range.start() <= range.end() && *range.end() < limit);
        let in_order = ranges.is_sorted_by(|one, next| one.end() < next.start());
        if ranges.is_empty() || !each || !in_order {
            return Err(SelectionError { limit });
        }
        Ok(Self(ranges))
    }

    /// The ranges of neighbours.
    pub fn ranges(&self) -> &[RangeInclusive<u32>] {
        &self.0
    }

    /// True if the node is one of them.
    pub fn contains(&self, node: u32) -> bool {
        self.0.iter().any(|range| range.contains(&node))
    }

    /// All nodes, in order.
    pub fn nodes(&self) -> impl Iterator<Item = u32> {
        self.0.iter().cloned().flatten()
    }
}

/// What several nodes have told. Of one that is missing nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gathered {
    /// Each node once.
    pub nodes: Vec<NodeAnswer>,
    /// Call stacks, if they were asked for.
    pub stacks: Option<GatheredStacks>,
    /// Reasons why nodes are missing; of some of them, where they are many.
    pub unheard: Vec<Unheard>,
}

/// Answer of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAnswer {
    /// The node.
    pub node: NodeIndex,
    /// Its ranks.
    pub ranks: Vec<RankAnswer>,
    /// Number of its ranks that were left out for lack of room.
    pub left_out: u32,
}

/// Progress of a rank with its program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankAnswer {
    /// Its progress.
    pub progress: RankProgress,
    /// Path of the program that it runs; empty if that is not known.
    pub program: Bytes,
}

/// Call stacks of ranks of several nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatheredStacks {
    /// Those that differ, those of the lowest ranks first.
    pub stacks: Vec<RankStack>,
    /// Number of ranks that were left out for lack of room.
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

//! The tree that a fence goes through: who is whose parent, as a pure function of how many nodes there are, of the fan-out,
//! and of a node's position.
//!
//! Positions are counted level by level, so the children of a node stand side by side:
//!
//! ```text
//! fan-out 2:        0                 star (fan-out >= nodes - 1):      0
//!               1       2                                           1 2 3 4 5
//!             3   4   5
//! ```

use std::ops::Range;

/// A tree over the positions `0..nodes`, with position 0 as its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    nodes: u32,
    fan_out: u32,
}

impl Tree {
    /// A tree in which no node has more than `fan_out` children; a fan-out of 0 is taken for 1, a chain.
    pub fn new(nodes: u32, fan_out: u32) -> Self {
        Self { nodes, fan_out: fan_out.max(1) }
    }

    /// The node above `position`; the root has none.
    pub fn parent(self, position: u32) -> Option<u32> {
        position.checked_sub(1).map(|below_root| below_root / self.fan_out)
    }

    /// The nodes right below `position`.
    pub fn children(self, position: u32) -> Range<u32> {
        let first = u64::from(position) * u64::from(self.fan_out) + 1;
        let inside = |position: u64| u32::try_from(position).unwrap_or(u32::MAX).min(self.nodes);
        inside(first)..inside(first + u64::from(self.fan_out))
    }

    /// Whether `position` is `top` or somewhere below it.
    pub fn is_under(self, position: u32, top: u32) -> bool {
        let mut at = position;
        while at > top {
            // Positions grow downwards, and what is above 0 has a parent.
            at = (at - 1) / self.fan_out;
        }
        at == top
    }

    /// How many edges lie between the root and the node farthest from it.
    pub fn depth(self) -> u32 {
        let mut depth = 0;
        let mut at = self.nodes.saturating_sub(1);
        while let Some(above) = self.parent(at) {
            (at, depth) = (above, depth + 1);
        }
        depth
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_binary_tree_is_counted_level_by_level() {
        let tree = Tree::new(6, 2);
        assert_eq!([tree.children(0), tree.children(1), tree.children(2), tree.children(3)], [1..3, 3..5, 5..6, 6..6]);
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(|node| tree.parent(node)),
            [None, Some(0), Some(0), Some(1), Some(1), Some(2)]
        );
        assert_eq!(tree.depth(), 2);
    }

    #[test]
    fn the_widest_tree_is_a_star_and_the_narrowest_a_chain() {
        for fan_out in [99, 100, u32::MAX] {
            assert_eq!(Tree::new(100, fan_out).children(0), 1..100);
            assert_eq!(Tree::new(100, fan_out).depth(), 1);
        }
        for fan_out in [0, 1] {
            assert_eq!(Tree::new(100, fan_out).depth(), 99);
        }
        assert_eq!(Tree::new(1, 8).depth(), 0);
        assert_eq!(Tree::new(u32::MAX, u32::MAX).children(u32::MAX - 1), u32::MAX..u32::MAX);
    }

    proptest! {
        #[test]
        fn every_node_but_the_root_is_the_child_of_its_parent(nodes in 1_u32..2000, fan_out in 1_u32..2100) {
            let tree = Tree::new(nodes, fan_out);
            let mut children: Vec<u32> = (0..nodes).flat_map(|node| tree.children(node)).collect();
            children.sort_unstable();
            prop_assert_eq!(children, (1..nodes).collect::<Vec<_>>());
            for node in 0..nodes {
                prop_assert!(tree.children(node).len() <= fan_out as usize);
                for child in tree.children(node) {
                    prop_assert_eq!(tree.parent(child), Some(node));
                }
            }
        }

        #[test]
        fn a_node_is_under_itself_and_all_that_are_above_it(nodes in 1_u32..2000, fan_out in 1_u32..40, node in 0_u32..2000) {
            let tree = Tree::new(nodes, fan_out);
            let node = node % nodes;
            let mut line = vec![node];
            while let Some(above) = tree.parent(line[line.len() - 1]) {
                line.push(above);
            }
            prop_assert!(line.len() <= tree.depth() as usize + 1);
            for top in 0..nodes {
                prop_assert_eq!(tree.is_under(node, top), line.contains(&top), "{} under {}", node, top);
            }
        }
    }
}

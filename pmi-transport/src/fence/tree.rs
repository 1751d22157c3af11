//! The tree that a fence goes through: who is whose parent, as a pure function of how many nodes there are, of the fan-out,
//! and of a node's position.
//!
//! A node and all that are below it stand side by side, and children have equal shares of what is below their parent: so nodes
//! that are neighbours stay together, and none has half of the others below itself.
//!
//! ```text
//! fan-out 2, 7 nodes:       0              star (fan-out >= nodes - 1):      0
//!                       1       4                                       1 2 3 4 5 6
//!                     2   3   5   6
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
        self.find(position).0
    }

    /// The nodes right below `position`, in ascending order.
    pub fn children(self, position: u32) -> Vec<u32> {
        let shares = self.shares(&self.branch(position));
        (0..shares.count).map(|share| shares.start(share)).collect()
    }

    /// `position` and all that are below it; for a position outside of the tree, nothing.
    pub fn branch(self, position: u32) -> Range<u32> {
        self.find(position).1
    }

    /// How many edges lie between the root and the node farthest from it.
    pub fn depth(self) -> u32 {
        let (mut depth, mut largest) = (0, self.nodes);
        while largest > 1 {
            largest = (largest - 1).div_ceil(self.fan_out);
            depth += 1;
        }
        depth
    }

    /// Goes down from the root to `position`: the node above it, and its branch.
    fn find(self, position: u32) -> (Option<u32>, Range<u32>) {
        if position >= self.nodes {
            return (None, position..position);
        }
        let (mut above, mut branch) = (None, 0..self.nodes);
        while branch.start != position {
            let shares = self.shares(&branch);
            let share = shares.holding(position);
            above = Some(branch.start);
            branch = shares.start(share)..shares.start(share + 1);
        }
        (above, branch)
    }

    /// How the nodes below the first of a branch are shared out among its children.
    fn shares(self, branch: &Range<u32>) -> Shares {
        let below = (branch.end - branch.start).saturating_sub(1);
        let count = self.fan_out.min(below);
        Shares {
            first: branch.start + 1,
            count,
            len: below.checked_div(count).unwrap_or(0),
            longer: below.checked_rem(count).unwrap_or(0),
        }
    }
}

/// Runs of positions that follow each other; the first few are longer by one.
struct Shares {
    first: u32,
    count: u32,
    len: u32,
    longer: u32,
}

impl Shares {
    /// Where a share begins, and the one before it ends.
    fn start(&self, share: u32) -> u32 {
        self.first + share * self.len + share.min(self.longer)
    }

    /// The share that holds a position; one of them does.
    fn holding(&self, position: u32) -> u32 {
        let offset = position - self.first;
        let in_longer = self.longer * (self.len + 1);
        if offset < in_longer { offset / (self.len + 1) } else { self.longer + (offset - in_longer) / self.len }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_binary_tree_stands_branch_by_branch() {
        let tree = Tree::new(7, 2);
        assert_eq!([0, 1, 2, 4].map(|node| tree.children(node)), [vec![1, 4], vec![2, 3], vec![], vec![5, 6]]);
        assert_eq!([0, 1, 3, 4, 6].map(|node| tree.parent(node)), [None, Some(0), Some(1), Some(0), Some(4)]);
        assert_eq!([tree.branch(0), tree.branch(4), tree.branch(6), tree.branch(7)], [0..7, 4..7, 6..7, 7..7]);
        assert_eq!(tree.depth(), 2);
    }

    #[test]
    fn the_widest_tree_is_a_star_and_the_narrowest_a_chain() {
        for fan_out in [99, 100, u32::MAX] {
            assert_eq!(Tree::new(100, fan_out).children(0), (1..100).collect::<Vec<_>>());
            assert_eq!(Tree::new(100, fan_out).depth(), 1);
        }
        for fan_out in [0, 1] {
            assert_eq!(Tree::new(100, fan_out).children(98), [99]);
            assert_eq!(Tree::new(100, fan_out).depth(), 99);
        }
        assert_eq!((Tree::new(1, 8).depth(), Tree::new(1, 8).children(0)), (0, vec![]));
    }

    proptest! {
        #[test]
        fn every_node_but_the_root_is_the_child_of_its_parent(nodes in 1_u32..500, fan_out in 1_u32..520) {
            let tree = Tree::new(nodes, fan_out);
            let mut below = Vec::new();
            for node in 0..nodes {
                let children = tree.children(node);
                prop_assert!(children.len() <= fan_out as usize);
                prop_assert!(children.iter().all(|child| tree.parent(*child) == Some(node)));
                let branches: Vec<u32> = children.iter().flat_map(|child| tree.branch(*child)).collect();
                prop_assert_eq!(branches, tree.branch(node).skip(1).collect::<Vec<_>>());
                below.extend(children);
            }
            below.sort_unstable();
            prop_assert_eq!(below, (1..nodes).collect::<Vec<_>>());
        }

        #[test]
        fn the_depth_is_that_of_the_deepest_node(nodes in 1_u32..500, fan_out in 1_u32..40) {
            let tree = Tree::new(nodes, fan_out);
            let depth = |mut node| {
                let mut depth = 0;
                while let Some(above) = tree.parent(node) {
                    (node, depth) = (above, depth + 1);
                }
                depth
            };
            prop_assert_eq!((0..nodes).map(depth).max(), Some(tree.depth()));
        }

        #[test]
        fn brothers_have_equal_shares(nodes in 1_u32..5000, fan_out in 1_u32..40) {
            let tree = Tree::new(nodes, fan_out);
            let sizes: Vec<_> = tree.children(0).into_iter().map(|child| tree.branch(child).len()).collect();
            let (least, most) = (sizes.iter().min(), sizes.iter().max());
            prop_assert!(most.zip(least).is_none_or(|(most, least)| most - least <= 1), "{:?}", sizes);
        }
    }
}

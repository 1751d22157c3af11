//! The tree of a fence: parents and children as a pure function of the number of nodes, the fan-out and a node's position.
//!
//! A node and all nodes below it have consecutive positions, and children have equal shares of the nodes below their parent. So
//! adjacent nodes stay together, and no child has half of the nodes below itself. The start request of a launch is distributed by
//! the same rule ([`shares`]), in every forwarding process.
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
    /// A tree with at most `fan_out` children per node; 0 counts as 1, a chain.
    pub fn new(nodes: u32, fan_out: u32) -> Self {
        Self { nodes, fan_out: fan_out.max(1) }
    }

    /// The node above `position`; the root has none.
    pub fn parent(self, position: u32) -> Option<u32> {
        self.find(position).0
    }

    /// The nodes directly below `position`, in ascending order.
    pub fn children(self, position: u32) -> Vec<u32> {
        let shares = self.shares(&self.branch(position));
        shares.runs().map(|run| run.start).collect()
    }

    /// `position` and all nodes below it; empty for a position outside the tree.
    pub fn branch(self, position: u32) -> Range<u32> {
        self.find(position).1
    }

    /// Number of edges between the root and the node farthest from it.
    pub fn depth(self) -> u32 {
        let (mut depth, mut largest) = (0, self.nodes);
        while largest > 1 {
            largest = (largest - 1).div_ceil(self.fan_out);
            depth += 1;
        }
        depth
    }

    /// Descends from the root to `position`; returns the node above it, and its branch.
    fn find(self, position: u32) -> (Option<u32>, Range<u32>) {
        if position >= self.nodes {
            return (None, position..position);
        }
        let (mut above, mut branch) = (None, 0..self.nodes);
        while branch.start != position {
            let shares = self.shares(&branch);
            above = Some(branch.start);
            branch = shares.run(shares.holding(position));
        }
        (above, branch)
    }

    /// Divides the nodes below a branch's first node among its children.
    fn shares(self, branch: &Range<u32>) -> Shares {
        Shares::of(branch.start + 1..branch.end, self.fan_out)
    }
}

/// Divides positions into at most `among` consecutive runs, as evenly as possible. No run is empty, and the first few are longer
/// by one. 0 counts as 1.
pub fn shares(positions: Range<u32>, among: u32) -> impl Iterator<Item = Range<u32>> {
    Shares::of(positions, among.max(1)).runs()
}

/// Consecutive runs of positions; the first few are longer by one.
#[derive(Clone, Copy)]
struct Shares {
    first: u32,
    count: u32,
    len: u32,
    longer: u32,
}

impl Shares {
    fn of(positions: Range<u32>, among: u32) -> Self {
        let len = positions.end.saturating_sub(positions.start);
        let count = among.min(len);
        let (even, longer) = (len.checked_div(count).unwrap_or(0), len.checked_rem(count).unwrap_or(0));
        Self { first: positions.start, count, len: even, longer }
    }

    fn runs(self) -> impl Iterator<Item = Range<u32>> {
        (0..self.count).map(move |share| self.run(share))
    }

    fn run(self, share: u32) -> Range<u32> {
        self.start(share)..self.start(share + 1)
    }

    /// First position of a share, which is the end of the previous share.
    fn start(self, share: u32) -> u32 {
        self.first + share * self.len + share.min(self.longer)
    }

    /// The share that contains a position.
    fn holding(self, position: u32) -> u32 {
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

    #[test]
    fn shares_are_runs_of_neighbours_and_the_first_few_are_longer() {
        let check = |positions, among, expected: &[Range<u32>]| {
            assert_eq!(shares(positions, among).collect::<Vec<_>>(), expected);
        };
        check(1..8, 3, &[1..4, 4..6, 6..8]);
        check(0..10, 3, &[0..4, 4..7, 7..10]);
        check(5..7, 8, &[5..6, 6..7]);
        assert!(shares(0..3, 0).eq(std::iter::once(0..3)), "0 is taken for 1");
        check(4..4, 8, &[]);
    }

    proptest! {
        #[test]
        fn whoever_passes_on_by_shares_reaches_every_node_once(nodes in 0_u32..500, fan_out in 0_u32..40) {
            fn pass_on(below: Range<u32>, fan_out: u32, reached: &mut Vec<u32>) {
                for share in shares(below, fan_out) {
                    reached.push(share.start);
                    pass_on(share.start + 1..share.end, fan_out, reached);
                }
            }
            let mut reached = Vec::new();
            pass_on(0..nodes, fan_out, &mut reached);
            prop_assert_eq!(reached, (0..nodes).collect::<Vec<_>>());
        }

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

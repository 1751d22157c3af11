//! Input for many nodes, which pass it on to each other. Pure: keeps what has not reached all, and says whom to send it again.
//!
//! ```text
//!            ┌─> 0 ──> 1, 2          a way: its first node passes on to the others, and reports a piece when all have taken it
//!  pieces ───┼─> 3 ──> 4, 5
//!            └─> 6 ──> 7             3 ends:  4 and 5 become ways, and get what 3 has not reported
//!                                    5 has missed a piece:  it becomes a way of its own, and gets that and what follows
//! ```
//! A node may so get a piece twice; it tells by the piece's place in the input.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use bytes::Bytes;
use lattice_session::gathered::NodeSelection;
use lattice_session::input_piece::{BRANCHES, InputPiece};
use pmi_transport::fence::shares;

/// Most pieces that may be under way.
const PIECES_MAX: usize = 64;

/// Input on its way to many nodes.
#[derive(Debug)]
pub(super) struct InputTree {
    ways: Vec<Way>,
    /// Pieces that not all nodes have taken, with others that have come since, in order.
    kept: VecDeque<Piece>,
    /// Place of the next byte.
    next: u64,
}

/// Nodes that get the input from the first of them; never empty.
#[derive(Debug)]
struct Way {
    nodes: Vec<u32>,
    /// Places of the pieces that it has not reported.
    open: BTreeSet<u64>,
}

#[derive(Clone, Debug)]
struct Piece {
    offset: u64,
    bytes: Bytes,
    is_last: bool,
}

/// A piece, and the node that it is to be sent to.
pub(super) type Sent = (u32, InputPiece);

impl InputTree {
    /// No input yet, for these nodes, which are ascending.
    pub(super) fn new(nodes: &[u32]) -> Self {
        Self { ways: Way::shared_out(nodes, &BTreeSet::new()), kept: VecDeque::new(), next: 0 }
    }

    /// The nodes that read.
    pub(super) fn nodes(&self) -> impl Iterator<Item = u32> {
        self.ways.iter().flat_map(|way| way.nodes.iter().copied())
    }

    /// Bytes that may be sent, of a window of so many.
    pub(super) fn room(&self, window: u64) -> u64 {
        match self.kept.front() {
            _ if self.ways.is_empty() => u64::MAX,
            _ if self.kept.len() >= PIECES_MAX => 0,
            Some(first) => window.saturating_sub(self.next - first.offset),
            None => window,
        }
    }

    /// Bytes that all nodes have taken; `None` if there are none.
    pub(super) fn taken(&self) -> Option<u64> {
        (!self.ways.is_empty()).then(|| self.kept.front().map_or(self.next, |first| first.offset))
    }

    /// Sends a piece; an empty one only as the last.
    pub(super) fn push(&mut self, bytes: Bytes, is_last: bool) -> Vec<Sent> {
        let piece = Piece { offset: self.next, bytes, is_last };
        self.next += piece.bytes.len() as u64;
        let sent = self.ways.iter_mut().filter_map(|way| {
            way.open.insert(piece.offset);
            way.sent(&piece)
        });
        let sent = sent.collect();
        if !self.ways.is_empty() {
            self.kept.push_back(piece);
        }
        sent
    }

    /// A node reports that the piece at `offset` is taken by all nodes of its way but these. Returns what they are sent.
    pub(super) fn on_passed(&mut self, node: u32, offset: u64, missed: Option<&NodeSelection>) -> Vec<Sent> {
        let way = self.ways.iter_mut().find(|way| way.nodes[0] == node && way.open.contains(&offset));
        let Some(way) = way else { return Vec::new() };
        let is_missed = |node: &u32| missed.is_some_and(|missed| missed.contains(*node));
        // It has no say about itself.
        let lost: Vec<u32> = way.nodes[1..].iter().copied().filter(is_missed).collect();
        way.nodes.retain(|node| !lost.contains(node));
        let open = way.open.clone();
        way.open.remove(&offset);
        let alone = |node| Way { nodes: vec![node], open: open.clone() };
        let sent = self.add(lost.into_iter().map(alone).collect());
        self.forget();
        sent
    }

    /// A node reads no more. Returns what those are sent who got the input by way of it.
    pub(super) fn on_gone(&mut self, gone: u32) -> Vec<Sent> {
        let Some(at) = self.ways.iter().position(|way| way.nodes.contains(&gone)) else { return Vec::new() };
        if self.ways[at].nodes[0] != gone {
            self.ways[at].nodes.retain(|&node| node != gone);
            return Vec::new();
        }
        let Way { nodes, open } = self.ways.remove(at);
        let sent = self.add(Way::shared_out(&nodes[1..], &open));
        self.forget();
        sent
    }

    /// Adds ways, and sends them what they have open.
    fn add(&mut self, ways: Vec<Way>) -> Vec<Sent> {
        let pieces = |way: &Way| {
            let open = self.kept.iter().filter(|piece| way.open.contains(&piece.offset));
            open.filter_map(|piece| way.sent(piece)).collect::<Vec<_>>()
        };
        let sent = ways.iter().flat_map(pieces).collect();
        self.ways.extend(ways);
        sent
    }

    /// Drops the first pieces that all nodes have taken.
    fn forget(&mut self) {
        while let Some(first) = self.kept.front()
            && self.ways.iter().all(|way| !way.open.contains(&first.offset))
        {
            self.kept.pop_front();
        }
    }
}

impl Way {
    /// Ways that share out nodes, all of which have the same pieces open.
    fn shared_out(nodes: &[u32], open: &BTreeSet<u64>) -> Vec<Self> {
        let parts = shares(0..nodes.len() as u32, BRANCHES);
        let nodes_of = |part: Range<u32>| nodes[part.start as usize..part.end as usize].to_vec();
        parts.map(|part| Self { nodes: nodes_of(part), open: open.clone() }).collect()
    }

    fn sent(&self, Piece { offset, bytes, is_last }: &Piece) -> Option<Sent> {
        let nodes = NodeSelection::of(self.nodes.iter().copied())?;
        Some((self.nodes[0], InputPiece { offset: *offset, bytes: bytes.clone(), is_last: *is_last, nodes }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tree(nodes: u32) -> InputTree {
        InputTree::new(&(0..nodes).collect::<Vec<_>>())
    }

    /// Places of the pieces that each of these nodes is sent, with the nodes that they are for.
    fn shown(sent: &[Sent]) -> Vec<String> {
        let one = |(node, piece): &Sent| {
            let nodes: Vec<u32> = piece.nodes.nodes().collect();
            format!("{node}: {} for {nodes:?}{}", piece.offset, if piece.is_last { ", the last" } else { "" })
        };
        sent.iter().map(one).collect()
    }

    #[test]
    fn a_piece_is_sent_once_for_each_share_of_the_nodes() {
        let sent = shown(&tree(18).push("ab".into(), false));
        assert_eq!((sent.len(), &*sent[0], &*sent[7]), (8, "0: 0 for [0, 1, 2]", "16: 0 for [16, 17]"));
    }

    #[test]
    fn nodes_behind_one_that_ends_get_what_it_has_not_reported() {
        let mut tree = tree(18);
        tree.push("ab".into(), false);
        tree.push("c".into(), false);
        assert!(tree.on_passed(0, 0, None).is_empty());
        assert_eq!(shown(&tree.on_gone(0)), ["1: 2 for [1]", "2: 2 for [2]"]);
        assert!(tree.on_gone(17).is_empty(), "nobody got anything by way of it");
        assert_eq!(shown(&tree.push(Bytes::new(), true)).last().unwrap(), "2: 3 for [2], the last");
    }

    #[test]
    fn a_node_that_has_missed_a_piece_gets_it_and_what_follows_from_the_api_server() {
        let mut tree = tree(18);
        ["ab", "c", "d"].into_iter().for_each(|piece| drop(tree.push(piece.into(), false)));
        // The second piece is reported first, and the first one may have been missed as well.
        let missed = NodeSelection::of([0, 2, 9]);
        assert_eq!(shown(&tree.on_passed(0, 2, missed.as_ref())), ["2: 0 for [2]", "2: 2 for [2]", "2: 3 for [2]"]);
        assert!(tree.on_passed(0, 0, missed.as_ref()).is_empty(), "it is told once");
        assert!(tree.on_passed(2, 0, None).is_empty() && tree.on_passed(2, 99, None).is_empty());
        assert_eq!(shown(&tree.push("e".into(), false))[0], "0: 4 for [0, 1]");
    }

    #[test]
    fn room_is_what_of_the_window_all_nodes_have_taken_and_pieces_are_counted() {
        let mut tree = tree(9);
        tree.push("abcd".into(), false);
        assert_eq!(tree.room(10), 6);
        for node in [0, 2, 3, 4, 5, 6, 7, 8] {
            assert_eq!(tree.room(10), 6, "before {node}");
            tree.on_passed(node, 0, None);
        }
        assert_eq!(tree.room(10), 10);
        (0..PIECES_MAX).for_each(|_| drop(tree.push("a".into(), false)));
        assert_eq!(tree.room(1 << 20), 0);
        (0..9).for_each(|node| drop(tree.on_gone(node)));
        assert_eq!(tree.room(10), u64::MAX, "nobody reads");
    }

    /// Nodes that pass on what they get, as sessions do.
    struct World {
        tree: InputTree,
        /// What has not arrived.
        travelling: Vec<Sent>,
        /// Places of the bytes that each node has, and whether it has the end.
        have: Vec<BTreeSet<u64>>,
        gone: BTreeSet<u32>,
    }

    impl World {
        fn send(&mut self, sent: Vec<Sent>) {
            self.travelling.extend(sent);
        }

        /// A piece arrives; all its nodes take it but those that are gone, and those that no link leads to.
        fn arrive(&mut self, at: usize, unreachable: Option<u32>) {
            let (node, piece) = self.travelling.swap_remove(at);
            if self.gone.contains(&node) {
                return;
            }
            let is_missed = |&other: &u32| other != node && (self.gone.contains(&other) || unreachable == Some(other));
            let missed = NodeSelection::of(piece.nodes.nodes().filter(is_missed));
            let taken =
                piece.nodes.nodes().filter(|node| !missed.as_ref().is_some_and(|missed| missed.contains(*node)));
            for node in taken {
                self.have[node as usize]
                    .extend(piece.offset..piece.offset + piece.bytes.len() as u64 + u64::from(piece.is_last));
            }
            let sent = self.tree.on_passed(node, piece.offset, missed.as_ref());
            self.send(sent);
        }
    }

    proptest! {
        #[test]
        fn every_node_that_stays_gets_every_byte_and_the_end(
            nodes in 9..40_u32,
            steps in prop::collection::vec((0..10_u8, any::<prop::sample::Index>(), 0..40_u32), 0..120),
        ) {
            let mut world = World {
                tree: tree(nodes), travelling: Vec::new(), have: vec![BTreeSet::new(); nodes as usize], gone: BTreeSet::new(),
            };
            for (what, index, node) in steps {
                match what {
                    0..3 => {
                        let sent = world.tree.push(vec![b'i'; 1 + node as usize].into(), false);
                        world.send(sent);
                    }
                    3..9 if !world.travelling.is_empty() => {
                        let at = index.index(world.travelling.len());
                        world.arrive(at, (what == 3).then_some(node));
                    }
                    9 if node < nodes && node % 3 != 0 => {
                        world.gone.insert(node);
                        let sent = world.tree.on_gone(node);
                        world.send(sent);
                    }
                    _ => {}
                }
            }
            let sent = world.tree.push(Bytes::new(), true);
            world.send(sent);
            while !world.travelling.is_empty() {
                world.arrive(0, None);
            }
            let whole: BTreeSet<u64> = (0..=world.tree.next).collect();
            for node in (0..nodes).filter(|node| !world.gone.contains(node)) {
                prop_assert_eq!(&world.have[node as usize], &whole, "node {}", node);
            }
            prop_assert!(world.tree.kept.is_empty(), "all is reported");
        }
    }
}

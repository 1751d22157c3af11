//! Input for many nodes, which forward it to each other. Pure. Keeps the pieces that not all nodes have received, and selects the nodes to which
//! a piece is sent again.
//!
//! ```text
//!            ┌─> 0 ──> 1, 2          a branch: its first node forwards to the other nodes, and reports a piece when all have received it
//!  pieces ───┼─> 3 ──> 4, 5
//!            └─> 6 ──> 7             3 ends:  4 and 5 become branches, and get the pieces that 3 has not reported
//!                                    5 misses a piece:  it becomes a branch, and gets this piece and all later ones
//! ```
//! A node may receive a piece twice. It detects that from the offset of the piece.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use bytes::Bytes;
use lattice_session::gathered::NodeSelection;
use lattice_session::input_piece::{BRANCHES, InputPiece};
use pmi_core::ids::NodeIndex;
use pmi_transport::fence::shares;

/// Largest number of pieces in transit.
const PIECES_MAX: usize = 64;

/// Input in transit to many nodes.
#[derive(Debug)]
pub(super) struct InputTree {
    ways: Vec<Way>,
    /// In order, from the first piece that not all nodes have received.
    kept: VecDeque<Piece>,
    /// Offset of the next byte.
    next: u64,
}

/// A branch: nodes that receive the input from the first of them; never empty.
#[derive(Debug)]
struct Way {
    nodes: Vec<NodeIndex>,
    /// Offsets of the pieces that the branch has not reported.
    open: BTreeSet<u64>,
}

#[derive(Clone, Debug)]
struct Piece {
    offset: u64,
    bytes: Bytes,
    is_last: bool,
}

/// A piece and its recipient.
pub(super) type Sent = (NodeIndex, InputPiece);

impl InputTree {
    /// A tree without input, for these nodes, which are in ascending order.
    pub(super) fn new(nodes: &[NodeIndex]) -> Self {
        Self { ways: Way::shared_out(nodes, &BTreeSet::new()), kept: VecDeque::new(), next: 0 }
    }

    /// The nodes that read input.
    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeIndex> {
        self.ways.iter().flat_map(|way| way.nodes.iter().copied())
    }

    /// Bytes that may be sent, with a window of `window` bytes.
    pub(super) fn room(&self, window: u64) -> u64 {
        match self.kept.front() {
            _ if self.ways.is_empty() => u64::MAX,
            _ if self.kept.len() >= PIECES_MAX => 0,
            Some(first) => window.saturating_sub(self.next - first.offset),
            None => window,
        }
    }

    /// Bytes that all nodes have received; `None` if there are no nodes.
    pub(super) fn taken(&self) -> Option<u64> {
        (!self.ways.is_empty()).then(|| self.kept.front().map_or(self.next, |first| first.offset))
    }

    /// Sends a piece. Only the last piece may be empty.
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

    /// A node reports that all nodes of its branch except `missed` have received the piece at `offset`. Returns the pieces to send to the missed
    /// nodes.
    pub(super) fn on_passed(&mut self, node: NodeIndex, offset: u64, missed: Option<&NodeSelection>) -> Vec<Sent> {
        let way = self.ways.iter_mut().find(|way| way.nodes[0] == node && way.open.contains(&offset));
        let Some(way) = way else { return Vec::new() };
        let is_missed = |node: &NodeIndex| missed.is_some_and(|missed| missed.contains(node.0));
        // The reporting node cannot be one of the missed nodes.
        let lost: Vec<NodeIndex> = way.nodes[1..].iter().copied().filter(is_missed).collect();
        way.nodes.retain(|node| !lost.contains(node));
        let open = way.open.clone();
        way.open.remove(&offset);
        let alone = |node| Way { nodes: vec![node], open: open.clone() };
        let sent = self.add(lost.into_iter().map(alone).collect());
        self.forget();
        sent
    }

    /// A node no longer reads. Returns the pieces to send to the nodes that received input from it.
    pub(super) fn on_gone(&mut self, gone: NodeIndex) -> Vec<Sent> {
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

    /// Adds branches. Returns the pieces to send to them, which they have not reported.
    fn add(&mut self, ways: Vec<Way>) -> Vec<Sent> {
        let pieces = |way: &Way| {
            let open = self.kept.iter().filter(|piece| way.open.contains(&piece.offset));
            open.filter_map(|piece| way.sent(piece)).collect::<Vec<_>>()
        };
        let sent = ways.iter().flat_map(pieces).collect();
        self.ways.extend(ways);
        sent
    }

    /// Drops the first pieces, as far as all nodes have received them.
    fn forget(&mut self) {
        while let Some(first) = self.kept.front()
            && self.ways.iter().all(|way| !way.open.contains(&first.offset))
        {
            self.kept.pop_front();
        }
    }
}

impl Way {
    /// Divides nodes into branches. All of them have the same unreported pieces.
    fn shared_out(nodes: &[NodeIndex], open: &BTreeSet<u64>) -> Vec<Self> {
        let parts = shares(0..nodes.len() as u32, BRANCHES);
        let nodes_of = |part: Range<u32>| nodes[part.start as usize..part.end as usize].to_vec();
        parts.map(|part| Self { nodes: nodes_of(part), open: open.clone() }).collect()
    }

    fn sent(&self, Piece { offset, bytes, is_last }: &Piece) -> Option<Sent> {
        let nodes = NodeSelection::of(self.nodes.iter().map(|node| node.0))?;
        Some((self.nodes[0], InputPiece { offset: *offset, bytes: bytes.clone(), is_last: *is_last, nodes }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tree(nodes: u32) -> InputTree {
        InputTree::new(&(0..nodes).map(NodeIndex).collect::<Vec<_>>())
    }

    /// Text form of the messages: recipient, offset, and nodes of each piece.
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
        assert!(tree.on_passed(NodeIndex(0), 0, None).is_empty());
        assert_eq!(shown(&tree.on_gone(NodeIndex(0))), ["1: 2 for [1]", "2: 2 for [2]"]);
        assert!(tree.on_gone(NodeIndex(17)).is_empty(), "nobody got anything by way of it");
        assert_eq!(shown(&tree.push(Bytes::new(), true)).last().unwrap(), "2: 3 for [2], the last");
    }

    #[test]
    fn a_node_that_has_missed_a_piece_gets_it_and_what_follows_from_the_api_server() {
        let mut tree = tree(18);
        ["ab", "c", "d"].into_iter().for_each(|piece| drop(tree.push(piece.into(), false)));
        // The second piece is reported first. The nodes may have missed the first piece as well.
        let missed = NodeSelection::of([0, 2, 9]);
        assert_eq!(
            shown(&tree.on_passed(NodeIndex(0), 2, missed.as_ref())),
            ["2: 0 for [2]", "2: 2 for [2]", "2: 3 for [2]"]
        );
        assert!(tree.on_passed(NodeIndex(0), 0, missed.as_ref()).is_empty(), "it is told once");
        assert!(tree.on_passed(NodeIndex(2), 0, None).is_empty() && tree.on_passed(NodeIndex(2), 99, None).is_empty());
        assert_eq!(shown(&tree.push("e".into(), false))[0], "0: 4 for [0, 1]");
    }

    #[test]
    fn room_is_what_of_the_window_all_nodes_have_taken_and_pieces_are_counted() {
        let mut tree = tree(9);
        tree.push("abcd".into(), false);
        assert_eq!(tree.room(10), 6);
        for node in [0, 2, 3, 4, 5, 6, 7, 8] {
            assert_eq!(tree.room(10), 6, "before {node}");
            tree.on_passed(NodeIndex(node), 0, None);
        }
        assert_eq!(tree.room(10), 10);
        (0..PIECES_MAX).for_each(|_| drop(tree.push("a".into(), false)));
        assert_eq!(tree.room(1 << 20), 0);
        (0..9).for_each(|node| drop(tree.on_gone(NodeIndex(node))));
        assert_eq!(tree.room(10), u64::MAX, "nobody reads");
    }

    /// Nodes that forward input in the same way as sessions.
    struct World {
        tree: InputTree,
        /// Pieces in transit.
        travelling: Vec<Sent>,
        /// Offsets of the bytes that each node has received. The end of the input counts as one more byte.
        have: Vec<BTreeSet<u64>>,
        gone: BTreeSet<NodeIndex>,
    }

    impl World {
        fn send(&mut self, sent: Vec<Sent>) {
            self.travelling.extend(sent);
        }

        /// A piece arrives. All its nodes receive it, except nodes that are gone and the unreachable node.
        fn arrive(&mut self, at: usize, unreachable: Option<u32>) {
            let (node, piece) = self.travelling.swap_remove(at);
            if self.gone.contains(&node) {
                return;
            }
            let is_away = |other| self.gone.contains(&NodeIndex(other)) || unreachable == Some(other);
            let is_missed = |&other: &u32| other != node.0 && is_away(other);
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
                        world.gone.insert(NodeIndex(node));
                        let sent = world.tree.on_gone(NodeIndex(node));
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
            for node in (0..nodes).filter(|&node| !world.gone.contains(&NodeIndex(node))) {
                prop_assert_eq!(&world.have[node as usize], &whole, "node {}", node);
            }
            prop_assert!(world.tree.kept.is_empty(), "all is reported");
        }
    }
}

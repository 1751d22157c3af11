//! Flow control of the launch's standard input, from the client to the nodes with ranks that read it. Memory is bounded: the client sends only
//! granted bytes, and a node receives only as much as it has room for. Small pieces in the queue are merged, so that they take no more memory
//! than large ones. The client is granted bytes again after all nodes have received as many. Bytes that were not granted again can be lost with
//! this server.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use lattice_session::gathered::NodeSelection;
use lattice_session::input_piece::BRANCHES;
use lattice_session::limits::INPUT_WINDOWS_MAX;
use pmi_core::ids::NodeIndex;

use super::event::NodeCommand;
use super::facts::Origin;
use super::input_tree::{InputTree, Sent};

/// Size limit for merged pieces, in bytes.
const PIECE_MAX: u64 = 64 << 10;

/// The input between client and nodes. The slowest reader sets the pace.
#[derive(Debug)]
pub(crate) struct InputCredit {
    readers: Readers,
    /// Pieces from the client that wait because a reader has no room.
    waiting: VecDeque<BytesMut>,
    ended: End,
    /// Largest number of bytes in transit to a node, and the initial grant of a client.
    window: u64,
    /// Bytes that the client may still send.
    allowance: u64,
    /// Bytes that were sent to nodes, or dropped because no node reads.
    passed: u64,
    /// Bytes of these that clients were granted again.
    granted: u64,
}

/// The nodes with ranks that read input.
#[derive(Debug)]
enum Readers {
    /// The API server sends each node all of the input.
    Few(Vec<Reader>),
    /// The nodes forward the input to each other.
    Many(InputTree),
}

#[derive(Debug)]
struct Reader {
    node: NodeIndex,
    taken: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    /// The client has announced the end; nodes have not received it.
    Announced,
    PassedOn,
}

/// Consequences of a change of the input.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Commands to nodes, in order.
    pub commands: Vec<(NodeIndex, NodeCommand)>,
    /// Bytes that the client is granted.
    pub credit: u64,
}

/// The client sent more than it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{sent} bytes of input were sent, and {allowed} were granted")]
pub(crate) struct TooMuch {
    pub sent: u64,
    pub allowed: u64,
}

impl InputCredit {
    /// Input for the ranks of these nodes, which are in ascending order. Without nodes, the input is dropped. In a resumed launch each node
    /// receives it from the API server, which does not know how much of a forwarded input the nodes have read.
    pub(crate) fn new(readers: &[NodeIndex], window: u64, origin: Origin) -> Self {
        let readers = if origin == Origin::Here && readers.len() > BRANCHES as usize {
            Readers::Many(InputTree::new(readers))
        } else {
            Readers::Few(readers.iter().map(|&node| Reader { node, taken: 0 }).collect())
        };
        Self { readers, waiting: VecDeque::new(), ended: End::Open, window, allowance: 0, passed: 0, granted: 0 }
    }

    /// The nodes with ranks that read input.
    pub(crate) fn readers(&self) -> Vec<NodeIndex> {
        match &self.readers {
            Readers::Few(readers) => readers.iter().map(|reader| reader.node).collect(),
            Readers::Many(tree) => tree.nodes().collect(),
        }
    }

    /// A client takes over. Returns the bytes that it may send before the next grant: a window, or none. Clients may attach repeatedly while no
    /// rank reads. Their input in memory is limited to [`INPUT_WINDOWS_MAX`] windows.
    pub(crate) fn attach(&mut self) -> u64 {
        let kept: u64 = self.waiting.iter().map(|piece| piece.len() as u64).sum();
        self.allowance = if kept < INPUT_WINDOWS_MAX * self.window { self.window } else { 0 };
        self.allowance
    }

    /// Accepts a piece of input.
    ///
    /// # Errors
    /// Fails if the piece exceeds the granted bytes.
    pub(crate) fn push(&mut self, piece: Bytes) -> Result<Flow, TooMuch> {
        let sent = piece.len() as u64;
        let allowed = self.allowance;
        if sent > allowed {
            return Err(TooMuch { sent, allowed });
        }
        self.allowance -= sent;
        if self.ended == End::Open && !piece.is_empty() {
            match self.waiting.back_mut() {
                Some(last) if last.len() as u64 + sent <= PIECE_MAX => last.extend_from_slice(&piece),
                _ => self.waiting.push_back(piece.into()),
            }
        }
        Ok(self.flow(Vec::new()))
    }

    /// The client's input has ended.
    pub(crate) fn end(&mut self) -> Flow {
        if self.ended == End::Open {
            self.ended = End::Announced;
        }
        self.flow(Vec::new())
    }

    /// The ranks of a node have read this many more bytes.
    pub(crate) fn on_taken(&mut self, node: NodeIndex, bytes: u64) -> Flow {
        let passed = self.passed;
        if let Readers::Few(readers) = &mut self.readers
            && let Some(reader) = readers.iter_mut().find(|reader| reader.node == node)
        {
            // A node cannot have read more than it was sent.
            reader.taken = reader.taken.saturating_add(bytes).min(passed);
        }
        self.flow(Vec::new())
    }

    /// A node and its subtree have received the piece at `offset`, except the nodes in `missed`.
    pub(crate) fn on_passed(&mut self, node: NodeIndex, offset: u64, missed: Option<&NodeSelection>) -> Flow {
        let again = match &mut self.readers {
            Readers::Few(_) => Vec::new(),
            Readers::Many(tree) => tree.on_passed(node, offset, missed),
        };
        self.flow(again)
    }

    /// A node no longer reads.
    pub(crate) fn on_gone(&mut self, node: NodeIndex) -> Flow {
        let again = match &mut self.readers {
            Readers::Few(readers) => {
                readers.retain(|reader| reader.node != node);
                Vec::new()
            }
            Readers::Many(tree) => tree.on_gone(node),
        };
        self.flow(again)
    }

    /// Sends the repeated pieces, and then as much as the slowest reader has room for. Grants the client the bytes that all readers have
    /// received.
    fn flow(&mut self, again: Vec<Sent>) -> Flow {
        let mut flow = Flow::default();
        flow.commands.extend(again.into_iter().map(input_command));
        while let Some(piece) = self.next_piece() {
            self.passed += piece.len() as u64;
            flow.commands.extend(self.readers.push(piece));
        }
        if self.ended == End::Announced && self.waiting.is_empty() {
            self.ended = End::PassedOn;
            flow.commands.extend(self.readers.end());
        }
        let taken = self.readers.taken(self.passed);
        flow.credit = taken.saturating_sub(self.granted);
        self.granted += flow.credit;
        self.allowance += flow.credit;
        flow
    }

    /// Removes the next piece that fits. For many readers, it is filled up from the following pieces.
    fn next_piece(&mut self) -> Option<Bytes> {
        let room = self.readers.room(self.window, self.passed);
        if room == 0 {
            return None;
        }
        let mut piece = self.waiting.pop_front()?;
        if piece.len() as u64 > room {
            self.waiting.push_front(piece.split_off(room as usize));
        }
        if matches!(self.readers, Readers::Many(_)) {
            piece = self.lengthened(piece, room);
        }
        Some(piece.freeze())
    }

    /// Fills a piece up from the following pieces, within `room`.
    fn lengthened(&mut self, mut piece: BytesMut, room: u64) -> BytesMut {
        let most = usize::try_from(room).unwrap_or(usize::MAX);
        while let Some(next) = self.waiting.front_mut()
            && piece.len() < most
        {
            piece.extend_from_slice(&next.split_to(next.len().min(most - piece.len())));
            if next.is_empty() {
                self.waiting.pop_front();
            }
        }
        piece
    }
}

impl Readers {
    /// Largest size of the next piece, with a window of `window` bytes after `passed` bytes were sent.
    fn room(&self, window: u64, passed: u64) -> u64 {
        match self {
            Self::Few(readers) => {
                let taken = readers.iter().map(|reader| reader.taken).min();
                taken.map_or(u64::MAX, |taken| window.saturating_sub(passed - taken))
            }
            Self::Many(tree) => tree.room(window).min(PIECE_MAX),
        }
    }

    /// Bytes that all readers have received, of `passed` bytes that were sent.
    fn taken(&self, passed: u64) -> u64 {
        match self {
            Self::Few(readers) => readers.iter().map(|reader| reader.taken).min().unwrap_or(passed),
            Self::Many(tree) => tree.taken().unwrap_or(passed),
        }
    }

    /// Sends a piece to all readers.
    fn push(&mut self, piece: Bytes) -> Vec<(NodeIndex, NodeCommand)> {
        match self {
            Self::Few(readers) => {
                readers.iter().map(|reader| (reader.node, NodeCommand::Stdin(piece.clone()))).collect()
            }
            Self::Many(tree) => tree.push(piece, false).into_iter().map(input_command).collect(),
        }
    }

    /// Sends the end of the input to all readers.
    fn end(&mut self) -> Vec<(NodeIndex, NodeCommand)> {
        match self {
            Self::Few(readers) => readers.iter().map(|reader| (reader.node, NodeCommand::StdinEnd)).collect(),
            Self::Many(tree) => tree.push(Bytes::new(), true).into_iter().map(input_command).collect(),
        }
    }
}

fn input_command((node, piece): Sent) -> (NodeIndex, NodeCommand) {
    (node, NodeCommand::Input(piece))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn piece(bytes: usize) -> Bytes {
        vec![b'i'; bytes].into()
    }

    /// The pieces for the first recipient, and whether it is sent the end of the input.
    fn sent(flow: &Flow) -> (Vec<Bytes>, bool) {
        let first = flow.commands.first().map(|(node, _)| *node);
        let (mut pieces, mut end) = (Vec::new(), false);
        for (_, command) in flow.commands.iter().filter(|(node, _)| Some(*node) == first) {
            match command {
                NodeCommand::Stdin(piece) => pieces.push(piece.clone()),
                NodeCommand::StdinEnd => end = true,
                other => panic!("{other:?} is no input"),
            }
        }
        (pieces, end)
    }

    fn lengths(flow: &Flow) -> Vec<usize> {
        sent(flow).0.iter().map(Bytes::len).collect()
    }

    fn is_nothing(flow: &Flow) -> bool {
        flow.commands.is_empty() && flow.credit == 0
    }

    fn straight(readers: &[NodeIndex], window: u64) -> InputCredit {
        InputCredit::new(readers, window, Origin::Resumed)
    }

    #[test]
    fn the_slowest_reader_sets_the_pace() {
        let mut input = straight(&[NodeIndex(0), NodeIndex(2)], 100);
        input.attach();
        let flow = input.push(piece(100)).unwrap();
        assert_eq!((lengths(&flow), flow.credit), (vec![100], 0));
        assert!(is_nothing(&input.on_taken(NodeIndex(0), 100)), "the other one has taken nothing");
        let flow = input.on_taken(NodeIndex(2), 30);
        assert_eq!((lengths(&flow), flow.credit), (vec![], 30));
        let flow = input.push(piece(30)).unwrap();
        assert_eq!((lengths(&flow), flow.credit), (vec![30], 0));
        // The launch does not wait for a node that has ended.
        let flow = input.on_gone(NodeIndex(2));
        assert_eq!((lengths(&flow), flow.credit), (vec![], 70));
    }

    #[test]
    fn what_waits_takes_no_more_memory_in_many_pieces_than_in_few() {
        let mut input = straight(&[NodeIndex(0)], 256 << 10);
        input.attach();
        input.push(piece(256 << 10)).unwrap();
        // Another client.
        input.attach();
        for _ in 0..256 << 10 {
            assert!(is_nothing(&input.push(piece(1)).unwrap()));
        }
        assert_eq!(input.waiting.iter().map(BytesMut::len).collect::<Vec<_>>(), [PIECE_MAX as usize; 4]);
        assert_eq!(lengths(&input.on_taken(NodeIndex(0), 256 << 10)), [PIECE_MAX as usize; 4]);
    }

    #[test]
    fn the_end_comes_after_all_input() {
        let mut input = straight(&[NodeIndex(0)], 10);
        input.attach();
        assert!(!sent(&input.push(piece(10)).unwrap()).1);
        // Another client.
        input.attach();
        assert_eq!(input.push(piece(5)).unwrap().credit, 0);
        assert!(!sent(&input.end()).1);
        let flow = input.on_taken(NodeIndex(0), 10);
        assert_eq!((lengths(&flow), sent(&flow).1), (vec![5], true));
        assert!(is_nothing(&input.end()), "said once");
    }

    #[test]
    fn more_than_was_granted_is_refused() {
        let mut input = straight(&[NodeIndex(0)], 10);
        assert_eq!(input.push(piece(1)).map(|_| ()), Err(TooMuch { sent: 1, allowed: 0 }));
        input.attach();
        assert_eq!(input.push(piece(11)).map(|_| ()), Err(TooMuch { sent: 11, allowed: 10 }));
    }

    #[test]
    fn what_nobody_reads_is_taken_and_forgotten() {
        let mut input = straight(&[], 10);
        input.attach();
        for _ in 0..5 {
            let flow = input.push(piece(10)).unwrap();
            assert_eq!((lengths(&flow), flow.credit), (vec![], 10));
        }
    }

    #[test]
    fn clients_that_come_and_go_pile_up_no_more_than_some_windows() {
        let mut input = straight(&[NodeIndex(0)], 10);
        let (mut sent, mut granted) = (0, Vec::new());
        for _ in 0..100 {
            granted.push(input.attach());
            while let Ok(flow) = input.push(piece(5)) {
                granted.push(flow.credit);
                sent += 5;
            }
        }
        assert_eq!(sent, 10 + 10 * INPUT_WINDOWS_MAX, "one window is under way, the others wait");
        assert_eq!(granted.iter().sum::<u64>(), sent, "who may send nothing is told so");
    }

    #[test]
    fn nothing_follows_the_end() {
        let mut input = straight(&[NodeIndex(0)], 100);
        input.attach();
        assert!(sent(&input.end()).1);
        assert!(is_nothing(&input.push(piece(5)).unwrap()), "it is taken, and means nothing");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize),
        Taken(NodeIndex, u64),
        Gone(NodeIndex),
        End,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..60_usize).prop_map(Step::Push),
            6 => (0..3_u32, 0..80_u64).prop_map(|(node, bytes)| Step::Taken(NodeIndex(node), bytes)),
            1 => (0..3_u32).prop_map(|node| Step::Gone(NodeIndex(node))),
            1 => Just(Step::End),
        ]
    }

    proptest! {
        #[test]
        fn readers_get_the_input_in_order_and_the_client_never_more_than_a_window(
            steps in prop::collection::vec(step(), 0..80),
        ) {
            const WINDOW: u64 = 100;
            let mut input = straight(&[NodeIndex(0), NodeIndex(1), NodeIndex(2)], WINDOW);
            input.attach();
            let (mut pushed_bytes, mut passed, mut credit, mut ends) = (0_u64, 0_u64, 0_u64, 0);
            let (mut allowance, mut taken) = (WINDOW, [0_u64; 3]);
            for step in steps {
                let flow = match step {
                    Step::Push(bytes) => {
                        // The bytes count up, so that the test detects a change of their order.
                        let piece: Vec<u8> = (0..bytes as u64).map(|index| (pushed_bytes + index) as u8).collect();
                        let pushed = input.push(piece.into());
                        prop_assert_eq!(pushed.is_ok(), bytes as u64 <= allowance);
                        let Ok(flow) = pushed else { continue };
                        allowance -= bytes as u64;
                        pushed_bytes += if input.ended == End::Open { bytes as u64 } else { 0 };
                        flow
                    }
                    Step::Taken(node, bytes) => {
                        taken[node.index()] = (taken[node.index()] + bytes).min(passed);
                        input.on_taken(node, bytes)
                    }
                    Step::Gone(node) => input.on_gone(node),
                    Step::End => input.end(),
                };
                let (pieces, end) = sent(&flow);
                let bytes: Vec<u8> = pieces.iter().flatten().copied().collect();
                prop_assert!(bytes.iter().enumerate().all(|(index, &byte)| byte == (passed + index as u64) as u8));
                passed = input.passed;
                credit += flow.credit;
                allowance += flow.credit;
                ends += u32::from(end);
                prop_assert!(allowance <= WINDOW && credit <= passed && passed <= pushed_bytes);
                for node in input.readers() {
                    prop_assert!(credit <= taken[node.index()], "node {} has not taken what is granted again", node);
                    prop_assert!(passed - taken[node.index()] <= WINDOW, "more than node {} has room for", node);
                }
                prop_assert!(ends == 0 || passed == pushed_bytes, "the end comes after all input");
            }
            // Readers that continue to read receive all of the input.
            input.end();
            for node in (0..3).cycle().take(9) {
                credit += input.on_taken(NodeIndex(node), u64::MAX).credit;
            }
            prop_assert_eq!((input.passed, credit, input.ended), (pushed_bytes, pushed_bytes, End::PassedOn));
            prop_assert!(ends <= 1);
        }
    }

    #[test]
    fn a_node_cannot_claim_to_have_read_what_it_was_not_sent() {
        let mut input = straight(&[NodeIndex(0)], 10);
        input.attach();
        assert!(is_nothing(&input.on_taken(NodeIndex(0), u64::MAX)));
        assert_eq!(lengths(&input.push(piece(10)).unwrap()), [10]);
        assert!(input.push(piece(1)).is_err());
    }
}

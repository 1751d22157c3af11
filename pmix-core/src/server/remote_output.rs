//! Output of ranks for clients of other nodes' servers.
//!
//! ```text
//! client: IOF_PULL ──> its server ──Action::Ask: output of these ranks──> the server of their node
//!                         │                                                 │ waits until a rank writes, or 20 s
//! client <── forwarding ──┤ handle_peer_answer <────── Action::Reply ───────┘
//!                         └──Action::Ask: more ...
//! ```
//! A node has at most one open question to each other node: all output that its clients pull there. When the clients request other
//! output, the node sends a new question, and the previous one is answered at once without output. An empty question ends the requests.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::{Buf, Bytes};
use pmi_core::ids::{NodeIndex, Rank};

use super::action::{Action, Ticket};
use super::forwards::{Origin, Output};
use super::launch::Launch;
use super::open_questions::OpenQuestion;
use super::question::{Question, WantedOutput};
use crate::wire::status;

/// Time that a question waits for output.
const WAIT: Duration = Duration::from_secs(20);
/// Maximum number of queued bytes for one node; further bytes are dropped.
const WAITING_MAX: usize = 1024 * 1024;
/// Maximum number of bytes in one answer, unless a single piece has more.
const ANSWER_MAX: usize = 256 * 1024;

/// Output of a rank; without bytes, the end of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) namespace: Bytes,
    pub(super) rank: Rank,
    pub(super) channel: u16,
    /// Bytes that were dropped before it.
    pub(super) lost: u64,
    pub(super) bytes: Bytes,
}

/// Output between this node and other nodes.
#[derive(Debug, Default)]
pub(super) struct RemoteOutput {
    for_nodes: BTreeMap<NodeIndex, ForNode>,
    from_nodes: BTreeMap<NodeIndex, FromNode>,
}

/// Output in transit to another node.
#[derive(Debug, Default)]
struct ForNode {
    wanted: WantedOutput,
    pieces: VecDeque<Piece>,
    bytes: usize,
    lost: u64,
    /// The question that waits for more output.
    waiting: Option<Ticket>,
}

/// Output requested from another node.
#[derive(Debug)]
struct FromNode {
    wanted: WantedOutput,
    asked: Ticket,
}

impl ForNode {
    /// Queues a piece, or counts it as dropped. The end of a stream is always queued.
    fn push(&mut self, mut piece: Piece) {
        if !piece.bytes.is_empty() && self.bytes + piece.cost() > WAITING_MAX {
            self.lost += piece.bytes.len() as u64;
            return;
        }
        piece.lost = std::mem::take(&mut self.lost);
        self.bytes += piece.cost();
        self.pieces.push_back(piece);
    }

    /// Answers the question of the node, if it has an open question and there is output.
    fn answer(&mut self, launch: &mut Launch) {
        if self.pieces.is_empty() {
            return;
        }
        if let Some(ticket) = self.waiting.take() {
            let answer = self.take();
            launch.actions.push_back(Action::CancelTimer { ticket });
            launch.reply_to_peer(ticket, answer);
        }
    }

    /// Returns the next answer.
    fn take(&mut self) -> Vec<u8> {
        let mut answer = status::SUCCESS.to_be_bytes().to_vec();
        while let Some(piece) = self.pieces.front()
            && (answer.len() == size_of::<i32>() || answer.len() + piece.cost() <= ANSWER_MAX)
        {
            piece.encode(&mut answer);
            self.bytes -= piece.cost();
            self.pieces.pop_front();
        }
        answer
    }
}

impl Piece {
    const HEAD: usize = 4 + 2 + 8 + 4 + 4;

    /// Number of its bytes in an answer.
    fn cost(&self) -> usize {
        Self::HEAD + self.namespace.len() + self.bytes.len()
    }

    /// Rank, channel, dropped bytes, lengths of namespace and bytes, then namespace and bytes.
    fn encode(&self, answer: &mut Vec<u8>) {
        answer.extend(self.rank.0.to_be_bytes());
        answer.extend(self.channel.to_be_bytes());
        answer.extend(self.lost.to_be_bytes());
        answer.extend((self.namespace.len() as u32).to_be_bytes());
        answer.extend((self.bytes.len() as u32).to_be_bytes());
        answer.extend_from_slice(&self.namespace);
        answer.extend_from_slice(&self.bytes);
    }

    fn decode(answer: &mut Bytes) -> Option<Self> {
        if answer.len() < Self::HEAD {
            return None;
        }
        let (rank, channel, lost) = (Rank(answer.get_u32()), answer.get_u16(), answer.get_u64());
        let (name, length) = (answer.get_u32() as usize, answer.get_u32() as usize);
        if answer.len() < name.checked_add(length)? {
            return None;
        }
        Some(Self { namespace: answer.split_to(name), rank, channel, lost, bytes: answer.split_to(length) })
    }
}

/// The pieces of an answer; `None` if it is a failure or malformed.
fn decode_answer(answer: &Bytes) -> Option<Vec<Piece>> {
    let mut answer = answer.clone();
    if answer.try_get_i32().ok()? != status::SUCCESS {
        return None;
    }
    let mut pieces = Vec::new();
    while !answer.is_empty() {
        pieces.push(Piece::decode(&mut answer)?);
    }
    Some(pieces)
}

impl RemoteOutput {
    /// Requests output from other nodes, as far as it differs from the output requested before.
    pub(super) fn request(&mut self, launch: &mut Launch, mut wanted: BTreeMap<NodeIndex, WantedOutput>) {
        for &node in self.from_nodes.keys() {
            wanted.entry(node).or_default();
        }
        for (node, wanted) in wanted {
            if self.from_nodes.get(&node).is_none_or(|from| from.wanted != wanted) {
                self.ask_node(launch, node, wanted);
            }
        }
    }

    fn ask_node(&mut self, launch: &mut Launch, node: NodeIndex, wanted: WantedOutput) {
        let asker = launch.jobs.first().map_or(NodeIndex(0), |job| job.namespace.node);
        let question = Question::Output { asker, wanted: wanted.clone() };
        let asked = launch.ask_peer(node, &question, OpenQuestion::Output { node });
        if wanted.sources.is_empty() {
            self.from_nodes.remove(&node);
        } else {
            self.from_nodes.insert(node, FromNode { wanted, asked });
        }
    }

    /// Returns the output in the answer of a node, which is `None` if the node gives no answer.
    pub(super) fn on_output(
        &mut self,
        launch: &mut Launch,
        ticket: Ticket,
        node: NodeIndex,
        answer: Option<&Bytes>,
    ) -> Vec<Piece> {
        let pieces = answer.and_then(decode_answer);
        let is_last_asked = |from: &FromNode| from.asked == ticket;
        let wanted = self.from_nodes.get(&node).filter(|from| is_last_asked(from));
        let wanted = wanted.map(|from| from.wanted.clone());
        match (&pieces, wanted) {
            (Some(_), Some(wanted)) => self.ask_node(launch, node, wanted),
            // The node is lost, or has finished its part.
            (None, Some(_)) => drop(self.from_nodes.remove(&node)),
            (_, None) => {}
        }
        pieces.unwrap_or_default()
    }

    /// A server of another node requests output of ranks here.
    pub(super) fn on_question(&mut self, launch: &mut Launch, ticket: Ticket, asker: NodeIndex, wanted: WantedOutput) {
        let nodes = launch.jobs.first().map_or(0, |job| job.namespace.hosts.len());
        if asker.index() >= nodes {
            return launch.answer_peer(ticket, status::BAD_PARAM);
        }
        let is_over = wanted.sources.is_empty();
        let node = self.for_nodes.entry(asker).or_default();
        let former = node.waiting.replace(ticket);
        node.wanted = wanted;
        answer_with_nothing(launch, former);
        if is_over {
            self.for_nodes.remove(&asker);
            answer_with_nothing(launch, Some(ticket));
        } else {
            launch.actions.push_back(Action::SetTimer { ticket, after: WAIT });
            node.answer(launch);
        }
    }

    /// The time of a question for output has expired; returns false if the ticket is of another kind.
    pub(super) fn expire(&mut self, launch: &mut Launch, ticket: Ticket) -> bool {
        let waiting = |node: &&mut ForNode| node.waiting == Some(ticket);
        let Some(node) = self.for_nodes.values_mut().find(waiting) else { return false };
        node.waiting = None;
        launch.answer_peer(ticket, status::SUCCESS);
        true
    }

    /// Queues output of a rank here for the nodes that request it.
    pub(super) fn push(&mut self, launch: &mut Launch, output: Output<'_>) {
        let Output { origin: Origin { job, rank }, channel, bytes, .. } = output;
        let namespace = launch.jobs[job].namespace.name.as_bytes();
        let wants = |node: &&mut ForNode| node.wanted.has(namespace, rank, channel);
        let mut nodes = self.for_nodes.values_mut().filter(wants).peekable();
        if nodes.peek().is_none() {
            return;
        }
        let (namespace, bytes) = (Bytes::copy_from_slice(namespace), Bytes::copy_from_slice(bytes));
        let piece = Piece { namespace, rank, channel, lost: 0, bytes };
        let nodes: Vec<&mut ForNode> = nodes.collect();
        for node in nodes {
            node.push(piece.clone());
            node.answer(launch);
        }
    }

    /// Ranks here write no further output: nodes that wait for output receive an empty answer.
    pub(super) fn end(&mut self, launch: &mut Launch) {
        for node in std::mem::take(&mut self.for_nodes).into_values() {
            answer_with_nothing(launch, node.waiting);
        }
    }

    /// Returns true while another node requests output of ranks here.
    pub(super) fn is_requested(&self) -> bool {
        !self.for_nodes.is_empty()
    }

    /// Returns true while output waits for the question of another node.
    pub(super) fn has_pieces(&self) -> bool {
        self.for_nodes.values().any(|node| !node.pieces.is_empty())
    }
}

fn answer_with_nothing(launch: &mut Launch, ticket: Option<Ticket>) {
    if let Some(ticket) = ticket {
        launch.actions.push_back(Action::CancelTimer { ticket });
        launch.answer_peer(ticket, status::SUCCESS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(rank: u32, bytes: &[u8]) -> Piece {
        let namespace = Bytes::from_static(b"job.secret");
        Piece { namespace, rank: Rank(rank), channel: 2, lost: 0, bytes: Bytes::copy_from_slice(bytes) }
    }

    fn pieces(node: &mut ForNode) -> Vec<Piece> {
        decode_answer(&node.take().into()).unwrap()
    }

    #[test]
    fn what_a_node_does_not_fetch_is_dropped_and_counted() {
        let (mut node, line) = (ForNode::default(), [b'x'; 64 << 10]);
        for rank in 0..20 {
            node.push(piece(rank, &line));
        }
        node.push(piece(7, b""));
        assert!(node.bytes <= WAITING_MAX + 64);
        let mut got = Vec::new();
        while !node.pieces.is_empty() {
            let some = pieces(&mut node);
            assert!(some.iter().map(Piece::cost).sum::<usize>() <= ANSWER_MAX);
            got.extend(some);
        }
        let kept = got.len() - 1;
        assert!((12..16).contains(&kept), "{kept}");
        assert_eq!(got[kept], Piece { lost: (20 - kept as u64) * line.len() as u64, ..piece(7, b"") });
        assert_eq!((node.bytes, node.lost), (0, 0));
        node.push(piece(1, b"on"));
        assert_eq!(pieces(&mut node), [piece(1, b"on")]);
    }

    #[test]
    fn a_piece_above_the_size_of_an_answer_is_one_by_itself() {
        let mut node = ForNode::default();
        let large = piece(0, &vec![b'x'; ANSWER_MAX]);
        node.push(large.clone());
        node.push(piece(1, b"small"));
        assert_eq!(pieces(&mut node), [large]);
        assert_eq!(pieces(&mut node), [piece(1, b"small")]);
    }

    #[test]
    fn answers_that_are_none_are_not_read() {
        let mut whole = status::SUCCESS.to_be_bytes().to_vec();
        piece(3, b"text").encode(&mut whole);
        assert_eq!(decode_answer(&whole.clone().into()), Some(vec![piece(3, b"text")]));
        for length in (0..4).chain(5..whole.len()) {
            assert_eq!(decode_answer(&Bytes::copy_from_slice(&whole[..length])), None, "{length}");
        }
        assert_eq!(decode_answer(&status::BAD_PARAM.to_be_bytes().to_vec().into()), None);
    }
}

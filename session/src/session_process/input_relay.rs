//! Forwards pieces of input to their nodes. The pieces come from the API server and from sessions above this one.
//!
//! ```text
//! piece for 0-6 ──> 0, which keeps it and forwards it: to 1 for 1-3, and to 4 for 4-6; 1 to 2 and 3
//!        answer <── when the ranks of all nodes have read it, with the nodes that did not receive it
//! ```
//! A node may not accept a piece, because its part of the launch has ended or because no link to it exists. The sending node then sends the
//! piece to the nodes below that node. They use the offset of the piece to detect bytes that they already have.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use pmi_core::ids::NodeIndex;
use pmi_transport::fence::shares;
use pmi_transport::task;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::frames::ToAgent;
use super::node_links::{Arrived, NodeLinks};
use super::stdin::Input;
use crate::gathered::NodeSelection;
use crate::input_piece::{BRANCHES, InputPiece};
use crate::wire;
use crate::wire::question::{self, Question};

/// Limit of pieces that are forwarded at a time. Further pieces are refused.
const OPEN_MAX: usize = 256;

/// Forwards pieces.
#[derive(Clone)]
pub(super) struct InputRelay {
    pub(super) me: NodeIndex,
    /// `None` if the sessions have no links.
    pub(super) links: Option<Arc<NodeLinks>>,
    pub(super) input: Arc<Mutex<Input>>,
    /// Sender to the agent, for warnings.
    pub(super) urgent: mpsc::Sender<ToAgent>,
}

impl InputRelay {
    /// Forwards pieces until the queue of pieces is closed.
    pub(super) async fn run(self, mut pieces: mpsc::Receiver<Arrived>) {
        let mut open = JoinSet::new();
        while let Some(Arrived { piece, reply }) = pieces.recv().await {
            while open.try_join_next().is_some() {}
            if let Some(reason) = Passing::refusal(self.me, &piece, open.len()) {
                // The sender may have stopped waiting, here and below.
                let _ = reply.send(Err(reason));
            } else {
                let passing = self.clone().pass_on(piece);
                open.spawn(task::boxed(async move {
                    let _ = reply.send(Ok(passing.await));
                }));
            }
        }
    }

    /// Forwards a piece. Returns the nodes that have not received it, when all other nodes have.
    async fn pass_on(self, piece: InputPiece) -> Option<NodeSelection> {
        let taken = self.input.lock().push_numbered(piece.clone());
        if let Err(end) = &taken {
            let _ = self.urgent.try_send(ToAgent::warning(end.to_string()));
        }
        let (mut passing, mut shares) = Passing::begin(piece);
        let mut asking = JoinSet::new();
        loop {
            for share in shares.drain(..) {
                let links = self.links.clone();
                asking.spawn(task::boxed(async move { (share.part.clone(), ask(links.as_deref(), share).await) }));
            }
            match asking.join_next().await {
                Some(Ok((part, answer))) => shares = passing.answered(part, answer.ok()),
                Some(Err(_)) => {}
                None => break,
            }
        }
        if let Ok(taken) = taken {
            // Dropped without an answer if no rank reads any more.
            let _ = taken.await;
        }
        passing.missed()
    }
}

/// A piece on its way to the nodes below this one. Pure: its inputs are answers, its outputs are shares for other nodes.
pub(super) struct Passing {
    piece: InputPiece,
    /// Nodes of the piece. This node is the first.
    nodes: Vec<u32>,
    missed: BTreeSet<u32>,
    /// Number of shares without an answer.
    open: usize,
}

/// A piece for some of the nodes. The first of them forwards it.
pub(super) struct Share {
    /// Positions of these nodes in the nodes of the piece.
    pub(super) part: Range<u32>,
    pub(super) piece: InputPiece,
}

impl Share {
    /// Node that receives the share.
    pub(super) fn to(&self) -> Option<NodeIndex> {
        self.piece.nodes.nodes().next().map(NodeIndex)
    }
}

impl Passing {
    /// Returns the reason why a session that already forwards `open` pieces refuses a piece.
    pub(super) fn refusal(me: NodeIndex, piece: &InputPiece, open: usize) -> Option<String> {
        if piece.nodes.nodes().next() != Some(me.0) {
            return Some(format!("it is node {}, and the piece is for another one first", me.0));
        }
        (open >= OPEN_MAX).then(|| format!("it passes on {OPEN_MAX} pieces already"))
    }

    /// Starts with a piece that this node has. Returns the first shares.
    pub(super) fn begin(piece: InputPiece) -> (Self, Vec<Share>) {
        let nodes: Vec<u32> = piece.nodes.nodes().collect();
        let behind = 1..nodes.len() as u32;
        let mut passing = Self { piece, nodes, missed: BTreeSet::new(), open: 0 };
        let shares = passing.share_out(behind);
        (passing, shares)
    }

    /// Handles the answer of a share's first node. It contains the nodes that have not received the piece; `None` if the node did not
    /// accept the share. Returns further shares.
    pub(super) fn answered(&mut self, part: Range<u32>, answer: Option<Option<NodeSelection>>) -> Vec<Share> {
        self.open -= 1;
        let nodes = &self.nodes[part.start as usize..part.end as usize];
        match answer {
            Some(missed) => {
                // Nodes of other shares do not count.
                let is_missed = |node: &u32| missed.as_ref().is_some_and(|missed| missed.contains(*node));
                self.missed.extend(nodes.iter().copied().filter(is_missed));
                Vec::new()
            }
            None => {
                self.missed.insert(nodes[0]);
                self.share_out(part.start + 1..part.end)
            }
        }
    }

    fn share_out(&mut self, behind: Range<u32>) -> Vec<Share> {
        let share = |part: Range<u32>| {
            let nodes = &self.nodes[part.start as usize..part.end as usize];
            let nodes = NodeSelection::of(nodes.iter().copied())?;
            Some(Share { part, piece: InputPiece { nodes, ..self.piece.clone() } })
        };
        let shares: Vec<Share> = shares(behind, BRANCHES).filter_map(share).collect();
        self.open += shares.len();
        shares
    }

    /// Returns true if every share has its answer.
    #[cfg(feature = "simulation")]
    pub(super) fn is_over(&self) -> bool {
        self.open == 0
    }

    /// Returns the nodes that have not received the piece.
    pub(super) fn missed(self) -> Option<NodeSelection> {
        NodeSelection::of(self.missed)
    }
}

/// Sends a share to its first node. Returns the nodes that have not received the piece.
async fn ask(links: Option<&NodeLinks>, share: Share) -> Result<Option<NodeSelection>, String> {
    let links = links.ok_or("there are no links")?;
    let node = share.to().ok_or("the share has no nodes")?;
    let question = question::encode(&Question::Input(share.piece));
    let answer = links.ask_session(node, question).await.map_err(|error| error.reason)?;
    wire::input::decode_answer(answer).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::session_io::StdinSource;
    use crate::session_process::stdin::{Readers, connect};

    fn relay() -> (InputRelay, StdinSource, mpsc::Receiver<ToAgent>) {
        let (urgent, told) = mpsc::channel(8);
        let (input, source) = connect(Readers::Here, 100, urgent.clone());
        let input = Arc::new(Mutex::new(input));
        (InputRelay { me: NodeIndex(1), links: None, input, urgent }, source, told)
    }

    fn piece(offset: u64, nodes: &[u32]) -> InputPiece {
        let nodes = NodeSelection::of(nodes.iter().copied()).unwrap();
        InputPiece { offset, bytes: "in".into(), is_last: true, nodes }
    }

    #[tokio::test]
    async fn nodes_that_no_link_leads_to_have_missed_the_piece_and_those_here_read_it() {
        let (relay, source, _told) = relay();
        let StdinSource::Stream(mut stream) = source else { panic!("no stream") };
        let (pieces, arriving) = mpsc::channel(8);
        let running = tokio::spawn(relay.run(arriving));
        let (reply, missed) = oneshot::channel();
        pieces.send(Arrived { piece: piece(0, &[1, 2, 5]), reply }).await.unwrap();
        assert_eq!(stream.recv().await.unwrap(), "in");
        assert_eq!(missed.await.unwrap(), Ok(NodeSelection::of([2, 5])));
        let (reply, missed) = oneshot::channel();
        pieces.send(Arrived { piece: piece(0, &[0, 1]), reply }).await.unwrap();
        assert_eq!(missed.await.unwrap(), Err("it is node 1, and the piece is for another one first".to_owned()));
        drop(pieces);
        running.await.unwrap();
    }

    #[tokio::test]
    async fn a_piece_that_ends_the_input_without_its_end_is_told_to_the_agent() {
        let (relay, _source, mut told) = relay();
        let piece = InputPiece { bytes: vec![b'i'; 2000].into(), ..piece(0, &[1]) };
        assert_eq!(relay.pass_on(piece).await, None, "nobody is to send it again");
        assert!(matches!(
            told.recv().await.unwrap().into_what(),
            Some(pmi_transport::proto::v1::from_session::What::Warning(text)) if text.contains("their input ends there")
        ));
    }
}

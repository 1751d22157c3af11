//! Passes pieces of input on to the nodes that they are for: those of the API server, and those of sessions above this one.
//!
//! ```text
//! piece for 0-6 ──> 0, who keeps it, and passes it on: to 1 for 1-3, and to 4 for 4-6; 1 to 2 and 3
//!        answer <── when the ranks of all have taken it, with the nodes that have not
//! ```
//! Where a node does not take a piece, as its part of the launch has ended or no link leads there, those behind it get it from whoever has passed
//! it on to that node. They know by the piece's place what they have already.

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

/// Most pieces that are passed on at a time; further ones are refused.
const OPEN_MAX: usize = 256;

/// Passes pieces on.
#[derive(Clone)]
pub(super) struct InputRelay {
    pub(super) me: NodeIndex,
    /// `None` where no session has links.
    pub(super) links: Option<Arc<NodeLinks>>,
    pub(super) input: Arc<Mutex<Input>>,
    /// Way to the agent, for warnings.
    pub(super) urgent: mpsc::Sender<ToAgent>,
}

impl InputRelay {
    /// Passes pieces on until none can come.
    pub(super) async fn run(self, mut pieces: mpsc::Receiver<Arrived>) {
        let mut open = JoinSet::new();
        while let Some(Arrived { piece, reply }) = pieces.recv().await {
            while open.try_join_next().is_some() {}
            if piece.nodes.nodes().next() != Some(self.me.0) {
                // Whoever asked may wait no more, here and below.
                let _ = reply.send(Err(format!("it is node {}, and the piece is for another one first", self.me.0)));
            } else if open.len() >= OPEN_MAX {
                let _ = reply.send(Err(format!("it passes on {OPEN_MAX} pieces already")));
            } else {
                let passing = self.clone().pass_on(piece);
                open.spawn(task::boxed(async move {
                    let _ = reply.send(Ok(passing.await));
                }));
            }
        }
    }

    /// Passes a piece on; returns the nodes that have not taken it when all others have.
    async fn pass_on(self, piece: InputPiece) -> Option<NodeSelection> {
        let taken = self.input.lock().push_numbered(piece.clone());
        if let Err(end) = &taken {
            let _ = self.urgent.try_send(ToAgent::warning(end.to_string()));
        }
        let nodes: Vec<u32> = piece.nodes.nodes().collect();
        let mut missed = BTreeSet::new();
        let mut asking = JoinSet::new();
        let mut parts: Vec<Range<u32>> = shares(1..nodes.len() as u32, BRANCHES).collect();
        loop {
            for part in parts.drain(..) {
                let behind = &nodes[part.start as usize..part.end as usize];
                let Some(share) = NodeSelection::of(behind.iter().copied()) else { continue };
                let piece = InputPiece { nodes: share, ..piece.clone() };
                let (links, to) = (self.links.clone(), NodeIndex(behind[0]));
                asking.spawn(task::boxed(async move { (part, ask(links.as_deref(), to, piece).await) }));
            }
            match asking.join_next().await {
                Some(Ok((_, Ok(told)))) => missed.extend(told.iter().flat_map(NodeSelection::nodes)),
                Some(Ok((part, Err(_)))) => {
                    missed.insert(nodes[part.start as usize]);
                    parts.extend(shares(part.start + 1..part.end, BRANCHES));
                }
                Some(Err(_)) => {}
                None => break,
            }
        }
        if let Ok(taken) = taken {
            // Dropped unheard if nobody reads any more.
            let _ = taken.await;
        }
        NodeSelection::of(missed)
    }
}

/// Passes a piece on to a node; returns the nodes of the piece that have not taken it.
async fn ask(links: Option<&NodeLinks>, node: NodeIndex, piece: InputPiece) -> Result<Option<NodeSelection>, String> {
    let links = links.ok_or("there are no links")?;
    let nodes = piece.nodes.clone();
    let answer =
        links.ask_session(node, question::encode(&Question::Input(piece))).await.map_err(|error| error.reason)?;
    let missed = wire::input::decode_answer(answer).map_err(|error| error.to_string())?;
    // Others are none of its business.
    Ok(missed.and_then(|missed| NodeSelection::of(nodes.nodes().filter(|&node| missed.contains(node)))))
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

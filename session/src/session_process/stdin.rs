//! Standard input on its way from the agent's commands to the ranks that read it.
//!
//! Commands must be read on while a rank does not read its input, so input waits here: as much as the window that the launch was
//! given, and pieces that exceed it are dropped. Pieces that the session has taken are reported, and make room for more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::frames::ToAgent;
use crate::session_io::StdinSource;
use crate::wire::event::{NodeHappening, encode_happening};

/// Ranks that read a launch's input, as seen from this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readers {
    /// At least one is on this node.
    Here,
    /// None is on this node.
    Elsewhere,
}

/// Sending end of a launch's input, for the task that reads commands.
pub(super) struct Input {
    /// `None` after the end of the input.
    pieces: Option<mpsc::UnboundedSender<Bytes>>,
    /// Bytes that may be on their way.
    window: u64,
    /// Bytes that were pushed since the start.
    received: u64,
    /// Bytes that the session has taken since the start.
    taken: Arc<AtomicU64>,
}

/// Returns both ends of a launch's input. Input for readers elsewhere counts as taken at once. Bytes that were taken are reported to
/// `agent`.
pub(super) fn connect(readers: Readers, window: u64, agent: mpsc::Sender<ToAgent>) -> (Input, StdinSource) {
    let (pieces, mut waiting) = mpsc::unbounded_channel::<Bytes>();
    let taken = Arc::new(AtomicU64::new(0));
    let input = Input { pieces: Some(pieces), window, received: 0, taken: Arc::clone(&taken) };
    let (session, source) = mpsc::channel(1);
    let mut session = (readers == Readers::Here).then_some(session);
    tokio::spawn(async move {
        while let Some(piece) = waiting.recv().await {
            let len = piece.len() as u64;
            // Where nobody reads, or nobody reads any more, input is as good as read.
            if let Some(reader) = &session
                && reader.send(piece).await.is_err()
            {
                session = None;
            }
            taken.fetch_add(len, Ordering::Relaxed);
            let event = encode_happening(&NodeHappening::StdinTaken(len));
            if agent.send(ToAgent::event(event)).await.is_err() {
                break;
            }
        }
    });
    let source = match readers {
        Readers::Here => StdinSource::Stream(source),
        Readers::Elsewhere => StdinSource::Empty,
    };
    (input, source)
}

impl Input {
    /// Passes on a piece. One that does not fit into the window is dropped, and so is one after the end.
    pub(super) fn push(&mut self, piece: Bytes) {
        let taken = self.taken.load(Ordering::Relaxed);
        let on_its_way = self.received - taken + piece.len() as u64;
        if let Some(pieces) = &self.pieces
            && on_its_way <= self.window
        {
            self.received += piece.len() as u64;
            // Nobody takes it when the session has ended.
            let _ = pieces.send(piece);
        }
    }

    /// Ends the input: readers see its end behind the pieces that were pushed.
    pub(super) fn end(&mut self) {
        self.pieces = None;
    }
}

#[cfg(test)]
mod tests {
    use pmi_transport::proto::v1 as proto;
    use proto::from_session::What;

    use super::*;

    struct Ends {
        input: Input,
        source: StdinSource,
        told: mpsc::Receiver<ToAgent>,
    }

    fn ends(readers: Readers, window: u64) -> Ends {
        let (agent, told) = mpsc::channel(16);
        let (input, source) = connect(readers, window, agent);
        Ends { input, source, told }
    }

    impl Ends {
        fn push(&mut self, piece: &'static str) {
            self.input.push(Bytes::from_static(piece.as_bytes()));
        }

        /// Next report of input that was taken, in bytes.
        async fn taken(&mut self) -> Option<u64> {
            match self.told.recv().await?.into_what() {
                Some(What::Event(proto::NodeEvent {
                    what: Some(proto::node_event::What::StdinTaken(bytes)), ..
                })) => Some(bytes),
                other => panic!("{other:?} is no report of input"),
            }
        }

        fn stream(&mut self) -> mpsc::Receiver<Bytes> {
            match std::mem::replace(&mut self.source, StdinSource::Empty) {
                StdinSource::Stream(stream) => stream,
                other => panic!("{other:?} is no stream"),
            }
        }
    }

    #[tokio::test]
    async fn input_arrives_in_order_and_ends_behind_its_last_piece() {
        let mut ends = ends(Readers::Here, 100);
        let mut stream = ends.stream();
        ["one", "two"].into_iter().for_each(|piece| ends.push(piece));
        ends.input.end();
        ends.push("late");
        for expected in [Some("one"), Some("two"), None] {
            assert_eq!(stream.recv().await.as_deref(), expected.map(str::as_bytes));
        }
        assert_eq!((ends.taken().await, ends.taken().await, ends.taken().await), (Some(3), Some(3), None));
    }

    #[tokio::test]
    async fn a_piece_beyond_the_window_is_dropped_and_taken_input_makes_room() {
        let mut ends = ends(Readers::Here, 8);
        let mut stream = ends.stream();
        // The first piece waits in the channel, the second before it; both are on their way.
        ["1234", "5678", "dropped"].into_iter().for_each(|piece| ends.push(piece));
        assert_eq!(stream.recv().await.unwrap(), "1234");
        assert_eq!(stream.recv().await.unwrap(), "5678");
        assert_eq!((ends.taken().await, ends.taken().await), (Some(4), Some(4)));
        ends.push("12345678");
        assert_eq!(stream.recv().await.unwrap(), "12345678");
    }

    #[tokio::test]
    async fn input_for_ranks_of_other_nodes_counts_as_taken() {
        let mut ends = ends(Readers::Elsewhere, 4);
        assert!(matches!(ends.source, StdinSource::Empty));
        for _ in 0..3 {
            ends.push("four");
            assert_eq!(ends.taken().await, Some(4));
        }
    }

    #[tokio::test]
    async fn input_counts_as_taken_when_its_readers_have_gone() {
        let mut ends = ends(Readers::Here, 4);
        drop(ends.stream());
        for _ in 0..3 {
            ends.push("four");
            assert_eq!(ends.taken().await, Some(4));
        }
    }

    #[tokio::test]
    async fn input_is_no_longer_passed_on_when_the_agent_takes_no_reports() {
        let Ends { mut input, source, told } = ends(Readers::Here, 100);
        drop(told);
        let StdinSource::Stream(mut stream) = source else { panic!("no stream") };
        input.push("one".into());
        assert_eq!(stream.recv().await.unwrap(), "one");
        assert_eq!(stream.recv().await, None);
        input.push("two".into());
    }
}

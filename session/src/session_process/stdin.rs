//! Standard input on its way from the agent's commands to the ranks that read it.
//!
//! Commands must be read on while a rank does not read its input, so input waits here. An API server has no more than a window of it under
//! way; one that was started anew knows nothing of what waits already, and sends a window on top. Beyond [`WINDOWS_MAX`] of them the input
//! ends: readers never see a gap. Pieces that the session has taken are reported, and make room for more.

use pmi_transport::task;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::frames::ToAgent;
use crate::session_io::StdinSource;
use crate::wire::event::{NodeHappening, encode_happening};

/// Windows of unread input that are kept.
const WINDOWS_MAX: u64 = 16;

/// No more input is kept: that of too many API servers has come, and nobody has read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ranks have not read {unread} bytes of input, and no more than {max} are kept: their input ends there")]
pub(super) struct Unread {
    unread: u64,
    max: u64,
}

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
    max: u64,
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
    let max = window.saturating_mul(WINDOWS_MAX);
    let input = Input { pieces: Some(pieces), max, received: 0, taken: Arc::clone(&taken) };
    let (session, source) = mpsc::channel(1);
    let mut session = (readers == Readers::Here).then_some(session);
    task::spawn(async move {
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
    /// Passes on a piece; one after the end is dropped.
    ///
    /// # Errors
    /// Ends the input if there is no room for the piece.
    pub(super) fn push(&mut self, piece: Bytes) -> Result<(), Unread> {
        let Some(pieces) = &self.pieces else { return Ok(()) };
        let (len, unread) = (piece.len() as u64, self.received - self.taken.load(Ordering::Relaxed));
        if unread + len > self.max {
            self.pieces = None;
            return Err(Unread { unread, max: self.max });
        }
        self.received += len;
        // Nobody takes it when the session has ended.
        let _ = pieces.send(piece);
        Ok(())
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
            self.input.push(Bytes::from_static(piece.as_bytes())).unwrap();
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
    async fn what_a_new_api_server_sends_on_top_of_a_full_window_arrives() {
        let mut ends = ends(Readers::Here, 8);
        let mut stream = ends.stream();
        // A rank reads nothing meanwhile. The second server knows nothing of the first one's pieces.
        ["1234", "5678", "abcd", "efgh"].into_iter().for_each(|piece| ends.push(piece));
        for expected in ["1234", "5678", "abcd", "efgh"] {
            assert_eq!(stream.recv().await.unwrap(), expected);
            assert_eq!(ends.taken().await, Some(4));
        }
    }

    #[tokio::test]
    async fn input_that_nobody_reads_is_bounded_and_ends_without_a_gap() {
        let mut ends = ends(Readers::Here, 1);
        let mut stream = ends.stream();
        ends.push("0123456789abcdef");
        let unread = Unread { unread: 16, max: 16 };
        assert_eq!(ends.input.push(Bytes::from_static(b"more")), Err(unread));
        assert_eq!(stream.recv().await.unwrap(), "0123456789abcdef");
        assert_eq!(ends.taken().await, Some(16));
        ends.push("late");
        assert_eq!(stream.recv().await, None);
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
        input.push("one".into()).unwrap();
        assert_eq!(stream.recv().await.unwrap(), "one");
        assert_eq!(stream.recv().await, None);
        input.push("two".into()).unwrap();
    }
}

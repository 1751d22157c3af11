//! Standard input on its way from the agent's commands, and from other sessions, to the ranks that read it.
//!
//! ```text
//! command ───────────────────> Input ──> waiting ──> the session's readers
//! numbered pieces, any order ──> ahead ──in order──^      └─taken─> the agent, or the node that sent the piece
//! ```
//! Commands must be read even if a rank does not read its input, so input waits here. An API server sends at most one window of input in
//! advance. After a restart, it has no record of waiting input, and sends another window. Beyond [`INPUT_WINDOWS_MAX`] windows the input
//! ends, so that readers never see a gap. The session reports pieces that it has taken, which makes room for more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, Bytes};
use pmi_core::ids::Rank;
use pmi_transport::task;
use tokio::sync::{mpsc, oneshot};

use super::frames::ToAgent;
use crate::input_piece::InputPiece;
use crate::limits::INPUT_WINDOWS_MAX;
use crate::session_io::StdinSource;
use crate::settings::StdinTarget;
use crate::spec::SessionSpec;
use crate::wire::event::{NodeHappening, encode_happening};

/// The input ends, because later input would follow a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InputEnd {
    /// The limit of waiting input is reached. API servers have sent too many windows that no rank has read.
    #[error("ranks have not read {unread} bytes of input, and no more than {max} are kept: their input ends there")]
    Unread {
        /// Number of waiting bytes.
        unread: u64,
        /// Limit of waiting bytes.
        max: u64,
    },
    /// A piece from one API server arrived through other nodes after the next API server had sent input itself.
    #[error(
        "input is missing before what came last, as the API server was restarted: the input of the ranks ends there"
    )]
    Gap,
}

/// Ranks that read a launch's input, relative to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readers {
    /// At least one reader is on this node.
    Here,
    /// No reader is on this node.
    Elsewhere,
}

impl Readers {
    /// Readers of the session's launch.
    pub(super) fn of(spec: &SessionSpec) -> Self {
        let is_here = |rank: Rank| spec.job.placement.node_of(rank) == Some(spec.node);
        let stdin = &spec.settings.stdin;
        if *stdin == StdinTarget::All || stdin.one_reader().is_some_and(is_here) { Self::Here } else { Self::Elsewhere }
    }
}

/// Item on its way to the session.
pub(super) enum Waiting {
    /// A piece, and the receiver of the report that it was taken. Without a receiver, the agent gets the report.
    Piece(Bytes, Option<oneshot::Sender<()>>),
    /// End of the input.
    End,
    /// Number of bytes that the API server sent after the end of the input. They count as taken, because other nodes wait for the credit.
    Ignored(u64),
}

/// Sending end of a launch's input.
pub(super) struct Input {
    pieces: mpsc::UnboundedSender<Waiting>,
    has_ended: bool,
    /// Limit of waiting bytes.
    max: u64,
    /// Number of bytes received since the start.
    received: u64,
    /// Number of bytes that the session has taken since the start.
    taken: Arc<AtomicU64>,
    numbered: Numbered,
}

/// Pieces that arrive through other nodes.
#[derive(Default)]
struct Numbered {
    /// Offset of the next byte.
    next: u64,
    /// Pieces that arrived too early, by offset and order of arrival.
    ahead: BTreeMap<(u64, u64), (InputPiece, oneshot::Sender<()>)>,
    ahead_bytes: u64,
    arrived: u64,
    /// True after an API server has sent input without numbers. That server has no record of numbered pieces.
    is_over: bool,
}

/// Receiving end of a launch's input.
pub(super) struct Pieces {
    waiting: mpsc::UnboundedReceiver<Waiting>,
    taken: Arc<AtomicU64>,
}

/// Returns both ends of a launch's input, without a task between them.
pub(super) fn ends(window: u64) -> (Input, Pieces) {
    let (pieces, waiting) = mpsc::unbounded_channel::<Waiting>();
    let taken = Arc::new(AtomicU64::new(0));
    let max = window.saturating_mul(INPUT_WINDOWS_MAX);
    let numbered = Numbered::default();
    let input = Input { pieces, has_ended: false, max, received: 0, taken: Arc::clone(&taken), numbered };
    (input, Pieces { waiting, taken })
}

/// Returns both ends of a launch's input. If the readers are on other nodes, input counts as taken at once. Taken bytes are reported to
/// `agent`.
pub(super) fn connect(readers: Readers, window: u64, agent: mpsc::Sender<ToAgent>) -> (Input, StdinSource) {
    let (input, mut pieces) = ends(window);
    let (session, source) = mpsc::channel(1);
    let mut session = (readers == Readers::Here).then_some(session);
    task::spawn(async move {
        while let Some(next) = pieces.waiting.recv().await {
            let report = match next {
                Waiting::Piece(piece, told) => {
                    let len = piece.len() as u64;
                    // Input without a reader counts as read.
                    if let Some(reader) = session.as_ref().filter(|_| len > 0)
                        && reader.send(piece).await.is_err()
                    {
                        session = None;
                    }
                    pieces.take(len, told)
                }
                Waiting::End => {
                    session = None;
                    None
                }
                Waiting::Ignored(len) => Some(taken(len)),
            };
            if let Some(event) = report
                && agent.send(event).await.is_err()
            {
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

impl Pieces {
    /// Counts a piece of `len` bytes as taken. Returns the report for the agent, unless the piece has another receiver.
    pub(super) fn take(&self, len: u64, told: Option<oneshot::Sender<()>>) -> Option<ToAgent> {
        self.taken.fetch_add(len, Ordering::Relaxed);
        match told {
            Some(told) => {
                // The node that forwarded the piece may be lost.
                let _ = told.send(());
                None
            }
            None => Some(taken(len)),
        }
    }

    /// Returns the next item, if there is one.
    #[cfg(feature = "simulation")]
    pub(super) fn try_next(&mut self) -> Option<Waiting> {
        self.waiting.try_recv().ok()
    }
}

/// Report that `len` bytes of the API server's input were taken.
pub(super) fn taken(len: u64) -> ToAgent {
    ToAgent::event(encode_happening(&NodeHappening::StdinTaken(len)))
}

impl Input {
    /// Forwards a piece. A piece after the end is ignored and counts as taken.
    ///
    /// # Errors
    /// Ends the input if there is no room for the piece.
    pub(super) fn push(&mut self, piece: Bytes) -> Result<(), InputEnd> {
        self.numbered.is_over = true;
        self.drop_ahead();
        let room = self.make_room(piece.len() as u64);
        self.pass_on(piece, None);
        room
    }

    /// Receives a piece that arrived through other nodes. Forwards its new bytes when they are next in order, with the pieces that waited
    /// for them. The returned receiver resolves when ranks have taken the piece, or when no rank reads any more.
    ///
    /// # Errors
    /// Ends the input if there is no room for the piece, or if a previous piece was lost.
    pub(super) fn push_numbered(&mut self, piece: InputPiece) -> Result<oneshot::Receiver<()>, InputEnd> {
        let (told, taken) = oneshot::channel();
        if self.numbered.is_over && piece.offset + piece.bytes.len() as u64 > self.numbered.next && !self.has_ended {
            self.end();
            return Err(InputEnd::Gap);
        }
        self.make_room(piece.bytes.len() as u64)?;
        self.numbered.arrived += 1;
        self.numbered.ahead_bytes += piece.bytes.len() as u64;
        self.numbered.ahead.insert((piece.offset, self.numbered.arrived), (piece, told));
        while let Some(first) = self.numbered.ahead.first_entry()
            && first.key().0 <= self.numbered.next
        {
            let (InputPiece { offset, mut bytes, is_last, .. }, told) = first.remove();
            self.numbered.ahead_bytes -= bytes.len() as u64;
            // Known bytes are skipped. The piece still waits until they are taken.
            let known = (self.numbered.next - offset).min(bytes.len() as u64);
            bytes.advance(known as usize);
            self.numbered.next += bytes.len() as u64;
            self.pass_on(bytes, Some(told));
            if is_last {
                self.end();
            }
        }
        Ok(taken)
    }

    /// Ends the input. Readers see the end after all pushed pieces.
    pub(super) fn end(&mut self) {
        if !std::mem::replace(&mut self.has_ended, true) {
            // Fails when the session has ended.
            let _ = self.pieces.send(Waiting::End);
        }
        self.drop_ahead();
    }

    /// Drops pieces that can no longer become next in order. Their receivers see the drop.
    fn drop_ahead(&mut self) {
        self.numbered.ahead.clear();
        self.numbered.ahead_bytes = 0;
    }

    fn make_room(&mut self, len: u64) -> Result<(), InputEnd> {
        let unread = self.received + self.numbered.ahead_bytes - self.taken.load(Ordering::Relaxed);
        if !self.has_ended && unread + len > self.max {
            self.end();
            return Err(InputEnd::Unread { unread, max: self.max });
        }
        Ok(())
    }

    fn pass_on(&mut self, piece: Bytes, told: Option<oneshot::Sender<()>>) {
        let len = piece.len() as u64;
        let next = match told {
            None if self.has_ended => Waiting::Ignored(len),
            // The drop of the sender reports that no rank reads the piece.
            Some(_) if self.has_ended => return,
            told => {
                self.received += len;
                Waiting::Piece(piece, told)
            }
        };
        // Fails when the session has ended.
        let _ = self.pieces.send(next);
    }
}

#[cfg(test)]
mod tests {
    use pmi_transport::proto::v1 as proto;
    use proto::from_session::What;

    use super::*;
    use crate::gathered::NodeSelection;

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

        /// Returns the next report of taken input, in bytes.
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
        assert_eq!([ends.taken().await, ends.taken().await, ends.taken().await], [Some(3), Some(3), Some(4)]);
    }

    #[tokio::test]
    async fn what_a_new_api_server_sends_on_top_of_a_full_window_arrives() {
        let mut ends = ends(Readers::Here, 8);
        let mut stream = ends.stream();
        // No rank reads input now. The second API server has no record of the first one's pieces.
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
        let unread = InputEnd::Unread { unread: 16, max: 16 };
        assert_eq!(ends.input.push(Bytes::from_static(b"more")), Err(unread));
        assert_eq!(stream.recv().await.unwrap(), "0123456789abcdef");
        assert_eq!(ends.taken().await, Some(16));
        assert_eq!(stream.recv().await, None);
        ends.push("late");
        assert_eq!([ends.taken().await, ends.taken().await], [Some(4), Some(4)], "other nodes wait for the credit");
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

    fn piece(offset: u64, bytes: &'static str, is_last: bool) -> InputPiece {
        let nodes = NodeSelection::of([0]).unwrap();
        InputPiece { offset, bytes: bytes.into(), is_last, nodes }
    }

    #[tokio::test]
    async fn numbered_pieces_come_in_any_order_and_twice_and_are_read_once() {
        let mut ends = ends(Readers::Here, 100);
        let mut stream = ends.stream();
        let mut taken = Vec::new();
        for next in [piece(3, "two", false), piece(0, "one", false), piece(2, "etw", false), piece(6, "three", true)] {
            taken.push(ends.input.push_numbered(next).unwrap());
        }
        for expected in [Some("one"), Some("two"), Some("three"), None] {
            assert_eq!(stream.recv().await.as_deref(), expected.map(str::as_bytes));
        }
        for taken in taken {
            assert_eq!(taken.await, Ok(()));
        }
        assert!(ends.input.push_numbered(piece(3, "two", false)).unwrap().await.is_err(), "nobody reads any more");
        drop(ends.input);
        assert_eq!(ends.told.recv().await.map(|_| ()), None, "who passes pieces on tells of them");
    }

    #[tokio::test]
    async fn input_that_was_lost_with_an_api_server_ends_the_input() {
        let mut ends = ends(Readers::Here, 100);
        let mut stream = ends.stream();
        drop(ends.input.push_numbered(piece(0, "one", false)).unwrap());
        let waits = ends.input.push_numbered(piece(6, "three", false)).unwrap();
        ends.push("four");
        assert!(waits.await.is_err(), "its turn never comes");
        assert!(ends.input.push_numbered(piece(0, "one", false)).is_ok(), "it is known");
        assert_eq!(ends.input.push_numbered(piece(3, "two", false)).map(|_| ()), Err(InputEnd::Gap));
        ends.push("late");
        for expected in [Some("one"), Some("four"), None] {
            assert_eq!(stream.recv().await.as_deref(), expected.map(str::as_bytes));
        }
        assert_eq!([ends.taken().await, ends.taken().await], [Some(4), Some(4)], "other nodes wait for the credit");
    }

    #[tokio::test]
    async fn pieces_whose_turn_does_not_come_are_bounded() {
        let mut ends = ends(Readers::Here, 1);
        let waits = ends.input.push_numbered(piece(1, "0123456789", false)).unwrap();
        let unread = InputEnd::Unread { unread: 10, max: 16 };
        assert_eq!(ends.input.push_numbered(piece(11, "abcdefg", false)).map(|_| ()), Err(unread));
        assert!(waits.await.is_err());
        assert_eq!(ends.stream().recv().await, None);
    }
}

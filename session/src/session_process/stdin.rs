//! Input on its way from commands to the ranks that read it.
//!
//! Commands must be read on while a rank does not read its input, so input waits here: as much as the launch lets be on its
//! way, and what exceeds that is lost. What the session has taken is reported, and makes room for more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use pmi_transport::proto::v1 as proto;
use proto::node_event::What;
use tokio::sync::mpsc;

use super::outgoing;
use crate::session_io::StdinSource;

/// The end that commands put input into.
pub(super) struct Input {
    /// `None` after the end of the input.
    pieces: Option<mpsc::UnboundedSender<Bytes>>,
    window: u64,
    /// How much was ever put in, and how much was taken out.
    received: u64,
    taken: Arc<AtomicU64>,
}

/// The two ends of a launch's input; the session's is empty where no rank of this node reads.
pub(super) fn connect(here: bool, window: u64, urgent: mpsc::Sender<proto::FromSession>) -> (Input, StdinSource) {
    let (pieces, mut waiting) = mpsc::unbounded_channel::<Bytes>();
    let taken = Arc::new(AtomicU64::new(0));
    let input = Input { pieces: Some(pieces), window, received: 0, taken: Arc::clone(&taken) };
    let (session, source) = mpsc::channel(1);
    let mut session = here.then_some(session);
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
            let event = proto::NodeEvent { what: Some(What::StdinTaken(len)) };
            if urgent.send(outgoing::event(event)).await.is_err() {
                break;
            }
        }
    });
    (input, if here { StdinSource::Stream(source) } else { StdinSource::Empty })
}

impl Input {
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

    pub(super) fn end(&mut self) {
        self.pieces = None;
    }
}

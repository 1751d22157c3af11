//! A launch on an agent's node, as far as the agent knows it.

use pmi_transport::proto::v1 as proto;

use crate::connection::ConnectionId;
use crate::time::Time;

/// A launch, and what its streams to the API server have had.
#[derive(Debug, Default)]
pub(super) struct Launch {
    /// Number of streams so far.
    pub(super) stream: u64,
    pub(super) connection: Option<ConnectionId>,
    pub(super) passes_on: bool,
    /// Events that came before the first stream.
    pub(super) early: Vec<proto::NodeEvent>,
    /// Through which event the API server may have them; `None` if an agent before knows.
    pub(super) handed: Option<u64>,
    pub(super) put: u64,
    /// Events of the agent itself, and how many of them the present stream has had.
    pub(super) own: Vec<proto::NodeEvent>,
    pub(super) own_put: usize,
    pub(super) reported: bool,
    pub(super) seems_heard: bool,
    pub(super) accepted: bool,
    /// The session has said its report, or there is none any more.
    pub(super) has_last_words: bool,
    /// The API server needs nothing more.
    pub(super) is_delivered: bool,
    pub(super) is_session_gone: bool,
    pub(super) is_lost: bool,
    pub(super) killed_at: Option<Time>,
    pub(super) dismissed_at: Option<Time>,
    pub(super) asked_again_at: Option<Time>,
    pub(super) last_words_at: Option<Time>,
}

impl Launch {
    /// A launch that begins.
    pub(super) fn begun() -> Self {
        Self { passes_on: true, handed: Some(0), seems_heard: true, ..Self::default() }
    }

    /// A launch that an agent before has had.
    pub(super) fn taken_up() -> Self {
        Self { seems_heard: true, ..Self::default() }
    }

    /// Returns true if nothing of it is left, and nobody has to be told that.
    pub(super) fn is_over(&self) -> bool {
        self.is_session_gone && self.is_delivered
    }
}

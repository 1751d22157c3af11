//! A launch on an agent's node, in the view of the agent.

use pmi_transport::proto::v1 as proto;

use crate::connection::ConnectionId;
use crate::time::Time;

/// A launch, and the progress of its streams to the API server.
#[derive(Debug, Default)]
pub(super) struct Launch {
    /// Number of streams so far.
    pub(super) stream: u64,
    pub(super) connection: Option<ConnectionId>,
    pub(super) passes_on: bool,
    /// Events that arrived before the first stream.
    pub(super) early: Vec<proto::NodeEvent>,
    /// Number of the last event that the API server may have; `None` if only an earlier agent has this number.
    pub(super) handed: Option<u64>,
    pub(super) put: u64,
    /// Events of the agent itself, and how many of them were sent on the present stream.
    pub(super) own: Vec<proto::NodeEvent>,
    pub(super) own_put: usize,
    pub(super) reported: bool,
    pub(super) seems_heard: bool,
    pub(super) accepted: bool,
    /// The session has sent its report, or will never send one.
    pub(super) has_last_words: bool,
    /// The API server needs no more events.
    pub(super) is_delivered: bool,
    pub(super) is_session_gone: bool,
    pub(super) is_lost: bool,
    pub(super) killed_at: Option<Time>,
    pub(super) dismissed_at: Option<Time>,
    pub(super) asked_again_at: Option<Time>,
    pub(super) last_words_at: Option<Time>,
}

impl Launch {
    /// Creates the state of a launch that begins.
    pub(super) fn begun() -> Self {
        Self { passes_on: true, handed: Some(0), seems_heard: true, ..Self::default() }
    }

    /// Creates the state of a launch of an earlier agent.
    pub(super) fn taken_up() -> Self {
        Self { seems_heard: true, ..Self::default() }
    }

    /// Returns true if the session is gone, and the API server needs no more events.
    pub(super) fn is_over(&self) -> bool {
        self.is_session_gone && self.is_delivered
    }
}

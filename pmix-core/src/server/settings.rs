//! Settings of a server.

use std::time::Duration;

use pmi_core::fence::Exchange;

/// Settings of a [`Server`](super::Server).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of keys and values that are stored of one rank's commits and published names; each pair counts 64 bytes more.
    pub bytes_per_rank: usize,
    /// Maximum number of unanswered questions of one rank (waiting reads, names, spawns).
    pub questions_per_rank: usize,
    /// Maximum number of bytes of texts from ranks that the host has not forwarded yet; each text counts 64 bytes more. A rank that
    /// writes more receives an error. Must not be below the longest message (16 MiB), because a longer text would never fit.
    pub texts_max: usize,
    /// Time that a get waits for a key that a rank has not committed, if the rank has committed other keys.
    pub key_timeout: Duration,
    /// Time that a get waits for a rank that has not committed anything.
    pub rank_timeout: Duration,
    /// Distribution of the data of collecting fences: to all nodes at once, on request, or the cheaper of both.
    pub exchange: Exchange,
    /// Report every message as an [`Action::Trace`](super::Action::Trace).
    pub trace: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            bytes_per_rank: 64 * 1024 * 1024,
            questions_per_rank: 1024,
            texts_max: 32 * 1024 * 1024,
            key_timeout: Duration::from_secs(2),
            rank_timeout: Duration::from_secs(120),
            exchange: Exchange::Auto,
            trace: false,
        }
    }
}

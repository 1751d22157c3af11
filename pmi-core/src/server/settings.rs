//! Settings of a server.

use serde::{Deserialize, Serialize};

use crate::conversation::Offer;

/// Settings of a [`Server`](super::Server).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The protocol versions to serve.
    pub offer: Offer,
    /// Bytes of keys and values that one rank may put during the job; each pair counts 64 bytes more.
    pub bytes_per_rank: usize,
    /// Maximum number of unanswered questions of one rank (waiting reads, names, spawns).
    pub questions_per_rank: usize,
    /// Report every message as an [`Action::Trace`](super::Action::Trace).
    pub trace: bool,
    /// Let ranks register resources. The host must answer [`Call::Resource`](crate::services::Call::Resource), run the timers of
    /// [`Action::SetTimer`](super::Action::SetTimer), and remove the resources that a rank leaves.
    pub resources: bool,
    /// Meaning of a repeated `init` of a rank.
    pub restarts: Restarts,
}

/// Meaning of a repeated `init` of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Restarts {
    /// The rank continues: it opens another MPI session, or runs its next program after `finalize`. A rank that connected with its key
    /// cannot return if its connection ended before `finalize`.
    #[default]
    Unexpected,
    /// All ranks restart; each waits in its `init` for all other ranks. Pairs stay until they are put again.
    Keep,
    /// All ranks restart, with the initial pairs of the job.
    Fresh,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            offer: Offer::default(),
            bytes_per_rank: 16 * 1024 * 1024,
            questions_per_rank: 64,
            trace: false,
            resources: false,
            restarts: Restarts::default(),
        }
    }
}

//! Reports of a server to its host about ranks: their progress, their fences, and the reason why the job must end.
//!
//! The terms are the same for every protocol; a host does not need to know the protocol of a rank.

use std::sync::Arc;

use bytes::Bytes;

use crate::fence::FenceError;
use crate::gathering::Gathering;
use crate::ids::{Epoch, LocalRank, Rank};
use crate::wire::frame::FrameError;
use crate::wire::request::{NoCommand, Version};

/// Phase of a rank's dialogue with its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Phase {
    /// The rank has sent nothing.
    #[default]
    Silent,
    /// The rank has sent a message, and has not finalized.
    Open,
    /// The rank has sent `finalize`; no further message is expected.
    Finalized,
}

/// Point that a rank's dialogue with its server has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DialoguePoint {
    /// Phase of the dialogue.
    pub phase: Phase,
    /// Number of complete fences of all ranks of its job. A rank that ends after this number is missing in none of these fences, even if
    /// ranks of other nodes still wait: the result is in transit to them.
    pub fences: u64,
}

/// State of a rank's dialogue, for the host's reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The rank.
    pub rank: Rank,
    /// Phase of its dialogue.
    pub phase: Phase,
    /// The last command of the rank, as sent; shortened if it is longer than any real command.
    pub last_command: Option<String>,
    /// Number of complete fences of all ranks of its job.
    pub fences: u64,
}

impl Progress {
    /// Returns the point that the dialogue has reached.
    pub fn reached(&self) -> DialoguePoint {
        DialoguePoint { phase: self.phase, fences: self.fences }
    }

    /// Returns true if the rank has begun to initialize its library, and has not left a fence with all other ranks: in MPI it is in
    /// `MPI_Init`.
    pub fn is_in_init(&self) -> bool {
        self.phase == Phase::Open && self.fences == 0
    }
}

/// A fence in which ranks of this node wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceStatus {
    /// Name that identifies this fence in the job, together with `epoch`.
    pub name: Arc<str>,
    /// Number of earlier fences of that name.
    pub epoch: Epoch,
    /// True if every rank of the job takes part.
    pub whole_job: bool,
    /// True during the start of the job, or of its restarted ranks: no fence of the whole job is complete, so ranks are in `MPI_Init`.
    pub at_start: bool,
    /// Ranks of this node that wait.
    pub waiting: Vec<LocalRank>,
    /// Missing ranks of this node. If there are none, ranks of other nodes are missing, or the result is in transit.
    pub missing: Vec<LocalRank>,
}

impl FenceStatus {
    /// Returns the status of a gathering; `None` when no rank waits in it. Dispensable ranks are not missing.
    pub(crate) fn of<W>(
        name: &Arc<str>,
        (whole_job, at_start): (bool, bool),
        gathering: &Gathering<LocalRank, W>,
        is_dispensable: impl Fn(LocalRank) -> bool,
    ) -> Option<Self> {
        let (epoch, mut waiting, mut missing) = gathering.status()?;
        waiting.retain(|&local| !is_dispensable(local));
        missing.retain(|&local| !is_dispensable(local));
        Some(Self { name: Arc::clone(name), epoch, whole_job, at_start, waiting, missing })
    }
}

/// Reason why a job must end.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum EndReason {
    /// A rank requested it.
    Abort {
        /// The rank that aborts.
        rank: Rank,
        /// Exit code of the request; some clients send none.
        code: Option<i32>,
        /// True if the request is for the whole job; else only the rank leaves.
        whole_job: bool,
        /// Text of the request, possibly empty.
        message: String,
    },
    /// A rank broke its protocol.
    Offence {
        /// The rank.
        rank: Rank,
        /// The violation.
        offence: Offence,
    },
    /// A rank uses a version that is not offered. It has received an error, and cannot continue.
    NotOffered {
        /// The rank.
        rank: Rank,
        /// The requested version.
        version: Version,
    },
    /// A rank's process ended with status 0, but the rank had not finalized.
    LeftWithoutFinalize {
        /// The rank.
        rank: Rank,
    },
    /// A rank's process ended with status 0 without a message, while other ranks wait for it in `MPI_Init`.
    LeftBeforeInit {
        /// The rank.
        rank: Rank,
        /// Ranks that have sent a message.
        others: Vec<Rank>,
    },
    /// A rank can send nothing more, while other ranks wait for it in a fence, a group's fence or a ring.
    LeftFence {
        /// The rank.
        rank: Rank,
        /// Ranks that wait.
        waiting: Vec<Rank>,
    },
    /// A fence failed.
    Fence(Arc<FenceError>),
    /// The server, or a fence or service of its host, panicked. Ranks may wait indefinitely.
    Panicked {
        /// Text of the panic.
        text: String,
    },
}

/// A byte stream or message that breaks the protocol.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Offence {
    /// The stream cannot be split into messages.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A message has no command.
    #[error(transparent)]
    NoCommand(#[from] NoCommand),
    /// A server of another protocol cannot decode its input.
    #[error("{protocol}: {error}")]
    Foreign {
        /// Name of the protocol.
        protocol: &'static str,
        /// The decoder's error.
        error: Arc<dyn std::error::Error + Send + Sync>,
    },
}

/// One message in transit, for a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Rank of the connection; `None` before it is claimed.
    pub rank: Option<Rank>,
    /// Sender of the message.
    pub sender: Sender,
    /// The exact bytes, with their framing.
    pub bytes: Bytes,
}

/// Sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The rank.
    Client,
    /// The server.
    Server,
}

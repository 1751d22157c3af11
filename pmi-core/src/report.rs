//! Reports of a server to its host about ranks: how far they have come, which fences they wait in, why the job must end.
//!
//! The words are the same for every protocol; hosts need not know which one a rank speaks.

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
    /// The rank spoke, and has not finalized.
    Open,
    /// The rank said `finalize`; nothing more is expected of it.
    Finalized,
}

/// Point that a rank's dialogue with its server has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DialoguePoint {
    /// Phase of the dialogue.
    pub phase: Phase,
    /// Number of fences of all ranks of its job that are over. A rank that ended after so many is missed in none of those before, whatever
    /// ranks of other nodes wait for still: the result is on its way to them.
    pub fences: u64,
}

/// State of a rank's dialogue, for the host's reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The rank.
    pub rank: Rank,
    /// Phase of its dialogue.
    pub phase: Phase,
    /// The last command it sent, as written; shortened if it is longer than any real one.
    pub last_command: Option<String>,
    /// Number of fences of all ranks of its job that are over.
    pub fences: u64,
}

impl Progress {
    /// Returns the point that the dialogue has reached.
    pub fn reached(&self) -> DialoguePoint {
        DialoguePoint { phase: self.phase, fences: self.fences }
    }

    /// Returns true if the rank has begun to set up its library, and has not left a fence with all others: in MPI it is in `MPI_Init`.
    pub fn is_in_init(&self) -> bool {
        self.phase == Phase::Open && self.fences == 0
    }
}

/// A fence in which ranks of this node wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceStatus {
    /// Name that tells this fence from all others of the job, together with `epoch`.
    pub name: Arc<str>,
    /// Number of fences of that name that came before.
    pub epoch: Epoch,
    /// True if every rank of the job takes part.
    pub whole_job: bool,
    /// True in the start-up of the job, or of its ranks that begin again: no fence of the whole job is over, so that ranks are in `MPI_Init`.
    pub at_start: bool,
    /// Ranks of this node that wait.
    pub waiting: Vec<LocalRank>,
    /// Ranks of this node that they wait for. When there are none, ranks of other nodes are missing, or the result is on its way.
    pub missing: Vec<LocalRank>,
}

impl FenceStatus {
    /// Returns the status of a gathering; `None` when no rank waits in it. Those that can be done without are not missing.
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

/// Reason for which a server says that its job must end.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum EndReason {
    /// A rank asked for it.
    Abort {
        /// The rank that aborts.
        rank: Rank,
        /// Exit code that it gave; some clients give none.
        code: Option<i32>,
        /// True if it asked for the whole job to end; else the rank alone wants to leave.
        whole_job: bool,
        /// Text that it gave, perhaps empty.
        message: String,
    },
    /// A rank broke its protocol.
    Offence {
        /// The rank.
        rank: Rank,
        /// The violation.
        offence: Offence,
    },
    /// A rank speaks a version that is not offered; it was told so, and cannot go on.
    NotOffered {
        /// The rank.
        rank: Rank,
        /// The version it asked for.
        version: Version,
    },
    /// A rank's process ended with status 0, but the rank had not finalized.
    LeftWithoutFinalize {
        /// The rank.
        rank: Rank,
    },
    /// A rank's process ended with status 0 without a word, while others are in `MPI_Init` and wait for it.
    LeftBeforeInit {
        /// The rank.
        rank: Rank,
        /// Ranks that spoke.
        others: Vec<Rank>,
    },
    /// A rank is through with PMI, while others wait for it in a fence, a group's fence or a ring.
    LeftFence {
        /// The rank.
        rank: Rank,
        /// Ranks that wait.
        waiting: Vec<Rank>,
    },
    /// A fence failed.
    Fence(Arc<FenceError>),
    /// The server, or a fence or service of its host, panicked: what ranks wait for may never come.
    Panicked {
        /// Text of the panic.
        text: String,
    },
}

/// A byte stream or message that breaks the protocol.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Offence {
    /// The stream cannot be cut into messages.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A message says nothing.
    #[error(transparent)]
    NoCommand(#[from] NoCommand),
    /// A server of another protocol cannot read what it got.
    #[error("{protocol}: {error}")]
    Foreign {
        /// Name of the protocol.
        protocol: &'static str,
        /// The decoder's error.
        error: Arc<dyn std::error::Error + Send + Sync>,
    },
}

/// One message on its way, for a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Rank of the connection; `None` before it is claimed.
    pub rank: Option<Rank>,
    /// Sender of the message.
    pub sender: Sender,
    /// The exact bytes, with their framing.
    pub bytes: Bytes,
}

/// Side that sent a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The rank.
    Client,
    /// The server.
    Server,
}

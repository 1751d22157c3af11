//! What a server wants done, and why it says that its job must end.

use std::sync::Arc;

use bytes::Bytes;

use super::{ConnectionId, Ticket};
use crate::fence::{Contribution, FenceError, FenceId};
use crate::ids::Rank;
use crate::services::Call;
use crate::wire::frame::FrameError;
use crate::wire::request::{NoCommand, Version};

/// Something that a server wants done.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Action {
    /// Send these bytes, after those sent before on the same connection.
    Send {
        /// Where to.
        connection: ConnectionId,
        /// What.
        bytes: Bytes,
    },
    /// Read nothing more from this connection, send what is queued for it, and close it.
    Close {
        /// Which one.
        connection: ConnectionId,
    },
    /// Bring this contribution to the fence and hand its result to [`Server::handle_fence`](super::Server::handle_fence).
    Fence {
        /// Which fence.
        id: FenceId,
        /// What this node brings.
        contribution: Contribution,
    },
    /// Ask the host, and hand its answer to [`Server::handle_answer`](super::Server::handle_answer).
    Call {
        /// Names the question.
        ticket: Ticket,
        /// Who asks.
        rank: Rank,
        /// What is asked.
        call: Call,
    },
    /// The job must end, for this reason; reported once. The server ignores everything that comes after it.
    End(EndReason),
    /// A message was received or sent; only with [`Settings::trace`](super::Settings::trace).
    Trace(Trace),
}

/// Why a server says that its job must end.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum EndReason {
    /// A rank asked for it.
    Abort {
        /// Which rank.
        rank: Rank,
        /// The code it gave; some clients give none.
        code: Option<i32>,
        /// Whether it asked for the whole job to end; else the rank alone wants to leave.
        whole_job: bool,
        /// The text it gave, perhaps empty.
        message: String,
    },
    /// A rank sent something that is not PMI.
    Offence {
        /// Which rank.
        rank: Rank,
        /// What it sent.
        offence: Offence,
    },
    /// A rank speaks a version that is not offered; it was told so, and cannot go on.
    NotOffered {
        /// Which rank.
        rank: Rank,
        /// The version it asked for.
        version: Version,
    },
    /// A rank's process ended in good order, but the rank had not finalized.
    LeftWithoutFinalize {
        /// Which rank.
        rank: Rank,
    },
    /// A rank's process ended in good order without a word, while others are in `MPI_Init` and wait for it.
    LeftBeforeInit {
        /// Which rank.
        rank: Rank,
        /// The ranks that spoke.
        others: Vec<Rank>,
    },
    /// A rank is through with PMI, while others wait for it in a fence, a group's fence or a ring.
    LeftFence {
        /// Which rank.
        rank: Rank,
        /// The ranks that wait.
        waiting: Vec<Rank>,
    },
    /// A fence failed.
    Fence(Arc<FenceError>),
}

/// A byte stream or message that is not PMI.
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
        /// The protocol.
        protocol: &'static str,
        /// What is wrong.
        error: Arc<dyn std::error::Error + Send + Sync>,
    },
}

/// One message on its way, for a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Whose connection; `None` before it is claimed.
    pub rank: Option<Rank>,
    /// Whether the client sent it; else the server did.
    pub from_client: bool,
    /// The exact bytes, with their framing.
    pub bytes: Bytes,
}

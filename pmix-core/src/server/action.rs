//! What a server wants done.

use std::time::Duration;

use bytes::Bytes;
use pmi_core::fence::{Contribution, FenceId};
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::server::{ConnectionId, EndReason, Trace};

use super::Ticket;
use crate::namespace::JobIndex;
use crate::services::Call;

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
        /// The job whose nodes take part; where there are several, one of them, the same on all nodes.
        job: JobIndex,
        /// Which fence.
        id: FenceId,
        /// What this node brings.
        contribution: Contribution,
    },
    /// Ask the host, and hand its answer to [`Server::handle_answer`](super::Server::handle_answer).
    Call {
        /// Names the question.
        ticket: Ticket,
        /// Whose job.
        job: JobIndex,
        /// Who asks.
        rank: Rank,
        /// What is asked.
        call: Call,
    },
    /// Ask the PMIx server of another node, and hand what its [`Server::handle_question`](super::Server::handle_question) leads
    /// to to [`Server::handle_peer_answer`](super::Server::handle_peer_answer).
    Ask {
        /// Names the question.
        ticket: Ticket,
        /// Which node.
        node: NodeIndex,
        /// The question.
        question: Bytes,
    },
    /// The answer to a question of another node.
    Reply {
        /// What [`Server::handle_question`](super::Server::handle_question) returned.
        ticket: Ticket,
        /// The answer.
        answer: Bytes,
    },
    /// Call [`Server::handle_time`](super::Server::handle_time) after this time.
    Wake {
        /// Names the reason.
        ticket: Ticket,
        /// How long to wait.
        after: Duration,
    },
    /// A rank has something to say on a stream of its own.
    Say {
        /// Whose job.
        job: JobIndex,
        /// Which rank.
        rank: Rank,
        /// On its standard error; else on its standard output.
        on_stderr: bool,
        /// The text.
        text: Bytes,
    },
    /// The launch must end, for this reason; reported once. The server ignores everything that comes after it.
    End {
        /// The job that ends it.
        job: JobIndex,
        /// Why.
        reason: EndReason,
    },
    /// A message was received or sent; only with [`Settings::trace`](super::Settings::trace).
    Trace(Trace),
}

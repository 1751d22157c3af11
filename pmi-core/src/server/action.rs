//! Actions: the output of a server, for its driver.

use std::time::Duration;

use bytes::Bytes;

use crate::connections::ConnectionId;
use crate::deaths::Death;
use crate::fence::{Contribution, FenceId};
use crate::ids::{LocalRank, Rank};
use crate::report::{EndReason, Trace};
use crate::resources::Resource;
use crate::segment::Segment;
use crate::services::Call;

/// Identifier of a [`Call`] until its answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket(pub(super) u64);

/// Identifier of the deadline of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReleaseTimer {
    pub(super) local: LocalRank,
    pub(super) number: u64,
}

/// An action that a server requests.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Action {
    /// Send these bytes, after all earlier bytes on the same connection.
    Send {
        /// Connection to write to.
        connection: ConnectionId,
        /// Bytes to write.
        bytes: Bytes,
    },
    /// Find the process that sends next on this connection. Call [`Server::handle_second_sender`](super::Server::handle_second_sender) if
    /// it is not the first sender, and the first sender still runs. A driver without this ability ignores the action.
    AskForSender {
        /// The connection.
        connection: ConnectionId,
    },
    /// A second process sends messages as a rank that has not finalized, over the rank's connection or another one. Reported once for
    /// each rank.
    SecondProcess {
        /// The rank.
        rank: Rank,
        /// Id of the second process, if it is known.
        pid: Option<u32>,
    },
    /// Read nothing more from this connection, send its queued bytes, and close it.
    Close {
        /// Connection to close.
        connection: ConnectionId,
    },
    /// Handle at once the messages that this connection has sent so far, and its end, if it has ended: another connection claims the same
    /// rank.
    ReadOut {
        /// Connection to read.
        connection: ConnectionId,
    },
    /// Contribute to the fence, and pass its result to [`Server::handle_fence`](super::Server::handle_fence).
    Fence {
        /// The fence, the same on every node.
        id: FenceId,
        /// Pairs of this node.
        contribution: Contribution,
    },
    /// A fence has returned these pairs, and the waiting ranks have no answer yet; only after
    /// [`Server::report_merged`](super::Server::report_merged). Later reads of a key return [`Server::value`](super::Server::value),
    /// which may be newer.
    Merged {
        /// Number of complete fences of the whole job.
        fences: u64,
        /// Pairs of all nodes; of two pairs with one key, the later one applies.
        segments: Vec<Segment>,
    },
    /// All ranks of the job have restarted, and receive their answers next. Programs of the earlier generation use nothing on this node
    /// any more.
    Restarted {
        /// Number of restarts.
        generation: u32,
    },
    /// Pass the question to the host, and its answer to [`Server::handle_answer`](super::Server::handle_answer).
    Call {
        /// Identifier of the question.
        ticket: Ticket,
        /// Rank that sent the question.
        rank: Rank,
        /// The question.
        call: Call,
    },
    /// Call [`Server::handle_timer`](super::Server::handle_timer) after this time, unless the timer is cancelled before.
    SetTimer {
        /// Name of the deadline.
        timer: ReleaseTimer,
        /// Time until it expires.
        after: Duration,
    },
    /// Cancel a deadline.
    CancelTimer(ReleaseTimer),
    /// A rank has begun to release a resource, and has not finished within its own time limit. Reported once for each release.
    Overdue {
        /// The rank.
        rank: Rank,
        /// The resource.
        resource: Resource,
        /// The time limit.
        within: Duration,
    },
    /// A rank of this node has died, and the other ranks continue without it. The host must notify the servers of other nodes with
    /// [`Server::handle_deaths`](super::Server::handle_deaths). Reported once for each rank.
    Died(Death),
    /// The job must end, for this reason; reported once. The server ignores all later input.
    End(EndReason),
    /// A message was received or sent; only with [`Settings::trace`](super::Settings::trace).
    Trace(Trace),
}

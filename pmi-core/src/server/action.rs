//! Actions: the output of a server, carried out by whoever drives it.

use std::time::Duration;

use bytes::Bytes;

use super::Ticket;
use crate::connections::ConnectionId;
use crate::deaths::Death;
use crate::fence::{Contribution, FenceId};
use crate::ids::{LocalRank, Rank};
use crate::report::{EndReason, Trace};
use crate::resources::Resource;
use crate::segment::Segment;
use crate::services::Call;

/// Names the deadline of a release that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReleaseTimer {
    pub(super) local: LocalRank,
    pub(super) number: u64,
}

/// Something that a server wants done.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Action {
    /// Send these bytes, after those sent before on the same connection.
    Send {
        /// Connection to write to.
        connection: ConnectionId,
        /// Bytes to write.
        bytes: Bytes,
    },
    /// Find the process that sends next on this connection, and call [`Server::handle_second_sender`](super::Server::handle_second_sender)
    /// if it is not the process that sent first, and that one still runs. A driver that cannot ignores it.
    AskForSender {
        /// The connection.
        connection: ConnectionId,
    },
    /// A second process speaks as a rank that has not finalized, over the rank's connection or one of its own. Reported once for each rank.
    SecondProcess {
        /// The rank.
        rank: Rank,
        /// Id of the second process, if it is known.
        pid: Option<u32>,
    },
    /// Read nothing more from this connection, send what is queued for it, and close it.
    Close {
        /// Connection to close.
        connection: ConnectionId,
    },
    /// Handle at once what this connection has sent so far, and its end, if it has ended: another one claims the same rank.
    ReadOut {
        /// Connection to read.
        connection: ConnectionId,
    },
    /// Bring this contribution to the fence and hand its result to [`Server::handle_fence`](super::Server::handle_fence).
    Fence {
        /// The fence, the same on every node.
        id: FenceId,
        /// Pairs that this node brings.
        contribution: Contribution,
    },
    /// A fence has brought these pairs, the ranks that wait for it are not told yet; only after
    /// [`Server::report_merged`](super::Server::report_merged). The value of each key that is read from now on is that of
    /// [`Server::value`](super::Server::value), which may be newer.
    Merged {
        /// Number of fences of the whole job that are complete.
        fences: u64,
        /// Pairs of all nodes, in the order in which they count.
        segments: Vec<Segment>,
    },
    /// All ranks of the job have begun again, and are told so next: nothing of their programs before uses anything of this node any more.
    Restarted {
        /// Number of times that they have.
        generation: u32,
    },
    /// Ask the host, and hand its answer to [`Server::handle_answer`](super::Server::handle_answer).
    Call {
        /// Name of the question.
        ticket: Ticket,
        /// Rank that asks.
        rank: Rank,
        /// The question.
        call: Call,
    },
    /// Call [`Server::handle_timer`](super::Server::handle_timer) after this time, unless it is cancelled before.
    SetTimer {
        /// Name of the deadline.
        timer: ReleaseTimer,
        /// Time until it is over.
        after: Duration,
    },
    /// Forget a deadline.
    CancelTimer(ReleaseTimer),
    /// A rank has begun to release a resource, and has not ended that within the time that it gave itself. Told once for each release.
    Overdue {
        /// The rank.
        rank: Rank,
        /// What it was to release.
        resource: Resource,
        /// The time that it gave itself.
        within: Duration,
    },
    /// A rank of this node has died, and the others go on without it: the servers of other nodes are to be told by
    /// [`Server::handle_deaths`](super::Server::handle_deaths). Reported once for each rank.
    Died(Death),
    /// The job must end, for this reason; reported once. The server ignores everything that comes after it.
    End(EndReason),
    /// A message was received or sent; only with [`Settings::trace`](super::Settings::trace).
    Trace(Trace),
}

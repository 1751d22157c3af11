//! Actions: the output of a server, for its driver.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use pmi_core::connections::ConnectionId;
use pmi_core::deaths::Death;
use pmi_core::fence::{Contribution, FenceId};
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::report::{EndReason, Trace};

use crate::namespace::JobIndex;
use crate::services::Call;

/// Identifier of a question, or of an [`Action::SetTimer`], until its answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub(super) u64);

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
    /// The same, and call [`Server::handle_sent`](super::Server::handle_sent) after the connection has taken all bytes so far. No other
    /// action of this kind for the connection comes before that call.
    SendAndTell {
        /// Connection to write to.
        connection: ConnectionId,
        /// Bytes to write.
        bytes: Bytes,
    },
    /// Reports whether a client or node requests output of ranks here. Only then must the host call
    /// [`Server::handle_output`](super::Server::handle_output). Reported at each change; initially false.
    Pulled(bool),
    /// Read nothing more from this connection, send its queued bytes, and close it.
    Close {
        /// Connection to close.
        connection: ConnectionId,
    },
    /// Contribute to the fence, and pass its result to [`Server::handle_fence`](super::Server::handle_fence).
    Fence {
        /// The job with the participating nodes; of several jobs, one of them, the same on all nodes.
        job: JobIndex,
        /// The fence, the same on every node.
        id: FenceId,
        /// Data of this node.
        contribution: Contribution,
    },
    /// Pass the question to the host, and its answer to [`Server::handle_answer`](super::Server::handle_answer).
    Call {
        /// Identifier of the question.
        ticket: Ticket,
        /// Job of the question: the job of the rank, except for process queries and signals.
        job: JobIndex,
        /// Rank that sent the question.
        rank: Rank,
        /// The question.
        call: Call,
    },
    /// Send the question to the PMIx server of another node, to [`Server::handle_question`](super::Server::handle_question). Pass the
    /// answer to [`Server::handle_peer_answer`](super::Server::handle_peer_answer).
    Ask {
        /// Identifier of the question.
        ticket: Ticket,
        /// The node.
        node: NodeIndex,
        /// The question.
        question: Bytes,
    },
    /// The answer to a question of another node.
    Reply {
        /// The ticket that [`Server::handle_question`](super::Server::handle_question) returned.
        ticket: Ticket,
        /// The answer.
        answer: Bytes,
    },
    /// Call [`Server::handle_timer`](super::Server::handle_timer) after this time, unless the timer is cancelled before.
    SetTimer {
        /// Identifier of the timer.
        ticket: Ticket,
        /// Time until it expires.
        after: Duration,
    },
    /// Cancel a timer. Not an error if it has already expired.
    CancelTimer {
        /// Identifier of the timer.
        ticket: Ticket,
    },
    /// A rank writes text to one of its streams. Call [`Server::handle_heard`](super::Server::handle_heard) after the text is forwarded.
    Say {
        /// Job of the rank.
        job: JobIndex,
        /// The rank.
        rank: Rank,
        /// True for its standard error; else its standard output.
        on_stderr: bool,
        /// The text.
        text: Bytes,
    },
    /// Reports how long servers of other nodes may request data from this one, even without remaining ranks. The host must keep it for
    /// that time, unless the launch ends abnormally. Reported at each change; initially [`Need::Over`].
    Needed(Need),
    /// A rank of this node has died, and the other ranks continue without it. The host must notify the servers of other nodes with
    /// [`Server::handle_deaths`](super::Server::handle_deaths). Reported once for each rank.
    Died {
        /// Job of the rank.
        job: JobIndex,
        /// The rank, and its end.
        death: Death,
    },
    /// A second process claims a rank that has not finalized, and is refused. Reported once for each rank.
    SecondProcess {
        /// Job of the rank.
        job: JobIndex,
        /// The rank.
        rank: Rank,
    },
    /// A rank has registered files to remove at its end ([`Server::take_clean_up`](super::Server::take_clean_up)). A host can then have
    /// them removed even if it is killed itself.
    Registered {
        /// The files.
        files: Vec<PathBuf>,
    },
    /// The launch must end, for this reason; reported once. The server ignores all later input.
    End {
        /// The job that causes it.
        job: JobIndex,
        /// Reason for the end.
        reason: EndReason,
    },
    /// A message was received or sent; only with [`Settings::trace`](super::Settings::trace).
    Trace(Trace),
}

/// Time for which servers of other nodes may request data from this one, even without remaining ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Need {
    /// No server sends further requests.
    #[default]
    Over,
    /// Until the server reports [`Need::Over`]: the nodes notify each other when their ranks have ended.
    UntilTold,
    /// As long as a rank of the launch runs on any node; the host must track that. The server reports no later change.
    WhileRanksRun,
}

//! Actions: the output of a server, carried out by whoever drives it.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use pmi_core::connections::ConnectionId;
use pmi_core::deaths::Death;
use pmi_core::fence::{Contribution, FenceId};
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::report::{EndReason, Trace};

use super::Ticket;
use crate::namespace::JobIndex;
use crate::services::Call;

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
    /// The same, and call [`Server::handle_sent`](super::Server::handle_sent) once the connection has taken all bytes so far: nothing else
    /// of this kind is sent to it before.
    SendAndTell {
        /// Connection to write to.
        connection: ConnectionId,
        /// Bytes to write.
        bytes: Bytes,
    },
    /// Whether somebody wants output of ranks here: only then the host need call
    /// [`Server::handle_output`](super::Server::handle_output). Said when it changes; in the beginning nobody does.
    Pulled(bool),
    /// Read nothing more from this connection, send what is queued for it, and close it.
    Close {
        /// Connection to close.
        connection: ConnectionId,
    },
    /// Bring this contribution to the fence and hand its result to [`Server::handle_fence`](super::Server::handle_fence).
    Fence {
        /// The job whose nodes take part; where there are several, one of them, the same on all nodes.
        job: JobIndex,
        /// The fence, the same on every node.
        id: FenceId,
        /// Data that this node brings.
        contribution: Contribution,
    },
    /// Ask the host, and hand its answer to [`Server::handle_answer`](super::Server::handle_answer).
    Call {
        /// Name of the question.
        ticket: Ticket,
        /// Job that is asked about: that of the rank, but in looks and signals.
        job: JobIndex,
        /// Rank that asks.
        rank: Rank,
        /// The question.
        call: Call,
    },
    /// Ask the PMIx server of another node, and hand what its [`Server::handle_question`](super::Server::handle_question) leads
    /// to to [`Server::handle_peer_answer`](super::Server::handle_peer_answer).
    Ask {
        /// Name of the question.
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
        /// Name of the timer.
        ticket: Ticket,
        /// Time until it runs out.
        after: Duration,
    },
    /// Forget a timer: what it was for is over. Not an error if it has run out meanwhile.
    CancelTimer {
        /// Name of the timer.
        ticket: Ticket,
    },
    /// A rank has something to say on a stream of its own. Call [`Server::handle_heard`](super::Server::handle_heard) once that is passed on.
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
    /// How long servers of other nodes may ask this one for data, whether or not it has ranks left: the host is to keep it meanwhile,
    /// unless the launch ends in disorder. Said when it changes; in the beginning it is [`Need::Over`].
    Needed(Need),
    /// A rank of this node has died, and the others go on without it: the servers of other nodes are to be told by
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
    /// A rank has registered files for when it ends ([`Server::take_clean_up`](super::Server::take_clean_up)): a host can have them removed as
    /// well if it is killed itself.
    Registered {
        /// The files.
        files: Vec<PathBuf>,
    },
    /// The launch must end, for this reason; reported once. The server ignores everything that comes after it.
    End {
        /// The job that ends it.
        job: JobIndex,
        /// Reason for the end.
        reason: EndReason,
    },
    /// A message was received or sent; only with [`Settings::trace`](super::Settings::trace).
    Trace(Trace),
}

/// How long servers of other nodes may ask this one for data, whether or not it has ranks left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Need {
    /// Nobody will ask.
    #[default]
    Over,
    /// Until the server says that it is over: the nodes tell each other when their ranks have ended.
    UntilTold,
    /// As long as a rank of the launch runs on any node, of which the host must know. The server says nothing else any more.
    WhileRanksRun,
}

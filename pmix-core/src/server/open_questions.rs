//! Questions of a server without an answer so far: to the host, and to servers of other nodes.

use std::time::Duration;

use bytes::Bytes;
use pmi_core::fence::FenceId;
use pmi_core::ids::{NodeIndex, Rank};

use super::action::Ticket;
use super::client::Address;
use crate::namespace::JobIndex;

/// Receiver of the host's answer.
#[derive(Clone, Debug)]
pub(super) enum AnswerReceiver {
    /// A rank, and the number of questions that its question counts for.
    Rank { address: Address, questions: usize },
    /// The ranks of a collective with other launches.
    Meeting(FenceId),
    /// A query of a rank about processes of a job here.
    Look { inquiry: Ticket, job: JobIndex },
    /// A rank that sends a signal to other ranks.
    Signal { inquiry: Ticket },
    /// A server of another node that requests the processes of a job here.
    PeerLook { ticket: Ticket, job: JobIndex },
    /// A server of another node that requests a signal to ranks here.
    PeerSignal { ticket: Ticket },
}

/// A question to another node's server.
#[derive(Clone, Debug)]
pub(super) enum OpenQuestion {
    /// The value of a waiting get.
    Value(AwaitedValue),
    /// Current data of a rank.
    Refresh(Refresh),
    /// The data of a node that a fence has left there.
    Withheld { job: JobIndex, node: NodeIndex },
    /// A spread, or the wish for one; the answer is ignored.
    Spread,
    /// Processes for a query of a rank.
    Look { inquiry: Ticket, job: JobIndex, node: NodeIndex },
    /// A signal from a rank to other ranks.
    Signal { inquiry: Ticket },
    /// Output of ranks for clients here.
    Output { node: NodeIndex },
}

/// A question to another node's server, and the number of fences that had ended here when it was sent.
#[derive(Clone, Debug)]
pub(super) struct PeerQuestion {
    pub(super) asking: OpenQuestion,
    pub(super) node: NodeIndex,
    pub(super) question: Bytes,
    pub(super) fences_ended: u64,
}

impl OpenQuestion {
    /// Returns true if the answer holds data that fences also distribute.
    pub(super) fn brings_data(&self) -> bool {
        matches!(self, Self::Value(_) | Self::Refresh(_) | Self::Withheld { .. })
    }
}

/// Request of a get.
#[derive(Clone, Debug)]
pub(super) struct Get {
    pub(super) job: JobIndex,
    pub(super) rank: Rank,
    /// Without a key, any data that the rank has committed.
    pub(super) key: Option<Bytes>,
    /// True if the client does not wait for a later commit.
    pub(super) immediate: bool,
    /// Timeout of the client.
    pub(super) timeout: Option<Duration>,
}

/// Value that a get waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct AwaitedValue {
    pub(super) job: JobIndex,
    pub(super) rank: Rank,
    /// Without a key, any data that the rank has committed.
    pub(super) key: Option<Bytes>,
    /// Timeout of the client.
    pub(super) timeout: Option<Duration>,
}

/// Request that waits for current data from a rank's node.
#[derive(Clone, Debug)]
pub(super) struct Refresh {
    pub(super) address: Address,
    pub(super) job: JobIndex,
    pub(super) rank: Rank,
    /// The get to serve then; without one the answer is all available data of the rank.
    pub(super) get: Option<Get>,
}

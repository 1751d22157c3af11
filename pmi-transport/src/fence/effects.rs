//! Effects of a launch's state machine: its only output.

use bytes::Bytes;
use pmi_core::fence::Exchange;
use pmi_core::ids::NodeIndex;

use super::counters::Counters;
use super::{AskError, FenceError};
use crate::proto::v1::{FenceKey, LinkFrame};

/// Contribution of one node to a fence, with encoded segments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Brought {
    /// Segments, in order.
    pub segments: Vec<Bytes>,
    /// Permission to leave the segments on this node; the same on all nodes of the fence.
    pub exchange: Exchange,
}

impl From<Vec<Bytes>> for Brought {
    /// A contribution that is sent to every node.
    fn from(segments: Vec<Bytes>) -> Self {
        Self { segments, exchange: Exchange::Full }
    }
}

/// Contributions of all nodes to a fence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gathered {
    /// Runs of segments, in the order of the nodes. Adjacent segments may have been joined.
    pub runs: Vec<Bytes>,
    /// Total bytes of all nodes, if they stayed on the nodes that contributed them. The runs are then those of the first node, or
    /// empty.
    pub withheld: u64,
}

/// Result of a fence.
pub type FenceResult = Result<Gathered, FenceError>;

/// Result of a question to another node.
pub type AskResult = Result<Bytes, AskError>;

/// Effects of one input. Each list is in the order of execution.
#[derive(Debug, Default)]
pub struct Effects {
    /// Frames to send to other nodes of the launch.
    pub frames: Vec<(NodeIndex, LinkFrame)>,
    /// Fences that were begun here and have ended. Every begun fence ends exactly once, unless its caller ended it early or the
    /// launch was left.
    pub ended: Vec<(FenceKey, FenceResult)>,
    /// Answered questions of this node. Each question has at most one answer.
    pub answered: Vec<(QuestionId, AskResult)>,
    /// Questions of other nodes that this node must answer.
    pub asked: Vec<NodeQuestion>,
    /// Increments of the node's counters.
    pub counters: Counters,
}

/// Question of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeQuestion {
    /// Identifier for the answer.
    pub id: AnswerId,
    /// Node that sent the question.
    pub from: NodeIndex,
    /// Content.
    pub question: Question,
}

/// Question to another node, by the component that answers it there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Question of one PMI server to another; other components do not read it.
    Server(Bytes),
    /// Message of one session to another. The answer confirms its receipt.
    Session(Bytes),
}

impl Question {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Server(question) | Self::Session(question) => question.len(),
        }
    }
}

/// Number of a question that this node sent, unique within its membership of the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuestionId(pub(super) u64);

/// Number of a question that this node received, unique within its membership of the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AnswerId(pub(super) u64);

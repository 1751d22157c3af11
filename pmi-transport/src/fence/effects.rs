//! Effects of a launch's state machine: its only output.

use bytes::Bytes;
use pmi_core::fence::Exchange;
use pmi_core::ids::NodeIndex;

use super::counters::Counters;
use super::{AskError, FenceError};
use crate::proto::v1::{FenceKey, LinkFrame};

/// Contribution of one node to a fence, its segments encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Brought {
    /// Segments, in order.
    pub segments: Vec<Bytes>,
    /// Permission to leave them with this node; the same on all nodes of the fence.
    pub exchange: Exchange,
}

impl From<Vec<Bytes>> for Brought {
    /// A contribution that every node gets.
    fn from(segments: Vec<Bytes>) -> Self {
        Self { segments, exchange: Exchange::Full }
    }
}

/// Contributions of all nodes to a fence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gathered {
    /// Runs of segments, in the order of the nodes. Neighbouring segments may have been joined.
    pub runs: Vec<Bytes>,
    /// Bytes of all nodes, if they were left with the nodes that brought them; the runs are then the first node's, or none.
    pub withheld: u64,
}

/// Result of a fence.
pub type FenceResult = Result<Gathered, FenceError>;

/// Result of a question to another node.
pub type AskResult = Result<Bytes, AskError>;

/// Effects of one input, each list in the order in which it is to be carried out.
#[derive(Debug, Default)]
pub struct Effects {
    /// Frames to send to other nodes of the launch.
    pub frames: Vec<(NodeIndex, LinkFrame)>,
    /// Fences that were begun here and have ended. Every fence that was begun ends once, unless it was given up or the launch was
    /// left.
    pub ended: Vec<(FenceKey, FenceResult)>,
    /// Questions of this node that have their answer; each has one at most.
    pub answered: Vec<(QuestionId, AskResult)>,
    /// Questions of other nodes that this node has to answer.
    pub asked: Vec<Asked>,
    /// Increments of the node's counters.
    pub counters: Counters,
}

/// Question of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Name under which the answer is to be given.
    pub id: AnswerId,
    /// Node that asks.
    pub from: NodeIndex,
    /// Content.
    pub question: Question,
}

/// Question to another node, by who answers it there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Question of a PMI server to the other one; nobody else reads it.
    Server(Bytes),
    /// Message of a session to the other one, whose answer says that it has come.
    Session(Bytes),
}

impl Question {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Server(question) | Self::Session(question) => question.len(),
        }
    }
}

/// Number of a question that this node asked, unique within its membership of the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuestionId(pub(super) u64);

/// Number of a question that this node was asked, unique within its membership of the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AnswerId(pub(super) u64);

//! Effects of a launch's state machine: its only output.

use bytes::Bytes;
use pmi_core::ids::NodeIndex;

use super::counters::Counters;
use super::{AskError, FenceError};
use crate::proto::v1::{FenceKey, LinkFrame};

/// Result of a fence: the runs that all nodes brought, in the order of the nodes.
pub type FenceResult = Result<Vec<Bytes>, FenceError>;

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
    /// Content; only the two nodes' servers read it.
    pub question: Bytes,
}

/// Number of a question that this node asked, unique within its membership of the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuestionId(pub(super) u64);

/// Number of a question that this node was asked, unique within its membership of the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AnswerId(pub(super) u64);

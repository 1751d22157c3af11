//! Errors of fences and of questions between nodes.

use pmi_core::fence;
use pmi_core::ids::{Epoch, NodeIndex};

use crate::limits::WHOLE_MAX;

/// Failure of a fence, or the reason why it was not begun.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// A node was lost or could not continue, or the contributions exceed the limit. The fence fails on all its nodes.
    #[error("fence {epoch} failed{}: {reason}", node.map_or_else(String::new, |node| format!(" because of node {node}")))]
    Failed {
        /// The node that caused the failure, if known.
        node: Option<NodeIndex>,
        /// The fence.
        epoch: Epoch,
        /// Reason, as text for users.
        reason: String,
    },
    /// The caller named no nodes, omitted its own node, or named nodes outside the launch or not in ascending order.
    #[error("fence {epoch} was begun with nodes that are not in order, not of the launch, or without this one")]
    Members {
        /// The fence.
        epoch: Epoch,
    },
    /// This node has begun the fence before.
    #[error("fence {epoch} was begun twice")]
    Repeated {
        /// The fence.
        epoch: Epoch,
    },
    /// The launch has ended on this node.
    #[error("fence {epoch} was begun after the end of its launch on this node")]
    LaunchEnded {
        /// The fence.
        epoch: Epoch,
    },
}

impl FenceError {
    /// Returns the node that caused the failure, if known.
    pub fn node(&self) -> Option<NodeIndex> {
        match self {
            Self::Failed { node, .. } => *node,
            Self::Members { .. } | Self::Repeated { .. } | Self::LaunchEnded { .. } => None,
        }
    }
}

impl From<FenceError> for fence::FenceError {
    fn from(error: FenceError) -> Self {
        match error {
            FenceError::Failed { node: Some(node), epoch, reason } => Self::NodeLost { node, epoch, reason },
            FenceError::Failed { node: None, epoch, reason } => Self::Failed { epoch, reason },
            FenceError::Members { epoch } => {
                let reason = "its nodes are not in order, not of the launch, or without this one".to_owned();
                Self::NotBegun { epoch, reason }
            }
            FenceError::Repeated { epoch } => Self::NotBegun { epoch, reason: "this node was in it before".to_owned() },
            FenceError::LaunchEnded { epoch } => {
                Self::NotBegun { epoch, reason: "its launch has ended on this node".to_owned() }
            }
        }
    }
}

/// Failure of a question to another node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The launch has no such node.
    #[error("node {node} was asked; the launch has {nodes} nodes")]
    NoSuchNode {
        /// The node.
        node: NodeIndex,
        /// Number of nodes of the launch.
        nodes: u32,
    },
    /// The question exceeds the size limit.
    #[error("node {node} is not asked: the question has {len} bytes, and {WHOLE_MAX} are the most")]
    QuestionTooLong {
        /// The node.
        node: NodeIndex,
        /// Length of the question, in bytes.
        len: usize,
    },
    /// The node was lost.
    #[error("node {node} gave no answer: {reason}")]
    NodeLost {
        /// The node.
        node: NodeIndex,
        /// Reason, as text for users.
        reason: String,
    },
    /// The node has no answer.
    #[error("node {node} has no answer: {reason}")]
    Refused {
        /// The node.
        node: NodeIndex,
        /// Its answer.
        reason: String,
    },
    /// The launch has ended on this node.
    #[error("the launch has ended on this node")]
    LaunchEnded,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_that_was_not_begun_is_not_taken_for_one_that_brought_nonsense() {
        let epoch = Epoch(3);
        for (error, expected) in [
            (FenceError::Repeated { epoch }, "fence 3 was not begun: this node was in it before"),
            (FenceError::LaunchEnded { epoch }, "fence 3 was not begun: its launch has ended on this node"),
            (
                FenceError::Members { epoch },
                "fence 3 was not begun: its nodes are not in order, not of the launch, or without this one",
            ),
        ] {
            assert_eq!(fence::FenceError::from(error).to_string(), expected);
        }
    }
}

//! Input for the ranks of several nodes, on its way from node to node.

use bytes::Bytes;

use crate::gathered::NodeSelection;

/// Capability of a node whose sessions pass input on to each other, as its agent tells it.
pub const CAPABILITY: &str = "input-relay";

/// Most nodes that an end of the input's way passes a piece on to itself, each with its share of the others.
pub const BRANCHES: u32 = 8;

/// A piece of a launch's input, for the first of its nodes. Who gets it passes it on to the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputPiece {
    /// Place of its first byte in the launch's input.
    pub offset: u64,
    /// The bytes.
    pub bytes: Bytes,
    /// True if nothing follows.
    pub is_last: bool,
    /// The nodes.
    pub nodes: NodeSelection,
}

//! Standard input for the ranks of several nodes, relayed from node to node.

use bytes::Bytes;

use crate::gathered::NodeSelection;

/// Maximum number of nodes to which one sender passes a piece directly. Each of them relays it to a share of
/// the other nodes.
pub const BRANCHES: u32 = 8;

/// A piece of a launch's input, sent to the first of its nodes. The receiver relays it to the other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputPiece {
    /// Offset of its first byte in the launch's input.
    pub offset: u64,
    /// The bytes.
    pub bytes: Bytes,
    /// True if no input follows.
    pub is_last: bool,
    /// The nodes that need the piece.
    pub nodes: NodeSelection,
}

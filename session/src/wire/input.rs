//! Pieces of input for several nodes, and their answers.

use bytes::Bytes;
use pmi_transport::proto::v1 as proto;
use prost::Message;

use super::WireError;
use super::node_selection::{decode_ranges, decode_selection, encode_ranges};
use crate::gathered::NodeSelection;
use crate::input_piece::InputPiece;

/// Encodes a piece.
pub fn encode(piece: &InputPiece) -> proto::InputPiece {
    let InputPiece { offset, bytes, is_last, nodes } = piece;
    proto::InputPiece { offset: *offset, data: bytes.clone(), is_last: *is_last, nodes: encode_ranges(Some(nodes)) }
}

/// Decodes a piece for nodes of a launch on `nodes` nodes.
///
/// # Errors
/// Refuses what [`NodeSelection::new`] refuses.
pub fn decode(piece: proto::InputPiece, nodes: usize) -> Result<InputPiece, WireError> {
    let proto::InputPiece { offset, data, is_last, nodes: ranges } = piece;
    let nodes = decode_selection("nodes of a piece of input", ranges, nodes)?;
    Ok(InputPiece { offset, bytes: data, is_last, nodes })
}

/// Encodes the answer to the piece at `offset`, which these nodes have not taken.
pub fn encode_passed(offset: u64, missed: Option<&NodeSelection>) -> proto::InputPassed {
    proto::InputPassed { offset, missed: encode_ranges(missed) }
}

/// Encodes the answer of one session to another.
pub fn encode_answer(offset: u64, missed: Option<&NodeSelection>) -> Bytes {
    encode_passed(offset, missed).encode_to_vec().into()
}

/// Decodes the answer of another session: the nodes that have not taken the piece, `None` if all have.
///
/// # Errors
/// Refuses bytes that are no message, and what [`decode_missed`] refuses.
pub fn decode_answer(message: Bytes) -> Result<Option<NodeSelection>, WireError> {
    decode_missed(proto::InputPassed::decode(message)?)
}

/// Decodes the nodes that have not taken a piece; `None` if all have.
///
/// # Errors
/// Refuses ranges that are not in order.
pub fn decode_missed(answer: proto::InputPassed) -> Result<Option<NodeSelection>, WireError> {
    let proto::InputPassed { missed, .. } = answer;
    if missed.is_empty() { Ok(None) } else { decode_ranges("nodes without a piece of input", missed).map(Some) }
}

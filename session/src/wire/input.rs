//! Pieces of input for several nodes, and their answers.

use bytes::Bytes;
use pmi_transport::proto::v1 as proto;
use prost::Message;

use super::node_selection::{decode_ranges, decode_selection, encode_ranges};
use super::{WireError, wrong};
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
/// Fails like [`NodeSelection::new`], and for a piece with an end that exceeds 64 bits.
pub fn decode(piece: proto::InputPiece, nodes: usize) -> Result<InputPiece, WireError> {
    let proto::InputPiece { offset, data, is_last, nodes: ranges } = piece;
    let nodes = decode_selection("nodes of a piece of input", ranges, nodes)?;
    if offset.checked_add(data.len() as u64).is_none() {
        return Err(wrong("the offset of a piece of input", offset, format!("up to {}", u64::MAX - data.len() as u64)));
    }
    Ok(InputPiece { offset, bytes: data, is_last, nodes })
}

/// Encodes the answer to the piece at `offset`. `missed` are the nodes that have not received it.
pub fn encode_passed(offset: u64, missed: Option<&NodeSelection>) -> proto::InputPassed {
    proto::InputPassed { offset, missed: encode_ranges(missed) }
}

/// Encodes the answer from one session to another.
pub fn encode_answer(offset: u64, missed: Option<&NodeSelection>) -> Bytes {
    encode_passed(offset, missed).encode_to_vec().into()
}

/// Decodes the answer of another session: the nodes that have not received the piece; `None` if all nodes have it.
///
/// # Errors
/// Fails for invalid bytes, and like [`decode_missed`].
pub fn decode_answer(message: Bytes) -> Result<Option<NodeSelection>, WireError> {
    decode_missed(proto::InputPassed::decode(message)?)
}

/// Decodes the nodes that have not received a piece; `None` if all nodes have it.
///
/// # Errors
/// Fails for ranges that are not in order.
pub fn decode_missed(answer: proto::InputPassed) -> Result<Option<NodeSelection>, WireError> {
    let proto::InputPassed { missed, .. } = answer;
    if missed.is_empty() { Ok(None) } else { decode_ranges("nodes without a piece of input", missed).map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_ends_within_64_bits() {
        let piece = |offset| proto::InputPiece {
            offset,
            data: "ab".into(),
            is_last: false,
            nodes: encode_ranges(Some(&NodeSelection::new(vec![0..=0], 1).unwrap())),
        };
        assert_eq!(decode(piece(u64::MAX - 2), 1).unwrap().offset, u64::MAX - 2);
        let refused = decode(piece(u64::MAX - 1), 1).unwrap_err().to_string();
        assert!(
            refused.starts_with("the offset of a piece of input is 18446744073709551614; possible is up to"),
            "{refused}"
        );
    }
}

//! Questions from one session to another session of the launch.

use bytes::Bytes;
use pmi_transport::proto::v1 as proto;
use prost::Message;

use super::{WireError, gathered, input};
use crate::gathered::GatherOrder;
use crate::input_piece::InputPiece;

/// A question from one session to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// A query for the state of ranks on several nodes. [`gathered::encode_answer`] encodes the answer.
    Gather(GatherOrder),
    /// A request to receive input and forward it. [`input::encode_passed`] encodes the answer.
    Input(InputPiece),
}

/// Encodes a question.
pub fn encode(question: &Question) -> Bytes {
    let question = match question {
        Question::Gather(order) => {
            proto::SessionQuestion { gather: Some(gathered::encode_order(order)), ..Default::default() }
        }
        Question::Input(piece) => proto::SessionQuestion { input: Some(input::encode(piece)), ..Default::default() },
    };
    question.encode_to_vec().into()
}

/// Decodes a question of another session, in a launch on `nodes` nodes; `None` if the message contains no question.
///
/// # Errors
/// Fails for invalid bytes, and like [`gathered::decode_order`] and [`input::decode`].
pub fn decode(message: Bytes, nodes: usize) -> Result<Option<Question>, WireError> {
    let proto::SessionQuestion { gather, input } = proto::SessionQuestion::decode(message)?;
    Ok(match (gather, input) {
        (Some(order), _) => Some(Question::Gather(gathered::decode_order(Some(order), nodes)?)),
        (None, Some(piece)) => Some(Question::Input(input::decode(piece, nodes)?)),
        (None, None) => None,
    })
}

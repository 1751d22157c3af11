//! Questions of one session to another one of its launch.

use bytes::Bytes;
use pmi_transport::proto::v1 as proto;
use prost::Message;

use super::{WireError, gathered, input};
use crate::gathered::GatherOrder;
use crate::input_piece::InputPiece;

/// Question of a session to another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// What ranks of several nodes do; answered by [`gathered::encode_answer`].
    Gather(GatherOrder),
    /// That it takes input, and passes it on; answered by [`input::encode_passed`].
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

/// Decodes a question of another session of a launch on `nodes` nodes; `None` if the message asks nothing.
///
/// # Errors
/// Refuses bytes that are no message, what [`gathered::decode_order`] refuses and what [`input::decode`] refuses.
pub fn decode(message: Bytes, nodes: usize) -> Result<Option<Question>, WireError> {
    let proto::SessionQuestion { gather, input } = proto::SessionQuestion::decode(message)?;
    Ok(match (gather, input) {
        (Some(order), _) => Some(Question::Gather(gathered::decode_order(Some(order), nodes)?)),
        (None, Some(piece)) => Some(Question::Input(input::decode(piece, nodes)?)),
        (None, None) => None,
    })
}

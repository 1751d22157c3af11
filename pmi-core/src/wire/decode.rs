//! From a frame to the message in it, in whichever dialect it was written.

use super::request::{Message, NoCommand};
use super::{Frame, pmi1, pmi2};

impl<'a> Message<'a> {
    /// Decodes a frame.
    ///
    /// # Errors
    /// Fails when the frame has no command at all: there is no form for an answer then, and the conversation cannot go on.
    /// A command that is wrong in itself is not an error here, see [`Message::request`].
    pub fn decode(frame: Frame<'a>) -> Result<Self, NoCommand> {
        match frame {
            Frame::Line(line) => pmi1::decode_line(line),
            Frame::SpawnBlocks(blocks) => Ok(pmi1::decode_spawn(blocks)),
            Frame::Pmi2(message) => pmi2::decode(message),
        }
    }
}

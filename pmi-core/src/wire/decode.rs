//! Decodes a frame into a message, in either dialect.

use super::frame::Frame;
use super::request::{Message, NoCommand};
use super::{pmi1, pmi2};

impl<'a> Message<'a> {
    /// Decodes a frame.
    ///
    /// # Errors
    /// Fails when the frame has no command: an answer then has no format, and the conversation cannot continue. An invalid command is not
    /// an error here, see [`Message::request`].
    pub fn decode(frame: Frame<'a>) -> Result<Self, NoCommand> {
        match frame {
            Frame::Line(line) => pmi1::decode_line(line),
            Frame::SpawnBlocks(blocks) => Ok(pmi1::decode_spawn(blocks)),
            Frame::Pmi2(message) => pmi2::decode(message),
        }
    }
}

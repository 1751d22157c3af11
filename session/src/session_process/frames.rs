//! Frames on the socket between an agent and a session process: a length of four bytes, most significant first, and a message.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;

use bytes::{BufMut, Bytes, BytesMut};
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::from_session::What;
use tokio_util::codec::LengthDelimitedCodec;

/// Longest frame to a session, in bytes. The largest messages are the merged pairs of a fence.
pub const TO_SESSION_MAX: usize = (1 << 30) + (16 << 20);

/// Longest frame from a session, in bytes. The largest messages are one node's contribution to a fence.
pub const FROM_SESSION_MAX: usize = 256 << 20;

/// Size of the length field, in bytes.
const LENGTH: usize = 4;

/// Limit of the memory, in bytes, that is reserved for a frame before its bytes arrive.
const FIRST_ROOM: usize = 64 << 10;

/// Returns the codec that splits a byte stream into frames of at most `max` bytes.
pub fn codec(max: usize) -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().length_field_length(LENGTH).max_frame_length(max).new_codec()
}

/// Appends one frame with `message` to `bytes`.
pub fn append_frame(bytes: &mut BytesMut, message: &impl Message) {
    let len = message.encoded_len();
    bytes.reserve(LENGTH + len);
    // The senders limit their messages to far below 4 GiB. The receiver refuses longer messages.
    bytes.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
    message.encode_raw(bytes);
}

/// Reads one frame from a blocking socket; `None` at the end of the stream, also in the middle of a frame.
///
/// # Errors
/// Fails if the socket fails. Fails with [`io::ErrorKind::InvalidData`] for a frame longer than [`TO_SESSION_MAX`].
pub fn read_frame(socket: &mut UnixStream) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; LENGTH];
    match socket.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > TO_SESSION_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // A peer that sends a wrong length causes no large allocation before its bytes arrive.
    let mut frame = Vec::with_capacity(length.min(FIRST_ROOM));
    socket.take(length as u64).read_to_end(&mut frame)?;
    Ok((frame.len() == length).then_some(frame))
}

/// A message from a session process to its agent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ToAgent(proto::FromSession);

impl ToAgent {
    /// Event of the session, in the encoding of [`crate::wire::event`].
    pub(super) fn event(event: proto::NodeEvent) -> Self {
        Self::of(What::Event(event))
    }

    /// Call number `id` of the session. The agent repeats the number in its answer.
    pub(super) fn call(id: u64, what: proto::call::What) -> Self {
        Self::of(What::Call(proto::Call { id, what: Some(what) }))
    }

    /// Answer of the session's PMI server to question `request_id` of another node's server.
    pub(super) fn reply(launch_id: String, request_id: u64, answer: Result<Bytes, String>) -> Self {
        let result = Some(match answer {
            Ok(data) => proto::data_reply::Result::Data(data),
            Err(reason) => proto::data_reply::Result::Error(reason),
        });
        Self::of(What::Reply(proto::DataReply { launch_id, request_id, result, goes_on: false }))
    }

    /// Warning for the agent's log. A session process has no log.
    pub(super) fn warning(text: String) -> Self {
        Self::of(What::Warning(text))
    }

    /// Answer to the order to resend events on stream `stream`. The next event is the one after `after`.
    pub(super) fn resumed(stream: u64, after: u64, commands_taken: u64) -> Self {
        Self::of(What::Resumed(proto::Resumed { after, commands_taken, stream }))
    }

    /// Acknowledgement of all commands up to this one, if no event can carry it.
    pub(super) fn commands_taken(commands_taken: u64) -> Self {
        Self::event(proto::NodeEvent { commands_taken, ..proto::NodeEvent::default() })
    }

    /// Removes and returns the event, to be numbered; `None` if the message contains no event.
    pub(super) fn take_event(&mut self) -> Option<proto::NodeEvent> {
        match self.0.what.take() {
            Some(What::Event(event)) => Some(event),
            other => {
                self.0.what = other;
                None
            }
        }
    }

    fn of(what: What) -> Self {
        Self(proto::FromSession { what: Some(what) })
    }

    /// Appends the message to `bytes`, as a frame.
    pub(super) fn append_to(&self, bytes: &mut BytesMut) {
        append_frame(bytes, &self.0);
    }

    /// Content of the message, for tests that act as the agent.
    #[cfg(test)]
    pub(super) fn into_what(self) -> Option<What> {
        self.0.what
    }
}

#[cfg(test)]
mod tests;

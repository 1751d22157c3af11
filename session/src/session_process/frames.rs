//! Frames on the socket between an agent and a session process: four bytes of length, most significant first, and a message.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;

use bytes::{BufMut, Bytes, BytesMut};
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::from_session::What;
use tokio_util::codec::LengthDelimitedCodec;

/// Longest frame to a session, in bytes: the merged pairs of a fence, at most.
pub const TO_SESSION_MAX: usize = (1 << 30) + (16 << 20);

/// Longest frame from a session, in bytes: one node's contribution to a fence, at most.
pub const FROM_SESSION_MAX: usize = 256 << 20;

/// Size of the length field, in bytes.
const LENGTH: usize = 4;

/// Memory that a frame gets before its bytes have arrived, at most.
const FIRST_ROOM: usize = 64 << 10;

/// Returns the codec that cuts a byte stream into frames of at most `max` bytes.
pub fn codec(max: usize) -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().length_field_length(LENGTH).max_frame_length(max).new_codec()
}

/// Appends one frame with `message` to `bytes`.
pub fn append_frame(bytes: &mut BytesMut, message: &impl Message) {
    let len = message.encoded_len();
    bytes.reserve(LENGTH + len);
    // Messages are bounded far below 4 GiB by those who make them; the other end refuses what is not.
    bytes.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
    message.encode_raw(bytes);
}

/// Reads one frame from a blocking socket; `None` at its end, also in the middle of a frame.
///
/// # Errors
/// Fails if the socket does, and with [`io::ErrorKind::InvalidData`] for a frame longer than [`TO_SESSION_MAX`].
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
    // A peer that lies about the length gets no memory before it has sent something.
    let mut frame = Vec::with_capacity(length.min(FIRST_ROOM));
    socket.take(length as u64).read_to_end(&mut frame)?;
    Ok((frame.len() == length).then_some(frame))
}

/// Message of a session process to its agent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ToAgent(proto::FromSession);

impl ToAgent {
    /// Event of the session, as [`crate::wire::event`] encodes it.
    pub(super) fn event(event: proto::NodeEvent) -> Self {
        Self::of(What::Event(event))
    }

    /// Call number `id` of the session; the agent answers with the same number.
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

    /// Warning for the agent's log; a session process has none.
    pub(super) fn warning(text: String) -> Self {
        Self::of(What::Warning(text))
    }

    /// Answer to the order to send events again, on stream `stream`: the next event is the one after `after`.
    pub(super) fn resumed(stream: u64, after: u64, commands_taken: u64) -> Self {
        Self::of(What::Resumed(proto::Resumed { after, commands_taken, stream }))
    }

    /// News that all commands up to this one were taken, when no event is there to say it.
    pub(super) fn commands_taken(commands_taken: u64) -> Self {
        Self::event(proto::NodeEvent { commands_taken, ..proto::NodeEvent::default() })
    }

    /// Takes the event out, which is to be numbered; `None` if the message is none.
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

    /// Content of the message; for tests that take the agent's part.
    #[cfg(test)]
    pub(super) fn into_what(self) -> Option<What> {
        self.0.what
    }
}

#[cfg(test)]
mod tests;

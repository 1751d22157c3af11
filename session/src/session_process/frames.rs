//! The frames on the socket between an agent and a session: four bytes of length, most significant first, and a message.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;

use bytes::{BufMut, BytesMut};
use prost::Message;
use tokio_util::codec::LengthDelimitedCodec;

/// The longest frame to a session: what a fence brings, at most.
pub const TO_SESSION_MAX: usize = (1 << 30) + (16 << 20);

/// The longest frame from a session: what the ranks of one node bring to a fence, at most.
pub const FROM_SESSION_MAX: usize = 256 << 20;

const LENGTH: usize = 4;

/// The room that a frame gets before it is there.
const FIRST_ROOM: usize = 64 << 10;

/// Cuts a byte stream into frames of at most `max` bytes.
pub fn codec(max: usize) -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().length_field_length(LENGTH).max_frame_length(max).new_codec()
}

/// Appends one frame.
pub fn append_frame(bytes: &mut BytesMut, message: &impl Message) {
    let len = message.encoded_len();
    bytes.reserve(LENGTH + len);
    // Messages are bounded far below 4 GiB by those who make them; the other end refuses what is not.
    bytes.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
    message.encode_raw(bytes);
}

/// Reads one frame from a socket that blocks; `None` at its end.
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
    // A liar gets no memory before it has sent something.
    let mut frame = Vec::with_capacity(length.min(FIRST_ROOM));
    socket.take(length as u64).read_to_end(&mut frame)?;
    Ok((frame.len() == length).then_some(frame))
}

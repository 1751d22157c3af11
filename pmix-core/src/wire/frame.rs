//! Splits a client's stream into its handshake and its messages.
//!
//! Every frame has a header of 16 bytes: an index, a tag, the length of the payload, four bytes of padding. In the handshake the
//! header is in the byte order of the machine, afterwards the high byte comes first.

use bytes::{BufMut, Bytes, BytesMut};

/// Maximum number of bytes of keys and values that a rank has put for ranks of its node; also the maximum for ranks of other nodes.
pub const VALUES_MAX: usize = 16 << 20;

/// Maximum length of a payload in bytes: clients send all values with each commit, and values of global scope twice.
pub const PAYLOAD_MAX: usize = 2 * VALUES_MAX + (64 << 10);

/// Maximum length of a handshake in bytes; real ones have about 50.
pub const HANDSHAKE_MAX: usize = 4096;

/// Length of a header in bytes.
pub const HEADER: usize = 16;

/// The tag of events, in both directions.
pub const TAG_NOTIFY: u32 = 0;

/// The tag of forwarded output for a client.
pub const TAG_FORWARD: u32 = 2;

/// The lowest tag of a request; replies repeat the tag of their request.
pub const TAG_FIRST_REQUEST: u32 = 100;

/// The tag of a client's handshake.
const TAG_HANDSHAKE: u32 = u32::MAX;

/// Error of a stream that cannot be split into messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The first frame is not a handshake.
    #[error("the first bytes are no PMIx handshake (tag {tag:#x})")]
    NoHandshake {
        /// The tag found.
        tag: u32,
    },
    /// A frame is too long.
    #[error("a message of {len} bytes is announced; the limit is {max}")]
    TooLong {
        /// The announced length.
        len: usize,
        /// The maximum length.
        max: usize,
    },
}

/// One frame of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame {
    /// The first frame.
    Handshake(Bytes),
    /// Any later frame.
    Message {
        /// Identifier of the request.
        tag: u32,
        /// The command and its arguments.
        payload: Bytes,
    },
}

/// Bytes of a client that do not form a complete frame yet.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: BytesMut,
    greeted: bool,
    /// Maximum length of a payload after the handshake, if it is shorter than for ranks.
    limit: Option<usize>,
}

impl FrameBuffer {
    /// Sets the maximum length of payloads in bytes.
    pub fn limit(&mut self, max: usize) {
        self.limit = Some(max);
    }

    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next frame, once it is complete.
    ///
    /// # Errors
    /// Fails on a stream that cannot be split; the rest of it cannot be parsed.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(header) = self.bytes.first_chunk::<HEADER>() else { return Ok(None) };
        let word = |at: usize| [header[at], header[at + 1], header[at + 2], header[at + 3]];
        let (tag, len, max) = if self.greeted {
            (u32::from_be_bytes(word(4)), u32::from_be_bytes(word(8)) as usize, self.limit.unwrap_or(PAYLOAD_MAX))
        } else {
            let tag = u32::from_ne_bytes(word(4));
            if tag != TAG_HANDSHAKE {
                return Err(FrameError::NoHandshake { tag });
            }
            (tag, u32::from_ne_bytes(word(8)) as usize, HANDSHAKE_MAX)
        };
        if len > max {
            return Err(FrameError::TooLong { len, max });
        }
        if self.bytes.len() < HEADER + len {
            return Ok(None);
        }
        let payload = self.bytes.split_to(HEADER + len).freeze().slice(HEADER..);
        Ok(Some(if self.greeted {
            Frame::Message { tag, payload }
        } else {
            self.greeted = true;
            Frame::Handshake(payload)
        }))
    }
}

/// A header for a payload of `len` bytes. A payload must not be empty: clients treat an empty one as the end of the connection.
pub fn header(tag: u32, len: usize) -> Bytes {
    debug_assert!(len > 0 && u32::try_from(len).is_ok());
    let mut header = BytesMut::with_capacity(HEADER);
    header.put_i32(0);
    header.put_u32(tag);
    header.put_u32(len as u32);
    header.put_u32(0);
    header.freeze()
}

/// A message with its header.
pub fn message(tag: u32, payload: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEADER + payload.len());
    bytes.put(header(tag, payload.len()));
    bytes.put_slice(payload);
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0xff; 8];
        bytes.extend((payload.len() as u32).to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn frames_are_found_however_the_stream_is_cut() {
        let mut stream = greeting(b"hello");
        stream.extend(message(101, &[2, 0]));
        stream.extend(message(102, &[2, 5]));
        for cut in 0..stream.len() {
            let mut frames = FrameBuffer::default();
            let mut seen = Vec::new();
            for part in [&stream[..cut], &stream[cut..]] {
                frames.push(part);
                while let Some(frame) = frames.next_frame().unwrap() {
                    seen.push(frame);
                }
            }
            let message = |tag, payload| Frame::Message { tag, payload: Bytes::from_static(payload) };
            let greeting = Frame::Handshake(Bytes::from_static(b"hello"));
            assert_eq!(seen, [greeting, message(101, &[2, 0]), message(102, &[2, 5])], "cut at {cut}");
        }
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_by_its_header() {
        let mut frames = FrameBuffer::default();
        frames.push(&greeting(b"x"));
        frames.next_frame().unwrap();
        frames.push(&[0, 0, 0, 0, 0, 0, 0, 101, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        assert_eq!(frames.next_frame(), Err(FrameError::TooLong { len: u32::MAX as usize, max: PAYLOAD_MAX }));
        let mut frames = FrameBuffer::default();
        frames.push(b"GET / HTTP/1.1\r\n\r\n");
        assert!(matches!(frames.next_frame(), Err(FrameError::NoHandshake { .. })));
    }
}

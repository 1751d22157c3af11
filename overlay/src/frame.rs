//! Frames between members: a header of 40 bytes, and a body of at most 64 KiB.
//!
//! ```text
//!  0 version   1 kind   2 ttl   3 detours   4 method, 4   8 source, 8   16 destination, 8   24 id, 8
//! 32 milliseconds that are left, 4   36 length of the body, 4   40 body
//! ```
//! Numbers are big-endian. A frame has the remaining time, not the deadline. Each member subtracts the time for which it held the frame, so
//! clocks need not agree.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::address::Uid;

/// Version of the layout.
pub const VERSION: u8 = 1;
/// Length of a header in bytes.
pub const HEADER_LEN: usize = 40;
/// Maximum bytes of a body.
pub const BODY_MAX: usize = 64 << 10;
/// Maximum hops of a frame to a member that is no nearer to its destination than the previous one.
pub const DETOURS_MAX: u8 = 2;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Purpose of the frame.
    pub kind: Kind,
    /// Number of members that may still forward it.
    pub ttl: u8,
    /// Number of its hops to a member that was no nearer to its destination than the previous one.
    pub detours: u8,
    /// Called method. In an error, the code of its reason.
    pub method: u32,
    /// Process that sent it.
    pub source: Uid,
    /// Process that receives it.
    pub destination: Uid,
    /// Number of the call, unique for its source.
    pub id: u64,
    /// Milliseconds until the caller no longer waits.
    pub remaining_ms: u32,
    /// Content.
    pub body: Bytes,
}

/// Purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Call of a method.
    Request,
    /// Result of a call.
    Response,
    /// Failure of a call: a [`CallError`](crate::error::CallError).
    Error,
    /// Request for a sign of life from the other end of a link. It is not forwarded.
    Echo,
    /// Answer to an echo.
    Echoed,
}

/// Malformed frame. No further frames can be read after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Another version of the layout.
    #[error("a frame of version {0} came; this program knows version {VERSION}")]
    Version(u8),
    /// An unknown kind.
    #[error("a frame of kind {0} came, which means nothing")]
    Kind(u8),
    /// Too many detours.
    #[error("a frame came that has made {0} detours; {DETOURS_MAX} are the most")]
    Detours(u8),
    /// A body that is too long.
    #[error("a frame with a body of {0} bytes is announced; {BODY_MAX} are the most")]
    Length(u32),
}

impl Kind {
    const ALL: [Self; 5] = [Self::Request, Self::Response, Self::Error, Self::Echo, Self::Echoed];

    fn of(byte: u8) -> Result<Self, FrameError> {
        Self::ALL.into_iter().find(|&kind| kind as u8 == byte).ok_or(FrameError::Kind(byte))
    }
}

impl Frame {
    /// Returns true for bytes that begin like a frame of this version. A protobuf message never does, because its fields are numbered from 1
    /// on.
    pub fn begins(bytes: &[u8]) -> bool {
        bytes.first() == Some(&VERSION)
    }

    /// Appends the frame to `stream`. Bodies longer than [`BODY_MAX`] are refused before, when calls are made and answered.
    pub fn append(&self, stream: &mut BytesMut) {
        stream.reserve(HEADER_LEN + self.body.len());
        stream.put_slice(&[VERSION, self.kind as u8, self.ttl, self.detours]);
        stream.put_u32(self.method);
        stream.put_u64(self.source.bits());
        stream.put_u64(self.destination.bits());
        stream.put_u64(self.id);
        stream.put_u32(self.remaining_ms);
        stream.put_u32(self.body.len() as u32);
        stream.put_slice(&self.body);
    }

    /// Takes the first frame of `stream`, if it is complete. Its body shares the memory of `stream` without copying.
    ///
    /// # Errors
    /// Fails as soon as the header is invalid, before memory is used for its body.
    pub fn take(stream: &mut BytesMut) -> Result<Option<Self>, FrameError> {
        let Some(header) = stream.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let mut header = &header[..];
        let [version, kind, ttl, detours] = [header.get_u8(), header.get_u8(), header.get_u8(), header.get_u8()];
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        let kind = Kind::of(kind)?;
        if detours > DETOURS_MAX {
            return Err(FrameError::Detours(detours));
        }
        let method = header.get_u32();
        let (source, destination) = (Uid::from_bits(header.get_u64()), Uid::from_bits(header.get_u64()));
        let (id, remaining_ms, length) = (header.get_u64(), header.get_u32(), header.get_u32());
        let body_len = usize::try_from(length).ok().filter(|&length| length <= BODY_MAX);
        let body_len = body_len.ok_or(FrameError::Length(length))?;
        if stream.len() < HEADER_LEN + body_len {
            stream.reserve(HEADER_LEN + body_len - stream.len());
            return Ok(None);
        }
        stream.advance(HEADER_LEN);
        let body = stream.split_to(body_len).freeze();
        Ok(Some(Self { kind, ttl, detours, method, source, destination, id, remaining_ms, body }))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn frame() -> impl Strategy<Value = Frame> {
        let head = (proptest::sample::select(&Kind::ALL[..]), any::<u8>(), 0..=DETOURS_MAX, any::<u32>());
        let body = proptest::collection::vec(any::<u8>(), 0..200);
        (head, any::<[u64; 3]>(), any::<u32>(), body).prop_map(
            |(head, [source, destination, id], remaining_ms, body)| {
                let (kind, ttl, detours, method) = head;
                let (source, destination) = (Uid::from_bits(source), Uid::from_bits(destination));
                Frame { kind, ttl, detours, method, source, destination, id, remaining_ms, body: body.into() }
            },
        )
    }

    proptest! {
        #[test]
        fn frames_are_read_as_they_were_written_however_they_are_cut(
            frames in proptest::collection::vec(frame(), 1..5),
            piece in 1_usize..100,
        ) {
            let mut written = BytesMut::new();
            frames.iter().for_each(|frame| frame.append(&mut written));
            let (mut stream, mut read) = (BytesMut::new(), Vec::new());
            for piece in written.chunks(piece) {
                stream.put_slice(piece);
                while let Some(frame) = Frame::take(&mut stream).unwrap() {
                    read.push(frame);
                }
            }
            prop_assert!(stream.is_empty());
            prop_assert_eq!(read, frames);
        }

        #[test]
        fn a_header_that_lies_is_refused(frame in frame(), at in 0_usize..4, byte: u8) {
            let mut written = BytesMut::new();
            frame.append(&mut written);
            written[at] = byte;
            let expected = match at {
                0 if byte != VERSION => Err(FrameError::Version(byte)),
                1 if Kind::of(byte).is_err() => Err(FrameError::Kind(byte)),
                3 if byte > DETOURS_MAX => Err(FrameError::Detours(byte)),
                _ => Ok(()),
            };
            prop_assert_eq!(Frame::take(&mut written).map(drop), expected);
        }
    }

    #[test]
    fn a_body_is_as_long_as_may_be_and_no_longer() {
        let mut header = BytesMut::zeroed(HEADER_LEN);
        header[0] = VERSION;
        header[36..].copy_from_slice(&(BODY_MAX as u32).to_be_bytes());
        assert_eq!(Frame::take(&mut header.clone()), Ok(None));
        header[36..].copy_from_slice(&(BODY_MAX as u32 + 1).to_be_bytes());
        assert_eq!(Frame::take(&mut header), Err(FrameError::Length(BODY_MAX as u32 + 1)));
    }
}

//! Frames of a link on their way: length-prefixed and encrypted; all that wait are written with one system call.

use std::io;
use std::sync::Arc;

use bytes::{Buf, BufMut, BytesMut};
use parking_lot::Mutex;
use prost::Message;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_stream::{Stream, StreamExt};
use tokio_util::codec::{Decoder, FramedRead};

use super::noise::{Ciphers, NoiseError};
use crate::limits::MESSAGE_MAX;
use crate::proto::v1::LinkFrame;

/// Room for what one read may bring, in bytes.
const READ_ROOM: usize = 16 << 10;
/// Plaintext that is gathered for one write, in bytes, unless a single frame has more.
const WRITE_ROOM: usize = 256 << 10;
/// Length of a frame's length.
const PREFIX: usize = 4;

/// Failure of an open link.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    /// The connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Bytes that the other end did not encrypt.
    #[error(transparent)]
    Noise(#[from] NoiseError),
    /// The other end announces more than a frame may have.
    #[error("a frame of {len} bytes is announced; {MESSAGE_MAX} are the most")]
    TooLong {
        /// Announced length, in bytes.
        len: usize,
    },
    /// A frame that means nothing.
    #[error("a frame cannot be read: {0}")]
    Frame(#[from] prost::DecodeError),
}

/// Ciphers of a link, which its two directions share.
pub(super) type SharedCiphers = Arc<Mutex<Ciphers>>;

/// Frames that come over a link.
pub(super) type Incoming = FramedRead<OwnedReadHalf, FrameDecoder>;

/// Reading side of a link.
pub(super) fn incoming(socket: OwnedReadHalf, ciphers: SharedCiphers) -> Incoming {
    FramedRead::with_capacity(socket, FrameDecoder { ciphers, plain: BytesMut::new() }, READ_ROOM)
}

/// Decrypts what comes, and cuts it into frames.
pub(super) struct FrameDecoder {
    ciphers: SharedCiphers,
    /// Decrypted bytes that were not taken yet.
    plain: BytesMut,
}

impl Decoder for FrameDecoder {
    type Item = LinkFrame;
    type Error = StreamError;

    fn decode(&mut self, sealed: &mut BytesMut) -> Result<Option<LinkFrame>, StreamError> {
        self.ciphers.lock().open(sealed, &mut self.plain)?;
        take_frame(&mut self.plain)
    }

    fn decode_eof(&mut self, sealed: &mut BytesMut) -> Result<Option<LinkFrame>, StreamError> {
        match self.decode(sealed)? {
            None if !sealed.is_empty() || !self.plain.is_empty() => {
                Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
            }
            frame => Ok(frame),
        }
    }
}

/// Takes the first frame if it is whole.
fn take_frame(plain: &mut BytesMut) -> Result<Option<LinkFrame>, StreamError> {
    let Some(prefix) = plain.first_chunk::<PREFIX>() else { return Ok(None) };
    let len = u32::from_be_bytes(*prefix) as usize;
    if len > MESSAGE_MAX {
        return Err(StreamError::TooLong { len });
    }
    if plain.len() < PREFIX + len {
        return Ok(None);
    }
    plain.advance(PREFIX);
    // Payloads of the frame go on in this memory, uncopied.
    Ok(Some(LinkFrame::decode(plain.split_to(len).freeze())?))
}

/// Writes the frames of `outgoing` until it ends or the other end reads no more.
pub(super) async fn write_all(
    mut socket: OwnedWriteHalf,
    ciphers: SharedCiphers,
    mut outgoing: impl Stream<Item = LinkFrame> + Unpin,
) -> Result<(), StreamError> {
    let (mut plain, mut sealed) = (BytesMut::new(), BytesMut::new());
    while let Some(frame) = outgoing.next().await {
        append(&frame, &mut plain);
        while plain.len() < WRITE_ROOM
            && let Some(Some(frame)) = now_or_never(outgoing.next())
        {
            append(&frame, &mut plain);
        }
        ciphers.lock().seal(&plain, &mut sealed)?;
        socket.write_all(&sealed).await?;
        plain.clear();
        sealed.clear();
    }
    Ok(socket.shutdown().await?)
}

fn append(frame: &LinkFrame, plain: &mut BytesMut) {
    let len = frame.encoded_len();
    plain.reserve(PREFIX + len);
    plain.put_u32(len as u32);
    frame.encode(plain).expect("memory takes all that is encoded");
}

/// Result of a cancel-safe future, if it is there already.
fn now_or_never<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(result) => Some(result),
        std::task::Poll::Pending => None,
    }
}

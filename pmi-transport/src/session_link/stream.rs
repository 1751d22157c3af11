//! Frames of a link on their way: length-prefixed and encrypted; all that wait are written with one system call.

use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_stream::{Stream, StreamExt};
use tokio_util::codec::{Decoder, FramedRead};

use super::frame::{FrameError, FrameReader, FrameWriter};
use crate::noise::{Ciphers, NoiseError};
use crate::proto::v1::LinkFrame;

/// Room for what one read may bring, in bytes.
const READ_ROOM: usize = 16 << 10;
/// Plaintext that is gathered for one write, in bytes, unless a single frame has more.
const WRITE_ROOM: usize = 256 << 10;

/// Failure of an open link.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    /// The connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Bytes that the other end did not encrypt.
    #[error(transparent)]
    Noise(#[from] NoiseError),
    /// Bytes that are no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Ciphers of a link, which its two directions share.
pub(super) type SharedCiphers = Arc<Mutex<Ciphers>>;

/// Frames that come over a link.
pub(super) type Incoming = FramedRead<OwnedReadHalf, FrameDecoder>;

/// Reading side of a link.
pub(super) fn incoming(socket: OwnedReadHalf, ciphers: SharedCiphers, frames: FrameReader) -> Incoming {
    FramedRead::with_capacity(socket, FrameDecoder { ciphers, plain: BytesMut::new(), frames }, READ_ROOM)
}

/// Decrypts what comes, and cuts it into frames.
pub(super) struct FrameDecoder {
    ciphers: SharedCiphers,
    /// Decrypted bytes that were not taken yet.
    plain: BytesMut,
    frames: FrameReader,
}

impl Decoder for FrameDecoder {
    type Item = LinkFrame;
    type Error = StreamError;

    fn decode(&mut self, sealed: &mut BytesMut) -> Result<Option<LinkFrame>, StreamError> {
        self.ciphers.lock().open(sealed, &mut self.plain)?;
        Ok(self.frames.take(&mut self.plain)?)
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

/// Writes the frames of `outgoing` until it ends or the other end reads no more. What is not of the link's launch is left out.
pub(super) async fn write_all(
    mut socket: OwnedWriteHalf,
    ciphers: SharedCiphers,
    mut frames: FrameWriter,
    mut outgoing: impl Stream<Item = LinkFrame> + Unpin,
) -> Result<(), StreamError> {
    let (mut plain, mut sealed) = (BytesMut::new(), BytesMut::new());
    while let Some(frame) = outgoing.next().await {
        frames.append(&frame, &mut plain);
        while plain.len() < WRITE_ROOM
            && let Some(Some(frame)) = now_or_never(outgoing.next())
        {
            frames.append(&frame, &mut plain);
        }
        ciphers.lock().seal(&plain, &mut sealed)?;
        socket.write_all(&sealed).await?;
        plain.clear();
        sealed.clear();
    }
    Ok(socket.shutdown().await?)
}

/// Result of a cancel-safe future, if it is there already.
fn now_or_never<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(result) => Some(result),
        std::task::Poll::Pending => None,
    }
}

//! Frames of a link on their way: length-prefixed and encrypted; all that wait are written with one system call. A confirmation waits a moment for
//! what follows it, most often the answer to what it confirms: each write wakes the session at the other end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, timeout_at};
use tokio_stream::{Stream, StreamExt};
use tokio_util::codec::{Decoder, FramedRead};

use super::frame::{FrameError, FrameReader, FrameWriter};
use crate::noise::{Ciphers, NoiseError};
use crate::proto::v1::{DataReply, LinkFrame, data_reply, link_frame::What};

/// Room for what one read may bring, in bytes.
const READ_ROOM: usize = 16 << 10;
/// Plaintext that is gathered for one write, in bytes, unless a single frame has more.
const WRITE_ROOM: usize = 256 << 10;
/// Longest time for which confirmations wait for a frame to go with.
const CONFIRM_WITHIN: Duration = Duration::from_millis(1);
/// Confirmations that wait for no frame: their receiver may wait for them before it sends more.
const CONFIRM_AT_ONCE: usize = 4;

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
    while let Some(first) = outgoing.next().await {
        let (mut next, mut gathered) = (Some(first), Gathered::default());
        while let Some(frame) = next {
            if !frames.append(&frame, &mut plain) {
                tracing::error!("a frame that is of another launch, or too long, is not sent to another node");
            }
            gathered.add(&frame);
            next = if plain.len() >= WRITE_ROOM {
                None
            } else if let Some(queued) = now_or_never(outgoing.next()) {
                queued
            } else {
                gathered.companion(&mut outgoing).await
            };
        }
        ciphers.lock().seal(&plain, &mut sealed)?;
        socket.write_all(&sealed).await?;
        plain.clear();
        sealed.clear();
    }
    Ok(socket.shutdown().await?)
}

/// Frames of one write.
#[derive(Default)]
struct Gathered {
    confirmations: usize,
    others: usize,
    until: Option<Instant>,
}

impl Gathered {
    fn add(&mut self, frame: &LinkFrame) {
        let count = if is_confirmation(frame) { &mut self.confirmations } else { &mut self.others };
        *count += 1;
    }

    /// Next frame, if there are confirmations alone and it comes soon enough.
    async fn companion(&mut self, outgoing: &mut (impl Stream<Item = LinkFrame> + Unpin)) -> Option<LinkFrame> {
        if self.others > 0 || self.confirmations >= CONFIRM_AT_ONCE {
            return None;
        }
        let until = *self.until.get_or_insert_with(|| Instant::now() + CONFIRM_WITHIN);
        timeout_at(until, outgoing.next()).await.unwrap_or_default()
    }
}

/// Returns true if the frame says only that a message to a session has come.
fn is_confirmation(frame: &LinkFrame) -> bool {
    let Some(What::DataReply(DataReply { result: Some(data_reply::Result::Data(data)), .. })) = &frame.what else {
        return false;
    };
    data.is_empty()
}

/// Result of a cancel-safe future, if it is there already.
fn now_or_never<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(result) => Some(result),
        std::task::Poll::Pending => None,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::UnboundedReceiverStream;

    use super::*;
    use crate::proto::v1::FenceKey;

    fn confirmation() -> LinkFrame {
        reply(Bytes::new())
    }

    fn reply(data: Bytes) -> LinkFrame {
        let result = Some(data_reply::Result::Data(data));
        LinkFrame { what: Some(What::DataReply(DataReply { result, ..DataReply::default() })) }
    }

    fn other() -> LinkFrame {
        LinkFrame { what: Some(What::Awaited(FenceKey::default())) }
    }

    /// What a write that begins with these frames waits for, while another one comes after so many milliseconds; and how long it waits.
    async fn waits(first: &[LinkFrame], after: u64) -> (Option<LinkFrame>, Duration) {
        let (sender, frames) = mpsc::unbounded_channel();
        let mut outgoing = UnboundedReceiverStream::new(frames);
        let mut gathered = Gathered::default();
        first.iter().for_each(|frame| gathered.add(frame));
        let begun = Instant::now();
        let come = async {
            tokio::time::sleep(Duration::from_millis(after)).await;
            sender.send(other()).unwrap();
            std::future::pending::<()>().await;
        };
        let companion = tokio::select! {
            companion = gathered.companion(&mut outgoing) => companion,
            () = come => None,
        };
        (companion, begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_confirmation_waits_a_moment_for_what_follows_it_and_nothing_else_waits() {
        assert_eq!(waits(&[confirmation()], 0).await.0, Some(other()));
        let (companion, time) = waits(&[confirmation()], 50).await;
        assert_eq!(companion, None);
        assert!(time >= CONFIRM_WITHIN && time < Duration::from_millis(50), "{time:?}");
        for first in [vec![reply("data".into())], vec![confirmation(), other()], vec![confirmation(); CONFIRM_AT_ONCE]]
        {
            assert_eq!(waits(&first, 50).await, (None, Duration::ZERO), "{first:?}");
        }
    }
}

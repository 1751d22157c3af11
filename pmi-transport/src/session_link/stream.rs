//! Transmission of a link's frames: length-prefixed and encrypted. One system call writes all waiting frames. A confirmation waits briefly for
//! the next frame, usually the response to the confirmed message, because each write wakes the session at the other end.

use std::sync::Arc;
use std::time::Duration;
use std::{io, mem};

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::sleep;
use tokio_util::codec::{Decoder, FramedRead};

use super::frame::{FrameError, FrameReader, FrameWriter};
use crate::fence::{FrameSink, Outgoing, SinkState};
use crate::noise::{Ciphers, NoiseError};
use crate::proto::v1::{DataReply, LinkFrame, data_reply, link_frame::What};

/// Buffer space for one read, in bytes.
const READ_ROOM: usize = 16 << 10;
/// Plaintext that is collected for one write, in bytes, unless a single frame is longer.
const WRITE_ROOM: usize = 256 << 10;
/// Maximum delay of confirmations that wait for another frame.
const CONFIRM_WITHIN: Duration = Duration::from_millis(1);
/// Number of confirmations that are sent without delay: their receiver may need them before it sends more.
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
    /// Bytes that are not a valid frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Ciphers of a link; both directions share them.
pub(super) type SharedCiphers = Arc<Mutex<Ciphers>>;

/// Received frames of a link.
pub(super) type Incoming = FramedRead<OwnedReadHalf, FrameDecoder>;

/// Reading side of a link.
pub(super) fn incoming(socket: OwnedReadHalf, ciphers: SharedCiphers, frames: FrameReader) -> Incoming {
    FramedRead::with_capacity(socket, FrameDecoder { ciphers, plain: BytesMut::new(), frames }, READ_ROOM)
}

/// Decrypts received bytes, and splits them into frames.
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

/// Writes the frames of `outgoing` until it ends or the other end stops reading. Frames of another launch are omitted. The thread that queues
/// a frame writes it; this task continues after the socket was full.
pub(super) async fn write_all(
    socket: OwnedWriteHalf,
    ciphers: SharedCiphers,
    frames: FrameWriter,
    mut outgoing: Outgoing,
) -> Result<(), StreamError> {
    let socket = Arc::new(socket);
    let failure = Arc::default();
    outgoing.attach(Box::new(LinkWriter::new(Arc::clone(&socket), ciphers, frames, Arc::clone(&failure))));
    while let Some(state) = outgoing.waits().await {
        match state {
            SinkState::Blocked => socket.writable().await?,
            SinkState::Held => sleep(CONFIRM_WITHIN).await,
            SinkState::Ready | SinkState::Broken => break,
        }
        outgoing.resume();
    }
    drop(outgoing);
    if let Some(error) = failure.lock().take() {
        return Err(error);
    }
    match Arc::into_inner(socket) {
        Some(mut socket) => Ok(socket.shutdown().await?),
        None => Ok(()),
    }
}

/// Writer of one link.
struct LinkWriter {
    socket: Arc<OwnedWriteHalf>,
    ciphers: SharedCiphers,
    frames: FrameWriter,
    /// Frames that are not encrypted yet.
    plain: BytesMut,
    /// Number of confirmations among them; `None` if there are other frames too.
    confirmations: Option<usize>,
    /// True once these confirmations have waited.
    has_waited: bool,
    /// Bytes that the socket has not accepted.
    sealed: BytesMut,
    /// Failure that has ended the link.
    failure: Arc<Mutex<Option<StreamError>>>,
}

impl LinkWriter {
    fn new(
        socket: Arc<OwnedWriteHalf>,
        ciphers: SharedCiphers,
        frames: FrameWriter,
        failure: Arc<Mutex<Option<StreamError>>>,
    ) -> Self {
        let (plain, sealed) = (BytesMut::new(), BytesMut::new());
        Self { socket, ciphers, frames, plain, confirmations: Some(0), has_waited: false, sealed, failure }
    }

    /// Collects frames for one write. Returns false if they should wait for more.
    fn gather(&mut self, next: &mut dyn FnMut() -> Option<LinkFrame>) -> bool {
        let had_waited = mem::replace(&mut self.has_waited, true);
        while self.plain.len() < WRITE_ROOM {
            let Some(frame) = next() else { break };
            if !self.frames.append(&frame, &mut self.plain) {
                tracing::error!("a frame that is of another launch, or too long, is not sent to another node");
            }
            self.confirmations = self.confirmations.filter(|_| is_confirmation(&frame)).map(|count| count + 1);
        }
        let are_few = self.confirmations.is_some_and(|count| count < CONFIRM_AT_ONCE);
        !are_few || had_waited || self.plain.is_empty()
    }

    fn seal(&mut self) -> Result<(), StreamError> {
        self.ciphers.lock().seal(&self.plain, &mut self.sealed)?;
        self.plain.clear();
        (self.confirmations, self.has_waited) = (Some(0), false);
        Ok(())
    }

    /// Writes the encrypted bytes. Returns false if the socket is full.
    fn flush(&mut self) -> Result<bool, StreamError> {
        let mut written = 0;
        let is_whole = loop {
            match self.socket.try_write(&self.sealed[written..]) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(len) if written + len == self.sealed.len() => break true,
                Ok(len) => written += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        };
        match is_whole {
            true => self.sealed.clear(),
            false => self.sealed.advance(written),
        }
        Ok(is_whole)
    }

    fn try_write(&mut self, next: &mut dyn FnMut() -> Option<LinkFrame>) -> Result<SinkState, StreamError> {
        loop {
            if !self.sealed.is_empty() && !self.flush()? {
                return Ok(SinkState::Blocked);
            }
            if !self.gather(next) {
                return Ok(SinkState::Held);
            }
            if self.plain.is_empty() {
                self.has_waited = false;
                return Ok(SinkState::Ready);
            }
            self.seal()?;
        }
    }
}

impl FrameSink for LinkWriter {
    fn write(&mut self, next: &mut dyn FnMut() -> Option<LinkFrame>) -> SinkState {
        self.try_write(next).unwrap_or_else(|error| {
            *self.failure.lock() = Some(error);
            SinkState::Broken
        })
    }
}

/// Returns true if the frame only confirms a message to a session.
fn is_confirmation(frame: &LinkFrame) -> bool {
    let Some(What::DataReply(DataReply { result: Some(data_reply::Result::Data(data)), .. })) = &frame.what else {
        return false;
    };
    data.is_empty()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use bytes::Bytes;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio_stream::StreamExt;

    use super::*;
    use crate::noise::Handshake;
    use crate::proto::v1::FenceKey;

    const LAUNCH: &str = "launch";

    fn confirmation() -> LinkFrame {
        let result = Some(data_reply::Result::Data(Bytes::new()));
        LinkFrame {
            what: Some(What::DataReply(DataReply { launch_id: LAUNCH.to_owned(), result, ..DataReply::default() })),
        }
    }

    fn other(name: usize) -> LinkFrame {
        let key = FenceKey { launch_id: LAUNCH.to_owned(), job_id: "x".repeat(name), ..FenceKey::default() };
        LinkFrame { what: Some(What::Awaited(key)) }
    }

    fn ciphers() -> [SharedCiphers; 2] {
        let mut ends = [Handshake::of_caller, Handshake::of_called].map(|end| end(&[7; 32], b"").unwrap());
        let opening = ends[0].write(1).unwrap();
        ends[1].read(&opening).unwrap();
        let answer = ends[1].write(1).unwrap();
        ends[0].read(&answer).unwrap();
        ends.map(|end| Arc::new(Mutex::new(end.finish().unwrap())))
    }

    /// Writer of a link, its receiving socket, and the ciphers there.
    async fn link() -> (LinkWriter, TcpStream, SharedCiphers) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (far, _) = listener.accept().await.unwrap();
        let [ours, theirs] = ciphers();
        let (_, half) = near.into_split();
        (LinkWriter::new(Arc::new(half), ours, FrameWriter::new(LAUNCH.into()), Arc::default()), far, theirs)
    }

    fn write(writer: &mut LinkWriter, frames: &mut VecDeque<LinkFrame>) -> SinkState {
        writer.write(&mut || frames.pop_front())
    }

    #[tokio::test]
    async fn a_confirmation_waits_for_what_follows_it_and_nothing_else_waits() {
        let (mut writer, mut far, _) = link().await;
        let mut write_all = |frames: Vec<LinkFrame>| write(&mut writer, &mut frames.into());
        assert_eq!(write_all(vec![confirmation()]), SinkState::Held);
        assert_eq!(write_all(vec![other(1)]), SinkState::Ready, "it goes with another frame");
        assert_eq!(write_all(vec![confirmation()]), SinkState::Held);
        assert_eq!(write_all(Vec::new()), SinkState::Ready, "it has waited");
        assert_eq!(write_all(vec![confirmation(); CONFIRM_AT_ONCE]), SinkState::Ready);
        assert_eq!(write_all(Vec::new()), SinkState::Ready, "nothing is there");
        assert!(far.read(&mut [0; 4096]).await.unwrap() > 0);
    }

    #[tokio::test]
    async fn a_socket_that_is_full_takes_the_rest_later_and_every_frame_arrives_in_order() {
        const FRAMES: usize = 400;
        let (mut writer, far, theirs) = link().await;
        let mut frames: VecDeque<LinkFrame> = (0..FRAMES).map(|number| other(60_000 + number)).collect();
        assert_eq!(write(&mut writer, &mut frames), SinkState::Blocked);
        let (reader, _kept) = far.into_split();
        let mut incoming = incoming(reader, theirs, FrameReader::new(LAUNCH.into()));
        let socket = Arc::clone(&writer.socket);
        let writing = tokio::spawn(async move {
            while write(&mut writer, &mut frames) == SinkState::Blocked {
                socket.writable().await.unwrap();
            }
        });
        for number in 0..FRAMES {
            let arrived = incoming.next().await.unwrap().unwrap();
            assert!(
                matches!(arrived.what, Some(What::Awaited(key)) if key.job_id.len() == 60_000 + number),
                "{number}"
            );
        }
        writing.await.unwrap();
    }

    #[tokio::test]
    async fn a_link_that_breaks_ends_its_writer() {
        let (mut writer, far, _) = link().await;
        drop(far);
        let failure = Arc::clone(&writer.failure);
        while write(&mut writer, &mut [other(1)].into()) != SinkState::Broken {
            tokio::task::yield_now().await;
        }
        assert!(matches!(*failure.lock(), Some(StreamError::Io(_))));
    }
}

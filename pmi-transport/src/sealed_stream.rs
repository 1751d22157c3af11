//! An encrypted bidirectional byte stream over TCP between two ends with the same key. Without the key, no process can open a
//! stream, nor read or change its content.
//!
//! ```text
//! caller                                called
//!    │ "LATJOIN1", e, version ────────────> │   Noise NNpsk0 under a key that is derived from the shared one
//!    │ <─────────────────── e, ee, version │
//!    │ <═══ pieces of bytes, encrypted ═══> │   a length of two bytes precedes each
//! ```
//!
//! The caller's first piece proves that its opening is not a replay: the called end takes no action before it.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;
use zeroize::Zeroizing;

use crate::noise::{Ciphers, HANDSHAKE_LEN, Handshake, KEY_LEN, NoiseError};

/// First bytes of a caller, and the prologue of the handshake.
const MAGIC: [u8; 8] = *b"LATJOIN1";
/// Version of the protocol after the handshake.
const VERSION: u8 = 1;
/// Time limit for the handshake.
const OPEN_WITHIN: Duration = Duration::from_secs(10);
/// Buffer space for one read, in bytes.
const READ_ROOM: usize = 16 << 10;

/// The key of both ends, derived from a secret text. It is wiped from memory on drop.
#[derive(Clone)]
pub struct SharedKey(Zeroizing<[u8; KEY_LEN]>);

/// A text that is too short for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key has {bytes} bytes; it takes {} at least, such as those of: openssl rand -hex 32", SharedKey::TEXT_MIN)]
pub struct ShortKeyError {
    /// Length of the text without surrounding whitespace.
    pub bytes: usize,
}

/// Failure of a stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealedError {
    /// The connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other end closed the connection instead of answering.
    #[error("it closed the connection: it has another key, or is something else")]
    Closed,
    /// The other end is not a process of Lattice.
    #[error("it opens with {0:02x?}, as nothing of Lattice does")]
    Stranger([u8; 8]),
    /// The other end has another key.
    #[error(transparent)]
    Noise(#[from] NoiseError),
    /// The other end has another version.
    #[error("it has streams of version {0}, and this is one for {VERSION}")]
    Version(u8),
    /// The other end does not answer.
    #[error("it did not answer within {OPEN_WITHIN:?}")]
    Late,
}

impl SharedKey {
    /// The minimum length of a key's text, in bytes.
    pub const TEXT_MIN: usize = 32;

    /// Derives the key from a text; surrounding whitespace is ignored.
    ///
    /// # Errors
    /// Refuses a text that is too short.
    pub fn of_text(text: &[u8]) -> Result<Self, ShortKeyError> {
        struct Length;
        impl KeyType for Length {
            fn len(&self) -> usize {
                KEY_LEN
            }
        }
        let text = text.trim_ascii();
        if text.len() < Self::TEXT_MIN {
            return Err(ShortKeyError { bytes: text.len() });
        }
        let from = Salt::new(HKDF_SHA256, &[]).extract(text);
        let mut key = Zeroizing::new([0; KEY_LEN]);
        let output = from.expand(&[b"lattice sealed stream"], Length).expect("32 bytes are less than 255 blocks");
        output.fill(&mut *key).expect("the buffer has the length that was asked for");
        Ok(Self(key))
    }

    /// The key with these bytes, which must be secret.
    pub fn from_bytes(bytes: [u8; KEY_LEN]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Its bytes, for a message to the other end.
    pub fn as_bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }
}

/// Omits the key, so that no log contains it.
impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedKey")
    }
}

/// Opens a stream on a connection that this end has made.
///
/// # Errors
/// Fails if the other end does not have the key, or does not answer in time.
pub async fn open(socket: TcpStream, key: &SharedKey) -> Result<(SealedReader, SealedWriter), SealedError> {
    in_time(async {
        let mut socket = socket;
        let mut handshake = Handshake::of_caller(&key.0, &MAGIC)?;
        socket.write_all(&[&MAGIC[..], &handshake.write(VERSION)?].concat()).await?;
        let mut answer = [0; HANDSHAKE_LEN];
        socket.read_exact(&mut answer).await.map_err(closed)?;
        let version = handshake.read(&answer)?;
        halves(socket, version, handshake)
    })
    .await
}

/// Accepts a stream on a connection that the other end has made.
///
/// # Errors
/// Fails if the other end does not have the key, or sends nothing in time.
pub async fn answer(socket: TcpStream, key: &SharedKey) -> Result<(SealedReader, SealedWriter), SealedError> {
    in_time(async {
        let mut socket = socket;
        let (mut magic, mut opening) = ([0; MAGIC.len()], [0; HANDSHAKE_LEN]);
        socket.read_exact(&mut magic).await?;
        if magic != MAGIC {
            return Err(SealedError::Stranger(magic));
        }
        socket.read_exact(&mut opening).await?;
        let mut handshake = Handshake::of_called(&key.0, &MAGIC)?;
        let version = handshake.read(&opening)?;
        socket.write_all(&handshake.write(VERSION)?).await?;
        halves(socket, version, handshake)
    })
    .await
}

async fn in_time<T>(opening: impl Future<Output = Result<T, SealedError>>) -> Result<T, SealedError> {
    timeout(OPEN_WITHIN, opening).await.unwrap_or(Err(SealedError::Late))
}

/// Explains a connection that ends instead of an answer.
fn closed(error: io::Error) -> SealedError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => SealedError::Closed,
        _ => error.into(),
    }
}

fn halves(socket: TcpStream, version: u8, handshake: Handshake) -> Result<(SealedReader, SealedWriter), SealedError> {
    if version != VERSION {
        return Err(SealedError::Version(version));
    }
    socket.set_nodelay(true)?;
    let ciphers = Arc::new(Mutex::new(handshake.finish()?));
    let (reader, writer) = socket.into_split();
    let reader = SealedReader { socket: reader, ciphers: Arc::clone(&ciphers), sealed: BytesMut::new() };
    Ok((reader, SealedWriter { socket: writer, ciphers, sealed: BytesMut::new() }))
}

/// Receiving side of a stream.
#[derive(Debug)]
pub struct SealedReader {
    socket: OwnedReadHalf,
    ciphers: Arc<Mutex<Ciphers>>,
    /// Beginning of an incomplete piece.
    sealed: BytesMut,
}

impl SealedReader {
    /// Returns the next bytes; none at the end of the stream. Cancel-safe.
    ///
    /// # Errors
    /// Fails if the connection breaks, or on bytes that the other end did not send.
    pub async fn next(&mut self) -> Result<BytesMut, SealedError> {
        let mut plain = BytesMut::new();
        loop {
            self.ciphers.lock().open(&mut self.sealed, &mut plain)?;
            if !plain.is_empty() {
                return Ok(plain);
            }
            self.sealed.reserve(READ_ROOM);
            match self.socket.read_buf(&mut self.sealed).await? {
                0 if self.sealed.is_empty() => return Ok(plain),
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                _ => {}
            }
        }
    }
}

/// Sending side of a stream.
#[derive(Debug)]
pub struct SealedWriter {
    socket: OwnedWriteHalf,
    ciphers: Arc<Mutex<Ciphers>>,
    sealed: BytesMut,
}

impl SealedWriter {
    /// Sends all of these bytes. Not cancel-safe: if a call is dropped before its end, the other end can read nothing more.
    ///
    /// # Errors
    /// Fails if the connection breaks.
    pub async fn write_all(&mut self, plain: &[u8]) -> Result<(), SealedError> {
        self.sealed.clear();
        self.ciphers.lock().seal(plain, &mut self.sealed)?;
        Ok(self.socket.write_all(&self.sealed).await?)
    }

    /// Ends the sending direction. The receiving direction stays open.
    ///
    /// # Errors
    /// Fails if the connection is broken.
    pub async fn end(mut self) -> Result<(), SealedError> {
        Ok(self.socket.shutdown().await?)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn key(letter: u8) -> SharedKey {
        SharedKey::of_text(&[letter; 40]).unwrap()
    }

    /// Both ends of a connection.
    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (called, caller) = tokio::join!(listener.accept(), TcpStream::connect(address));
        (caller.unwrap(), called.unwrap().0)
    }

    type Opened = Result<(SealedReader, SealedWriter), SealedError>;

    /// Opens a stream between a caller and a called end with these keys.
    async fn opened(ours: u8, theirs: u8) -> (Opened, Opened) {
        let ((caller, called), ours, theirs) = (pair().await, key(ours), key(theirs));
        tokio::join!(open(caller, &ours), answer(called, &theirs))
    }

    #[tokio::test]
    async fn bytes_pass_in_both_directions_until_they_end() {
        let (one, other) = opened(b'a', b'a').await;
        let ((mut caller_reads, mut caller_writes), (mut called_reads, mut called_writes)) =
            (one.unwrap(), other.unwrap());
        let long = vec![7; 200_000];
        let sent = async {
            caller_writes.write_all(&long).await.unwrap();
            caller_writes.end().await.unwrap();
        };
        let read = async {
            let mut all = Vec::new();
            loop {
                match called_reads.next().await.unwrap() {
                    end if end.is_empty() => return all,
                    piece => all.extend_from_slice(&piece),
                }
            }
        };
        assert_eq!(tokio::join!(sent, read).1, long);
        called_writes.write_all(b"answer").await.unwrap();
        assert_eq!(caller_reads.next().await.unwrap(), &b"answer"[..]);
    }

    #[tokio::test]
    async fn whoever_has_another_key_is_refused_at_both_ends() {
        let (one, other) = opened(b'a', b'b').await;
        assert!(matches!(one.unwrap_err(), SealedError::Closed));
        assert!(matches!(other.unwrap_err(), SealedError::Noise(_)));
    }

    #[tokio::test]
    async fn strangers_are_told_from_callers_and_a_changed_byte_from_what_was_sent() {
        let (mut caller, called) = pair().await;
        caller.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        let refused = answer(called, &key(b'a')).await.unwrap_err().to_string();
        assert!(refused.starts_with("it opens with [47, 45, 54"), "{refused}");
        let (one, other) = opened(b'a', b'a').await;
        let ((_, mut writer), (mut reader, _)) = (one.unwrap(), other.unwrap());
        writer.socket.write_all(&[0, 20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0]).await.unwrap();
        assert!(matches!(reader.next().await, Err(SealedError::Noise(_))));
    }

    #[test]
    fn a_key_is_long_enough_and_the_same_with_a_line_end() {
        let error = SharedKey::of_text(b" secret \n").unwrap_err();
        assert!(error.to_string().starts_with("the key has 6 bytes; it takes 32 at least"), "{error}");
        let text = [b'x'; 32];
        let with_end = [&text[..], b"\n"].concat();
        assert_eq!(SharedKey::of_text(&text).unwrap().0, SharedKey::of_text(&with_end).unwrap().0);
        assert_eq!(format!("{:?}", key(b'a')), "SharedKey");
    }
}

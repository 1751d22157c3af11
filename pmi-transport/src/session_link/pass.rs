//! Connections between launches of one user: from the root of one set to that of another, by a pass of the API server.
//!
//! ```text
//! API server ── greeting, ticket, key ──> calling root
//!
//! calling root                     agent of the called root          called root
//!    │ greeting, 80 bytes ───────────> │ MAC fits: handed over ──────> │
//!    │ ticket, 20 bytes ────────────────────────────────────────────> │
//!    │ <═════ sealed stream under the key of the pass ══════════════> │
//!    │ version, one byte ───────────────────────────────────────────> │  proves that all of it is no recording
//!    │ <───────────────────────── welcome, or why not, one byte │
//!    │ <══════════════ whatever the two have to say ════════════════> │
//! ```
//! The key of a pass follows from the called launch's [`LinkKey`] and all bytes of greeting and ticket (HKDF). Only the API server and the
//! called launch's sessions can make it, so a ticket with a changed byte opens nothing, and neither does one without its key.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::time::Duration;

use bytes::{Buf, BufMut, BytesMut};
use parking_lot::Mutex;
use pmi_core::ids::NodeIndex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::greeting::{Greeting, LaunchHash};
use super::key::LinkKey;
use super::socket;
use super::transport::{Handed, resolve};
use crate::limits::CONNECT_TIMEOUT;
use crate::sealed_stream::{self, SealedError, SealedReader, SealedWriter, SharedKey};

/// Version of what the two have to say.
const VERSION: u8 = 1;
/// Time for a ticket to come, and for the word of welcome.
const WORD_TIMEOUT: Duration = Duration::from_secs(5);
/// Most passes that are remembered as used; each is for as long as it could be used.
const USED_MAX: usize = 4096;

/// Facts that a pass attests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Set that may connect.
    pub from: u32,
    /// Set that it may connect to.
    pub to: u32,
    /// User of both.
    pub uid: u32,
    /// End of the time in which it may, in seconds since 1970.
    pub expires: u64,
}

/// Right to connect once to the root of a set.
#[derive(Clone)]
pub struct Pass {
    opening: [u8; Self::OPENING_LEN],
    key: SharedKey,
}

/// Word of a called root to whoever has a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Its time is over.
    #[error(
        "the ticket is too old: the clocks of that node and of the API server differ, or it was on its way for a minute"
    )]
    TooOld,
    /// It was used before.
    #[error("the ticket was used before")]
    Used,
    /// It is for another set, or of another user.
    #[error("the ticket is for another set")]
    Foreign,
    /// So many came within a minute that no more are remembered.
    #[error("more sets connect there than it takes in a minute; try again, a little later")]
    Full,
    /// A reason of a later version.
    #[error("it has number {0}, which means nothing here")]
    Other(u8),
}

/// Failure to connect to the root of a set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnterError {
    /// The agent of its node cannot be reached.
    #[error("{address}: {source}")]
    Unreachable {
        /// Address of the agent.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// It says nothing.
    #[error("{address} did not answer in time")]
    Late {
        /// Address of the agent.
        address: String,
    },
    /// The connection is none of two ends with one key.
    #[error("{address}: {source}")]
    Sealed {
        /// Address of the agent.
        address: String,
        /// The fault.
        source: SealedError,
    },
    /// The root refuses.
    #[error("{0}")]
    Refused(#[from] Refusal),
}

/// Failure of a connection that came with a greeting of another set. It concerns nobody but its sender.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdmitError {
    /// The connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// No ticket came in time.
    #[error("no ticket came within {WORD_TIMEOUT:?}")]
    Late,
    /// The other end does not have the key of its ticket.
    #[error(transparent)]
    Sealed(#[from] SealedError),
    /// The ticket does not entitle it.
    #[error("{0}")]
    Refused(#[from] Refusal),
}

/// Connection between two roots.
#[derive(Debug)]
pub struct Entered {
    /// Bytes that have come already.
    pub ahead: BytesMut,
    /// What comes over it.
    pub reader: SealedReader,
    /// What goes over it.
    pub writer: SealedWriter,
}

impl Ticket {
    const LEN: usize = 20;

    fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let mut rest = &mut bytes[..];
        [self.from, self.to, self.uid].into_iter().for_each(|number| rest.put_u32(number));
        rest.put_u64(self.expires);
        bytes
    }

    fn from_bytes(mut bytes: &[u8]) -> Self {
        let [from, to, uid] = std::array::from_fn(|_| bytes.get_u32());
        Self { from, to, uid, expires: bytes.get_u64() }
    }
}

impl Pass {
    /// Length of what opens a connection, in bytes.
    pub const OPENING_LEN: usize = Greeting::LEN + Ticket::LEN;

    /// Pass to the root of the launch `id` with this key. The nonce must not have been used before.
    pub fn issue(key: &LinkKey, id: &str, ticket: Ticket, nonce: [u8; 16]) -> Self {
        let greeting = Greeting::new(LaunchHash::of(id), Greeting::OTHER_SET, NodeIndex(0), nonce, &key.gate_key());
        let mut opening = [0; Self::OPENING_LEN];
        opening[..Greeting::LEN].copy_from_slice(greeting.as_bytes());
        opening[Greeting::LEN..].copy_from_slice(&ticket.to_bytes());
        Self { opening, key: key.pass_key(&opening) }
    }

    /// The pass of these bytes, as messages have them.
    pub fn from_parts(opening: &[u8], key: &[u8]) -> Option<Self> {
        Some(Self { opening: opening.try_into().ok()?, key: SharedKey::from_bytes(key.try_into().ok()?) })
    }

    /// The first bytes of the connection.
    pub fn opening(&self) -> &[u8; Self::OPENING_LEN] {
        &self.opening
    }

    /// Key of the connection.
    pub fn key(&self) -> &SharedKey {
        &self.key
    }

    /// Connects to the root by way of its agent at `address`.
    ///
    /// # Errors
    /// Fails if the agent cannot be reached, and if the root does not let it in.
    pub async fn enter(&self, address: &str) -> Result<Entered, EnterError> {
        let late = || EnterError::Late { address: address.to_owned() };
        let unreachable = |source| EnterError::Unreachable { address: address.to_owned(), source };
        let sealed = |source| EnterError::Sealed { address: address.to_owned(), source };
        let connecting = async {
            let to = resolve(address).await?.next().ok_or(io::ErrorKind::NotFound)?;
            let mut socket = TcpStream::connect(to).await?;
            socket::configure(&socket)?;
            socket.write_all(&self.opening).await?;
            Ok(socket)
        };
        let socket = timeout(CONNECT_TIMEOUT, connecting).await.map_err(|_| late())?.map_err(unreachable)?;
        let (mut reader, mut writer) = sealed_stream::open(socket, &self.key).await.map_err(sealed)?;
        writer.write_all(&[VERSION]).await.map_err(sealed)?;
        let mut ahead = timeout(WORD_TIMEOUT, reader.next()).await.map_err(|_| late())?.map_err(sealed)?;
        match ahead.try_get_u8() {
            Ok(0) => Ok(Entered { ahead, reader, writer }),
            Ok(code) => Err(Refusal::of(code).into()),
            Err(_) => Err(sealed(SealedError::Closed)),
        }
    }
}

impl Refusal {
    fn code(self) -> u8 {
        match self {
            Self::TooOld => 1,
            Self::Used => 2,
            Self::Foreign => 3,
            Self::Full => 4,
            Self::Other(code) => code,
        }
    }

    fn of(code: u8) -> Self {
        [Self::TooOld, Self::Used, Self::Foreign, Self::Full]
            .into_iter()
            .find(|refusal| refusal.code() == code)
            .unwrap_or(Self::Other(code))
    }
}

/// Nothing of the key, so that it reaches no log.
impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ticket::from_bytes(&self.opening[Greeting::LEN..]).fmt(f)
    }
}

/// Entrance of a set's root for the roots of other sets.
#[derive(Debug)]
pub struct Entrance {
    key: LinkKey,
    set: u32,
    uid: u32,
    /// When each pass that was used would be too old, by its nonce.
    used: Mutex<HashMap<[u8; 16], u64>>,
}

impl Entrance {
    /// Entrance of a set of this user, whose launch has this key.
    pub fn new(key: LinkKey, set: u32, uid: u32) -> Self {
        Self { key, set, uid, used: Mutex::default() }
    }

    /// Lets in whoever has a pass, at the time `now` in seconds since 1970; returns the set that it is.
    ///
    /// # Errors
    /// Fails for whoever has none, or none that counts.
    pub async fn admit(&self, handed: Handed, now: u64) -> Result<(u32, Entered), AdmitError> {
        let Handed { greeting, socket } = handed;
        socket.set_nonblocking(true)?;
        let mut socket = TcpStream::from_std(socket)?;
        socket::configure(&socket)?;
        let mut opening = [0; Pass::OPENING_LEN];
        opening[..Greeting::LEN].copy_from_slice(greeting.as_bytes());
        timeout(WORD_TIMEOUT, socket.read_exact(&mut opening[Greeting::LEN..]))
            .await
            .map_err(|_| AdmitError::Late)??;
        let ticket = Ticket::from_bytes(&opening[Greeting::LEN..]);
        let (mut reader, mut writer) = sealed_stream::answer(socket, &self.key.pass_key(&opening)).await?;
        // A recorded opening leads to here, and no further.
        let mut ahead = timeout(WORD_TIMEOUT, reader.next()).await.map_err(|_| AdmitError::Late)??;
        ahead.try_get_u8().map_err(|_| SealedError::Closed)?;
        let checked = self.check(ticket, greeting.nonce(), now);
        writer.write_all(&[checked.map_or_else(Refusal::code, |()| 0)]).await?;
        checked?;
        Ok((ticket.from, Entered { ahead, reader, writer }))
    }

    fn check(&self, ticket: Ticket, nonce: [u8; 16], now: u64) -> Result<(), Refusal> {
        if (ticket.to, ticket.uid) != (self.set, self.uid) || ticket.from == self.set {
            return Err(Refusal::Foreign);
        }
        if ticket.expires < now {
            return Err(Refusal::TooOld);
        }
        let mut used = self.used.lock();
        used.retain(|_, expires| *expires >= now);
        if used.len() >= USED_MAX {
            return Err(Refusal::Full);
        }
        used.insert(nonce, ticket.expires).map_or(Ok(()), |_| Err(Refusal::Used))
    }
}

#[cfg(test)]
mod tests;

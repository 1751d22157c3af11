//! Connections between launches of one user, from the root of one set to the root of another, with a pass of the API server.
//!
//! ```text
//! API server ── greeting, ticket, key ──> calling root
//!
//! calling root                     agent of the called root          called root
//!    │ greeting, 80 bytes ───────────> │ MAC matches: hands over ────> │
//!    │ ticket, 20 bytes ────────────────────────────────────────────> │
//!    │ <═════ sealed stream under the key of the pass ══════════════> │
//!    │ version, one byte ───────────────────────────────────────────> │  proves that the opening is not a replay
//!    │ <────────────────────── welcome or refusal reason, one byte │
//!    │ <═══════════════════ data of the two roots ══════════════════> │
//! ```
//! The key of a pass is derived from the called launch's [`LinkKey`] and all bytes of greeting and ticket (HKDF). Only the API server and
//! the called launch's sessions can derive it. So a changed ticket opens nothing, nor does a ticket without its key.

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

/// Version of the protocol between the two roots.
const VERSION: u8 = 1;
/// Time limit for the ticket, and for the welcome.
const WORD_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum remembered used passes. Each is remembered while it is valid.
const USED_MAX: usize = 4096;

/// Content of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Set that may connect.
    pub from: u32,
    /// Set that it may connect to.
    pub to: u32,
    /// User of both sets.
    pub uid: u32,
    /// End of validity, in seconds since 1970.
    pub expires: u64,
}

/// Right to connect once to the root of a set.
#[derive(Clone)]
pub struct Pass {
    opening: [u8; Self::OPENING_LEN],
    key: SharedKey,
}

/// Reason why a called root refuses a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The ticket has expired.
    #[error(
        "the ticket is too old: the clocks of that node and of the API server differ, or it was on its way for a minute"
    )]
    TooOld,
    /// The ticket was used before.
    #[error("the ticket was used before")]
    Used,
    /// The ticket is for another set, or of another user.
    #[error("the ticket is for another set")]
    Foreign,
    /// Too many tickets arrived within a minute; no more can be remembered.
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
    /// The agent of the root's node cannot be reached.
    #[error("{address}: {source}")]
    Unreachable {
        /// Address of the agent.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// The root does not answer.
    #[error("{address} did not answer in time")]
    Late {
        /// Address of the agent.
        address: String,
    },
    /// The two ends do not share one key.
    #[error("{address}: {source}")]
    Sealed {
        /// Address of the agent.
        address: String,
        /// The error.
        source: SealedError,
    },
    /// The root refuses the ticket.
    #[error("{0}")]
    Refused(#[from] Refusal),
}

/// Failure of a connection with a greeting of another set. It affects only its sender.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdmitError {
    /// The connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// No ticket arrived in time.
    #[error("no ticket came within {WORD_TIMEOUT:?}")]
    Late,
    /// The other end does not have the key of its ticket.
    #[error(transparent)]
    Sealed(#[from] SealedError),
    /// The ticket is refused.
    #[error("{0}")]
    Refused(#[from] Refusal),
}

/// Connection between two roots.
#[derive(Debug)]
pub struct Entered {
    /// Bytes that were received already.
    pub ahead: BytesMut,
    /// Receiving side.
    pub reader: SealedReader,
    /// Sending side.
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
    /// Length of a connection's opening, in bytes.
    pub const OPENING_LEN: usize = Greeting::LEN + Ticket::LEN;

    /// Pass to the root of the launch `id` with this key. The nonce must be unused.
    pub fn issue(key: &LinkKey, id: &str, ticket: Ticket, nonce: [u8; 16]) -> Self {
        let greeting = Greeting::new(LaunchHash::of(id), Greeting::OTHER_SET, NodeIndex(0), nonce, &key.gate_key());
        let mut opening = [0; Self::OPENING_LEN];
        opening[..Greeting::LEN].copy_from_slice(greeting.as_bytes());
        opening[Greeting::LEN..].copy_from_slice(&ticket.to_bytes());
        Self { opening, key: key.pass_key(&opening) }
    }

    /// Parses the pass of a message; `None` if a length is wrong.
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

    /// Connects to the root through its agent at `address`.
    ///
    /// # Errors
    /// Fails if the agent cannot be reached, or if the root refuses the pass.
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

/// Omits the key, so that no log contains it.
impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ticket::from_bytes(&self.opening[Greeting::LEN..]).fmt(f)
    }
}

/// Entrance to a set's root for the roots of other sets.
#[derive(Debug)]
pub struct Entrance {
    key: LinkKey,
    set: u32,
    uid: u32,
    /// Expiry time of each used pass, by its nonce.
    used: Mutex<HashMap<[u8; 16], u64>>,
}

impl Entrance {
    /// Entrance of a set of user `uid`; `key` is that of its launch.
    pub fn new(key: LinkKey, set: u32, uid: u32) -> Self {
        Self { key, set, uid, used: Mutex::default() }
    }

    /// Admits a caller with a pass, at the time `now` in seconds since 1970; returns its set.
    ///
    /// # Errors
    /// Fails if the caller has no pass, or if the pass is not valid.
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
        // A replayed opening gets only this far.
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

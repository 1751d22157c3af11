//! PMI-1 and PMI-2 as bytes. Here, and only here, the two protocols differ.
//!
//! ```text
//! bytes ──frame──> Frame ──pmi1 | pmi2──> Message { Request } ──> Server ──> Response ──encode──> bytes
//!
//! PMI-1 line      cmd=put kvsname=K key=k value=v with spaces\n
//! PMI-1 spawn     mcmd=spawn\nnprocs=2\n...endcmd\n  (as many blocks as `totspawns` says)
//! PMI-2 message   "    36" cmd=kvs-put;key=k;value=a;;b;      (six bytes of decimal length, then that many bytes)
//! ```
//!
//! Protocol facts come from recorded conversations with real clients (`testdata/`), and from MPICH's tables
//! `src/pmi/maint/pmi-1.1.txt`, `pmi-1.2.txt` and `pmi-2.0.txt`.

mod decode;
pub mod frame;
mod pmi1;
mod pmi2;
pub mod request;
pub mod response;

pub use frame::{Frame, FrameBuffer, FrameError};
pub use request::{Message, Request, RequestError};
pub use response::{ErrorCode, Response};

use crate::services::SpawnRequest;

/// Text format of a message, one of two. Decided per message: a PMI-2 client begins with a PMI-1 line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Lines of `name=value` fields between spaces.
    Pmi1,
    /// Length-prefixed messages of `name=value` fields that end with `;`.
    Pmi2,
}

/// The longest key in bytes: what every server announces (`keylen_max=64`, PMI-2 `PMI2_MAX_KEYLEN`).
pub const KEY_MAX: usize = 64;

/// The longest value that is announced, in bytes; the NUL of C clients counts.
pub const VALUE_MAX_ANNOUNCED: usize = 1024;

/// The longest value that is taken, in bytes: clients that ignore what is announced get that far.
pub const VALUE_MAX: usize = 64 * 1024;

/// Reason for which a pair cannot be kept, whoever puts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PairError {
    /// The key is empty or too long.
    #[error("a key of {len} bytes; the limit is {KEY_MAX}")]
    KeyLength {
        /// Length of the key.
        len: usize,
    },
    /// The value is too long.
    #[error("a value of {len} bytes; the limit is {VALUE_MAX}")]
    ValueLength {
        /// Length of the value.
        len: usize,
    },
}

/// Checks that a pair is one that ranks can be told: a key of 1 to [`KEY_MAX`] bytes, and a value of [`VALUE_MAX`] at most.
///
/// # Errors
/// Fails with the length that is out of bounds.
pub fn check_pair(key: &[u8], value: &[u8]) -> Result<(), PairError> {
    match (key.len(), value.len()) {
        (len, _) if len == 0 || len > KEY_MAX => Err(PairError::KeyLength { len }),
        (_, len) if len > VALUE_MAX => Err(PairError::ValueLength { len }),
        _ => Ok(()),
    }
}

/// Checks that ranks of the new job can be told its preput pairs, as [`check_pair`] says. A server asks this before it hands a request
/// to its host; a host asks it of requests that others hand on.
///
/// # Errors
/// Fails with the first pair that is out of bounds.
pub fn check_preput(request: &SpawnRequest) -> Result<(), PairError> {
    request.preput.iter().try_for_each(|(key, value)| check_pair(key, value))
}

/// The longest job id that is announced, in bytes; the NUL of C clients counts.
pub const KVSNAME_MAX_ANNOUNCED: usize = 256;

/// What is announced for names, keys and values, as the fact `lattice.limits` has it.
pub(crate) const LIMITS_ANNOUNCED: &str = "256,64,1024";

//! Limits of keys, values and names, and the check of pairs.

use crate::services::SpawnRequest;

/// Maximum length of a key in bytes, as every server announces it (`keylen_max=64`, PMI-2 `PMI2_MAX_KEYLEN`).
pub const KEY_MAX: usize = 64;

/// Maximum announced length of a value in bytes, including the NUL of C clients.
pub const VALUE_MAX_ANNOUNCED: usize = 1024;

/// Maximum accepted length of a value in bytes. Clients that ignore the announced limit send values up to this length.
pub const VALUE_MAX: usize = 64 * 1024;

/// Reason why a pair cannot be stored.
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

/// Checks that a pair can be sent to ranks: a key of 1 to [`KEY_MAX`] bytes, and a value of at most [`VALUE_MAX`].
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

/// Checks the preput pairs of a new job, as [`check_pair`] does. A server checks a request before it passes the request to its host. A
/// host checks forwarded requests.
///
/// # Errors
/// Fails with the first pair that is out of bounds.
pub fn check_preput(request: &SpawnRequest) -> Result<(), PairError> {
    request.preput.iter().try_for_each(|(key, value)| check_pair(key, value))
}

/// Maximum announced length of a job id in bytes, including the NUL of C clients.
pub const KVSNAME_MAX_ANNOUNCED: usize = 256;

/// Announced limits of names, keys and values, in the format of the fact `lattice.limits`.
pub(crate) const LIMITS_ANNOUNCED: &str = "256,64,1024";

//! Secrets in memory. `scrubber` removes them from texts of other programs.
//!
//! A [`Secret`] is a [`SecretSlice`] with comparison in constant time. It is parsed and written in hexadecimal digits without leaving a
//! copy, and a fingerprint distinguishes it in a log. Only [`Secret::expose`] returns its bytes, which is easy to search for.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::OnceLock;

use nix::sys::prctl;
use secrecy::{ExposeSecret, SecretSlice};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Secret bytes: a key, a password, a token.
#[derive(Clone)]
pub struct Secret(SecretSlice<u8>);

impl Secret {
    /// Takes the bytes. The given vector is wiped.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self::of(&Zeroizing::new(bytes.into()))
    }

    /// Copies the bytes into a box of exactly their size: a vector that shrinks leaves a copy in freed memory.
    fn of(bytes: &[u8]) -> Self {
        Self(Box::<[u8]>::from(bytes).into())
    }

    /// Parses hexadecimal digits; `None` for any other text.
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if !digits.len().is_multiple_of(2) {
            return None;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok());
        let mut bytes = Zeroizing::new(Vec::with_capacity(digits.len() / 2));
        for pair in digits.chunks_exact(2) {
            bytes.push(digit(pair[0])? << 4 | digit(pair[1])?);
        }
        Some(Self::of(&bytes))
    }

    /// The bytes.
    pub fn expose(&self) -> &[u8] {
        self.0.expose_secret()
    }

    /// The bytes in lower-case hexadecimal digits, wiped when dropped.
    pub fn expose_hex(&self) -> Zeroizing<String> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // The capacity is exact: a string that grows leaves copies in freed memory.
        let mut text = Zeroizing::new(String::with_capacity(self.expose().len() * 2));
        for byte in self.expose() {
            text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        text
    }

    /// True for a secret without bytes.
    pub fn is_empty(&self) -> bool {
        self.expose().is_empty()
    }

    /// Hash with a random key of this process. It distinguishes secrets in the logs of one process, and discloses nothing about them.
    pub fn fingerprint(&self) -> Fingerprint {
        static KEY: OnceLock<RandomState> = OnceLock::new();
        Fingerprint(KEY.get_or_init(RandomState::new).hash_one(self.expose()) as u32)
    }
}

impl AsRef<[u8]> for Secret {
    /// Lends the bytes like [`Secret::expose`], for functions that take ownership of the lender.
    fn as_ref(&self) -> &[u8] {
        self.expose()
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.expose().ct_eq(other.expose()).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.fingerprint())
    }
}

/// Protects the memory of this process from core dumps, debuggers and `/proc`, except root's. Processes with keys call it once before they
/// read the first key, and again after a change of the user. Processes that are forked later inherit the protection. Programs that they
/// execute do not, so users can debug and dump ranks.
///
/// # Errors
/// Fails if the kernel refuses (`PR_SET_DUMPABLE` of `prctl(2)`).
pub fn keep_out_of_core_dumps() -> io::Result<()> {
    Ok(prctl::set_dumpable(false)?)
}

/// Form of a [`Secret`] in logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u32);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{:08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_shows_its_fingerprint_and_nothing_else() {
        let secret = Secret::new("correct horse");
        let shown = format!("{secret:?} {secret:#?} {}", secret.fingerprint());
        assert!(!shown.contains("horse") && !shown.contains("686f727365"), "{shown}");
        assert_eq!(secret.fingerprint(), secret.clone().fingerprint());
        assert_ne!(secret.fingerprint(), Secret::new("correct house").fingerprint());
    }

    #[test]
    fn hexadecimal_digits_are_read_and_written() {
        let secret = Secret::from_hex("00ffA7").expect("hexadecimal");
        assert_eq!(secret.expose(), [0, 255, 0xa7]);
        assert_eq!(secret.expose_hex().as_str(), "00ffa7");
        for text in ["0", "0g", "+1", "äö"] {
            assert!(Secret::from_hex(text).is_none(), "{text} was read");
        }
    }

    #[test]
    fn a_process_that_holds_keys_is_not_dumped() {
        keep_out_of_core_dumps().expect("the kernel has the switch");
        assert_eq!(prctl::get_dumpable(), Ok(false));
    }
}

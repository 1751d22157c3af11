//! Secrets in memory: what they may show of themselves, and how text from elsewhere is freed of them.
//!
//! A [`Secret`] is wiped when dropped, compares in constant time, and has no way into a log but its fingerprint. Whoever needs
//! the bytes asks for them by [`Secret::expose`], which is easy to search for.

use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::sync::OnceLock;

use parking_lot::Mutex;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Bytes that nobody else may read: a key, a password, a token.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes the bytes over.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(Zeroizing::new(bytes.into()))
    }

    /// The bytes that `text` spells in hexadecimal digits; `None` if it does not.
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
        Some(Self(bytes))
    }

    /// The bytes themselves.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// The bytes in lower-case hexadecimal digits, wiped when dropped.
    pub fn expose_hex(&self) -> Zeroizing<String> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // The capacity is exact: a string that grows leaves copies behind.
        let mut text = Zeroizing::new(String::with_capacity(self.0.len() * 2));
        for byte in self.0.iter() {
            text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        text
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Tells secrets apart in logs of one process, and tells nothing about them: a hash under a key that the process picks anew.
    pub fn fingerprint(&self) -> Fingerprint {
        static KEY: OnceLock<RandomState> = OnceLock::new();
        Fingerprint(KEY.get_or_init(RandomState::new).hash_one(self.0.as_slice()) as u32)
    }
}

impl AsRef<[u8]> for Secret {
    /// The same as [`Secret::expose`], for those who take ownership of what they lend.
    fn as_ref(&self) -> &[u8] {
        self.expose()
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_slice().ct_eq(&other.0).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.fingerprint())
    }
}

/// Keeps what this process has in memory out of core dumps, whoever collects them; a rank's own dumps are its user's business. For
/// daemons that hold keys, once, before the first of them is read. Processes that are forked later are like this one.
///
/// # Errors
/// If the kernel has no such switch (`core(5)`, `/proc/self/coredump_filter`).
pub fn keep_out_of_core_dumps() -> io::Result<()> {
    // What is left are the headers of the program's own file, which tell which program it was.
    const HEADERS_ONLY: &[u8] = b"0x10";
    // Of an existing file only: it is no file that one could make.
    fs::OpenOptions::new().write(true).open("/proc/self/coredump_filter")?.write_all(HEADERS_ONLY)
}

/// What a log may say of a [`Secret`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u32);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{:08x}", self.0)
    }
}

/// Frees text that others wrote of secrets, control characters and length, so that it can stand in an error.
///
/// It knows the secrets that it was told of, the last [`Scrubber::REMEMBERED`] of them, and takes every long run of hexadecimal
/// digits for a key.
#[derive(Default)]
pub(crate) struct Scrubber(Mutex<VecDeque<Secret>>);

impl Scrubber {
    /// How many secrets it knows by heart.
    pub(crate) const REMEMBERED: usize = 64;
    /// How many characters of the text are kept.
    pub(crate) const LONGEST: usize = 300;
    /// From how many hexadecimal digits on a word is taken for a key: 128 bits.
    const KEY_DIGITS: usize = 32;
    /// Shorter ones would take ordinary words out of the text.
    const SHORTEST_SECRET: usize = 4;

    pub(crate) fn learn(&self, secret: &Secret) {
        let mut known = self.0.lock();
        if secret.expose().len() < Self::SHORTEST_SECRET || known.contains(secret) {
            return;
        }
        if known.len() == Self::REMEMBERED {
            known.pop_front();
        }
        known.push_back(secret.clone());
    }

    pub(crate) fn scrub(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in self.0.lock().iter() {
            let hex = secret.expose_hex();
            // The manager may echo a key in capitals.
            for spelling in [String::from_utf8_lossy(secret.expose()).as_ref(), &hex, &hex.to_uppercase()] {
                if text.contains(spelling) {
                    text = text.replace(spelling, "[secret]");
                }
            }
        }
        let text = mask_keys(&text, Self::KEY_DIGITS);
        let mut kept: String =
            text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(Self::LONGEST + 1).collect();
        if kept.chars().count() > Self::LONGEST {
            kept.pop();
            kept.push('…');
        }
        kept.trim().to_owned()
    }
}

/// Replaces each run of at least `least` hexadecimal digits.
fn mask_keys(text: &str, least: usize) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
        masked.push_str(if digits >= least { "[secret]" } else { &rest[..digits] });
        rest = &rest[digits..];
        let others = rest.find(|c: char| c.is_ascii_hexdigit()).unwrap_or(rest.len());
        masked.push_str(&rest[..others]);
        rest = &rest[others..];
    }
    masked
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
    fn text_loses_known_secrets_keys_control_characters_and_its_end() {
        let scrubber = Scrubber::default();
        scrubber.learn(&Secret::new("hunter22"));
        scrubber.learn(&Secret::from_hex("deadbeef").expect("hexadecimal"));
        assert_eq!(scrubber.scrub("no hunter22,\nno DEADBEEF"), "no [secret], no [secret]");
        assert_eq!(scrubber.scrub(&format!("key {} is bad", "ab12".repeat(8))), "key [secret] is bad");
        assert_eq!(scrubber.scrub("job 123e4567-e89b-12d3 is fine"), "job 123e4567-e89b-12d3 is fine");
        assert_eq!(scrubber.scrub(&"x".repeat(10_000)).chars().count(), Scrubber::LONGEST + 1);
    }

    #[test]
    fn a_core_dump_holds_nothing_of_what_is_in_memory() {
        keep_out_of_core_dumps().expect("the kernel has the switch");
        let filter = fs::read_to_string("/proc/self/coredump_filter").expect("readable");
        assert_eq!(filter.trim(), "00000010");
    }

    #[test]
    fn a_scrubber_does_not_grow() {
        let scrubber = Scrubber::default();
        (0..1000).for_each(|number| scrubber.learn(&Secret::new(format!("secret number {number}"))));
        assert_eq!(scrubber.0.lock().len(), Scrubber::REMEMBERED);
        assert_eq!(scrubber.scrub("secret number 999"), "[secret]");
    }
}

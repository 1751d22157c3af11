//! Limits of texts. The client checks them, because a server that cannot parse a request ends the job.

use crate::error::{ClientError, quote};

/// Limits of the texts that a rank's server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum length of a job id, in bytes.
    pub job_id_max: usize,
    /// Maximum length of a key, in bytes.
    pub key_max: usize,
    /// Maximum length of a value, in bytes.
    pub value_max: usize,
    pub(crate) key_signs: KeySigns,
}

/// Valid characters of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeySigns {
    /// Characters that are not separators in PMI-1, or in the PMI-2 of servers without an escape.
    OneWord,
    /// All characters of a line. In PMI-2 `;` ends a field, and is escaped in a key.
    OneLine,
}

impl Limits {
    /// Checks a key: not empty, not too long, and only with characters that the protocol can carry.
    ///
    /// # Errors
    /// [`ClientError::Length`] or [`ClientError::Text`] for an invalid key.
    pub fn check_key(&self, key: &str) -> Result<(), ClientError> {
        check_length("key", key.len(), 1, self.key_max)?;
        let separator = |c: char| match self.key_signs {
            KeySigns::OneWord => c.is_ascii_control() || matches!(c, ' ' | '=' | ';'),
            KeySigns::OneLine => c.is_ascii_control(),
        };
        refuse("key", key.as_bytes(), key.chars().find(|&c| separator(c)))
    }

    /// Checks a value: not too long, and without line feed and NUL, which PMI-1 cannot carry.
    ///
    /// # Errors
    /// [`ClientError::Length`] or [`ClientError::Text`] for an invalid value.
    pub fn check_value(&self, value: &[u8]) -> Result<(), ClientError> {
        check_length("value", value.len(), 0, self.value_max)?;
        check_line("value", value)
    }
}

/// Checks that `text` has a single line: a service name, a port, an argument.
pub(crate) fn check_line(what: &'static str, text: &[u8]) -> Result<(), ClientError> {
    refuse(what, text, text.iter().find(|byte| matches!(byte, b'\n' | 0)).map(|&byte| byte.into()))
}

pub(crate) fn check_length(what: &'static str, len: usize, min: usize, max: usize) -> Result<(), ClientError> {
    if (min..=max).contains(&len) { Ok(()) } else { Err(ClientError::Length { what, min, max, len }) }
}

fn refuse(what: &'static str, text: &[u8], found: Option<char>) -> Result<(), ClientError> {
    match found {
        Some(found) => Err(ClientError::Text { what, found, text: quote(text) }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { job_id_max: 8, key_max: 8, value_max: 10, key_signs: KeySigns::OneWord };

    #[test]
    fn keys_are_one_word_within_the_limit() {
        for good in ["a", "P0-addr", "ключ", "12345678"] {
            LIMITS.check_key(good).unwrap();
        }
        for bad in ["", "123456789", "a b", "a=b", "a;b", "a\nb", "a\0"] {
            assert!(LIMITS.check_key(bad).is_err(), "{bad:?} was taken");
        }
        let one_line = Limits { key_signs: KeySigns::OneLine, ..LIMITS };
        one_line.check_key("a;b = c").unwrap();
        assert!(one_line.check_key("a\nb").is_err());
        assert_eq!(LIMITS.check_key("123456789").unwrap_err().to_string(), "a key has 1 to 8 bytes, not 9");
    }

    #[test]
    fn values_are_any_bytes_of_one_line() {
        for good in [b"".as_slice(), b"a b=c;d", b"\xff\x01\r\t", b"1234567890"] {
            LIMITS.check_value(good).unwrap();
        }
        for bad in [b"a\nb".as_slice(), b"\0", b"12345678901"] {
            assert!(LIMITS.check_value(bad).is_err(), "{bad:?} was taken");
        }
    }
}

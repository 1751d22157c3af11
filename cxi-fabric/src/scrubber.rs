//! Removes secrets from texts of other programs, so that they can be shown in an error or a log.

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::secret::Secret;

/// Removes secrets and control characters from texts, and limits their length.
///
/// Stores the last [`Scrubber::REMEMBERED`] secrets that it received, and treats every long run of hexadecimal digits as a key.
#[derive(Default)]
pub(crate) struct Scrubber(Mutex<VecDeque<Secret>>);

impl Scrubber {
    /// Number of stored secrets.
    pub(crate) const REMEMBERED: usize = 64;
    /// Number of characters of a text that remain.
    pub(crate) const LONGEST: usize = 300;
    /// Minimum number of hexadecimal digits in a key: 128 bits.
    const KEY_DIGITS: usize = 32;
    /// Shorter secrets would remove ordinary words from the text.
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
            // The manager may repeat a key in capitals.
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
    fn a_scrubber_does_not_grow() {
        let scrubber = Scrubber::default();
        (0..1000).for_each(|number| scrubber.learn(&Secret::new(format!("secret number {number}"))));
        assert_eq!(scrubber.0.lock().len(), Scrubber::REMEMBERED);
        assert_eq!(scrubber.scrub("secret number 999"), "[secret]");
    }
}

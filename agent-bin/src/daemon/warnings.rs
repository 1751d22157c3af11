//! Warnings of a session process on their way to the agent's log.
//!
//! A session process has no log of its own. It runs as its user, and the user can make it send any text. The text must neither fill the agent's
//! log nor look like the agent's lines: so warnings are few, short and escaped.

/// Maximum number of warnings of one session that are logged.
const WARNINGS_MAX: usize = 32;

/// Maximum length of a warning, in characters; the rest is cut off.
const LENGTH_MAX: usize = 1000;

/// Warnings of one session.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    taken: usize,
}

impl Warnings {
    /// Returns the text to log for a warning; `None` after [`WARNINGS_MAX`] of them.
    pub(super) fn take(&mut self, text: &str) -> Option<String> {
        self.taken += 1;
        (self.taken <= WARNINGS_MAX).then(|| text.chars().take(LENGTH_MAX).flat_map(char::escape_debug).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_neither_fills_the_log_nor_forges_lines_of_it() {
        let mut warnings = Warnings::default();
        assert_eq!(warnings.take("a command is passed over").as_deref(), Some("a command is passed over"));
        assert_eq!(warnings.take("one\nERROR two\x1b[0m").as_deref(), Some("one\\nERROR two\\u{1b}[0m"));
        assert_eq!(warnings.take(&"x".repeat(1 << 20)).map(|text| text.len()), Some(LENGTH_MAX));
        let logged = (3..=WARNINGS_MAX + 10).filter_map(|_| warnings.take("again")).count();
        assert_eq!(3 + logged, WARNINGS_MAX);
    }
}

//! Formats an error and its causes as one line of text, for logs and user messages.

use std::error::Error;

/// Returns the error and all its sources, outermost first, joined by `: `. A source is omitted if the text before it
/// already ends with it, or has a line that ends with it.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.ends_with(&cause) && !text.contains(&format!("{cause}\n")) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot start")]
    struct Outer(#[source] io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read settings: {source}")]
    struct SettingsError {
        source: io::Error,
    }

    #[derive(Debug, thiserror::Error)]
    #[error("cannot write: {0}\ntry: another directory")]
    struct Advising(#[source] io::Error);

    #[test]
    fn a_cause_that_its_error_tells_is_not_told_again() {
        assert_eq!(chain(&SettingsError { source: io::Error::other("no room") }), "cannot read settings: no room");
        let advising = Advising(io::Error::other("no room"));
        assert_eq!(chain(&advising), "cannot write: no room\ntry: another directory");
    }

    #[test]
    fn an_error_is_followed_by_its_causes() {
        assert_eq!(chain(&io::Error::other("no room")), "no room");
        assert_eq!(chain(&Outer(io::Error::other("no room"))), "cannot start: no room");
    }
}

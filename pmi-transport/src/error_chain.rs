//! Error and its causes as one line of text, for logs and for messages to users.

use std::error::Error;

/// Returns the error and all its sources, outermost first, joined by `: `. A source whose text an error repeats at its end is told once.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.ends_with(&cause) {
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
    struct Telling {
        source: io::Error,
    }

    #[test]
    fn a_cause_that_its_error_tells_is_not_told_again() {
        assert_eq!(chain(&Telling { source: io::Error::other("no room") }), "cannot read settings: no room");
    }

    #[test]
    fn an_error_is_followed_by_its_causes() {
        assert_eq!(chain(&io::Error::other("no room")), "no room");
        assert_eq!(chain(&Outer(io::Error::other("no room"))), "cannot start: no room");
    }
}

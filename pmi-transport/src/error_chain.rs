//! Error and its causes as one line of text, for logs and for messages to users.

use std::error::Error;

/// Returns the error and all its sources, outermost first, joined by `: `.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

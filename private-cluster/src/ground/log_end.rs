//! The end of a failed daemon's log, for its error message.

use std::fs;
use std::path::Path;

/// Number of lines of a failed daemon's log that are shown.
const LOG_LINES: usize = 10;

/// Line that replaces a private key and all lines after it.
const KEY_CAME_BACK: &str = "(what was meant for the agent alone: something on the way there reads standard input, such as a start-up file of the \
                             shell)";

/// Content of a log, as words for the end of an error message.
pub(crate) fn said(log: &str) -> String {
    if log.is_empty() { "its log is empty".to_owned() } else { format!("its log ends:\n{log}") }
}

pub(super) fn last_lines(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    without_keys(&text)
}

/// Last lines of a log, up to a line with a private key. The program that starts an agent receives such a key, and may print it.
fn without_keys(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    if let Some(secret) = lines.iter().position(|line| line.contains("PRIVATE KEY")) {
        lines.truncate(secret);
        lines.push(KEY_CAME_BACK);
    }
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_key_is_shown_to_nobody() {
        let secret = "got {\"key\":\"-----BEGIN PRIVATE KEY-----\nMIGH\n-----END";
        for (said, shown) in [
            ("hello\nthere", "hello\nthere".to_owned()),
            (&format!("hello\n{secret}\nMIGH"), format!("hello\n{KEY_CAME_BACK}")),
        ] {
            assert_eq!(without_keys(said), shown);
        }
    }
}

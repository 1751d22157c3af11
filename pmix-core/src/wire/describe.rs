//! Messages as text, for a trace: the command by its name, keys and texts as they are, everything else as bytes.

use std::fmt::Write;

use pmi_core::report::Sender;

use super::Encoding;
use super::reader::Reader;
use super::request::{command_name, command_of};

/// Maximum number of bytes of a payload in the text.
const SHOWN: usize = 512;

/// A line about a message: `pmix 101 FINALIZE (2 bytes) <02><05>` from a client, `pmix 101 status 0 (2 bytes) ...` to it.
pub(crate) fn describe(encoding: Encoding, sender: Sender, tag: u32, payload: &[u8]) -> String {
    let mut line = format!("pmix {tag} ");
    let mut reader = Reader::new(encoding, payload);
    let head = if sender == Sender::Client || tag == super::frame::TAG_NOTIFY {
        command_of(encoding, payload).map(command_name).unwrap_or("unreadable").to_owned()
    } else {
        match reader.one().and_then(|()| reader.i32()) {
            Ok(status) if status <= 0 => format!("status {status}"),
            _ => "data".to_owned(),
        }
    };
    let shown = payload.len().min(SHOWN);
    // Writing to a string cannot fail.
    let _ = write!(line, "{head} ({} bytes) ", payload.len());
    for &byte in &payload[..shown] {
        let _ = match byte {
            b' '..=b'~' => write!(line, "{}", char::from(byte)),
            _ => write!(line, "<{byte:02x}>"),
        };
    }
    if shown < payload.len() {
        line.push_str("...");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_statuses_have_names() {
        let check = |sender, payload: &[u8], expected: &str| {
            assert_eq!(describe(Encoding::Flex, sender, 101, payload), expected);
        };
        check(Sender::Client, &[2, 5], "pmix 101 FINALIZE (2 bytes) <02><05>");
        check(Sender::Server, &[2, 0], "pmix 101 status 0 (2 bytes) <02><00>");
        check(Sender::Client, &[], "pmix 101 unreadable (0 bytes) ");
    }
}

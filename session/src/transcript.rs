//! PMI messages as text, in the format of recorded conversations.
//!
//! ```text
//! @rank 0
//! C> cmd=init pmi_version=1 pmi_subversion=1\n
//! S> cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n
//! ```
//!
//! Bytes are unchanged, except `\n`, `\r` and `\\`. `@rank` starts the lines of another rank.

use pmi_core::ids::Rank;
use pmi_core::server::{Sender, Trace};

/// Returns the lines of one message. `last` is the rank of the previous message, if there was one.
pub fn lines(message: &Trace, last: &mut Option<Option<Rank>>) -> Vec<u8> {
    let mut text = Vec::with_capacity(message.bytes.len() + 16);
    if *last != Some(message.rank) {
        *last = Some(message.rank);
        let rank = message.rank.map_or_else(|| "?".to_owned(), |rank| rank.to_string());
        text.extend(format!("@rank {rank}\n").bytes());
    }
    text.extend(match message.sender {
        Sender::Client => b"C> ",
        Sender::Server => b"S> ",
    });
    for &byte in &message.bytes {
        match byte {
            b'\n' => text.extend(b"\\n"),
            b'\r' => text.extend(b"\\r"),
            b'\\' => text.extend(b"\\\\"),
            byte => text.push(byte),
        }
    }
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn messages_become_the_lines_of_a_transcript() {
        let mut last = None;
        let mut check = |rank: Option<u32>, sender, bytes: &'static [u8], expected: &str| {
            let message = Trace { rank: rank.map(Rank), sender, bytes: Bytes::from_static(bytes) };
            assert_eq!(String::from_utf8(lines(&message, &mut last)).unwrap(), expected);
        };
        check(None, Sender::Client, b"cmd=initack pmiid=0\n", "@rank ?\nC> cmd=initack pmiid=0\\n\n");
        check(Some(0), Sender::Client, b"cmd=get_maxes\n", "@rank 0\nC> cmd=get_maxes\\n\n");
        check(Some(0), Sender::Server, b"    14cmd=a;b=\\\r;", "S>     14cmd=a;b=\\\\\\r;\n");
        check(Some(1), Sender::Client, b"x", "@rank 1\nC> x\n");
    }
}

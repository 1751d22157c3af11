//! `--pmi-trace`: every PMI message in the format of recorded conversations, so that a user's trace can become a test.
//!
//! ```text
//! @rank 0
//! C> cmd=init pmi_version=1 pmi_subversion=1\n
//! S> cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n
//! ```
//!
//! Bytes stand for themselves, but for `\n`, `\r` and `\\`. `@rank` opens the lines of another rank.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use pmi_core::driver::TraceSink;
use pmi_core::ids::Rank;
use pmi_core::server::Trace;
use tokio::sync::mpsc;

use crate::output::{Fault, PlaceName};

/// The trace file cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the PMI trace to {}: {source}", path.display())]
pub struct TraceError {
    /// The file.
    pub path: PathBuf,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

/// Creates `path`, and returns what writes each message to it at once. The first failure is reported to `faults`, and
/// ends the trace.
///
/// # Errors
/// Fails if the file cannot be created.
pub(crate) fn sink(path: &Path, faults: mpsc::UnboundedSender<Fault>) -> Result<TraceSink, TraceError> {
    let refused = |source| TraceError { path: path.to_owned(), source };
    let mut file = Some(File::create(path).map_err(refused)?);
    let place = PlaceName::File(path.to_owned());
    let mut last = None;
    Ok(Box::new(move |message| {
        if let Some(Err(error)) = file.as_mut().map(|file| file.write_all(&lines(message, &mut last))) {
            file = None;
            // Nobody listens when the launch is over.
            let _ = faults.send(Fault { place: place.clone(), error });
        }
    }))
}

/// The lines of one message; `last` is whose message the one before was, if there was one.
fn lines(message: &Trace, last: &mut Option<Option<Rank>>) -> Vec<u8> {
    let mut text = Vec::with_capacity(message.bytes.len() + 16);
    if *last != Some(message.rank) {
        *last = Some(message.rank);
        let rank = message.rank.map_or_else(|| "?".to_owned(), |rank| rank.to_string());
        text.extend(format!("@rank {rank}\n").bytes());
    }
    text.extend(if message.from_client { b"C> " } else { b"S> " });
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
        let mut check = |rank: Option<u32>, from_client, bytes: &'static [u8], expected: &str| {
            let message = Trace { rank: rank.map(Rank), from_client, bytes: Bytes::from_static(bytes) };
            assert_eq!(String::from_utf8(lines(&message, &mut last)).unwrap(), expected);
        };
        check(None, true, b"cmd=initack pmiid=0\n", "@rank ?\nC> cmd=initack pmiid=0\\n\n");
        check(Some(0), true, b"cmd=get_maxes\n", "@rank 0\nC> cmd=get_maxes\\n\n");
        check(Some(0), false, b"    14cmd=a;b=\\\r;", "S>     14cmd=a;b=\\\\\\r;\n");
        check(Some(1), true, b"x", "@rank 1\nC> x\n");
    }

    #[test]
    fn a_trace_that_cannot_be_written_ends_and_says_so_once() {
        let (faults, mut reported) = mpsc::unbounded_channel();
        let mut sink = sink(Path::new("/dev/full"), faults).unwrap();
        let message = Trace { rank: Some(Rank(0)), from_client: true, bytes: Bytes::from_static(b"x") };
        sink(&message);
        sink(&message);
        assert_eq!(reported.try_recv().unwrap().place, PlaceName::File("/dev/full".into()));
        assert!(reported.try_recv().is_err());
    }
}

//! `--pmi-trace`: every PMI message in the format of recorded conversations ([`lattice_session::transcript`]), so that a trace of a user can
//! become a test.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use lattice_session::transcript;
use pmi_core::driver::TraceSink;
use pmi_core::ids::NodeIndex;
use tokio::sync::mpsc;

use super::writer::{Fault, PlaceName};

/// The trace file cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the PMI trace to {}: {source}\ntry: --pmi-trace with a file in a directory that you may write to", path.display())]
pub struct TraceError {
    /// The file.
    pub path: PathBuf,
    /// Error of the system.
    #[source]
    pub source: io::Error,
}

/// Creates `path`. Returns a sink that writes each message at once. The first failure is reported to `faults`, and ends the trace.
///
/// # Errors
/// Fails if the file cannot be created.
pub fn sink(path: &Path, faults: mpsc::UnboundedSender<Fault>) -> Result<TraceSink, TraceError> {
    let refused = |source| TraceError { path: path.to_owned(), source };
    let mut file = Some(File::create(path).map_err(refused)?);
    let place = PlaceName::File(path.to_owned());
    let mut last = None;
    Ok(Box::new(move |message| {
        if let Some(Err(error)) = file.as_mut().map(|file| file.write_all(&transcript::lines(message, &mut last))) {
            file = None;
            // The receiver is gone when the launch is over.
            let _ = faults.send(Fault { place: place.clone(), error });
        }
    }))
}

/// Trace of a launch on a cluster. Nodes send lines, and each message of a rank stays below the `@rank` line of that rank.
#[derive(Debug)]
pub struct ClusterTrace {
    /// `None` after a write has failed.
    file: Option<File>,
    place: PlaceName,
    faults: mpsc::UnboundedSender<Fault>,
    /// Node of the last write.
    writer: Option<NodeIndex>,
    /// The last `@rank` line of each node.
    headings: HashMap<NodeIndex, Vec<u8>>,
}

impl ClusterTrace {
    /// Creates `path`. The first failure to write is reported to `faults`, and ends the trace.
    ///
    /// # Errors
    /// Fails if the file cannot be created.
    pub fn create(path: &Path, faults: mpsc::UnboundedSender<Fault>) -> Result<Self, TraceError> {
        let file = File::create(path).map_err(|source| TraceError { path: path.to_owned(), source })?;
        let place = PlaceName::File(path.to_owned());
        Ok(Self { file: Some(file), place, faults, writer: None, headings: HashMap::new() })
    }

    /// Writes lines of a node. The first line is an `@rank` line, or belongs below the last `@rank` line of the node.
    pub fn write(&mut self, node: NodeIndex, lines: &[u8]) {
        let mut text = Vec::with_capacity(lines.len() + 16);
        let goes_on = !lines.starts_with(HEADING);
        if goes_on && self.writer != Some(node) {
            text.extend_from_slice(self.headings.get(&node).map_or(&b""[..], Vec::as_slice));
        }
        text.extend_from_slice(lines);
        self.writer = Some(node);
        let last = lines.split_inclusive(|&byte| byte == b'\n').rfind(|line| line.starts_with(HEADING));
        if let Some(heading) = last {
            self.headings.insert(node, heading.to_vec());
        }
        if let Some(Err(error)) = self.file.as_mut().map(|file| file.write_all(&text)) {
            self.file = None;
            // The receiver is gone when the launch is over.
            let _ = self.faults.send(Fault { place: self.place.clone(), error });
        }
    }
}

/// Start of the line above messages of another rank.
const HEADING: &[u8] = b"@rank ";

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pmi_core::ids::Rank;
    use pmi_core::server::{Sender, Trace};

    use super::*;

    #[test]
    fn nodes_do_not_mix_their_ranks_lines() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut trace = ClusterTrace::create(file.path(), mpsc::unbounded_channel().0).unwrap();
        let pieces =
            [(0, "@rank 0\nC> a\n"), (1, "@rank 5\nC> b\n"), (0, "S> c\n"), (0, "S> d\n"), (1, "@rank 6\nC> e\n")];
        for (node, lines) in pieces {
            trace.write(NodeIndex(node), lines.as_bytes());
        }
        let expected = "@rank 0\nC> a\n@rank 5\nC> b\n@rank 0\nS> c\nS> d\n@rank 6\nC> e\n";
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), expected);
    }

    #[test]
    fn a_trace_that_cannot_be_written_ends_and_says_so_once() {
        let (faults, mut reported) = mpsc::unbounded_channel();
        let mut sink = sink(Path::new("/dev/full"), faults).unwrap();
        let message = Trace { rank: Some(Rank(0)), sender: Sender::Client, bytes: Bytes::from_static(b"x") };
        sink(&message);
        sink(&message);
        assert_eq!(reported.try_recv().unwrap().place, PlaceName::File("/dev/full".into()));
        assert!(reported.try_recv().is_err());
    }

    #[test]
    fn a_trace_of_a_cluster_that_cannot_be_written_ends_and_says_so_once() {
        let (faults, mut reported) = mpsc::unbounded_channel();
        let mut trace = ClusterTrace::create(Path::new("/dev/full"), faults).unwrap();
        trace.write(NodeIndex(0), b"@rank 0\nC> a\n");
        trace.write(NodeIndex(1), b"@rank 1\nC> b\n");
        assert_eq!(reported.try_recv().unwrap().place, PlaceName::File("/dev/full".into()));
        assert!(reported.try_recv().is_err());
    }

    #[test]
    fn a_file_that_cannot_be_made_is_named() {
        let error = ClusterTrace::create(Path::new("/nonexistent/trace"), mpsc::unbounded_channel().0).unwrap_err();
        let expected = "cannot write the PMI trace to /nonexistent/trace: No such file or directory (os error 2)\n\
            try: --pmi-trace with a file in a directory that you may write to";
        assert_eq!(error.to_string(), expected);
        let Err(error) = sink(Path::new("/nonexistent/trace"), mpsc::unbounded_channel().0) else {
            panic!("it was made")
        };
        assert_eq!(error.to_string(), expected);
    }

    proptest::proptest! {
        /// In any interleaving of nodes, each line is below its rank.
        #[test]
        fn every_line_is_below_its_rank(lines in proptest::collection::vec((0_u32..3, 0_u32..2, proptest::bool::ANY), 1..40)) {
            let file = tempfile::NamedTempFile::new().unwrap();
            let mut trace = ClusterTrace::create(file.path(), mpsc::unbounded_channel().0).unwrap();
            // For each node, the rank of its last line.
            let mut speakers: HashMap<u32, u32> = HashMap::new();
            let mut expected = Vec::new();
            for (number, (node, local_rank, repeats)) in lines.into_iter().enumerate() {
                let rank = 2 * node + local_rank;
                let goes_on = speakers.insert(node, rank) == Some(rank) && !repeats;
                let heading = if goes_on { String::new() } else { format!("@rank {rank}\n") };
                trace.write(NodeIndex(node), format!("{heading}C> {number}\n").as_bytes());
                expected.push((rank, format!("C> {number}")));
            }
            let text = std::fs::read_to_string(file.path()).unwrap();
            let mut speaker = None;
            let mut seen = Vec::new();
            for line in text.lines() {
                match line.strip_prefix("@rank ") {
                    Some(rank) => speaker = rank.parse().ok(),
                    None => seen.push((speaker.expect("a heading"), line.to_owned())),
                }
            }
            proptest::prop_assert_eq!(seen, expected);
        }
    }
}

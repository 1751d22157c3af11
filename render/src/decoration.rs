//! Decoration of the lines of ranks: a time stamp, a label, both or neither. The module `hold` ensures order and completeness of lines.

use bytes::{BufMut, Bytes, BytesMut};
use jiff::Zoned;
use jiff::fmt::temporal::DateTimePrinter;
use lattice_session::placed::PlacedLaunch;
use lattice_session::settings::StdinTarget;
use memchr::memchr2;
use pmi_core::ids::Rank;
use pmi_core::job::Placement;

use super::hold::{Piece, Source, Start, Step};
use super::prepared::{LineLabel, OutputRequest};

/// Size at which decorated text is passed on, so that a flood of short lines is never in memory as one piece.
const CHUNK: usize = 64 << 10;

/// Format of the time of a line: to the millisecond.
const STAMP: DateTimePrinter = DateTimePrinter::new().precision(Some(3));

/// Prefix of each line of a rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Decoration {
    label: Label,
    /// True if the time precedes the label.
    timestamp: bool,
    /// Rank with a terminal of its own. Its bytes are not lines, and get no prefix.
    terminal: Option<Rank>,
}

/// Line ends at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineEnds {
    /// Unchanged.
    AsTheyAre,
    /// With a carriage return, because a raw terminal otherwise continues below the end of the line.
    WithReturn,
}

/// Label with the origin of a line.
#[derive(Clone, Debug, Default)]
enum Label {
    #[default]
    None,
    /// Number of the rank, padded to the width of the last rank.
    Rank { width: usize },
    /// Name of the node of the rank.
    Node { placement: Placement, hosts: Vec<String> },
}

impl Label {
    /// Label for lines of a rank, with two separators: for a line, and for the rest of a line that was given up.
    fn of(&self, rank: Rank) -> Option<(String, [&'static str; 2])> {
        match self {
            Self::None => None,
            Self::Rank { width } => Some((format!("[{rank:>width$}]"), [" ", "+"])),
            Self::Node { placement, hosts } => {
                let host = placement.node_of(rank).and_then(|node| hosts.get(node.index()));
                // The placement does not contain ranks that were spawned later.
                let host = host.cloned().unwrap_or_else(|| format!("rank {rank}"));
                Some((host, [": ", ":+"]))
            }
        }
    }
}

impl Decoration {
    /// Decoration for `output`, such as `[ 3] ` or `node1: `.
    pub(crate) fn of(output: &OutputRequest, launch: &PlacedLaunch) -> Self {
        let label = match output.label {
            LineLabel::None => Label::None,
            LineLabel::Rank => Label::Rank { width: launch.job.size().saturating_sub(1).to_string().len() },
            LineLabel::Node => Label::Node { placement: launch.job.placement.clone(), hosts: launch.hosts.clone() },
        };
        let terminal = match launch.settings.stdin {
            StdinTarget::Terminal(_) => Some(Rank(0)),
            _ => None,
        };
        Self { label, timestamp: output.timestamp, terminal }
    }

    /// Appends the bytes of `step` to `out`. Does not copy undecorated bytes.
    pub(crate) fn apply(&self, step: Step, ends: LineEnds, out: &mut Vec<Bytes>) {
        let first = out.len();
        match step {
            Step::LineEnd => out.push(Bytes::from_static(b"\n")),
            Step::Piece(piece, _) if self.is_of_terminal(&piece) => return out.push(piece.bytes),
            Step::Piece(piece, start) => match self.prefix(&piece) {
                Some(prefix) => prefix.apply(&piece.bytes, start, out),
                None => out.push(piece.bytes),
            },
        }
        if ends == LineEnds::WithReturn {
            out[first..].iter_mut().for_each(|bytes| *bytes = with_returns(bytes));
        }
    }

    fn is_of_terminal(&self, piece: &Piece) -> bool {
        matches!(piece.source, Source::Rank(rank, _) if self.terminal == Some(rank))
    }

    fn prefix(&self, piece: &Piece) -> Option<Prefix> {
        let Source::Rank(rank, _) = piece.source else { return None };
        let time = if self.timestamp { time_stamp() + " " } else { String::new() };
        match self.label.of(rank) {
            Some((label, [line, resumed])) => {
                Some(Prefix { line: format!("{time}{label}{line}"), resumed: format!("{time}{label}{resumed}") })
            }
            None if self.timestamp => Some(Prefix { resumed: time.clone(), line: time }),
            None => None,
        }
    }
}

/// Returns `bytes` with a carriage return before each line end.
fn with_returns(bytes: &[u8]) -> Bytes {
    let mut all = BytesMut::with_capacity(bytes.len() + 16);
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        match line.strip_suffix(b"\n") {
            Some(line) => {
                all.put_slice(line);
                all.put_slice(b"\r\n");
            }
            None => all.put_slice(line),
        }
    }
    all.freeze()
}

/// Local time to the millisecond, in the format of RFC 3339.
pub(crate) fn time_stamp() -> String {
    let now = Zoned::now();
    STAMP.timestamp_with_offset_to_string(&now.timestamp(), now.offset())
}

/// Length of the first line of `text`. A carriage return ends a line as well, so that each state of a progress bar has a label.
fn line_length(text: &[u8]) -> usize {
    match memchr2(b'\n', b'\r', text) {
        Some(end) if text[end..].starts_with(b"\r\n") => end + 2,
        Some(end) => end + 1,
        None => text.len(),
    }
}

struct Prefix {
    line: String,
    /// Prefix for the rest of a line that was given up.
    resumed: String,
}

impl Prefix {
    fn apply(&self, bytes: &[u8], start: Start, out: &mut Vec<Bytes>) {
        let mut buffer = BytesMut::with_capacity(CHUNK.min(2 * bytes.len() + self.line.len()));
        let mut before = match start {
            Start::Line => &self.line,
            Start::Middle => "",
            Start::Resumed => &self.resumed,
        };
        let mut rest = bytes;
        while !rest.is_empty() {
            let line;
            (line, rest) = rest.split_at(line_length(rest));
            if buffer.len() + before.len() + line.len() > CHUNK && !buffer.is_empty() {
                out.push(buffer.split().freeze());
            }
            buffer.put_slice(before.as_bytes());
            buffer.put_slice(line);
            before = &self.line;
        }
        out.push(buffer.freeze());
    }
}

#[cfg(test)]
mod tests {
    use lattice_session::event::Stream;
    use pmi_core::ids::Rank;

    use super::*;

    fn labels(size: u32) -> Decoration {
        Decoration { label: Label::Rank { width: (size - 1).to_string().len() }, ..Decoration::default() }
    }

    fn applied(decoration: Decoration, text: &str, start: Start) -> String {
        let source = Source::Rank(Rank(3), Stream::Stdout);
        let piece = Piece { source, bytes: Bytes::copy_from_slice(text.as_bytes()) };
        let mut out = Vec::new();
        decoration.apply(Step::Piece(piece, start), LineEnds::AsTheyAre, &mut out);
        out.iter().map(|bytes| std::str::from_utf8(bytes).unwrap()).collect()
    }

    #[test]
    fn labels_are_aligned_and_stand_before_every_line() {
        let check = |size: u32, text: &str, start: Start, expected: &str| {
            assert_eq!(applied(labels(size), text, start), expected);
        };
        check(4, "a\nb\n", Start::Line, "[3] a\n[3] b\n");
        check(11, "a\n", Start::Line, "[ 3] a\n");
        check(4, "10%\r20%\ra\r\nb\n", Start::Line, "[3] 10%\r[3] 20%\r[3] a\r\n[3] b\n");
        check(10, "a\n", Start::Line, "[3] a\n");
        check(4, "rest\nb", Start::Middle, "rest\n[3] b");
        check(4, "rest\nb\n", Start::Resumed, "[3]+rest\n[3] b\n");
        check(4, "\n", Start::Line, "[3] \n");
    }

    #[test]
    fn a_node_names_the_lines_of_its_ranks() {
        let hosts = vec!["node0".to_owned(), "node1".to_owned()];
        let label = |ranks: &[u32]| Label::Node { placement: Placement::block(ranks), hosts: hosts.clone() };
        let named = |ranks: &[u32]| Decoration { label: label(ranks), ..Decoration::default() };
        assert_eq!(applied(named(&[2, 2]), "a\nb\n", Start::Line), "node1: a\nnode1: b\n");
        assert_eq!(applied(named(&[2, 2]), "rest\n", Start::Resumed), "node1:+rest\n");
        assert_eq!(applied(named(&[1, 1]), "a\n", Start::Line), "rank 3: a\n");
    }

    #[test]
    fn the_time_comes_first() {
        let text = applied(Decoration { timestamp: true, ..labels(4) }, "a\n", Start::Line);
        let (time, rest) = text.split_once(' ').unwrap();
        assert_eq!(rest, "[3] a\n");
        assert!(time.parse::<jiff::Timestamp>().is_ok(), "{time:?} is no RFC 3339 time");
        assert_eq!(time.find('.').map(|dot| time[dot..].find(['+', '-']).unwrap()), Some(4), "{time:?}");
    }

    #[test]
    fn undecorated_bytes_are_passed_on() {
        let bytes = Bytes::from_static(b"as they are");
        let piece = Piece { source: Source::Rank(Rank(0), Stream::Stderr), bytes: bytes.clone() };
        let mut out = Vec::new();
        Decoration::default().apply(Step::Piece(piece, Start::Line), LineEnds::AsTheyAre, &mut out);
        assert_eq!(out[0].as_ptr(), bytes.as_ptr());
    }

    #[test]
    fn a_flood_of_short_lines_comes_in_pieces() {
        let mut out = Vec::new();
        let piece = Piece { source: Source::Rank(Rank(0), Stream::Stdout), bytes: vec![b'\n'; CHUNK].into() };
        labels(2).apply(Step::Piece(piece, Start::Line), LineEnds::AsTheyAre, &mut out);
        assert!(out.iter().all(|bytes| bytes.len() <= CHUNK));
        assert_eq!(out.iter().map(Bytes::len).sum::<usize>(), CHUNK * 5);
    }

    #[test]
    fn on_a_raw_terminal_lines_have_returns_but_for_those_of_a_terminal() {
        let decoration = Decoration { terminal: Some(Rank(0)), ..labels(4) };
        let written = |rank: u32, text: &'static str| {
            let source = Source::Rank(Rank(rank), Stream::Stdout);
            let piece = Piece { source, bytes: Bytes::from_static(text.as_bytes()) };
            let mut out = Vec::new();
            decoration.apply(Step::Piece(piece, Start::Line), LineEnds::WithReturn, &mut out);
            decoration.apply(Step::LineEnd, LineEnds::WithReturn, &mut out);
            String::from_utf8(out.concat()).unwrap()
        };
        assert_eq!(written(0, "$ \x1b[Kls\r\n\n"), "$ \x1b[Kls\r\n\n\r\n");
        assert_eq!(written(1, "a\n\nb"), "[1] a\r\n[1] \r\n[1] b\r\n");
    }

    proptest::proptest! {
        /// The decorated text without its prefixes is the text, and every line has a prefix.
        #[test]
        fn a_label_stands_before_each_line_and_changes_nothing_else(text in "[a-c\n]{0,200}", size in 1_u32..2000) {
            let decoration = labels(size);
            let width = (size - 1).to_string().len();
            let prefix = format!("[{:>width$}] ", 3);
            let decorated = applied(decoration, &text, Start::Line);
            let bare: Vec<&str> = decorated.split_inclusive('\n').map(|line| line.strip_prefix(&prefix).unwrap()).collect();
            proptest::prop_assert_eq!(bare.concat(), text);
        }
    }
}

//! `--hostfile`: which nodes to fill, in which order, and how many ranks each takes.
//!
//! ```text
//! # Open MPI's form, MPICH's form, and a host with one slot
//! node0 slots=4
//! node1:4
//! node2
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use lattice_session::request::HostSlots;

/// The most bytes of a hostfile: room for half a million nodes. A device has no end.
const BYTES_MAX: u64 = 16 << 20;

/// Why a hostfile cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostfileError {
    /// It cannot be read.
    #[error("cannot read the hostfile {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It has no end, or might as well have none.
    #[error("{} is no hostfile: it has more than {} MiB", path.display(), BYTES_MAX >> 20)]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A line's slots are no number of ranks.
    #[error("{}, line {line}: the slots of {node} are {slots:?}; a number from 1 up is possible", path.display())]
    Slots {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The host.
        node: String,
        /// What stands in place of the number.
        slots: String,
    },
    /// A line is none of the forms.
    #[error("{}, line {line}: {text:?} is none of HOST slots=N, HOST:N and HOST", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What stands there.
        text: String,
    },
    /// It names no host at all.
    #[error("the hostfile {} names no host", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// Reads the hostfile at `path`.
///
/// # Errors
/// Fails if it cannot be read, names no host, or has a line that is none of the forms above.
pub(crate) fn read(path: &Path) -> Result<Vec<HostSlots>, HostfileError> {
    let failed = |source| HostfileError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(HostfileError::TooLong { path: path.to_owned() });
    }
    let text = String::from_utf8(bytes).map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error)))?;
    parse(&text, path)
}

fn parse(text: &str, path: &Path) -> Result<Vec<HostSlots>, HostfileError> {
    let mut hosts = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let content = text.split('#').next().unwrap_or_default().trim();
        if content.is_empty() {
            continue;
        }
        let path = || path.to_owned();
        let wrong = || HostfileError::Line { path: path(), line, text: content.to_owned() };
        let (node, slots) = host(content).ok_or_else(wrong)?;
        let no_number = || HostfileError::Slots { path: path(), line, node: node.to_owned(), slots: slots.to_owned() };
        let count: NonZeroU32 = slots.parse().map_err(|_| no_number())?;
        hosts.push(HostSlots { node: node.to_owned(), slots: count });
    }
    if hosts.is_empty() { Err(HostfileError::Empty { path: path.to_owned() }) } else { Ok(hosts) }
}

/// The host that a line names, without its comment, and what stands there for its slots.
fn host(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split_whitespace();
    let (name, slots) = match (words.next()?, words.next(), words.next()) {
        (name, Some(slots), None) => (name, slots.strip_prefix("slots=")?),
        (word, None, None) => word.split_once(':').unwrap_or((word, "1")),
        _ => return None,
    };
    let plain = !name.is_empty() && !name.contains([':', '=', ',', '[', ']']) && !slots.contains(':');
    plain.then_some((name, slots))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<HostSlots>, String> {
        parse(text, Path::new("hosts")).map_err(|error| error.to_string())
    }

    #[test]
    fn what_has_no_end_is_no_hostfile() {
        let error = read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert_eq!(error, "/dev/zero is no hostfile: it has more than 16 MiB");
    }

    #[test]
    fn every_form_of_line_is_read_in_order() {
        let text = "# all nodes\n\nnode1 slots=4\n node0:2 # slow\nnode2\nnode1:1\n";
        let host = |node: &str, slots| HostSlots { node: node.to_owned(), slots: NonZeroU32::new(slots).unwrap() };
        assert_eq!(parsed(text), Ok(vec![host("node1", 4), host("node0", 2), host("node2", 1), host("node1", 1)]));
    }

    #[test]
    fn other_lines_are_refused_with_their_number() {
        for wrong in ["a b", "a slots=1 max_slots=2", ":3", "a:1:2", "a[0-3]"] {
            let error = parsed(&format!("node0\n{wrong}")).unwrap_err();
            assert_eq!(error, format!("hosts, line 2: {wrong:?} is none of HOST slots=N, HOST:N and HOST"));
        }
        for (wrong, slots) in [("a:0", "0"), ("a:x", "x"), ("a slots=", ""), ("a slots=x", "x")] {
            let error = parsed(&format!("node0\n{wrong}")).unwrap_err();
            let expected = format!("hosts, line 2: the slots of a are {slots:?}; a number from 1 up is possible");
            assert_eq!(error, expected, "{wrong}");
        }
        assert_eq!(parsed("# nobody\n"), Err("the hostfile hosts names no host".to_owned()));
        let error = read(Path::new("/nonexistent/hosts")).unwrap_err().to_string();
        assert!(error.contains("No such file"), "{error}");
    }
}

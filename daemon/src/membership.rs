//! Membership in a cluster that one user makes for himself: all that a node needs to join it, in one line of JSON.
//!
//! The line holds keys. It travels over a pipe, or in a file that nobody else can read; never in arguments or variables.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, Read};
use std::net::SocketAddr;

use pmi_transport::address::PortRange;
use serde::{Deserialize, Serialize};

/// Limit of the line's length: room for tens of thousands of nodes.
const LINE_MAX: u64 = 64 << 20;

/// The line: where the API server is, whom to trust in, and who the nodes are.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Membership {
    /// Addresses of the API server; a node uses one that it can reach.
    pub api: Vec<SocketAddr>,
    /// Certificate of the CA, in PEM.
    pub ca: String,
    /// The credentials of nodes, by name: of the one that is told, or of all where all are told the same.
    pub nodes: BTreeMap<String, Credentials>,
    /// Variables by which a node may know its name, the first that is set; else it is the host's.
    #[serde(default)]
    pub name_variables: Vec<String>,
    /// Ports at which a node listens; any, if none are named.
    #[serde(default)]
    pub port_range: Option<PortRange>,
}

/// Certificate of a node and its key, in PEM.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

/// A membership that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// Nothing can be read.
    #[error("the membership cannot be read: {0}")]
    Read(#[from] io::Error),
    /// The input ended before its line did, or the line is too long.
    #[error(
        "the membership is cut off after {bytes} bytes; the program that starts this agent gives it no input, or ended"
    )]
    CutOff {
        /// Bytes that were read.
        bytes: usize,
    },
    /// The line is no membership. What it holds is not shown.
    #[error("the line of {bytes} bytes is no membership of this version: column {column}")]
    Malformed {
        /// Length of the line.
        bytes: usize,
        /// Place of the fault.
        column: usize,
    },
}

impl Membership {
    /// The membership as a line, with its end.
    pub fn to_line(&self) -> String {
        let mut line = serde_json::to_string(self).expect("a membership has text for keys");
        line.push('\n');
        line
    }

    /// Reads the line, and nothing behind it that `input` does not hold already.
    ///
    /// # Errors
    /// Fails if there is no whole line, or none that is a membership.
    pub fn read(input: &mut impl BufRead) -> Result<Self, MembershipError> {
        let mut line = Vec::new();
        input.take(LINE_MAX).read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            return Err(MembershipError::CutOff { bytes: line.len() });
        }
        serde_json::from_slice(&line)
            .map_err(|error| MembershipError::Malformed { bytes: line.len(), column: error.column() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership() -> Membership {
        let credentials = Credentials { certificate: "CERT\n".to_owned(), key: "SECRET\n".to_owned() };
        Membership {
            api: vec!["10.0.0.1:4711".parse().unwrap(), "[fd00::7]:4711".parse().unwrap()],
            ca: "CA\n".to_owned(),
            nodes: BTreeMap::from([("node1".to_owned(), credentials)]),
            name_variables: vec!["SLURMD_NODENAME".to_owned()],
            port_range: "60000-60100".parse().ok(),
        }
    }

    #[test]
    fn a_membership_is_one_line_and_what_follows_is_left_alone() {
        let line = membership().to_line();
        assert_eq!(line.matches('\n').count(), 1);
        let mut input = io::Cursor::new(format!("{line}more"));
        let read = Membership::read(&mut input).unwrap();
        assert_eq!(read.api, membership().api);
        assert_eq!(read.nodes["node1"].key, "SECRET\n");
        let mut rest = String::new();
        input.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "more");
    }

    #[test]
    fn what_is_no_membership_is_refused_without_being_shown() {
        let refused = |text: &str| Membership::read(&mut text.as_bytes()).unwrap_err().to_string();
        assert!(refused("").starts_with("the membership is cut off after 0 bytes"));
        assert!(refused("{").starts_with("the membership is cut off after 1 bytes"));
        let line = membership().to_line();
        assert!(refused(line.trim_end()).contains("is cut off"));
        for wrong in ["{}\n", "[]\n", "\n", "\u{0}\n", &line.replace("\"ca\"", "\"cb\"")] {
            let error = refused(wrong);
            assert!(error.contains("is no membership") && !error.contains("SECRET"), "{error}");
        }
    }

    #[test]
    fn keys_are_not_shown() {
        assert!(!format!("{:?}", membership()).contains("SECRET"));
    }
}

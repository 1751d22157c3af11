//! Membership in a cluster that one user creates: all data that a node needs to join it, in one line of JSON.
//!
//! The line contains keys. It is sent over a pipe, or in a file that no other user can read; never in arguments or environment variables.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, Read};
use std::net::SocketAddr;

use pmi_transport::address::PortRange;
use serde::{Deserialize, Serialize};

/// Maximum length of the line, in bytes: room for tens of thousands of nodes.
const LINE_MAX: u64 = 64 << 20;

/// The line: the addresses of the API server, the trusted CA, and the nodes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Membership {
    /// Addresses of the API server; a node uses one that it can reach.
    pub api: Vec<SocketAddr>,
    /// Certificate of the CA, in PEM.
    pub ca: String,
    /// The credentials of nodes, by name: of the node that receives the line, or of all nodes if all receive the same line.
    pub nodes: BTreeMap<String, Credentials>,
    /// Environment variables with the node's name; the first one that is set counts. Without any, the host name counts.
    #[serde(default)]
    pub name_variables: Vec<String>,
    /// Ports at which a node listens; `None` for any port.
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

/// Error of a membership that is not usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// The input cannot be read.
    #[error("the membership cannot be read: {0}")]
    Read(#[from] io::Error),
    /// The input ended before the end of the line, or the line is too long.
    #[error(
        "the membership is cut off after {bytes} bytes; the program that starts this agent gives it no input, or ended"
    )]
    CutOff {
        /// Number of bytes that were read.
        bytes: usize,
    },
    /// The line is not a membership. The error does not show its content.
    #[error("the line of {bytes} bytes is no membership of this version: column {column}")]
    Malformed {
        /// Length of the line, in bytes.
        bytes: usize,
        /// Column of the fault.
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

    /// Reads the line, and no further input; the buffer of `input` may contain more.
    ///
    /// # Errors
    /// Fails if there is no whole line, or if the line is not a membership.
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

//! Addresses of daemons (`host:port` or `unix:/path`), and port ranges.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Address of the API server or of a node agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A port of a host.
    Tcp {
        /// A name or an IP address; an IPv6 address without its brackets.
        host: String,
        /// The port. With 0, a listener gets a port from the kernel.
        port: u16,
    },
    /// A Unix socket in the file system.
    Unix(PathBuf),
}

/// A string that is not a valid address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no address; write HOST:PORT, [IPV6]:PORT or unix:/PATH")]
pub struct AddressError {
    text: String,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let error = || AddressError { text: text.to_owned() };
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(error()) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_v6 = bare.is_some();
        let host = bare.unwrap_or(host);
        // "http://node3:50052" and "fd00::7" are invalid.
        let strange =
            |character: char| character.is_whitespace() || "/[]".contains(character) || (character == ':' && !is_v6);
        if host.is_empty() || host.contains(strange) {
            return Err(error());
        }
        Ok(Self::Tcp { host: host.to_owned(), port: port.parse().map_err(|_| error())? })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Range of ports for listeners without a fixed port, written `FIRST-LAST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortRange {
    first: u16,
    last: u16,
}

/// A string that is not a valid port range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no range of ports; write FIRST-LAST, such as 60000-60100, with ports from 1 to 65535")]
pub struct PortRangeError {
    text: String,
}

impl PortRange {
    /// The ports in ascending order.
    pub fn ports(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }
}

impl FromStr for PortRange {
    type Err = PortRangeError;

    fn from_str(text: &str) -> Result<Self, PortRangeError> {
        let ends = text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
        match ends {
            Some((first @ 1.., last)) if first <= last => Ok(Self { first, last }),
            _ => Err(PortRangeError { text: text.to_owned() }),
        }
    }
}

impl TryFrom<String> for PortRange {
    type Error = PortRangeError;

    fn try_from(text: String) -> Result<Self, PortRangeError> {
        text.parse()
    }
}

impl From<PortRange> for String {
    fn from(range: PortRange) -> Self {
        range.to_string()
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_ports_are_read_and_written() {
        for text in ["60000-60100", "1-1", "1-65535"] {
            assert_eq!(text.parse::<PortRange>().unwrap().to_string(), text);
        }
        for text in ["", "60000", "60100-60000", "0-5", "1-65536", "-5", "1-", "a-b", "1-2-3"] {
            assert!(text.parse::<PortRange>().unwrap_err().to_string().contains("FIRST-LAST"), "{text}");
        }
    }

    #[test]
    fn addresses_are_read_and_written() {
        for text in ["node3:50052", "10.0.0.2:1", "[fd00::7]:50051", "unix:/run/lattice/api.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in
            ["", "node3", ":1", "node3:", "node3:65536", "fd00::7", "http://node3:1", "unix:", "unix:api.sock", "a b:1"]
        {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert_eq!(error, format!("{text:?} is no address; write HOST:PORT, [IPV6]:PORT or unix:/PATH"));
        }
    }
}

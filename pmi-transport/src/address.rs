//! Addresses of daemons: `host:port`, or `unix:/path`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Address of the API server or of a node agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A port of a host.
    Tcp {
        /// A name or an IP address; an IPv6 address without its brackets.
        host: String,
        /// The port; 0 lets the kernel choose one, where something listens.
        port: u16,
    },
    /// A Unix socket in the file system.
    Unix(PathBuf),
}

/// A text that is no address.
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
        // "http://node3:50052" and "fd00::7" are neither.
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

#[cfg(test)]
mod tests {
    use super::*;

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

//! Failures to listen.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::address::{Address, PortRange};

/// Failure to listen or to serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address cannot be bound.
    #[error("cannot listen at {address}")]
    Bind {
        /// The address.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
    /// All ports of the range are in use.
    #[error("no port of {range} is free at {host}; widen the range (port_range, --port-range)")]
    AllTaken {
        /// The host.
        host: String,
        /// The range.
        range: PortRange,
    },
    /// Another process listens at the Unix socket.
    #[error("cannot listen at unix:{}: another process does", path.display())]
    Taken {
        /// The socket's path.
        path: PathBuf,
    },
    /// The path exists, and is not a socket.
    #[error("cannot listen at unix:{}: what is there is no socket; remove it, or name another path", path.display())]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// Without certificates, only loopback addresses are allowed.
    #[error(
        "{address} can be reached from other machines; without certificates, listen at a loopback address such as 127.0.0.1"
    )]
    InsecureBeyondLoopback {
        /// The address.
        address: SocketAddr,
    },
    /// The services cannot be served.
    #[error("cannot serve")]
    Serve(#[source] tonic::transport::Error),
}

//! Errors of a PMIx client, grouped by cause: the launcher's environment, the server, or the caller.

use std::io;

use pmix_core::wire::WireError;

/// Reason why a call of a [`PmixClient`](super::PmixClient) failed.
///
/// After a failure of the connection, or after a reply that is too long, no request is sent any more. Then every call
/// fails as [`Closed`](Self::Closed). After any other error the client remains usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PmixError {
    /// The launcher does not serve PMIx.
    #[error("the environment has no {variable}: this process was not started by a launcher that serves PMIx")]
    Missing {
        /// The required variable.
        variable: &'static str,
    },
    /// A variable has an unusable value.
    #[error("{variable}={value:?} in the environment is not {expected}")]
    Variable {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// Description of the valid values.
        expected: &'static str,
    },
    /// The server requires a proof of identity that this client cannot provide.
    #[error("the PMIx server asks for the security module {modules:?}; native and none are spoken here")]
    Security {
        /// The modules that the server accepts.
        modules: String,
    },
    /// The connection to the server's address failed.
    #[error("cannot connect to the PMIx server at {address}")]
    Connect {
        /// The address.
        address: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The server refused this rank.
    #[error("the PMIx server at {address} does not take rank {rank} in (status {status})")]
    NotWelcome {
        /// The address.
        address: String,
        /// The rank.
        rank: u32,
        /// The server's status.
        status: i32,
    },
    /// The server did not send the number of ranks, or sent a number that excludes this rank.
    #[error("the PMIx server gives rank {rank} no job size above that")]
    NoSize {
        /// The rank.
        rank: u32,
    },
    /// The server closed the connection: the job is ending, or its launcher died.
    #[error("the PMIx server closed the connection before it answered the {request}")]
    Closed {
        /// The request without a reply.
        request: &'static str,
    },
    /// A read or write failed in another way.
    #[error("the connection to the PMIx server failed during the {request}")]
    Io {
        /// The request in progress.
        request: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The server announced more bytes than the limit for a reply.
    #[error("the PMIx server announces {length} bytes in answer to the {request}; at most {max} are read")]
    TooLong {
        /// The request.
        request: &'static str,
        /// Number of announced bytes.
        length: usize,
        /// Maximum number of bytes of a reply.
        max: usize,
    },
    /// The server sent bytes that are not a reply to the request.
    #[error("the PMIx server's answer to the {request} makes no sense")]
    Malformed {
        /// The request.
        request: &'static str,
        /// Fault in the reply.
        source: WireError,
    },
    /// The server refused the request. The connection remains usable.
    #[error("the PMIx server refused the {request}: status {status}")]
    Refused {
        /// The request.
        request: &'static str,
        /// The server's status, never 0.
        status: i32,
    },
    /// A request for a new job has a part that PMIx cannot carry.
    #[error("a spawn over PMIx cannot carry {what}")]
    NotInSpawn {
        /// The part.
        what: &'static str,
    },
    /// A value of a type that this client cannot send.
    #[error("the value of {key} has a type that cannot be put here")]
    Unsupported {
        /// The key.
        key: String,
    },
}

impl PmixError {
    pub(super) fn malformed(request: &'static str, source: WireError) -> Self {
        Self::Malformed { request, source }
    }
}

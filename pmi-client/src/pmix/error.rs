//! Errors of a PMIx client, sorted by who must act: the launcher's environment, the server, or the caller.

use std::io;

use pmix_core::wire::WireError;

/// Reason for which a call of a [`PmixClient`](super::PmixClient) failed.
///
/// After a failure of the connection, or an answer that is too long to be read, nothing more is asked: every call fails as
/// [`Closed`](Self::Closed). After any other error the client goes on as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PmixError {
    /// The launcher serves no PMIx.
    #[error("the environment has no {variable}: this process was not started by a launcher that serves PMIx")]
    Missing {
        /// The variable that a rank needs.
        variable: &'static str,
    },
    /// A variable is unusable.
    #[error("{variable}={value:?} in the environment is not {expected}")]
    Variable {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// Description of what is possible.
        expected: &'static str,
    },
    /// The server wants a proof of identity that this client cannot make.
    #[error("the PMIx server asks for the security module {modules:?}; native and none are spoken here")]
    Security {
        /// The modules it takes.
        modules: String,
    },
    /// Nobody answers at the server's address.
    #[error("cannot connect to the PMIx server at {address}")]
    Connect {
        /// The address.
        address: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The server does not take this rank in.
    #[error("the PMIx server at {address} does not take rank {rank} in (status {status})")]
    NotWelcome {
        /// The address.
        address: String,
        /// The rank.
        rank: u32,
        /// The server's status.
        status: i32,
    },
    /// The server does not say how many ranks there are, or fewer than this one's number.
    #[error("the PMIx server tells rank {rank} no size of the job above that")]
    NoSize {
        /// The rank.
        rank: u32,
    },
    /// The server went away: the job is ending, or its launcher died.
    #[error("the PMIx server closed the connection before it answered the {request}")]
    Closed {
        /// The request that has no answer.
        request: &'static str,
    },
    /// Reading or writing failed in another way.
    #[error("the connection to the PMIx server failed during the {request}")]
    Io {
        /// The request under way.
        request: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// The server announces more bytes than any answer has.
    #[error("the PMIx server announces {length} bytes in answer to the {request}; at most {max} are read")]
    TooLong {
        /// The request.
        request: &'static str,
        /// Bytes that were announced.
        length: usize,
        /// Most bytes that are read.
        max: usize,
    },
    /// The server sent something that is not an answer to the request.
    #[error("the PMIx server's answer to the {request} makes no sense")]
    Malformed {
        /// The request.
        request: &'static str,
        /// Fault in the answer.
        source: WireError,
    },
    /// The server understood, and said no. The connection is in order.
    #[error("the PMIx server refused the {request}: status {status}")]
    Refused {
        /// The request.
        request: &'static str,
        /// The server's status, never 0.
        status: i32,
    },
    /// A request for a new job holds what PMIx has no place for.
    #[error("a spawn over PMIx cannot carry {what}")]
    NotInSpawn {
        /// The part that has no place.
        what: &'static str,
    },
    /// A value of a type that this client only carries.
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

//! Failures of calls to the API server, with advice.

use std::error::Error;
use std::time::Duration;

use pmi_transport::connect::{ConnectError, is_distrusted, is_unheard};
use tonic::{Code, Status};

use super::config::ConfigError;
use super::url::{ApiUrl, ApiUrlError, DEFAULT_URL};

/// Failure of a call to the API server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The URL names no API server.
    #[error(transparent)]
    Url(#[from] ApiUrlError),
    /// The config file cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A flag or variable for the allocation is empty.
    #[error(
        "{place} is empty: it names no allocation\n\
         try: an id, which lattice alloc list shows; or `local`, or no such variable at all, for this machine"
    )]
    EmptyAllocation {
        /// Name of the flag or variable.
        place: &'static str,
    },
    /// The channel to the API server cannot be created.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The API server is unreachable.
    #[error(
        "cannot reach the API server at {url}: {reason}\n\
         try: --api, LATTICE_API_URL or `api` in ~/.config/lattice/config.toml, to name another; `lattice api` starts one"
    )]
    Unreachable {
        /// URL of the server.
        url: String,
        /// Innermost cause.
        reason: String,
        /// True if there was no connection, so that the server did not receive the call.
        is_unheard: bool,
    },
    /// The client or the server does not accept the certificate of the other side.
    #[error(
        "cannot reach the API server at {url}: {reason}\n\
         try: a new certificate from the cluster's administrator, if it is ours that is not taken; date, here and there; \
         `ca`, `cert` and `key` in the config file that lattice was given"
    )]
    Distrusted {
        /// URL of the server.
        url: String,
        /// Innermost cause.
        reason: String,
    },
    /// No answer within the time limit.
    #[error("the API server at {url} gave no answer within {} s", timeout.as_secs())]
    NoAnswer {
        /// URL of the server.
        url: String,
        /// The time limit.
        timeout: Duration,
    },
    /// Refused by the server, with the message of the server.
    #[error("{0}")]
    Refused(String),
    /// A node, a fabric manager or the server itself is unavailable at present. With the message of the server.
    #[error("{0}")]
    Unavailable(String),
    /// The server does not support the call.
    #[error("the API server at {url} does not know how to do that: it may be older than this lattice")]
    Unknown {
        /// URL of the server.
        url: String,
    },
    /// The answer is invalid.
    #[error("the API server at {url} sent something that makes no sense: {reason}")]
    Nonsense {
        /// URL of the server.
        url: String,
        /// The fault.
        reason: String,
    },
}

impl ClusterError {
    /// True if the call is worth repeating.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::NoAnswer { .. } | Self::Unavailable(_))
    }

    /// True if the server did not receive the call. Any such call may be repeated.
    pub fn is_unheard(&self) -> bool {
        matches!(self, Self::Unreachable { is_unheard: true, .. })
    }

    /// True if no API server listens at the default address. No other address is configured then.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::Unreachable { url, .. } if url == DEFAULT_URL)
    }

    /// Error for the status of a call. A status with a source comes from this process, for a broken connection; one without comes from the
    /// server.
    pub(super) fn of_status(status: &Status, url: &ApiUrl) -> Self {
        let url = url.to_string();
        match (status.code(), root(status)) {
            (_, Some(reason)) if is_distrusted(status) => Self::Distrusted { url, reason },
            (_, Some(reason)) => Self::Unreachable { url, reason, is_unheard: is_unheard(status) },
            (Code::Unavailable, None) => Self::Unavailable(status.message().to_owned()),
            (Code::Unimplemented, None) => Self::Unknown { url },
            (_, None) if status.message().is_empty() => {
                Self::Refused(format!("the API server at {url}: {}", status.code()))
            }
            (_, None) => Self::Refused(status.message().to_owned()),
        }
    }
}

/// Innermost source of a status, which describes a broken connection best; `None` for a status of the server.
fn root(status: &Status) -> Option<String> {
    let mut cause = status.source()?;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    Some(cause.to_string())
}

/// Answer to a question before a launch, if there is one. A refusal is dropped: the launch is refused as well, and reports it.
///
/// # Errors
/// Fails if the API server is unreachable: the launch would wait for it again.
pub fn answered<T>(outcome: Result<T, ClusterError>) -> Result<Option<T>, ClusterError> {
    match outcome {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.is_passing() => Err(error),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(status: Status) -> ClusterError {
        ClusterError::of_status(&status, &"https://head".parse().unwrap())
    }

    #[test]
    fn a_status_of_the_server_is_told_in_its_words() {
        assert_eq!(error(Status::permission_denied("not yours")).to_string(), "not yours");
        assert_eq!(error(Status::unavailable("being restarted")).to_string(), "being restarted");
        let silent = error(Status::internal("")).to_string();
        assert!(silent.starts_with("the API server at https://head:50051: "), "{silent}");
        let older = error(Status::unimplemented("")).to_string();
        assert!(older.contains("it may be older than this lattice"), "{older}");
    }

    #[test]
    fn a_broken_connection_is_told_by_its_innermost_cause() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = error(Status::from_error(Box::new(refused)));
        let text = error.to_string();
        assert!(text.starts_with("cannot reach the API server at https://head:50051: "), "{text}");
        assert!(text.contains("connection refused") && text.contains("\ntry: --api"), "{text}");
    }

    #[test]
    fn only_what_may_pass_is_worth_another_try() {
        let url = || "https://head:50051".to_owned();
        for (error, passing) in [
            (ClusterError::Unreachable { url: url(), reason: String::new(), is_unheard: false }, true),
            (ClusterError::Distrusted { url: url(), reason: String::new() }, false),
            (ClusterError::NoAnswer { url: url(), timeout: Duration::from_secs(30) }, true),
            (ClusterError::Unavailable(String::new()), true),
            (ClusterError::Refused(String::new()), false),
            (ClusterError::Unknown { url: url() }, false),
            (ClusterError::Nonsense { url: url(), reason: String::new() }, false),
        ] {
            assert_eq!(error.is_passing(), passing, "{error}");
        }
    }

    #[test]
    fn each_failure_says_what_to_do_next() {
        let url = || "unix:/run/api.sock".to_owned();
        let check = |error: ClusterError, expected: &str| assert_eq!(error.to_string(), expected);
        check(
            ClusterError::Unreachable {
                url: url(),
                reason: "No such file or directory (os error 2)".to_owned(),
                is_unheard: true,
            },
            "cannot reach the API server at unix:/run/api.sock: No such file or directory (os error 2)\n\
             try: --api, LATTICE_API_URL or `api` in ~/.config/lattice/config.toml, to name another; `lattice api` starts one",
        );
        check(
            ClusterError::EmptyAllocation { place: "LATTICE_ALLOC_ID" },
            "LATTICE_ALLOC_ID is empty: it names no allocation\n\
             try: an id, which lattice alloc list shows; or `local`, or no such variable at all, for this machine",
        );
        check(
            ClusterError::NoAnswer { url: url(), timeout: Duration::from_secs(30) },
            "the API server at unix:/run/api.sock gave no answer within 30 s",
        );
        check(
            ClusterError::Unknown { url: url() },
            "the API server at unix:/run/api.sock does not know how to do that: it may be older than this lattice",
        );
        check(
            ClusterError::Nonsense { url: url(), reason: "the message has no job".to_owned() },
            "the API server at unix:/run/api.sock sent something that makes no sense: the message has no job",
        );
    }
}

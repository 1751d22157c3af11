//! Failures of calls to the API server, with what to try next.

use std::error::Error;
use std::time::Duration;

use pmi_transport::connect::{ConnectError, is_distrusted, is_unheard};
use tonic::{Code, Status};

use super::DEFAULT_URL;
use super::config::ConfigError;
use super::url::{ApiUrl, ApiUrlError};

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
    /// Something should name an allocation, and is empty.
    #[error(
        "{place} is empty: it names no allocation\n\
         try: an id, which lattice alloc list shows; or `local`, or no such variable at all, for this machine"
    )]
    EmptyAllocation {
        /// Source of the name.
        place: &'static str,
    },
    /// The API server may not be talked to that way.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Nobody is there.
    #[error(
        "cannot reach the API server at {url}: {reason}\n\
         try: --api, LATTICE_API_URL or `api` in ~/.config/lattice/config.toml, to name another; `lattice api` starts one"
    )]
    Unreachable {
        /// URL of the server.
        url: String,
        /// Innermost cause.
        reason: String,
        /// True if there was no connection, so that nobody has heard of the call.
        is_unheard: bool,
    },
    /// One of both does not take the other for whom it says it is.
    #[error(
        "cannot reach the API server at {url}: {reason}\n\
         try: a new certificate from who runs the cluster, if it is ours that is not taken; date, here and there; \
         `ca`, `cert` and `key` in the config file that lattice was given"
    )]
    Distrusted {
        /// URL of the server.
        url: String,
        /// Innermost cause.
        reason: String,
    },
    /// No answer in time.
    #[error("the API server at {url} gave no answer within {} s", timeout.as_secs())]
    NoAnswer {
        /// URL of the server.
        url: String,
        /// The time limit.
        timeout: Duration,
    },
    /// Refused by the server, in its words.
    #[error("{0}")]
    Refused(String),
    /// Unavailable at present: a node, a fabric manager, or the server itself. In the server's words.
    #[error("{0}")]
    Unavailable(String),
    /// Call unknown to the server.
    #[error("the API server at {url} does not know how to do that: it may be older than this lattice")]
    Unknown {
        /// URL of the server.
        url: String,
    },
    /// Answer without meaning.
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
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::NoAnswer { .. } | Self::Unavailable(_))
    }

    /// True if nobody has heard of the call, which may be repeated whatever it does.
    pub(crate) fn is_unheard(&self) -> bool {
        matches!(self, Self::Unreachable { is_unheard: true, .. })
    }

    /// True if nobody is there, and nobody has said that there is.
    pub(crate) fn is_absence(&self) -> bool {
        matches!(self, Self::Unreachable { url, .. } if url == DEFAULT_URL)
    }

    /// Error for the status of a call. A status with a source was made in this process, for a broken connection; one without is the server's.
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

/// Innermost source of a status, which says most about a broken connection; `None` for a status of the server.
fn root(status: &Status) -> Option<String> {
    let mut cause = status.source()?;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    Some(cause.to_string())
}

/// The answer to a question before a launch, if there is one. A refusal is reported by the launch, which is refused as well.
///
/// # Errors
/// Fails if the API server cannot be reached: a launch would wait for it once more.
pub(crate) fn answered<T>(outcome: Result<T, ClusterError>) -> Result<Option<T>, ClusterError> {
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

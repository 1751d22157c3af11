//! Why something could not be had from a cluster, in words that say what to try next.

use std::error::Error;
use std::time::Duration;

use pmi_transport::connect::ConnectError;
use tonic::{Code, Status};

use super::config::ConfigError;
use super::url::{ApiUrl, ApiUrlError};

/// Why something could not be had from a cluster.
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
        /// What should name it.
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
        /// Where nobody is.
        url: String,
        /// What was seen.
        reason: String,
    },
    /// It is there, and does not answer.
    #[error("the API server at {url} gave no answer within {} s", patience.as_secs())]
    NoAnswer {
        /// Which one.
        url: String,
        /// How long was waited.
        patience: Duration,
    },
    /// It said no; its words.
    #[error("{0}")]
    Refused(String),
    /// It said that something is not there at present: a node, a fabric manager, or itself in a moment. Its words.
    #[error("{0}")]
    Unavailable(String),
    /// It does not know what was asked for.
    #[error("the API server at {url} does not know how to do that: it may be older than this lattice")]
    Unknown {
        /// Which one.
        url: String,
    },
    /// It answered something that means nothing.
    #[error("the API server at {url} sent something that makes no sense: {reason}")]
    Nonsense {
        /// Which one.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl ClusterError {
    /// Whether the same may go well in a moment.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::NoAnswer { .. } | Self::Unavailable(_))
    }

    /// What a call ended with. Only a status with a source was made here, of a connection that broke; one without is the server's.
    pub(super) fn of_status(status: &Status, url: &ApiUrl) -> Self {
        let url = url.to_string();
        match (status.code(), root(status)) {
            (_, Some(reason)) => Self::Unreachable { url, reason },
            (Code::Unavailable, None) => Self::Unavailable(status.message().to_owned()),
            (Code::Unimplemented, None) => Self::Unknown { url },
            (_, None) if status.message().is_empty() => {
                Self::Refused(format!("the API server at {url}: {}", status.code()))
            }
            (_, None) => Self::Refused(status.message().to_owned()),
        }
    }
}

/// What broke the connection, if that is what a status means; the innermost cause says most.
fn root(status: &Status) -> Option<String> {
    let mut cause = status.source()?;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    Some(cause.to_string())
}

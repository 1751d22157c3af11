//! Errors of calls to a fabric manager, as text for an operator.
//!
//! Every error names the service, the call, and the number of tries. Text of the manager is shortened and cleared of
//! secrets before it is stored here.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

/// Call of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Base URL of the service, without user or password.
    pub service: Arc<str>,
    /// The HTTP method.
    pub method: &'static str,
    /// Path of the request.
    pub path: String,
    /// Number of tries.
    pub tries: u32,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, method, path, tries } = self;
        let plural = if *tries == 1 { "try" } else { "tries" };
        write!(f, "fabric manager {service}: {method} {path} ({tries} {plural})")
    }
}

/// Transient failure of one try.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Trouble {
    /// The deadline passed before the first try.
    #[error("there was no time to ask")]
    NotAsked,
    /// No connection could be made.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// No complete answer arrived in time.
    #[error("no answer within {} ms", .0.as_millis())]
    Slow(Duration),
    /// The connection broke; the request may have been carried out.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The service is temporarily busy or out of order.
    #[error("it answered {status}{}{}", said(text), come_back(*retry_after))]
    Busy {
        /// The HTTP status.
        status: u16,
        /// Text of the manager.
        text: String,
        /// Pause that the service requests.
        retry_after: Option<Duration>,
    },
}

impl Trouble {
    /// True if the service may have received and carried out the request.
    pub(crate) fn may_be_done(&self) -> bool {
        match self {
            Self::NotAsked | Self::Unreachable(_) => false,
            Self::Slow(_) | Self::Broken(_) | Self::Busy { .. } => true,
        }
    }
}

/// Error of a call to a fabric manager.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The deadline passed, or would have passed before the next try. The effect is unknown.
    #[error("{call}: gave up at the deadline, as {last}; see whether the service runs and is reachable from this host")]
    OutOfTime {
        /// The call.
        call: Call,
        /// Failure of the last try.
        last: Trouble,
    },
    /// The credentials are missing or wrong. The last try did nothing.
    #[error(
        "{call}: it answered {status}{}; check the credentials that the fabric section of the configuration names",
        said(text)
    )]
    Unauthorised {
        /// The call.
        call: Call,
        /// 401 or 403.
        status: u16,
        /// Text of the manager.
        text: String,
    },
    /// The manager refuses the call permanently. The last try did nothing.
    #[error("{call}: it answered {status}{}; send this text to its administrator", said(text))]
    Refused {
        /// The call.
        call: Call,
        /// The HTTP status.
        status: u16,
        /// Text of the manager.
        text: String,
    },
    /// The service exists already, and the manager does not identify it.
    #[error(
        "{call}: it answered 409{}, and shows no service called {name}; delete what is in the way, or ask its administrator",
        said(text)
    )]
    Conflict {
        /// The call.
        call: Call,
        /// Name of the requested service.
        name: String,
        /// Text of the manager.
        text: String,
    },
    /// The answer is malformed. The effect is unknown.
    #[error("{call}: its answer makes no sense: {what}; is this URL that of a fabric manager, and of the right kind?")]
    Unintelligible {
        /// The call.
        call: Call,
        /// Actual and expected content.
        what: String,
    },
    /// The manager returned credentials with another VNI.
    #[error("{call}: asked for VNI {asked}, it gave {given}; see whether another resource manager uses the same range")]
    OtherVni {
        /// The call.
        call: Call,
        /// Requested VNI.
        asked: u16,
        /// Returned VNI.
        given: u16,
    },
    /// The manager does not support the call.
    #[error("{call}: it does not offer this call")]
    NotOffered {
        /// The call.
        call: Call,
    },
    /// The last try did nothing, but an earlier one may have been carried out, or a service of that name exists.
    #[error("{0}; an earlier try may have been carried out")]
    InDoubt(Box<Self>),
    /// The back end assigns no VNIs, and the request has none.
    #[error("back end {backend} needs a VNI from the pool; configure `vnis`")]
    VniNeeded {
        /// The back end.
        backend: &'static str,
    },
}

impl FabricError {
    /// True if the call certainly changed nothing.
    pub fn nothing_was_done(&self) -> bool {
        match self {
            Self::Unauthorised { .. } | Self::Refused { .. } | Self::NotOffered { .. } | Self::VniNeeded { .. } => true,
            Self::OutOfTime { last, .. } => *last == Trouble::NotAsked,
            Self::Conflict { .. } | Self::Unintelligible { .. } | Self::OtherVni { .. } | Self::InDoubt(_) => false,
        }
    }

    /// This error after a try that may have been carried out. The effect of the call is then unknown, whatever the last
    /// error is.
    pub(crate) fn in_doubt(self) -> Self {
        if self.nothing_was_done() { Self::InDoubt(Box::new(self)) } else { self }
    }
}

fn said(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" with \"{text}\"") }
}

fn come_back(after: Option<Duration>) -> String {
    after.map_or_else(String::new, |after| format!(" (it wants to be asked again in {} s)", after.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_who_what_how_often_and_what_to_do() {
        let call =
            Call { service: "https://fm:443".into(), method: "POST", path: "/fabric/cxi/services".into(), tries: 3 };
        let last = Trouble::Busy { status: 503, text: "draining".into(), retry_after: Some(Duration::from_secs(60)) };
        assert_eq!(
            FabricError::OutOfTime { call, last }.to_string(),
            "fabric manager https://fm:443: POST /fabric/cxi/services (3 tries): gave up at the deadline, as it answered 503 \
             with \"draining\" (it wants to be asked again in 60 s); see whether the service runs and is reachable from this host"
        );
    }
}

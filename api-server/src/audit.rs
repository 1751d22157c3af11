//! The audit log: one line for each call that changes something, with who made it, what for, and what came of it. It is the target
//! `audit` of the server's log.
//!
//! ```text
//! INFO audit: request=17 caller=user 1000 action="abort launch" on="7yjtam8njn" outcome="done"
//! ```
//! What callers wrote is quoted and escaped.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use pmi_transport::identity::Caller;
use tonic::Status;

/// Number of requests that were audited since the server was started.
static REQUESTS: AtomicU64 = AtomicU64::new(0);

/// Makes a call that changes something, and logs what came of it; `made` says what was made, if something was.
///
/// # Errors
/// Those of the call.
pub(crate) async fn audited<T>(
    caller: &Caller,
    action: &'static str,
    on: &str,
    call: impl Future<Output = Result<T, Status>>,
    made: impl FnOnce(&T) -> String,
) -> Result<T, Status> {
    let mut line = Line::new(caller, action, on);
    let result = call.await;
    line.outcome = match &result {
        Ok(answer) => Outcome::Done(made(answer)),
        Err(status) => Outcome::Refused(status.message().to_owned()),
    };
    result
}

/// Says that nothing was made.
pub(crate) fn nothing<T>(_: &T) -> String {
    String::new()
}

/// One line, which is logged when this is dropped.
struct Line<'a> {
    request: u64,
    caller: &'a Caller,
    action: &'static str,
    on: &'a str,
    outcome: Outcome,
}

/// What came of a call.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// The caller did not wait for it.
    Unknown,
    Done(String),
    Refused(String),
}

impl<'a> Line<'a> {
    fn new(caller: &'a Caller, action: &'static str, on: &'a str) -> Self {
        let request = REQUESTS.fetch_add(1, Ordering::Relaxed) + 1;
        Self { request, caller, action, on, outcome: Outcome::Unknown }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("unknown: the caller hung up"),
            Self::Done(made) if made.is_empty() => f.write_str("done"),
            Self::Done(made) => write!(f, "done: {made}"),
            Self::Refused(reason) => write!(f, "refused: {reason}"),
        }
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let Line { request, caller, action, on, outcome } = self;
        let outcome = outcome.to_string();
        tracing::info!(target: "audit", request, %caller, ?action, ?on, ?outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_says_what_was_made_or_why_nothing_was() {
        assert_eq!(Outcome::Done(String::new()).to_string(), "done");
        assert_eq!(Outcome::Done("launch abc".to_owned()).to_string(), "done: launch abc");
        assert_eq!(Outcome::Refused("node0 is drained".to_owned()).to_string(), "refused: node0 is drained");
        assert_eq!(Line::new(&Caller::User(7), "abort launch", "x").outcome, Outcome::Unknown);
    }
}

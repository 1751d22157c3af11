//! The audit log: one line for each call that changes the state, with its caller, its object and its outcome. Its target in the server's
//! log is `audit`.
//!
//! ```text
//! INFO audit: request=17 caller=user 1000 action="abort launch" on="7yjtam8njn" outcome="done"
//! ```
//! Texts from callers are quoted and escaped.

use std::sync::atomic::{AtomicU64, Ordering};

use pmi_transport::identity::Caller;
use tonic::Status;

/// Number of requests that were audited since the server was started.
static REQUESTS: AtomicU64 = AtomicU64::new(0);

/// Executes a call that changes the state, and logs its outcome; `made` returns a text about the created object, if there is one. Must run
/// [to its end](crate::server::to_its_end), so that a change is logged even if its caller disconnects.
///
/// # Errors
/// Returns the error of the call.
pub(crate) async fn audited<T, E: Into<Status>>(
    caller: &Caller,
    action: &'static str,
    on: &str,
    call: impl Future<Output = Result<T, E>>,
    made: impl FnOnce(&T) -> String,
) -> Result<T, Status> {
    let request = REQUESTS.fetch_add(1, Ordering::Relaxed) + 1;
    let result = call.await.map_err(Into::into);
    let outcome = outcome(&result, made);
    tracing::info!(target: "audit", request, %caller, ?action, ?on, ?outcome);
    result
}

/// Returns an empty text, for calls that create nothing.
pub(crate) fn nothing<T>(_: &T) -> String {
    String::new()
}

/// Outcome of a call in words, without the suggested next command.
fn outcome<T>(result: &Result<T, Status>, made: impl FnOnce(&T) -> String) -> String {
    match result.as_ref().map(made) {
        Ok(made) if made.is_empty() => "done".to_owned(),
        Ok(made) => format!("done: {made}"),
        Err(status) => {
            let message = status.message();
            format!("refused: {}", message.split_once("\ntry: ").map_or(message, |(refused, _)| refused))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_says_what_was_made_or_why_nothing_was() {
        assert_eq!(outcome(&Ok(7), nothing), "done");
        assert_eq!(outcome(&Ok(7), |number| format!("launch {number}")), "done: launch 7");
        let refused = Err::<(), _>(Status::failed_precondition("node0 is drained\ntry: another node"));
        assert_eq!(outcome(&refused, nothing), "refused: node0 is drained");
    }
}

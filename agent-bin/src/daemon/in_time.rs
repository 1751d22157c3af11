//! Time limit for calls to the API server.

use std::time::Duration;

use tokio::time::timeout;
use tonic::Status;

/// Waits for an answer, at most for `limit`.
pub(super) async fn in_time<T>(
    limit: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Status> {
    match timeout(limit, call).await {
        Ok(result) => result.map(tonic::Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded(format!("no answer within {limit:?}"))),
    }
}

//! Waits for an optional deadline, as an arm of `tokio::select!`.

use tokio::time::{Instant, sleep_until};

/// Returns at `deadline`; without a deadline, never returns. Cancel-safe.
pub async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_deadline_is_reached_on_time_and_no_deadline_never_is() {
        let start = Instant::now();
        until(Some(start + Duration::from_secs(3))).await;
        assert_eq!(start.elapsed(), Duration::from_secs(3));
        assert!(timeout(Duration::from_secs(3600), until(None)).await.is_err());
    }
}

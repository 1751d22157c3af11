//! Waits for the end of a process, even if the process cannot be watched.

use std::io;
use std::time::Duration;

use rank_spawner::RankExit;

/// Poll interval for a process that cannot be watched.
const POLL: Duration = Duration::from_millis(100);

/// Exit of a process that was reaped elsewhere. Its status is lost, and must not count as success.
const LOST: RankExit = RankExit::Code(255);

/// Waits until a process has ended, reaps it, and returns its exit. If `watch` fails, the process is polled: it runs until `reap`
/// returns its exit.
pub(super) async fn until_reaped<W: Future<Output = io::Result<()>>>(
    watch: impl Fn() -> W,
    reap: impl Fn() -> nix::Result<Option<RankExit>>,
) -> RankExit {
    loop {
        let watched = watch().await;
        match reap() {
            Ok(Some(exit)) => return exit,
            // The process runs: the watch failed, or returned early.
            Ok(None) if watched.is_err() => tokio::time::sleep(POLL).await,
            Ok(None) => tokio::task::yield_now().await,
            Err(_) => return LOST,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use nix::errno::Errno;

    use super::*;

    /// Returns the exit of a process that is found running `polls` times, and the time until then.
    async fn reaped(watch: Result<(), ()>, polls: u32, end: nix::Result<RankExit>) -> (RankExit, Duration) {
        let left = Cell::new(polls);
        let began = tokio::time::Instant::now();
        let watch = async || watch.map_err(|()| io::Error::from(Errno::EMFILE));
        let reap = || match left.get() {
            0 => end.map(Some),
            more => {
                left.set(more - 1);
                Ok(None)
            }
        };
        (until_reaped(watch, reap).await, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_rank_that_cannot_be_watched_runs_until_it_ends() {
        let ended = reaped(Err(()), 600, Ok(RankExit::Code(0))).await;
        assert_eq!(ended, (RankExit::Code(0), 600 * POLL), "it was polled, and not taken for ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_rank_that_is_watched_is_reaped_when_it_ends() {
        assert_eq!(reaped(Ok(()), 0, Ok(RankExit::Code(3))).await, (RankExit::Code(3), Duration::ZERO));
        assert_eq!(reaped(Ok(()), 2, Ok(RankExit::Code(3))).await, (RankExit::Code(3), Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_that_somebody_else_took_is_no_success() {
        for watch in [Ok(()), Err(())] {
            assert!(!reaped(watch, 0, Err(Errno::ECHILD)).await.0.is_success());
        }
    }
}

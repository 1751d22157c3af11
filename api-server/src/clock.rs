//! Time for the deadlines of other processes. A period in which this server stood still (stopped, swapped out, a paused machine, a slow
//! disk) does not count: the server received no message in it, and no other process caused the delay.
//!
//! ```text
//! wall  ──┬──┬──┬──┬───────── still ─────────┬──┬──┬──
//! clock ──┬──┬──┬──┬┬──┬──┬──                            (continues where it stopped)
//! ```

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// The longest time between two readings of the clock while the server works. A longer time is a standstill.
pub(crate) const STANDSTILL: Duration = Duration::from_secs(1);

/// A clock that stands still with its server. It must be read more often than every [`STANDSTILL`], by any task.
#[derive(Debug)]
pub(crate) struct Clock(Mutex<Reading>);

/// The last reading of the clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    wall: Instant,
    /// Sum of the periods that do not count.
    still: Duration,
}

impl Default for Clock {
    fn default() -> Self {
        Self(Mutex::new(Reading::new(Instant::now())))
    }
}

impl Clock {
    /// The present time; never decreases.
    pub(crate) fn now(&self) -> Instant {
        self.0.lock().at(Instant::now())
    }

    /// Resolves when this clock reaches `time`, or earlier if the server stands still in the meantime.
    pub(crate) async fn sleep_until(&self, time: Instant) {
        let still = self.0.lock().still;
        sleep_until(time + still).await;
    }
}

impl Reading {
    pub(crate) fn new(wall: Instant) -> Self {
        Self { wall, still: Duration::ZERO }
    }

    /// The time of this clock when the wall clock is at `wall`.
    pub(crate) fn at(&mut self, wall: Instant) -> Instant {
        let passed = wall.saturating_duration_since(self.wall);
        if passed > STANDSTILL {
            tracing::warn!(?passed, "this server stood still; that time counts against no node");
            self.still += passed;
        }
        self.wall = self.wall.max(wall);
        self.wall - self.still
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_is_left_out_and_nothing_else() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut reading = Reading::new(start);
        assert_eq!(reading.at(start + second), start + second);
        assert_eq!(reading.at(start + 61 * second), start + second, "it stood still for a minute");
        assert_eq!(reading.at(start + 62 * second), start + 2 * second);
        assert_eq!(reading.at(start), start + 2 * second, "it never goes back");
    }
}

//! Time as deadlines of others count it: a time in which this server stood still (stopped, swapped out, a paused machine, a disk that
//! held it up) is left out, because nobody could be heard in it and nobody is to blame for it.
//!
//! ```text
//! wall  ──┬──┬──┬──┬───────── still ─────────┬──┬──┬──
//! clock ──┬──┬──┬──┬┬──┬──┬──                            (goes on where it was)
//! ```

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// The longest time between two looks at the clock of a server that is at work; more is a standstill.
pub(crate) const STANDSTILL: Duration = Duration::from_secs(1);

/// A clock that stands still with its server. It is to be read more often than every [`STANDSTILL`], by whoever it is.
#[derive(Debug)]
pub(crate) struct Clock(Mutex<Reading>);

/// The last time that the clock was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    wall: Instant,
    /// Time that does not count.
    still: Duration,
}

impl Default for Clock {
    fn default() -> Self {
        Self(Mutex::new(Reading::new(Instant::now())))
    }
}

impl Clock {
    /// The time now; never less than before.
    pub(crate) fn now(&self) -> Instant {
        self.0.lock().at(Instant::now())
    }

    /// Resolves when this clock has come to `time`, unless the server stands still meanwhile: then earlier.
    pub(crate) async fn sleep_until(&self, time: Instant) {
        let still = self.0.lock().still;
        sleep_until(time + still).await;
    }
}

impl Reading {
    pub(crate) fn new(wall: Instant) -> Self {
        Self { wall, still: Duration::ZERO }
    }

    /// The time when the wall's clock is at `wall`.
    pub(crate) fn at(&mut self, wall: Instant) -> Instant {
        let passed = wall.saturating_duration_since(self.wall);
        if passed > STANDSTILL {
            tracing::warn!(?passed, "this server stood still; that time counts against nobody");
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

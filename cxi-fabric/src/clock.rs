//! Clock as a parameter, so that retries can be tested without waiting. Monotonic: no decision of this crate depends on the
//! time of day.

use std::time::{Duration, Instant};

/// Source of time and of pauses.
pub trait Clock: Send + Sync {
    /// Present time.
    fn now(&self) -> Instant;

    /// Returns after `pause`.
    fn sleep(&self, pause: Duration);
}

/// Clock of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, pause: Duration) {
        std::thread::sleep(pause);
    }
}

/// Clock that advances only by sleeps, which return at once.
#[cfg(any(test, feature = "fake", feature = "fuzzing"))]
#[derive(Debug)]
pub struct VirtualClock {
    start: Instant,
    passed: parking_lot::Mutex<Duration>,
}

#[cfg(any(test, feature = "fake", feature = "fuzzing"))]
impl VirtualClock {
    /// Sum of all sleeps.
    pub fn passed(&self) -> Duration {
        *self.passed.lock()
    }
}

#[cfg(any(test, feature = "fake", feature = "fuzzing"))]
impl Default for VirtualClock {
    fn default() -> Self {
        Self { start: Instant::now(), passed: parking_lot::Mutex::default() }
    }
}

#[cfg(any(test, feature = "fake", feature = "fuzzing"))]
impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        self.start + *self.passed.lock()
    }

    fn sleep(&self, pause: Duration) {
        *self.passed.lock() += pause;
    }
}

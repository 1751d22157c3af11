//! Time as a value that can be handed in, so that retries can be tested without waiting. Monotonic: no decision of this crate
//! hangs on the time of day.

use std::time::{Duration, Instant};

/// Tells the time, and passes it.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> Instant;

    /// Returns when `pause` has gone by.
    fn sleep(&self, pause: Duration);
}

/// The machine's own.
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

/// Stands still but for those who sleep, who wake up at once in their future.
#[cfg(any(test, feature = "fake", feature = "fuzzing"))]
#[derive(Debug)]
pub struct VirtualClock {
    start: Instant,
    passed: parking_lot::Mutex<Duration>,
}

#[cfg(any(test, feature = "fake", feature = "fuzzing"))]
impl VirtualClock {
    /// Time that was slept away.
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

//! Virtual time, and the clocks of hosts, which run at different paces.

use std::fmt;
use std::ops::Add;
use std::time::{Duration, Instant};

/// Time since the start of a run, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time(pub(crate) u64);

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0 + time.as_micros() as u64)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// Monotonic clock of one host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    base: Instant,
    /// Microseconds that it counts in a second.
    pace: u64,
}

impl Clock {
    pub(crate) fn new(base: Instant, pace: u64) -> Self {
        Self { base, pace }
    }

    /// Returns the reading of the clock at this time.
    pub(crate) fn at(self, time: Time) -> Instant {
        self.base + Duration::from_micros((u128::from(time.0) * u128::from(self.pace) / 1_000_000) as u64)
    }

    /// Returns the first time at which the clock reads at least this value.
    pub(crate) fn when(self, shown: Instant) -> Time {
        let micros = shown.saturating_duration_since(self.base).as_nanos().div_ceil(1000);
        Time((micros * 1_000_000).div_ceil(u128::from(self.pace)) as u64 + 1)
    }
}

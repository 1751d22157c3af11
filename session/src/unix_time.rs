//! The time of day, for display to users, and as the start of numbers that must increase across restarts.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the time since the start of 1970; zero if the clock is before it.
pub fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the same time in whole seconds.
pub fn seconds() -> u64 {
    since_epoch().as_secs()
}

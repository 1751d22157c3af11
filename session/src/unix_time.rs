//! The time of day, as users are shown it and as numbers begin with it that must go on counting over restarts.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time since 1970 began; zero on a clock that is before that.
pub fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The same in whole seconds.
pub fn seconds() -> u64 {
    since_epoch().as_secs()
}

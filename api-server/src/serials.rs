//! The numbers under which launches are signed. Each number is greater than all earlier numbers, including the numbers of earlier servers.
//!
//! The numbers begin with the start time of the server, in microseconds since 1970. No server starts launches faster than one per
//! microsecond. Each number is written with its launch before a node is asked, so that a clock that was set back repeats no number. Only a
//! server that has also lost its state creates smaller numbers, which agents refuse.

use std::sync::atomic::{AtomicU64, Ordering};

use lattice_session::unix_time;
use pmi_transport::signature::Serial;

/// More numbers than a killed server can have assigned without writing them.
const UNWRITTEN_MAX: u64 = 1 << 16;

/// The last number that was assigned.
#[derive(Debug)]
pub(crate) struct Serials {
    last: AtomicU64,
}

impl Serials {
    /// Numbers from the present time on, or after the numbers of earlier servers; `kept` is the greatest number that they wrote.
    pub(crate) fn after(kept: Serial) -> Self {
        let now = unix_time::since_epoch().as_micros() as u64;
        Self { last: AtomicU64::new(now.max(kept.0.saturating_add(UNWRITTEN_MAX))) }
    }

    /// The number of the next launch.
    pub(crate) fn next(&self) -> Serial {
        Serial(self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The last number that was assigned; before the first one, the number before it.
    pub(crate) fn last(&self) -> Serial {
        Serial(self.last.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_grow_across_restarts_whatever_the_clock_says() {
        let before = Serials::after(Serial(0));
        let first = before.last();
        let second = before.next();
        assert!(first < second && second == before.last());
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(Serials::after(Serial(0)).last() > second);
        // A server with a clock that was set back by a day.
        let kept = Serial(second.0 + 24 * 3600 * 1_000_000);
        assert!(Serials::after(kept).last() > kept);
    }
}

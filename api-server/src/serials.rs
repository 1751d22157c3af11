//! The numbers under which launches are signed: each is greater than all before it, those of servers before this one included.
//!
//! The numbers begin with the time at which the server started, in microseconds since 1970, and no server starts launches faster than one
//! in a microsecond. Each is written down with its launch, before a node is asked: a clock that was set back makes no number twice, and
//! only a server that has lost its state as well makes smaller ones, which agents refuse.

use std::sync::atomic::{AtomicU64, Ordering};

use lattice_session::unix_time;
use pmi_transport::signature::Serial;

/// More numbers than a server has given out and not written down yet when it is killed.
const UNWRITTEN_MAX: u64 = 1 << 16;

/// The last number that was given out.
#[derive(Debug)]
pub(crate) struct Serials {
    last: AtomicU64,
}

impl Serials {
    /// Numbers from the present time on, or from behind those of the servers before, of which `kept` is the greatest that was written down.
    pub(crate) fn after(kept: Serial) -> Self {
        let now = unix_time::since_epoch().as_micros() as u64;
        Self { last: AtomicU64::new(now.max(kept.0.saturating_add(UNWRITTEN_MAX))) }
    }

    /// A number for one more launch.
    pub(crate) fn next(&self) -> Serial {
        Serial(self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The last number that was given out, or one before the first.
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
        // As a server has it whose clock was set back by a day.
        let kept = Serial(second.0 + 24 * 3600 * 1_000_000);
        assert!(Serials::after(kept).last() > kept);
    }
}

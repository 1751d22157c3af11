//! The numbers under which launches are signed: each is greater than all before it, those of servers before this one included.
//!
//! The numbers begin with the time at which the server started, in microseconds since 1970, and no server starts launches faster than one
//! in a microsecond. A clock that was set back makes smaller numbers; agents accept that from a server that they register with again.

use std::sync::atomic::{AtomicU64, Ordering};

use lattice_session::unix_time;
use pmi_transport::signature::Serial;

/// The last number that was given out.
#[derive(Debug)]
pub(crate) struct Serials {
    last: AtomicU64,
}

impl Serials {
    /// Numbers from the present time on.
    pub(crate) fn from_now() -> Self {
        let now = unix_time::since_epoch().as_micros() as u64;
        Self { last: AtomicU64::new(now) }
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
    fn numbers_grow_across_restarts() {
        let before = Serials::from_now();
        let first = before.last();
        let second = before.next();
        assert!(first < second && second == before.last());
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(Serials::from_now().last() > second);
    }
}

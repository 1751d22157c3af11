//! The floor under the numbers of launches: what the API server signed under it, or a smaller number, is old.
//!
//! ```text
//!  signed before this agent registered, long ago, or forgotten │ remembered, or new
//! ─────────────────────────────────────────────────────────────┼────────────────────> serial numbers of signatures
//!                                                            floor
//! ```
//! The floor rises with what the API server says it has signed, a minute after it said so: then whatever is under way has come. That minute
//! is measured by this process alone.

use std::time::{Duration, Instant};

use pmi_transport::signature::Serial;

/// Time for which a launch may be under way from the API server to the last node of a tree: more than all time limits along it.
pub(crate) const UNDER_WAY: Duration = Duration::from_secs(60);

/// The floor; none until the API server has said a number.
#[derive(Debug, Default)]
pub(crate) struct Floor {
    least: Option<Serial>,
    /// Next value of the floor, and the time at which it became known.
    next: Option<(Instant, Serial)>,
}

impl Floor {
    /// Number above which launches are new.
    pub(crate) fn least(&self) -> Option<Serial> {
        self.least
    }

    /// The API server, which has signed launches up to `last`, knows this agent now. When it does so again, what is remembered suffices;
    /// but a server whose numbers went back, as its clock did, goes on from there.
    pub(crate) fn register(&mut self, last: Serial) {
        self.next = None;
        self.least = Some(self.least.map_or(last, |least| least.min(last)));
    }

    /// Notes that the API server has signed launches up to `last` by now.
    pub(crate) fn hear(&mut self, last: Serial, now: Instant) {
        if let Some((_, old)) = self.next.take_if(|(since, _)| now.duration_since(*since) >= UNDER_WAY) {
            self.raise(old);
        }
        self.next.get_or_insert((now, last));
    }

    /// Launches up to this number are old, for they are remembered no longer.
    pub(crate) fn raise(&mut self, least: Serial) {
        self.least = self.least.map(|before| before.max(least));
    }
}

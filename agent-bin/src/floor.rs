//! The floor under the numbers of launches: what the API server signed under it, or a smaller number, is old.
//!
//! ```text
//!  signed before this agent registered, long ago, or forgotten │ remembered, or new
//! ─────────────────────────────────────────────────────────────┼────────────────────> serial numbers of signatures
//!                                                            floor
//! ```
//! The floor rises with what the API server says it has signed, a minute after it said so: then whatever is under way has come. That minute
//! is measured by this process alone. It never falls.

use std::time::{Duration, Instant};

use pmi_transport::signature::Serial;

/// Time for which a launch may be under way from the API server to the last node of a tree: more than all time limits along it.
pub(crate) const UNDER_WAY: Duration = Duration::from_secs(60);

/// The floor; none until the API server has said a number.
#[derive(Debug, Default)]
pub(crate) struct Floor {
    least: Option<Serial>,
    /// The floor at its beginning.
    first: Option<Serial>,
    /// Next value of the floor, and the time at which it became known.
    next: Option<(Instant, Serial)>,
    /// The API server's numbers have gone back below the floor.
    is_behind: bool,
}

impl Floor {
    /// Number above which launches are new.
    pub(crate) fn least(&self) -> Option<Serial> {
        self.least
    }

    /// Last number that the API server had signed when it came to know this agent.
    pub(crate) fn first(&self) -> Option<Serial> {
        self.first
    }

    /// The API server, which has signed launches up to `last`, knows this agent now. When it does so again, what is remembered suffices.
    pub(crate) fn register(&mut self, last: Serial) {
        self.first.get_or_insert(last);
        let least = *self.least.get_or_insert(last);
        self.is_behind = last < least;
    }

    /// Returns true if the API server has signed nothing above the floor by now: it has lost its state, and its clock was set back. The floor
    /// stays where it is, for numbers above it were carried out and are remembered no longer.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Notes that the API server has signed launches up to `last` by now.
    pub(crate) fn hear(&mut self, last: Serial, now: Instant) {
        if let Some((_, old)) = self.next.take_if(|(since, _)| now.duration_since(*since) >= UNDER_WAY) {
            self.raise(old);
        }
        self.next.get_or_insert((now, last));
        self.is_behind = self.least.is_some_and(|least| last < least);
    }

    /// Launches up to this number are old, for they are remembered no longer.
    pub(crate) fn raise(&mut self, least: Serial) {
        self.least = self.least.map(|before| before.max(least));
    }
}

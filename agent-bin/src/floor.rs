//! The floor of launch numbers: a launch that was signed with the floor or a smaller number is old.
//!
//! ```text
//!  signed before this agent registered, long ago, or forgotten │ remembered, or new
//! ─────────────────────────────────────────────────────────────┼────────────────────> serial numbers of signatures
//!                                                            floor
//! ```
//! The floor rises to a number that the API server reported, a minute after the report: by then all launches under way have arrived. This
//! process alone measures that minute. The floor never falls.

use std::time::{Duration, Instant};

use pmi_transport::signature::Serial;

/// Maximum time that a launch is under way from the API server to the last node of a tree: more than all time limits along it.
pub(crate) const UNDER_WAY: Duration = Duration::from_secs(60);

/// The floor; there is none until the API server has reported a number.
#[derive(Debug, Default)]
pub(crate) struct Floor {
    least: Option<Serial>,
    /// The first value of the floor.
    first: Option<Serial>,
    /// Next value of the floor, and the time of its report.
    next: Option<(Instant, Serial)>,
    /// The API server's numbers have fallen below the floor.
    is_behind: bool,
}

impl Floor {
    /// Number above which launches are new.
    pub(crate) fn least(&self) -> Option<Serial> {
        self.least
    }

    /// Last number that the API server had signed when it first registered this agent.
    pub(crate) fn first(&self) -> Option<Serial> {
        self.first
    }

    /// Records a registration: the API server has signed launches up to `last`. Later ones keep the floor, as newer launches are remembered.
    pub(crate) fn register(&mut self, last: Serial) {
        self.first.get_or_insert(last);
        let least = *self.least.get_or_insert(last);
        self.is_behind = last < least;
    }

    /// Returns true if the API server has signed nothing above the floor by now: it has lost its state, and its clock was set back. The floor
    /// stays, because launches above it ran and are no longer remembered.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Records that the API server has signed launches up to `last` by now.
    pub(crate) fn hear(&mut self, last: Serial, now: Instant) {
        if let Some((_, old)) = self.next.take_if(|(since, _)| now.duration_since(*since) >= UNDER_WAY) {
            self.raise(old);
        }
        self.next.get_or_insert((now, last));
        self.is_behind = self.least.is_some_and(|least| last < least);
    }

    /// Makes launches up to this number old, because they are no longer remembered.
    pub(crate) fn raise(&mut self, least: Serial) {
        self.least = self.least.map(|before| before.max(least));
    }
}

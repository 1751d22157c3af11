//! The report streams of a launch's nodes, and the orders to end that were sent to overdue nodes.
//!
//! ```text
//!              opened              closed              REPORT_AGAIN
//! Missing ──────────────> Open ──────────────> Missing ─────────────> the node is given up
//!                                                │ ^
//!                                 its agent is away └─ its agent is back: REPORT_AGAIN starts again
//!
//! order to end:  Not ──no stream for a while──> InOrder ──grace and END──> AtOnce ──LAST──> the node is given up
//!                 └─────────────────────────────grace and END────────────────^
//! ```

use lattice_session::timeouts;
use std::time::Duration;

use tokio::time::Instant;

/// The largest number of notices of a node that are forwarded. A healthy node sends only a few.
const NOTICES_MAX: u32 = 64;

/// One node's stream.
#[derive(Debug)]
pub(crate) struct NodeStream {
    stream: Stream,
    /// The agent is offline: no stream is expected.
    is_away: bool,
    notices: u32,
    abort: Abort,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    Missing { since: Instant },
    Open { number: u64 },
}

/// Stage of the abort calls to a node after the launch has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Abort {
    Not,
    InOrder,
    AtOnce { since: Instant },
}

/// Measure against a node that exceeds the time limit for its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// Order its agent to end its part in order.
    AbortInOrder,
    /// Order its agent to end its part at once.
    AbortAtOnce,
    /// Stop waiting for the node.
    GiveUp,
}

/// State of a node's output. While slow settlement holds up its output, the node cannot report its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Flows,
    HeldUp,
}

impl NodeStream {
    pub(crate) fn new(now: Instant) -> Self {
        Self { stream: Stream::Missing { since: now }, is_away: false, notices: 0, abort: Abort::Not }
    }

    /// The node opens a stream, which replaces the previous one.
    pub(crate) fn on_opened(&mut self, number: u64) {
        (self.stream, self.is_away) = (Stream::Open { number }, false);
    }

    /// The node's agent is offline: its stream ends.
    pub(crate) fn on_away(&mut self) {
        self.is_away = true;
    }

    /// The node's agent was restarted: its time limit to report starts again.
    pub(crate) fn on_back(&mut self, now: Instant) {
        self.is_away = false;
        if self.is_missing() {
            self.stream = Stream::Missing { since: now };
        }
    }

    /// A stream has ended. The end of a replaced stream is ignored.
    pub(crate) fn on_closed(&mut self, number: u64, now: Instant) {
        if self.stream == (Stream::Open { number }) {
            self.stream = Stream::Missing { since: now };
        }
    }

    /// Returns true if the node has no stream and should have one.
    pub(crate) fn is_missing(&self) -> bool {
        !self.is_away && matches!(self.stream, Stream::Missing { .. })
    }

    /// Returns true if the stream broke and was not opened again in time.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        !self.is_away && matches!(self.stream, Stream::Missing { since } if now >= since + timeouts::REPORT_AGAIN)
    }

    /// Counts a notice of the node. Returns true if it is to be forwarded.
    pub(crate) fn admits_notice(&mut self) -> bool {
        self.notices = self.notices.saturating_add(1);
        self.notices <= NOTICES_MAX
    }

    /// Returns the measure that is due against the node, in a launch that has been ending since `ending`. Ranks have `grace` to end.
    pub(crate) fn overdue(
        &mut self,
        ending: Instant,
        grace: Duration,
        output: Output,
        now: Instant,
    ) -> Option<Overdue> {
        let late = now >= ending + grace + timeouts::END;
        match self.abort {
            // Commands are queued until the node reports, which may never happen.
            Abort::Not if self.is_missing() && now >= ending + timeouts::REPORT_AGAIN / 5 => {
                self.abort = Abort::InOrder;
                Some(Overdue::AbortInOrder)
            }
            // Its output waits for the owner, and its report waits for its output.
            _ if output == Output::HeldUp => None,
            Abort::Not | Abort::InOrder if late => {
                self.abort = Abort::AtOnce { since: now };
                Some(Overdue::AbortAtOnce)
            }
            Abort::AtOnce { since } if now >= since + timeouts::LAST => Some(Overdue::GiveUp),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(5);

    /// Checks the measures that are due, each at a number of seconds after the launch began to end.
    #[track_caller]
    fn check(open: bool, output: Output, expected: &[(u64, Option<Overdue>)]) {
        let ending = Instant::now();
        let mut stream = NodeStream::new(ending);
        if open {
            stream.on_opened(1);
        }
        for &(second, due) in expected {
            let now = ending + Duration::from_secs(second);
            assert_eq!(stream.overdue(ending, GRACE, output, now), due, "after {second} s");
        }
    }

    #[test]
    fn a_node_that_does_not_end_is_told_so_and_then_given_up() {
        use Overdue::{AbortAtOnce, AbortInOrder, GiveUp};
        let reports = [(0, None), (24, None), (25, Some(AbortAtOnce)), (39, None), (40, Some(GiveUp))];
        check(true, Output::Flows, &reports);
        let silent = [(0, None), (1, Some(AbortInOrder)), (2, None), (25, Some(AbortAtOnce)), (40, Some(GiveUp))];
        check(false, Output::Flows, &silent);
    }

    #[test]
    fn a_node_whose_output_waits_is_not_late() {
        check(true, Output::HeldUp, &[(20, None), (1000, None)]);
        check(false, Output::HeldUp, &[(1, Some(Overdue::AbortInOrder)), (1000, None)]);
    }

    #[test]
    fn a_stream_that_was_replaced_does_not_matter() {
        let now = Instant::now();
        let mut stream = NodeStream::new(now);
        assert!(stream.is_missing());
        stream.on_opened(1);
        stream.on_opened(2);
        stream.on_closed(1, now);
        assert!(!stream.is_missing());
        stream.on_closed(2, now);
        assert!(stream.is_missing() && !stream.is_overdue(now));
        assert!(stream.is_overdue(now + timeouts::REPORT_AGAIN));
    }

    #[test]
    fn no_stream_is_expected_of_an_agent_that_is_away() {
        let now = Instant::now();
        let mut stream = NodeStream::new(now);
        stream.on_away();
        let back = now + 10 * timeouts::REPORT_AGAIN;
        assert!(!stream.is_missing() && !stream.is_overdue(back));
        stream.on_back(back);
        assert!(stream.is_missing() && !stream.is_overdue(back));
        assert!(stream.is_overdue(back + timeouts::REPORT_AGAIN));
        // An agent that restarted before the server noticed its absence has time as well.
        stream.on_back(back + timeouts::REPORT_AGAIN);
        assert!(!stream.is_overdue(back + timeouts::REPORT_AGAIN));
        stream.on_opened(1);
        stream.on_away();
        stream.on_closed(1, back);
        assert!(!stream.is_missing());
    }
}

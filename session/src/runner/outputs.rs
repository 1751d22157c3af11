//! The output streams of a session's ranks, and the time limit of processes that hold them after the last
//! rank.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::pump::{Extent, HeldStream};
use crate::machine::ranks::SlotId;
use crate::timeouts;

/// Pumps of the ranks' output streams.
pub(super) struct Outputs {
    pub(super) pumps: JoinSet<SlotId>,
    /// Extent to which the pumps read.
    pub(super) extent: watch::Sender<Extent>,
    /// Time that processes have to end their output after the last rank.
    pub(super) limit: Duration,
    /// Streams that processes still hold at the end of that time.
    pub(super) held: mpsc::UnboundedReceiver<HeldStream>,
    pub(super) report_held: mpsc::UnboundedSender<HeldStream>,
}

impl Outputs {
    pub(super) fn new(limit: Duration) -> Self {
        let (report_held, held) = mpsc::unbounded_channel();
        Self { pumps: JoinSet::new(), extent: watch::Sender::new(Extent::ToTheEnd), limit, held, report_held }
    }

    /// Handles an order to kill the ranks: the agent kills the session after [`timeouts::KILL`].
    pub(super) fn on_kill_order(&mut self) {
        self.limit = self.limit.min(timeouts::KILL / 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_to_kill_leaves_less_time_than_the_agent_does() {
        let left = |seconds| {
            let mut outputs = Outputs::new(Duration::from_secs(seconds));
            outputs.on_kill_order();
            outputs.limit
        };
        assert_eq!(left(0), Duration::ZERO);
        assert!(left(60) < timeouts::KILL);
    }
}

//! How far the renderer has come, and when that is acknowledged to the API server.
//!
//! [`Updates`] is the renderer's end of the stream of updates, [`Acknowledgements`] the pure decision when to acknowledge.

use std::time::Duration;

use lattice_session::event::Event;
use pmi_transport::limits::kept_cost;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::updates::{Update, UpdateSource};

/// Cost of output that is acknowledged at once; less is acknowledged when nothing more was rendered for [`IDLE`].
const BATCH: u64 = 64 << 10;
/// Time that an acknowledgement may wait for company.
const IDLE: Duration = Duration::from_millis(50);

/// An event on its way to the renderer.
#[derive(Debug)]
pub(super) struct Item {
    /// Its number in the launch; `None` for a remark of this process.
    pub(super) sequence: Option<u64>,
    /// `None` if the renderer need not see it.
    pub(super) update: Option<Update>,
}

/// Progress of the renderer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rendered {
    /// Number of the last event that was handed to the writers; 0 before the first.
    pub(super) sequence: u64,
    /// Cost of all output up to it, as its nodes are charged.
    pub(super) cost: u64,
}

/// The renderer's end: a request for the next update acknowledges those before.
#[derive(Debug)]
pub(crate) struct Updates {
    items: mpsc::Receiver<Item>,
    /// Progress once all updates that were returned are rendered.
    next: Rendered,
    rendered: watch::Sender<Rendered>,
}

impl Updates {
    pub(super) fn new(items: mpsc::Receiver<Item>, rendered: watch::Sender<Rendered>) -> Self {
        Self { items, next: Rendered::default(), rendered }
    }

    fn settle(&self) {
        self.rendered.send_if_modified(|rendered| std::mem::replace(rendered, self.next) != self.next);
    }
}

impl UpdateSource for Updates {
    async fn next(&mut self) -> Option<Update> {
        self.settle();
        while let Some(Item { sequence, update }) = self.items.recv().await {
            self.next.sequence = self.next.sequence.max(sequence.unwrap_or_default());
            if let Some(Update::Event(_, Event::Output(output))) = &update {
                self.next.cost += kept_cost(output.bytes.len()) as u64;
            }
            match update {
                Some(update) => return Some(update),
                None => self.settle(),
            }
        }
        None
    }
}

/// Decides when to acknowledge. Pure.
#[derive(Debug, Default)]
pub(super) struct Acknowledgements {
    rendered: Rendered,
    acknowledged: Rendered,
    due: Option<Instant>,
}

impl Acknowledgements {
    /// Notes the progress of the renderer; returns the number to acknowledge at once, if there is enough to.
    pub(super) fn on_rendered(&mut self, rendered: Rendered, now: Instant) -> Option<u64> {
        self.rendered = rendered;
        if rendered.cost - self.acknowledged.cost >= BATCH {
            return self.take();
        }
        if rendered.sequence > self.acknowledged.sequence {
            self.due.get_or_insert(now + IDLE);
        }
        None
    }

    /// Time at which [`Acknowledgements::take`] should be called.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns the number to acknowledge, if anything new was rendered.
    pub(super) fn take(&mut self) -> Option<u64> {
        self.due = None;
        let is_new = self.rendered.sequence > self.acknowledged.sequence;
        self.acknowledged = self.rendered;
        is_new.then_some(self.rendered.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_acknowledged_after_a_while_and_much_at_once() {
        let now = Instant::now();
        let mut acknowledgements = Acknowledgements::default();
        assert_eq!((acknowledgements.due(), acknowledgements.take()), (None, None));
        assert_eq!(acknowledgements.on_rendered(Rendered { sequence: 1, cost: 10 }, now), None);
        assert_eq!(acknowledgements.on_rendered(Rendered { sequence: 2, cost: 20 }, now + IDLE / 2), None);
        assert_eq!(acknowledgements.due(), Some(now + IDLE), "the first one waits no longer because of the second");
        assert_eq!((acknowledgements.take(), acknowledgements.due()), (Some(2), None));
        let much = Rendered { sequence: 3, cost: 20 + BATCH };
        assert_eq!(acknowledgements.on_rendered(much, now), Some(3));
        assert_eq!((acknowledgements.due(), acknowledgements.take()), (None, None));
    }
}

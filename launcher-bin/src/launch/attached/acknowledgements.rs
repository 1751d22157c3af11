//! Progress of the renderer, and the time at which it is acknowledged to the API server.
//!
//! [`Updates`] is the renderer's end of the stream of updates. [`Acknowledgements`] decides when to acknowledge, without I/O.

use std::time::Duration;

use lattice_render::updates::{Update, UpdateSource};
use lattice_session::event::Event;
use pmi_transport::limits::kept_cost;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Cost of output that is acknowledged at once. A smaller amount is acknowledged [`IDLE`] after its first event was rendered.
const BATCH: u64 = 64 << 10;
/// Time that an acknowledgement may be delayed, to cover more events.
const IDLE: Duration = Duration::from_millis(50);

/// An event on its way to the renderer.
#[derive(Debug)]
pub(super) struct Item {
    /// Its number in the launch; `None` for a remark of this process.
    pub(super) sequence: Option<u64>,
    /// `None` if the renderer does not need it.
    pub(super) update: Option<Update>,
}

/// Progress of the renderer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rendered {
    /// Number of the last event that was passed to the writers; 0 before the first.
    pub(super) sequence: u64,
    /// Cost of all output up to it, as charged to its nodes.
    pub(super) cost: u64,
}

/// The renderer's end. A request for the next update acknowledges all updates before it.
#[derive(Debug)]
pub(crate) struct Updates {
    items: mpsc::Receiver<Item>,
    /// Progress after all returned updates are rendered.
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

/// Decides when to acknowledge. No I/O.
#[derive(Debug, Default)]
pub(super) struct Acknowledgements {
    rendered: Rendered,
    acknowledged: Rendered,
    due: Option<Instant>,
}

impl Acknowledgements {
    /// Records the progress of the renderer; returns the number to acknowledge at once, if the cost suffices.
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
    use lattice_session::event::{Output, Stream};
    use pmi_core::ids::{NodeIndex, Rank};

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

    /// Requests one update after another, as the renderer does; returns the reported progress.
    async fn settled(items: Vec<Item>) -> Vec<Rendered> {
        let (sender, receiver) = mpsc::channel(items.len().max(1));
        let (rendering, rendered) = watch::channel(Rendered::default());
        let mut updates = Updates::new(receiver, rendering);
        for item in items {
            sender.try_send(item).unwrap();
        }
        drop(sender);
        let mut progress = Vec::new();
        while updates.next().await.is_some() {
            progress.push(*rendered.borrow());
        }
        progress.push(*rendered.borrow());
        progress
    }

    fn output(sequence: u64, len: usize) -> Item {
        let output = Output { rank: Rank(0), stream: Stream::Stdout, bytes: vec![b'x'; len].into() };
        Item { sequence: Some(sequence), update: Some(Update::Event(NodeIndex(0), Event::Output(output))) }
    }

    #[tokio::test]
    async fn an_update_counts_once_the_renderer_asks_for_the_next_one() {
        let cost = kept_cost(5) as u64;
        let progress = settled(vec![output(1, 5), output(2, 5)]).await;
        let expected = [(0, 0), (1, cost), (2, 2 * cost)].map(|(sequence, cost)| Rendered { sequence, cost });
        assert_eq!(progress, expected);
    }

    #[tokio::test]
    async fn events_that_are_not_shown_and_remarks_do_not_hold_up_others() {
        let hidden = Item { sequence: Some(2), update: None };
        let remark = Item { sequence: None, update: Some(Update::Remark("hello".to_owned())) };
        let progress = settled(vec![output(1, 5), hidden, remark]).await;
        assert_eq!(progress.last().map(|rendered| rendered.sequence), Some(2));
    }

    proptest::proptest! {
        /// For any order: nothing is acknowledged before it is rendered, numbers increase, and in the end everything is acknowledged.
        #[test]
        fn acknowledgements_follow_the_renderer(steps in proptest::collection::vec((1_u64..5, 0_u64..40_000, 0_u64..80), 1..40)) {
            let mut acknowledgements = Acknowledgements::default();
            let (mut rendered, mut now, mut last) = (Rendered::default(), Instant::now(), 0);
            for (events, cost, milliseconds) in steps {
                now += Duration::from_millis(milliseconds);
                let mut told = Vec::new();
                if acknowledgements.due().is_some_and(|due| due <= now) {
                    told.extend(acknowledgements.take());
                }
                rendered = Rendered { sequence: rendered.sequence + events, cost: rendered.cost + cost };
                told.extend(acknowledgements.on_rendered(rendered, now));
                for number in told {
                    proptest::prop_assert!(number > last && number <= rendered.sequence);
                    last = number;
                }
                let waits = rendered.sequence > last;
                proptest::prop_assert_eq!(acknowledgements.due().is_some(), waits);
                proptest::prop_assert!(acknowledgements.due().is_none_or(|due| due <= now + IDLE));
            }
            last = acknowledgements.take().unwrap_or(last);
            proptest::prop_assert_eq!(last, rendered.sequence);
        }
    }
}

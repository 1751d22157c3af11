//! What the renderer has dealt with, and when the API server is told of it.

use std::time::Duration;

use lattice_session::event::Event;
use pmi_transport::limits::kept_cost;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::news::{News, NewsSource};

/// So much output, as events cost, is acknowledged at once; less, when nothing more was dealt with for [`IDLE`].
const BATCH: u64 = 64 << 10;
/// How long an acknowledgement may wait for company.
const IDLE: Duration = Duration::from_millis(50);

/// An event on its way to the renderer.
#[derive(Debug)]
pub(super) struct Item {
    /// Its number in the launch; 0 for what has none.
    pub(super) sequence: u64,
    /// `None` if the renderer need not see it.
    pub(super) news: Option<News>,
}

/// How far the renderer has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dealt {
    /// The last event that is dealt with.
    pub(super) sequence: u64,
    /// What all events with output before it cost, as their nodes are charged.
    pub(super) cost: u64,
}

/// The renderer's end: news come out, and that it asks for the next says that it is done with those before.
#[derive(Debug)]
pub(crate) struct Followed {
    items: mpsc::Receiver<Item>,
    /// How far it will have come when it is done with what it has.
    next: Dealt,
    dealt: watch::Sender<Dealt>,
}

impl Followed {
    pub(super) fn new(items: mpsc::Receiver<Item>, dealt: watch::Sender<Dealt>) -> Self {
        Self { items, next: Dealt::default(), dealt }
    }

    fn settle(&self) {
        self.dealt.send_if_modified(|dealt| std::mem::replace(dealt, self.next) != self.next);
    }
}

impl NewsSource for Followed {
    async fn next(&mut self) -> Option<News> {
        self.settle();
        while let Some(Item { sequence, news }) = self.items.recv().await {
            self.next.sequence = self.next.sequence.max(sequence);
            if let Some(News::Event(_, Event::Output(output))) = &news {
                self.next.cost += kept_cost(output.bytes.len()) as u64;
            }
            match news {
                Some(news) => return Some(news),
                None => self.settle(),
            }
        }
        None
    }
}

/// Decides when to acknowledge. Pure: it is told the time.
#[derive(Debug, Default)]
pub(super) struct Acknowledgements {
    dealt: Dealt,
    acknowledged: Dealt,
    due: Option<Instant>,
}

impl Acknowledgements {
    /// Notes how far the renderer has come; returns what is to be acknowledged at once, if it is enough.
    pub(super) fn note(&mut self, dealt: Dealt, now: Instant) -> Option<u64> {
        self.dealt = dealt;
        if dealt.cost - self.acknowledged.cost >= BATCH {
            return self.take();
        }
        if dealt.sequence > self.acknowledged.sequence {
            self.due.get_or_insert(now + IDLE);
        }
        None
    }

    /// When [`Acknowledgements::take`] should be called.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// What is to be acknowledged, if anything is.
    pub(super) fn take(&mut self) -> Option<u64> {
        self.due = None;
        let is_new = self.dealt.sequence > self.acknowledged.sequence;
        self.acknowledged = self.dealt;
        is_new.then_some(self.dealt.sequence)
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
        assert_eq!(acknowledgements.note(Dealt { sequence: 1, cost: 10 }, now), None);
        assert_eq!(acknowledgements.note(Dealt { sequence: 2, cost: 20 }, now + IDLE / 2), None);
        assert_eq!(acknowledgements.due(), Some(now + IDLE), "the first one waits no longer because of the second");
        assert_eq!((acknowledgements.take(), acknowledgements.due()), (Some(2), None));
        let much = Dealt { sequence: 3, cost: 20 + BATCH };
        assert_eq!(acknowledgements.note(much, now), Some(3));
        assert_eq!((acknowledgements.due(), acknowledgements.take()), (None, None));
    }
}

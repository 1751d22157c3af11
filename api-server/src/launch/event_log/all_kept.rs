//! Total memory cost of the logs of all launches. Above a limit, each log keeps less, and each batch for a reader is smaller.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::launch::client_message::ClientMessage;

/// Cost of all logs together above which each log keeps less, in bytes.
pub(super) const ALL_KEPT_MAX: usize = 32 << 20;

/// Cost of the events in the logs of all launches, and of the messages in delivery to their readers. Clones share one counter.
#[derive(Clone, Debug, Default)]
pub(crate) struct AllKept(Arc<AtomicUsize>);

impl AllKept {
    pub(super) fn add(&self, cost: usize) {
        self.0.fetch_add(cost, Ordering::Relaxed);
    }

    pub(super) fn subtract(&self, cost: usize) {
        self.0.fetch_sub(cost, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    pub(super) fn is_short(&self) -> bool {
        self.0.load(Ordering::Relaxed) > ALL_KEPT_MAX
    }

    /// Counts messages in delivery to a client, until the result is dropped.
    pub(super) fn hold(&self, messages: &[ClientMessage]) -> InHand {
        let cost = |message: &ClientMessage| match message {
            ClientMessage::Event(entry) => entry.cost(),
            _ => 0,
        };
        let cost = messages.iter().map(cost).sum();
        self.add(cost);
        InHand { all: self.clone(), cost }
    }
}

/// Messages in delivery to a client, counted as memory of all logs.
#[derive(Debug)]
pub(crate) struct InHand {
    all: AllKept,
    cost: usize,
}

impl Drop for InHand {
    fn drop(&mut self) {
        self.all.subtract(self.cost);
    }
}

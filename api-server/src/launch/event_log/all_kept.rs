//! Cost of what the logs of all launches keep together. What each keeps, and what a reader is handed at once, is less when that is much.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::launch::client_message::ClientMessage;

/// The most that all logs together keep before each keeps less.
pub(super) const ALL_KEPT_MAX: usize = 32 << 20;

/// Cost of what the logs of all launches keep, and of what their readers were handed and have not taken. Clones are the same.
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

    /// Counts messages that a client was handed, until the result is dropped.
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

/// Messages that a client was handed and has not taken, as they are counted among what all logs keep.
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

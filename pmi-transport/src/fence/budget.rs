//! A limit that many holders share: each holder has its own limit, and all together have this one. So it bounds the memory of a
//! daemon for any number of links, senders or launches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that all holders together may store. Clones share the budget.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    max: usize,
    used: Arc<AtomicUsize>,
}

/// Bytes that one holder stores; dropping it returns them.
#[derive(Debug)]
pub(super) struct Holding {
    budget: Budget,
    used: AtomicUsize,
}

impl Budget {
    pub(super) fn new(max: usize) -> Self {
        Self { max, used: Arc::default() }
    }

    /// A holder without bytes.
    pub(super) fn holding(&self) -> Holding {
        Holding { budget: self.clone(), used: AtomicUsize::new(0) }
    }
}

impl Holding {
    /// Adds `bytes` to the holding. Returns false, and adds nothing, if this holder would exceed `max`, or all of them their
    /// budget.
    pub(super) fn take(&self, bytes: usize, max: usize) -> bool {
        if !add(&self.used, bytes, max) {
            return false;
        }
        let fits = add(&self.budget.used, bytes, self.budget.max);
        if !fits {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }

    /// Returns true if `bytes` more fit into the limit of this holder, regardless of the shared budget.
    pub(super) fn has_room(&self, bytes: usize, max: usize) -> bool {
        self.used.load(Ordering::Relaxed).checked_add(bytes).is_some_and(|sum| sum <= max)
    }

    /// Returns some of the bytes.
    pub(super) fn give(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used.load(Ordering::Relaxed) == 0
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(*self.used.get_mut(), Ordering::Relaxed);
    }
}

fn add(used: &AtomicUsize, bytes: usize, max: usize) -> bool {
    let sum = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= max);
    used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_keeps_to_its_bound_and_all_to_theirs() {
        let budget = Budget::new(10);
        let (one, two) = (budget.holding(), budget.holding());
        assert!(one.take(6, 6) && !one.take(1, 6), "its own bound");
        assert!(two.take(4, 6) && !two.take(1, 6), "all are used");
        one.give(1);
        assert!(two.take(1, 6) && !two.take(1, 6));
        drop(one);
        assert!(two.take(1, 6) && !two.is_empty());
        two.give(6);
        assert!(two.is_empty() && budget.holding().take(10, 10));
        assert!(!two.take(usize::MAX, usize::MAX), "sums do not overflow");
    }
}

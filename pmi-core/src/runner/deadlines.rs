//! Deadlines by name, which can be moved and cancelled; a cancelled deadline leaves no entry. Pure: time is an argument.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use tokio::time::Instant;

use crate::connections::ConnectionId;

/// An event at a set time, unless it is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Deadline<T> {
    /// The connection must have claimed a rank.
    Claim(ConnectionId),
    /// A timer of the protocol.
    Timer(T),
}

/// Pending deadlines, at most one for each name.
#[derive(Debug)]
pub(super) struct Deadlines<K> {
    by_name: HashMap<K, Instant>,
    by_time: BTreeSet<(Instant, K)>,
}

impl<K> Default for Deadlines<K> {
    fn default() -> Self {
        Self { by_name: HashMap::new(), by_time: BTreeSet::new() }
    }
}

impl<K: Copy + Hash + Ord> Deadlines<K> {
    /// Sets or moves a deadline; returns true if it is now the next one.
    pub(super) fn set(&mut self, name: K, at: Instant) -> bool {
        self.cancel(name);
        self.by_name.insert(name, at);
        self.by_time.insert((at, name));
        self.by_time.first() == Some(&(at, name))
    }

    /// Removes a deadline; returns true if it was pending.
    pub(super) fn cancel(&mut self, name: K) -> bool {
        let Some(at) = self.by_name.remove(&name) else { return false };
        self.by_time.remove(&(at, name))
    }

    /// Returns the time of the next deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        self.by_time.first().map(|&(at, _)| at)
    }

    /// Removes and returns the next deadline that is not after `now`.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<K> {
        let (at, name) = *self.by_time.first()?;
        if at > now {
            return None;
        }
        self.cancel(name);
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Operation {
        Set(u8, u64),
        Cancel(u8),
        /// Time advances to this value, and due deadlines are removed.
        Advance(u64),
    }

    fn operations() -> impl Strategy<Value = Vec<Operation>> {
        let operation = prop_oneof![
            (0..6_u8, 0..50_u64).prop_map(|(name, at)| Operation::Set(name, at)),
            (0..6_u8).prop_map(Operation::Cancel),
            (0..60_u64).prop_map(Operation::Advance),
        ];
        prop::collection::vec(operation, 0..40)
    }

    proptest! {
        /// The model is a plain list; both must agree in every order of operations.
        #[test]
        fn each_deadline_is_met_once_in_order_unless_it_is_cancelled(operations in operations()) {
            let start = Instant::now();
            let at = |second| start + Duration::from_secs(second);
            let (mut deadlines, mut model, mut now) = (Deadlines::default(), Vec::<(u64, u8)>::new(), 0);
            for operation in operations {
                match operation {
                    Operation::Set(name, second) => {
                        model.retain(|&(_, other)| other != name);
                        model.push((second, name));
                        let is_next = model.iter().min() == Some(&(second, name));
                        prop_assert_eq!(deadlines.set(name, at(second)), is_next);
                    }
                    Operation::Cancel(name) => {
                        let pending = model.iter().any(|&(_, other)| other == name);
                        model.retain(|&(_, other)| other != name);
                        prop_assert_eq!(deadlines.cancel(name), pending);
                    }
                    Operation::Advance(second) => {
                        now = now.max(second);
                        model.sort_unstable();
                        let due = model.iter().take_while(|&&(second, _)| second <= now).count();
                        for (_, name) in model.drain(..due) {
                            prop_assert_eq!(deadlines.pop_due(at(now)), Some(name));
                        }
                        prop_assert_eq!(deadlines.pop_due(at(now)), None);
                    }
                }
                prop_assert_eq!(deadlines.next(), model.iter().min().map(|&(second, _)| at(second)));
                prop_assert_eq!(deadlines.by_name.len(), deadlines.by_time.len());
            }
        }
    }
}

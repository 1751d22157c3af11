//! Open questions by the event that they wait for, so that an event checks only the questions that it may answer.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::action::Ticket;

/// Waiting questions; `K` identifies an event, such as a rank.
#[derive(Debug)]
pub(super) struct Pending<K, Q> {
    questions: HashMap<Ticket, (K, Q)>,
    by_key: BTreeMap<K, BTreeSet<Ticket>>,
}

impl<K, Q> Default for Pending<K, Q> {
    fn default() -> Self {
        Self { questions: HashMap::new(), by_key: BTreeMap::new() }
    }
}

impl<K: Clone + Ord, Q> Pending<K, Q> {
    pub(super) fn len(&self) -> usize {
        self.questions.len()
    }

    pub(super) fn insert(&mut self, ticket: Ticket, key: K, question: Q) {
        self.by_key.entry(key.clone()).or_default().insert(ticket);
        self.questions.insert(ticket, (key, question));
    }

    /// Returns true if a question waits for `key`.
    pub(super) fn has(&self, key: &K) -> bool {
        self.by_key.contains_key(key)
    }

    /// Removes a question; `None` if it no longer waits.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Q> {
        let (key, question) = self.questions.remove(&ticket)?;
        if let Some(tickets) = self.by_key.get_mut(&key) {
            tickets.remove(&ticket);
            if tickets.is_empty() {
                self.by_key.remove(&key);
            }
        }
        Some(question)
    }

    /// Removes the questions for `key` that are `over`, in the order of their arrival.
    pub(super) fn take(&mut self, key: &K, mut over: impl FnMut(&Q) -> bool) -> Vec<(Ticket, Q)> {
        let tickets = self.by_key.get(key).into_iter().flatten();
        let is_over = |ticket: &Ticket| self.questions.get(ticket).is_some_and(|(_, question)| over(question));
        let tickets: Vec<Ticket> = tickets.copied().filter(is_over).collect();
        tickets.into_iter().filter_map(|ticket| Some((ticket, self.remove(ticket)?))).collect()
    }

    /// Returns the keys of a range that questions wait for.
    pub(super) fn keys(&self, range: impl std::ops::RangeBounds<K>) -> Vec<K> {
        self.by_key.range(range).map(|(key, _)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The model is a list of all questions, searched each time.
        #[test]
        fn each_question_is_taken_once_by_what_it_waits_for(
            operations in prop::collection::vec((0..3_u8, 0..4_u8, 0..5_u8), 0..60),
        ) {
            let (mut pending, mut model, mut next) = (Pending::default(), Vec::<(Ticket, u8, u8)>::new(), 0);
            for (operation, key, value) in operations {
                match operation {
                    0 => {
                        next += 1;
                        pending.insert(Ticket(next), key, value);
                        model.push((Ticket(next), key, value));
                    }
                    1 => {
                        let ticket = Ticket(u64::from(key) * 5 + u64::from(value));
                        let position = model.iter().position(|&(known, ..)| known == ticket);
                        let expected = position.map(|position| model.remove(position).2);
                        prop_assert_eq!(pending.remove(ticket), expected);
                    }
                    _ => {
                        let is_over = |question: u8| question <= value;
                        let taken = pending.take(&key, |&question| is_over(question));
                        let expected: Vec<_> =
                            model.iter().filter(|(_, about, question)| *about == key && is_over(*question)).collect();
                        let expected: Vec<_> = expected.into_iter().map(|&(ticket, _, question)| (ticket, question)).collect();
                        prop_assert_eq!(&taken, &expected);
                        model.retain(|(known, ..)| !expected.iter().any(|(ticket, _)| ticket == known));
                    }
                }
                prop_assert_eq!(pending.len(), model.len());
                let about: BTreeSet<_> = model.iter().map(|&(_, key, _)| key).collect();
                prop_assert_eq!(pending.keys(..), about.into_iter().collect::<Vec<_>>());
            }
        }
    }
}

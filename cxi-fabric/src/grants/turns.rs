//! Order of tasks of which one can take the time of all: each round begins behind the task that was the last to be tried, so that a manager that
//! never answers to one of them holds up the others once, and not for ever.

use parking_lot::Mutex;

/// Key of the task that was tried last; keys say which task is which from round to round.
#[derive(Debug)]
pub(super) struct Turns<K>(Mutex<Option<K>>);

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<K: Ord + Clone> Turns<K> {
    /// The tasks in the order of their keys, from the one behind the last that was tried on.
    pub(super) fn in_turn<T>(&self, tasks: impl IntoIterator<Item = T>, key: impl Fn(&T) -> &K) -> Vec<T> {
        let mut tasks: Vec<T> = tasks.into_iter().collect();
        tasks.sort_by(|a, b| key(a).cmp(key(b)));
        let last = self.0.lock();
        let next = last.as_ref().map_or(0, |last| tasks.partition_point(|task| key(task) <= last));
        tasks.rotate_left(next);
        tasks
    }

    /// A task is about to be tried, with time left for it.
    pub(super) fn has_come(&self, key: &K) {
        *self.0.lock() = Some(key.clone());
    }
}

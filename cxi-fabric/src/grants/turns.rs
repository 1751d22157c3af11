//! Order of tasks, of which one can use up the time of all. Each round starts after the task that was tried last. A manager that never answers
//! for one task therefore delays the other tasks once, and not indefinitely.

use parking_lot::Mutex;

/// Key of the task that was tried last; keys identify tasks in all rounds.
#[derive(Debug)]
pub(super) struct Turns<K>(Mutex<Option<K>>);

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<K: Ord + Clone> Turns<K> {
    /// Tasks in the order of their keys, starting after the task that was tried last.
    pub(super) fn in_turn<T>(&self, tasks: impl IntoIterator<Item = T>, key: impl Fn(&T) -> &K) -> Vec<T> {
        let mut tasks: Vec<T> = tasks.into_iter().collect();
        tasks.sort_by(|a, b| key(a).cmp(key(b)));
        let last = self.0.lock();
        let next = last.as_ref().map_or(0, |last| tasks.partition_point(|task| key(task) <= last));
        tasks.rotate_left(next);
        tasks
    }

    /// Records a task that is about to be tried with time left.
    pub(super) fn has_come(&self, key: &K) {
        *self.0.lock() = Some(key.clone());
    }
}

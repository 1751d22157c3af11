//! State that tasks wait for: a lock that is held briefly, and a notification after each change.

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

/// State that tasks wait for.
#[derive(Debug, Default)]
pub(crate) struct Watched<T> {
    state: Mutex<T>,
    changed: Notify,
}

impl<T> Watched<T> {
    pub(crate) fn new(state: T) -> Self {
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    /// Locks the state. No task is woken.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.state.lock()
    }

    /// Changes the state, and wakes all waiting tasks.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(&mut self.state.lock());
        self.changed.notify_waiters();
        result
    }

    /// Calls `look` now and after each change, until it returns a result. Cancel-safe, as far as `look` is.
    pub(crate) async fn when<R>(&self, mut look: impl FnMut(&mut T) -> Option<R>) -> R {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Enabled before the look, so that a later change is noticed.
            changed.as_mut().enable();
            if let Some(found) = look(&mut self.state.lock()) {
                return found;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn whoever_waits_is_woken_by_the_change_it_waits_for() {
        let watched = Arc::new(Watched::new(0));
        let waiting = tokio::spawn({
            let watched = Arc::clone(&watched);
            async move { watched.when(|&mut state| (state >= 2).then_some(state)).await }
        });
        for _ in 0..2 {
            tokio::task::yield_now().await;
            assert!(!waiting.is_finished());
            watched.change(|state| *state += 1);
        }
        assert_eq!((waiting.await.unwrap(), *watched.lock()), (2, 2));
    }
}

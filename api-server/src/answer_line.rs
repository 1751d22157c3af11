//! Queue of calls with large answers: the status of a launch, with every rank of it, and the list of all launches. The calls of a user run
//! at the same time up to some megabytes of answers, and one call always runs. Further calls wait for their turn.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pmi_transport::identity::Caller;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// KiB of the answers that one user may have in progress at a time. Their encoding takes as much again.
const OF_USER: u32 = 8 << 10;

/// KiB of the answers that all users may have in progress at a time.
const OF_ALL: u32 = 32 << 10;

/// The queue of calls.
#[derive(Debug)]
pub(crate) struct AnswerLine {
    all: Arc<Semaphore>,
    /// By user; `None` for callers that are no users.
    users: Mutex<HashMap<Option<u32>, Arc<Semaphore>>>,
}

/// Right to produce one answer.
#[derive(Debug)]
pub(crate) struct Turn {
    _of_user: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Default for AnswerLine {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(OF_ALL as usize)), users: Mutex::default() }
    }
}

impl AnswerLine {
    /// Waits for the turn of a call with an answer of about `bytes` bytes. A call that stops waiting leaves the queue.
    pub(crate) async fn turn(&self, caller: &Caller, bytes: usize) -> Turn {
        let share = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).clamp(1, OF_USER);
        // The queue of the user comes first, so that no user occupies the common queue with more than its own share.
        let _of_user = acquire(self.line_of(caller), share).await;
        let _of_all = acquire(Arc::clone(&self.all), share).await;
        Turn { _of_user, _of_all }
    }

    fn line_of(&self, caller: &Caller) -> Arc<Semaphore> {
        let user = match caller {
            Caller::User(uid) | Caller::UserIn { uid, .. } | Caller::Admin(Some(uid)) => Some(*uid),
            _ => None,
        };
        let mut users = self.users.lock();
        // Calls that have a turn, or wait for one, hold a reference to their queue.
        users.retain(|_, line| Arc::strong_count(line) > 1);
        let line = users.entry(user).or_insert_with(|| Arc::new(Semaphore::new(OF_USER as usize)));
        Arc::clone(line)
    }
}

async fn acquire(line: Arc<Semaphore>, share: u32) -> OwnedSemaphorePermit {
    line.acquire_many_owned(share).await.expect("lines are never closed")
}

#[cfg(test)]
mod tests {
    use tokio::time::{Duration, timeout};

    use super::*;

    const USER: Caller = Caller::User(7);
    const MIB: usize = 1 << 20;

    #[tokio::test(start_paused = true)]
    async fn a_user_has_as_many_answers_at_work_as_their_bytes_allow_and_one_in_any_case() {
        let line = AnswerLine::default();
        let is_at_once = async |caller: &Caller, bytes| timeout(Duration::from_secs(1), line.turn(caller, bytes)).await;
        let large = is_at_once(&USER, 100 * MIB).await.unwrap();
        assert!(is_at_once(&USER, 1).await.is_err());
        assert!(is_at_once(&Caller::Admin(Some(7)), 1).await.is_err(), "he is the same user");
        assert!(is_at_once(&Caller::User(8), 100 * MIB).await.is_ok(), "another one waits for nobody");
        drop(large);
        let mut small = Vec::new();
        for _ in 0..8 {
            small.push(line.turn(&USER, MIB).await);
        }
        assert!(is_at_once(&USER, MIB).await.is_err());
        drop(small);
        assert!(is_at_once(&USER, MIB).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn all_users_together_wait_for_each_other_and_those_who_leave_are_forgotten() {
        let line = AnswerLine::default();
        let mut turns = Vec::new();
        for uid in 0..OF_ALL / OF_USER {
            turns.push(line.turn(&Caller::User(uid), 100 * MIB).await);
        }
        assert!(timeout(Duration::from_secs(1), line.turn(&Caller::User(99), 1)).await.is_err());
        drop(turns);
        drop(line.turn(&Caller::User(99), 1).await);
        assert_eq!(line.users.lock().len(), 1, "the others have left");
    }
}

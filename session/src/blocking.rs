//! Blocking work that completes even if the process cannot start another thread.

use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Does work on a separate thread. If the process cannot start another thread, the calling thread does the work at once. So a launch still ends
/// in good order when its user has reached the limit of processes. (tokio's `spawn_blocking` panics there.) If the work panics, the receiver
/// returns an error.
///
/// # Panics
/// Panics outside of a tokio runtime. The work may use the runtime's sockets and timers.
pub(crate) fn begin<T, W>(work: W) -> oneshot::Receiver<T>
where
    T: Send + 'static,
    W: FnOnce() -> T + Send + 'static,
{
    let (tell, done) = oneshot::channel();
    let once = Arc::new(Mutex::new(Some((work, tell))));
    let (of_thread, runtime) = (Arc::clone(&once), Handle::current());
    let on_thread = move || {
        let _entered = runtime.enter();
        carry_out(&of_thread);
    };
    if thread::Builder::new().name("blocking".to_owned()).spawn(on_thread).is_err() {
        carry_out(&once);
    }
    done
}

/// Does the work as a task of a set.
pub(crate) fn begin_in<T, W>(tasks: &mut JoinSet<T>, work: W)
where
    T: Send + 'static,
    W: FnOnce() -> T + Send + 'static,
{
    let done = begin(work);
    tasks.spawn(async move { done.await.expect("the work has not panicked") });
}

fn carry_out<T, W: FnOnce() -> T>(once: &Mutex<Option<(W, oneshot::Sender<T>)>>) {
    let taken = once.lock().take();
    if let Some((work, tell)) = taken {
        // The caller may have dropped the receiver.
        let _ = tell.send(work());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_once_beside_the_runtime_and_told() {
        let here = thread::current().id();
        assert_ne!(begin(move || thread::current().id()).await.unwrap(), here);
        let mut tasks = JoinSet::new();
        for number in 0..4 {
            begin_in(&mut tasks, move || number);
        }
        let mut done = tasks.join_all().await;
        done.sort_unstable();
        assert_eq!(done, [0, 1, 2, 3]);
        assert!(begin(move || assert!(here == thread::current().id(), "another one")).await.is_err());
    }

    #[test]
    fn work_that_was_done_is_not_done_again() {
        let (tell, mut done) = oneshot::channel();
        let once = Mutex::new(Some((|| 7, tell)));
        carry_out(&once);
        carry_out(&once);
        assert_eq!(done.try_recv(), Ok(7));
    }
}

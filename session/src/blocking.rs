//! Work that blocks, and that is done whatever the system has left.

use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Does work on a thread of its own, or at once on the calling one if there can be no further thread: a launch whose user has reached the limit of
/// processes ends in good order all the same. (tokio's `spawn_blocking` panics there.) The result does not come if the work panics.
///
/// # Panics
/// Outside of a runtime, whose sockets and timers the work may make.
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

/// The same as a task of a set.
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
        // Nobody may wait for it any more.
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

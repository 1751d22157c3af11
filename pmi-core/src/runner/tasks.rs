//! Tasks of a runner, and what becomes of one that panics: code of the host, or of the server itself.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::Poll;

use tokio::task::AbortHandle;

use super::{Protocol, Shared, State};

/// Longest text of a panic that is passed on, in characters.
const TEXT_MAX: usize = 200;

impl<P: Protocol> State<P> {
    /// Starts a task. If it panics, the protocol is told: ranks wait for what it should have done.
    pub(super) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        while self.tasks.try_join_next().is_some() {}
        let shared = Weak::clone(&self.shared);
        let watched = async move {
            if let Err(panic) = watch(task).await
                && let Some(shared) = shared.upgrade()
            {
                shared.report_panic(&*panic);
            }
        };
        // Boxed, tokio's code around a task is there once for all of them.
        let handle = self.tasks.spawn(Box::pin(watched) as Pin<Box<dyn Future<Output = ()> + Send>>);
        if self.is_closed {
            handle.abort();
        }
        handle
    }
}

impl<P: Protocol> Shared<P> {
    /// Nothing else is done with the protocol then: it may be the one that panicked.
    pub(super) fn report_panic(self: &Arc<Self>, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text: String = text.unwrap_or("no text").chars().take(TEXT_MAX).collect();
        tracing::error!("a task of a server panicked: {text}");
        self.state.lock().protocol.handle_panic(&text);
    }
}

/// Runs a task to its end, or to its panic. It is not polled again after that, so nobody meets what it has left half done.
async fn watch(task: impl Future<Output = ()>) -> Result<(), Box<dyn Any + Send>> {
    let mut task = pin!(task);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

//! Tasks of a runner, and the handling of panics in code of the host or of the server.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::Poll;

use tokio::task::AbortHandle;

use super::protocol::Protocol;
use super::state::{Shared, State};

/// Maximum length of a reported panic text, in characters.
const TEXT_MAX: usize = 200;

impl<P: Protocol> State<P> {
    /// Starts a task. A panic is reported to the protocol, because ranks wait for the result of the task.
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
        // With a box, tokio's code around a task exists only once.
        let handle = self.tasks.spawn(Box::pin(watched) as Pin<Box<dyn Future<Output = ()> + Send>>);
        if self.is_closed {
            handle.abort();
        }
        handle
    }
}

impl<P: Protocol> Shared<P> {
    /// Reports a panic to the protocol. The protocol is not used otherwise, because it may be the part that panicked.
    pub(super) fn report_panic(self: &Arc<Self>, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text: String = text.unwrap_or("no text").chars().take(TEXT_MAX).collect();
        tracing::error!("a task of a server panicked: {text}");
        self.state.lock().protocol.handle_panic(&text);
    }
}

/// Runs a task to its end, or to its panic. It is not polled again after a panic, so that its inconsistent state is never used.
async fn watch(task: impl Future<Output = ()>) -> Result<(), Box<dyn Any + Send>> {
    let mut task = pin!(task);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

//! Fences of a protocol: begun at once, and awaited in a task only if the [`Fence`] offers no other way.

use std::sync::Arc;

use super::protocol::{Beginning, Protocol, Started};
use crate::fence::{Begun, Contribution, Fence, FenceError, FenceId, Merged};

/// Begins a fence. `event` converts its result to the protocol's event.
pub fn begin_fence<P: Protocol>(
    fence: Arc<dyn Fence>,
    id: FenceId,
    contribution: Contribution,
    event: impl FnOnce(FenceId, Result<Merged, FenceError>) -> P::Event + Copy + Send + 'static,
) -> Beginning<P> {
    Box::new(move |finish| {
        let begun = id.clone();
        let end = Box::new(move |result| finish.with(event(begun, result)));
        match fence.begin(&id, contribution, end) {
            Begun::Over(result) => Started::Over(event(id, result)),
            Begun::Pending => Started::Pending,
            Begun::Unavailable(contribution) => Started::Task(Box::pin(async move {
                let result = fence.exchange(&id, contribution).await;
                event(id, result)
            })),
        }
    })
}

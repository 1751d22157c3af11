//! Tasks of daemons and sessions on tokio.
//!
//! tokio compiles its task code once for each type of future: 2 KB each, a fifth of a megabyte in `lattice`. Tasks that are spawned
//! here, or boxed for a [`tokio::task::JoinSet`], share that code per result type.

use std::future::Future;
use std::pin::Pin;

use tokio::task::JoinHandle;

/// A future of any type.
pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Spawns a task, as [`tokio::spawn`] does.
pub fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(boxed(future))
}

/// Boxes a future for a set of tasks, so that all have one type.
pub fn boxed<T>(future: impl Future<Output = T> + Send + 'static) -> Boxed<T> {
    Box::pin(future)
}

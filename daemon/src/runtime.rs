//! The runtime of a daemon.

use std::io;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::allocator;

/// Exceeds the lifetime of any daemon.
const FOREVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// A runtime on the calling thread, with one thread for blocking work, which exists from the start and stays. Without that thread, tokio panics
/// if the system has no thread left for such work; with it, the work waits. All threads created from here on share one heap.
///
/// # Errors
/// Fails if the system lacks a resource for a runtime, such as a descriptor or the thread.
pub fn runtime() -> io::Result<Runtime> {
    allocator::keep_one_heap();
    // tokio turns this failure into a panic.
    std::thread::Builder::new().spawn(|| ())?;
    let runtime = Builder::new_current_thread().enable_all().thread_keep_alive(FOREVER).build()?;
    runtime.spawn_blocking(|| ());
    Ok(runtime)
}

//! The runtime of a daemon.

use std::io;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::allocator;

/// Longer than any daemon runs.
const FOREVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// A runtime on the calling thread, with one thread for work that blocks, which is there from the beginning and stays: without one tokio
/// panics when the system has no thread left for such work, and with one the work waits for it. All threads from here on share one heap.
///
/// # Errors
/// Fails if the system refuses what a runtime needs, such as a descriptor or the thread.
pub fn runtime() -> io::Result<Runtime> {
    allocator::keep_one_heap();
    // Of this failure tokio makes a panic.
    std::thread::Builder::new().spawn(|| ())?;
    let runtime = Builder::new_current_thread().enable_all().thread_keep_alive(FOREVER).build()?;
    runtime.spawn_blocking(|| ());
    Ok(runtime)
}

//! The runtime of a command: tokio's, on this thread, for as long as the command's work takes.

use std::future::Future;
use std::io;
use std::pin::Pin;

use tokio::runtime::Builder;

/// Runs `work` to its end. A thread that is stuck in a system call is left behind.
///
/// # Errors
/// Fails if the system refuses what a runtime needs, such as a descriptor.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> io::Result<T> {
    let mut outcome = None;
    // Its place is the heap before anything contains it: each move of a large future touches as many pages for the first time.
    let work = Box::pin(work);
    run(Box::pin(async { outcome = Some(work.await) }))?;
    Ok(outcome.expect("a runtime runs its work to the end"))
}

/// Not generic, so that tokio's scheduler is compiled once for all commands, not 2 KB for each.
fn run(work: Pin<Box<dyn Future<Output = ()> + '_>>) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(work);
    runtime.shutdown_background();
    Ok(())
}

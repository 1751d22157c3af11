//! Runtime of a command: tokio, on this thread, for the duration of the command.

use std::future::Future;
use std::io;
use std::pin::Pin;

use tokio::runtime::Builder;

/// Runs `work` to its end. Does not wait for a thread that is blocked in a system call.
///
/// # Errors
/// Fails if the system refuses a resource of the runtime, such as a descriptor.
pub fn block_on<T>(work: impl Future<Output = T>) -> io::Result<T> {
    let mut outcome = None;
    // The future is on the heap before another future contains it: each move of a large future touches as many new pages.
    let work = Box::pin(work);
    run(Box::pin(async { outcome = Some(work.await) }))?;
    Ok(outcome.expect("a runtime runs its work to the end"))
}

/// Not generic, so that the scheduler of tokio is compiled once for all commands, not 2 KB for each.
fn run(work: Pin<Box<dyn Future<Output = ()> + '_>>) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(work);
    runtime.shutdown_background();
    Ok(())
}

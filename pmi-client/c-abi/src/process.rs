//! The single client of a process, and the states in which it can be used.
//!
//! ```text
//! outside ──join──> joined ──leave──> outside ──join──> ...
//! ```
//! Calls of several threads take turns. A fork copies the client: parent and child share one connection. One of them may send requests
//! while the other one does not wait for a reply. A child must not be forked while another thread is inside a call.

use alloc::vec::Vec;
use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, Ordering};

use pmi_client::{Client, Protocol};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::thread::gettid;

use crate::arguments::Out;
use crate::code::{Code, Failure};
use crate::lock::{Lock, Locked};

/// Interval after which a thread checks whether another thread has read its reply.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

static CLIENT: Lock<Option<Client>> = Lock::new(None);

/// Id of the thread that ends the process; 0 before the end.
static ENDS: AtomicI32 = AtomicI32::new(0);

/// Joins the job that the environment names, unless this process has already joined, and runs `body` with the client.
///
/// # Errors
/// Fails as [`Client::sharing_env`] does, and as `body` does.
pub fn join(protocol: Protocol, body: impl FnOnce(&mut Client) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut client = lock()?;
    match &mut *client {
        Some(client) => body(client),
        None => body(client.insert(Client::sharing_env(protocol)?)),
    }
}

/// Runs `body` with the client of this process.
///
/// # Errors
/// [`Code::INIT`] if this process has not joined. [`Code::FAIL`] after [`wait_for_no_other_call`], while another thread is inside a call.
/// Fails as `body` does.
pub fn with<T>(body: impl FnOnce(&mut Client) -> Result<T, Failure>) -> Result<T, Failure> {
    let mut client = lock()?;
    body(client.as_mut().ok_or(Code::INIT)?)
}

/// Writes the number from `of` to `place`.
///
/// # Errors
/// [`Code::ARGUMENT`] without a place; otherwise as [`with`].
pub fn number(place: Out<'_, c_int>, of: impl FnOnce(&mut Client) -> Result<c_int, Failure>) -> Result<(), Failure> {
    let place = place.or(Code::ARGUMENT)?;
    with(|client| {
        place.set(of(client)?);
        Ok(())
    })
}

/// Waits until `body` returns true. Other threads can make calls in the meantime.
///
/// # Errors
/// As [`with`].
pub fn wait_until(mut body: impl FnMut(&mut Client) -> Result<bool, Failure>) -> Result<(), Failure> {
    loop {
        let descriptor = with(|client| {
            Ok(if body(client)? {
                None
            } else {
                client.descriptor().map(|connection| fcntl_dupfd_cloexec(connection, 3))
            })
        })?;
        // If there is no free descriptor, the loop continues with a timer alone, which is slower.
        let Some(descriptor) = descriptor else { return Ok(()) };
        let mut awaited: Vec<_> = descriptor.iter().map(|connection| PollFd::new(connection, PollFlags::IN)).collect();
        let _ = poll(&mut awaited, Some(&LOOK_AGAIN));
    }
}

/// Leaves the job in good order. Does nothing if this process has not joined.
///
/// # Errors
/// Fails if the launcher is gone. The process has left the job nevertheless.
pub fn leave() -> Result<(), Failure> {
    match lock()?.take() {
        Some(client) => Ok(client.finalize()?),
        None => Ok(()),
    }
}

/// Returns true between [`join`] and [`leave`].
pub fn is_joined() -> bool {
    lock().is_ok_and(|client| client.is_some())
}

/// Ends this process, and the whole job if it is in one. No handlers run, because they may call PMI again, or wait for other ranks. PMI-2
/// has no field for a code.
pub fn abort(code: Option<c_int>, message: &str) -> ! {
    // A thread that waits for other ranks keeps the client. Then the launcher detects the abort only by the exit code.
    let client = CLIENT.try_lock().and_then(|mut client| client.take());
    if let Some(client) = client {
        let _ = client.abort(code, message);
    }
    end(code.unwrap_or(1))
}

/// Ends this process with the low byte of `code`, or with 1 if this byte is 0.
pub fn end(code: c_int) -> ! {
    let status = if code & 0xff == 0 { 1 } else { code & 0xff };
    #[expect(unsafe_code, reason = "nothing safe ends a process without running handlers")]
    // SAFETY: `_exit` has no preconditions.
    unsafe {
        libc::_exit(status)
    }
}

/// Makes calls of this thread fail, from now on, while another thread is inside a call. This call may be a barrier that never ends. For
/// handlers that run before the process aborts.
pub fn wait_for_no_other_call() {
    ENDS.store(gettid().as_raw_nonzero().get(), Ordering::Relaxed);
}

/// After a call that panicked the client is still usable, or its connection reports that it is broken.
#[inline(never)]
fn lock() -> Result<Locked<Option<Client>>, Code> {
    // No thread has the id 0, and most processes never need the id of their threads.
    let ending = ENDS.load(Ordering::Relaxed);
    if ending != 0 && ending == gettid().as_raw_nonzero().get() {
        return CLIENT.try_lock().ok_or(Code::FAIL);
    }
    Ok(CLIENT.lock())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_of_an_abort_does_not_wait_for_a_thread_in_a_barrier() {
        let in_barrier = CLIENT.lock();
        let handler = std::thread::spawn(|| {
            wait_for_no_other_call();
            with(|_| Ok(()))
        });
        assert!(matches!(handler.join().unwrap(), Err(Failure::Code(Code::FAIL))));
        drop(in_barrier);
    }
}

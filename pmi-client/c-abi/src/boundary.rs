//! The boundary of every call: no panic leaves it, and the caller's `errno` does not change.

use core::ffi::c_int;

use crate::code::{Code, Failure, SUCCESS};

/// Runs the body of a C function and returns its code. `failed` is the protocol's code for a failure of the client.
pub fn call(failed: Code, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let mut body = Some(body);
    run(failed, &mut || body.take().map_or(Ok(()), |body| body()))
}

/// One copy of this code serves all functions.
fn run(failed: Code, body: &mut dyn FnMut() -> Result<(), Failure>) -> c_int {
    let errno = errno();
    let result = caught(body);
    set_errno(errno);
    match result {
        Ok(()) => SUCCESS,
        Err(Failure::Code(code)) => code.0,
        Err(Failure::Client(_)) => failed.0,
    }
}

/// Treats a panic as a failure. A panic may leave an incomplete request on the client, which then accepts no more requests, as
/// after a broken connection.
#[cfg(feature = "std")]
fn caught(body: &mut dyn FnMut() -> Result<(), Failure>) -> Result<(), Failure> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(Err(Failure::Code(Code::FAIL)))
}

/// A panic ends the process at once (`without_std.rs`).
#[cfg(not(feature = "std"))]
fn caught(body: &mut dyn FnMut() -> Result<(), Failure>) -> Result<(), Failure> {
    body()
}

fn errno() -> c_int {
    #[expect(unsafe_code, reason = "errno is a place of the C library")]
    // SAFETY: each thread has an `errno`.
    unsafe {
        *libc::__errno_location()
    }
}

fn set_errno(errno: c_int) {
    #[expect(unsafe_code, reason = "errno is a place of the C library")]
    // SAFETY: each thread has an `errno`.
    unsafe {
        *libc::__errno_location() = errno;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_failure_and_errno_stays() {
        set_errno(libc::EILSEQ);
        assert_eq!(call(Code::OTHER, || panic!("on purpose")), -1);
        assert_eq!(call(Code::OTHER, || Err(Code::KEY.into())), 4);
        let changes_errno = || {
            set_errno(libc::EBADF);
            Ok(())
        };
        assert_eq!(call(Code::OTHER, changes_errno), 0);
        assert_eq!(errno(), libc::EILSEQ);
    }
}

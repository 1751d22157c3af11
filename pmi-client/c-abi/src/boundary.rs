//! The boundary that every call passes: no panic leaves it, and the caller's `errno` is what it was.

use std::ffi::c_int;
use std::panic::{self, AssertUnwindSafe};

use nix::errno::Errno;

use crate::code::{Code, Failure, SUCCESS};

/// Runs the body of a C function and returns its code. `failed` is the protocol's code for a client that could not do it.
pub fn call(failed: Code, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let mut body = Some(body);
    run(failed, &mut || body.take().map_or(Ok(()), |body| body()))
}

/// One copy serves all functions.
fn run(failed: Code, body: &mut dyn FnMut() -> Result<(), Failure>) -> c_int {
    let errno = Errno::last_raw();
    // What a panic leaves half-done is the client, which takes no more requests then than after a broken connection.
    let result = panic::catch_unwind(AssertUnwindSafe(body));
    Errno::set_raw(errno);
    match result {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(Failure::Code(code))) => code.0,
        Ok(Err(Failure::Client(_))) => failed.0,
        Err(_) => Code::FAIL.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_failure_and_errno_stays() {
        Errno::EILSEQ.set();
        assert_eq!(call(Code::OTHER, || panic!("on purpose")), -1);
        assert_eq!(call(Code::OTHER, || Err(Code::KEY.into())), 4);
        let changes_errno = || {
            Errno::EBADF.set();
            Ok(())
        };
        assert_eq!(call(Code::OTHER, changes_errno), 0);
        assert_eq!(Errno::last(), Errno::EILSEQ);
    }
}

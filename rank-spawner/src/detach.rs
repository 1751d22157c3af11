//! Detaches a forked process from the descriptors, signal actions and working directory that it inherited from its parent.

#![expect(unsafe_code, reason = "descriptors by number, and signal actions")]

use std::ffi::c_uint;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask};
use nix::unistd::chdir;

use crate::stdio::open_null;

/// Number of the kept descriptor after the call.
const KEPT: i32 = 3;

/// Standard error of a process that is being detached.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stderr {
    /// Stays connected as in the parent.
    Inherit,
    /// Is `/dev/null`.
    Null,
}

/// Closes all descriptors except `kept` and the standard streams. Redirects the standard streams to `/dev/null`, standard error
/// depending on `stderr`. Changes the working directory to `/`, so that the process keeps no file system busy.
///
/// # Safety
/// The caller must just have forked this process. No owner of another descriptor may run in it again, not even its drop.
pub(crate) unsafe fn close_all_but(kept: OwnedFd, stderr: Stderr) -> io::Result<OwnedFd> {
    chdir("/")?;
    let (null, kept) = (open_null()?.into_raw_fd(), kept.into_raw_fd());
    let first_free = KEPT + 1;
    let streams = match stderr {
        Stderr::Inherit => 0..KEPT - 1,
        Stderr::Null => 0..KEPT,
    };
    // SAFETY: the caller guarantees that no code in this process uses a descriptor other than these two.
    unsafe {
        // Moves both above all targets first, so that neither is overwritten before its copy is made.
        let null = Errno::result(libc::fcntl(null, libc::F_DUPFD_CLOEXEC, first_free))?;
        let kept = Errno::result(libc::fcntl(kept, libc::F_DUPFD_CLOEXEC, first_free))?;
        for standard in streams {
            Errno::result(libc::dup2(null, standard))?;
        }
        Errno::result(libc::dup3(kept, KEPT, libc::O_CLOEXEC))?;
        Errno::result(libc::syscall(libc::SYS_close_range, first_free as c_uint, c_uint::MAX, 0))?;
        Ok(OwnedFd::from_raw_fd(KEPT))
    }
}

/// Ignores every signal that can be ignored.
pub(crate) fn ignore_signals() -> nix::Result<()> {
    for number in changeable_signals() {
        // SAFETY: installs no handler.
        unsafe { signal(number, SigHandler::SigIgn)? };
    }
    Ok(())
}

/// Resets every signal to its default action and unblocks it. SIGPIPE stays ignored, as in every Rust program.
pub(crate) fn default_signals() -> nix::Result<()> {
    for number in changeable_signals().filter(|&number| number != Signal::SIGPIPE) {
        // SAFETY: installs no handler.
        unsafe { signal(number, SigHandler::SigDfl)? };
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)
}

fn changeable_signals() -> impl Iterator<Item = Signal> {
    Signal::iterator().filter(|&number| number != Signal::SIGKILL && number != Signal::SIGSTOP)
}

//! Detaches a forked process from its parent: descriptors, signal actions and working directory that it has inherited.

#![expect(unsafe_code, reason = "descriptors by number, and signal actions")]

use std::ffi::c_uint;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask};
use nix::unistd::chdir;

use crate::stdio::open_null;

/// Number of the kept descriptor afterwards.
const KEPT: i32 = 3;

/// Standard error of a process that is being detached.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stderr {
    /// Stays where the parent's leads.
    Inherit,
    /// Leads to `/dev/null`.
    Null,
}

/// Closes every descriptor but `kept` and the standard streams, which are led to `/dev/null`; standard error as `stderr` says. Changes
/// the working directory to `/`, not to keep a file system busy.
///
/// # Safety
/// This process was just forked, and no owner of another descriptor runs in it again, not even to drop it.
pub(crate) unsafe fn close_all_but(kept: OwnedFd, stderr: Stderr) -> io::Result<OwnedFd> {
    chdir("/")?;
    let (null, kept) = (open_null()?.into_raw_fd(), kept.into_raw_fd());
    let first_free = KEPT + 1;
    let streams = match stderr {
        Stderr::Inherit => 0..KEPT - 1,
        Stderr::Null => 0..KEPT,
    };
    // SAFETY: the caller guarantees that nothing in this process uses a descriptor but the two just taken.
    unsafe {
        // Above all targets first, so that none is overwritten before it is copied.
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

/// Gives every signal its default action and lets it through; but SIGPIPE stays ignored, as in every Rust program.
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

//! What a forked process leaves behind: the descriptors, signals and directory that it shares with the one it is a copy of.

#![expect(unsafe_code, reason = "descriptors by number, and signal actions")]

use std::ffi::c_uint;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask};
use nix::unistd::chdir;

use crate::stdio::open_null;

/// The number that the kept descriptor gets.
const KEPT: i32 = 3;

/// Closes every descriptor but `kept`, and standard error where `errors` says so; leads the other standard streams to
/// `/dev/null`, and the working directory to `/`, not to keep a file system busy.
///
/// # Safety
/// This process was just forked, and whoever owns the other descriptors never runs in it again, not even to drop them.
pub(crate) unsafe fn keep_only(kept: OwnedFd, errors: bool) -> io::Result<OwnedFd> {
    chdir("/")?;
    let (null, kept) = (open_null()?.into_raw_fd(), kept.into_raw_fd());
    let first_free = KEPT + 1;
    let streams = if errors { 0..KEPT - 1 } else { 0..KEPT };
    // SAFETY: the caller vouches that nothing in this process uses a descriptor but the two just taken.
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

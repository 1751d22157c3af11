//! The single descriptor that the launcher left open for this process: the socket in `PMI_FD`. It can be taken over or
//! shared.
//!
//! This needs unsafe code, because a number in the environment can become an owned descriptor in no other way (opening
//! `/proc/self/fd/N` fails on a socket).

use alloc::format;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use rustix::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::fs::readlink;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd};

use crate::error::ClientError;

/// Lowest number for a descriptor of this crate, because a program may have closed 0, 1 or 2.
const FIRST_OF_OURS: RawFd = 3;

/// Permission to use the connection of the environment. It exists once per process. A second client on one socket would
/// mix its replies with the first. A second claim of a rank over TCP stops Hydra (measured).
#[derive(Debug)]
pub(crate) struct Admission(());

impl Admission {
    /// Takes the permission. It cannot be returned.
    pub(crate) fn take() -> Result<Self, ClientError> {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        if TAKEN.swap(true, Ordering::Relaxed) { Err(ClientError::ConnectionTaken) } else { Ok(Self(())) }
    }

    /// Takes ownership of the inherited socket `fd`. Child processes do not inherit it.
    pub(crate) fn into_inherited(self, fd: RawFd) -> Result<OwnedFd, ClientError> {
        check_inherited(fd)?;
        #[expect(unsafe_code, reason = "the launcher hands the descriptor over as a number")]
        // SAFETY: `fd` is open and was inherited. This was just checked: descriptors that this process opens through `std`
        // close on exec, while an inherited descriptor cannot. So no value in this process owns it, unless created from
        // the number as here. The launcher provides the number only to PMI, and only one `Admission` exists.
        let inherited = unsafe { OwnedFd::from_raw_fd(fd) };
        // The duplicate closes on exec. If a child kept the socket, the server would not detect the end of this rank.
        fcntl_dupfd_cloexec(&inherited, FIRST_OF_OURS)
            .map_err(|_| ClientError::Descriptor { fd, reason: "it cannot be duplicated" })
    }
}

/// Returns a new descriptor for the socket `fd`, which stays open for other parts of this process. Its flags do not
/// change.
pub(crate) fn share(fd: RawFd) -> Result<OwnedFd, ClientError> {
    check_socket(fd)?;
    fcntl_dupfd_cloexec(borrowed(fd), FIRST_OF_OURS)
        .map_err(|_| ClientError::Descriptor { fd, reason: "it cannot be duplicated" })
}

/// Borrows the descriptor `fd`, which is open. If it is closed in the meantime, the system call fails.
fn borrowed(fd: RawFd) -> BorrowedFd<'static> {
    #[expect(unsafe_code, reason = "the launcher hands the descriptor over as a number")]
    // SAFETY: callers have checked that the descriptor is open, and end the borrow with their next call.
    unsafe {
        BorrowedFd::borrow_raw(fd)
    }
}

/// Checks that `fd` is a socket that was open when this program started, and not standard input or output.
fn check_inherited(fd: RawFd) -> Result<(), ClientError> {
    check_socket(fd)?;
    let refused = |reason| Err(ClientError::Descriptor { fd, reason });
    match fcntl_getfd(borrowed(fd)) {
        Ok(flags) if !flags.contains(FdFlags::CLOEXEC) => Ok(()),
        Ok(_) => refused("it is a socket of this program itself"),
        Err(_) => refused("its flags cannot be read"),
    }
}

/// Checks that `fd` is an open socket, and not standard input or output.
fn check_socket(fd: RawFd) -> Result<(), ClientError> {
    let refused = |reason| Err(ClientError::Descriptor { fd, reason });
    if fd <= 2 {
        return refused("0, 1 and 2 are standard input and output");
    }
    let Ok(target) = readlink(format!("/proc/self/fd/{fd}"), Vec::new()) else {
        return refused("it is not open; was it closed by a wrapper between launcher and program?");
    };
    if !target.to_bytes().starts_with(b"socket:") {
        return refused("it is not a socket");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn reason(fd: RawFd) -> &'static str {
        match check_inherited(fd) {
            Err(ClientError::Descriptor { reason, .. }) => reason,
            other => panic!("descriptor {fd} gave {other:?}"),
        }
    }

    #[test]
    fn what_this_program_opened_itself_is_never_taken() {
        let (ours, _peer) = UnixStream::pair().unwrap();
        assert_eq!(reason(ours.as_raw_fd()), "it is a socket of this program itself");
        assert_eq!(reason(File::open("/dev/null").unwrap().as_raw_fd()), "it is not a socket");
        assert!(reason(1).starts_with("0, 1 and 2"));
        assert!(reason(RawFd::MAX).starts_with("it is not open"));
    }

    #[test]
    fn a_shared_socket_stays_open_and_as_it_was() {
        let (ours, mut peer) = UnixStream::pair().unwrap();
        let fd = ours.as_raw_fd();
        let seen = || std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
        let before = seen();
        for _ in 0..2 {
            let mut shared = UnixStream::from(share(fd).unwrap());
            shared.write_all(b"x").unwrap();
        }
        assert_eq!(seen(), before);
        let mut arrived = [0; 2];
        peer.read_exact(&mut arrived).unwrap();
        assert_eq!(arrived, *b"xx");
        assert!(share(RawFd::MAX).is_err());
    }
}

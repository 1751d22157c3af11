//! Socket that passes open descriptors to another process, each with a few bytes that say what it is.
//!
//! ```text
//! daemon: one end, send(bytes, descriptor) ──> child: the other end, receive() for ever
//! ```

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};

use crate::syscalls::{Packet, receive_packet};

/// One end of a pair of sockets for descriptors. Packets keep their bounds; neither end blocks.
#[derive(Debug)]
pub struct DescriptorSocket {
    socket: OwnedFd,
}

/// Descriptor that came, with its bytes.
#[derive(Debug)]
pub struct Passed {
    /// Bytes that came with it.
    pub bytes: Vec<u8>,
    /// The descriptor, close-on-exec.
    pub descriptor: OwnedFd,
}

/// Most bytes that can come with a descriptor.
pub const PASSED_BYTES_MAX: usize = 512;

impl DescriptorSocket {
    /// The two ends.
    ///
    /// # Errors
    /// Fails when the system has no descriptor left.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (one, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        Ok((Self { socket: one }, Self { socket: other }))
    }

    /// Passes a descriptor on; this process keeps its own.
    ///
    /// # Errors
    /// `WouldBlock` if the other end has taken too few of those before, `BrokenPipe` or `ConnectionReset` if it is closed; `InvalidInput` for more than
    /// [`PASSED_BYTES_MAX`] bytes, and for none, which would look like the end.
    pub fn send(&self, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
        if bytes.is_empty() || bytes.len() > PASSED_BYTES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let raw = [descriptor.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&raw)];
        let nobody: Option<&()> = None;
        sendmsg(self.socket.as_raw_fd(), &[IoSlice::new(bytes)], &rights, MsgFlags::MSG_NOSIGNAL, nobody)?;
        Ok(())
    }

    /// Receives the next descriptor that has come; `None` when the other end is closed. Packets without a descriptor, which
    /// is how they come to a process that has none left, are passed over.
    ///
    /// # Errors
    /// `WouldBlock` if none has come.
    pub fn try_receive(&self) -> io::Result<Option<Passed>> {
        loop {
            let mut bytes = [0; PASSED_BYTES_MAX];
            let Packet { len, descriptors } = receive_packet(self.socket.as_fd(), &mut bytes)?;
            if len == 0 {
                return Ok(None);
            }
            if let Some(descriptor) = descriptors.into_iter().next() {
                return Ok(Some(Passed { bytes: bytes[..len].to_vec(), descriptor }));
            }
        }
    }

    /// Waits for the next descriptor, which blocks this thread; `None` when the other end is closed.
    ///
    /// # Errors
    /// Fails as the system does; never with `WouldBlock`.
    pub fn receive_blocking(&self) -> io::Result<Option<Passed>> {
        loop {
            match self.try_receive() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            match poll(&mut [PollFd::new(self.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl From<OwnedFd> for DescriptorSocket {
    /// The end that is this descriptor, made by [`DescriptorSocket::pair`] in another process.
    fn from(socket: OwnedFd) -> Self {
        Self { socket }
    }
}

impl From<DescriptorSocket> for OwnedFd {
    fn from(end: DescriptorSocket) -> Self {
        end.socket
    }
}

impl AsFd for DescriptorSocket {
    /// Readable when a descriptor has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_descriptor_that_was_passed_works_and_its_bytes_are_whole() {
        let (daemon, child) = DescriptorSocket::pair().unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        daemon.send(b"first", far.as_fd()).unwrap();
        daemon.send(b"second", far.as_fd()).unwrap();
        drop(far);
        let passed = child.try_receive().unwrap().unwrap();
        assert_eq!(passed.bytes, b"first");
        assert_eq!(child.try_receive().unwrap().unwrap().bytes, b"second");
        UnixStream::from(passed.descriptor).write_all(b"x").unwrap();
        let mut read = [0];
        near.read_exact(&mut read).unwrap();
        assert_eq!(read, *b"x");
        assert_eq!(child.try_receive().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(daemon);
        assert!(child.try_receive().unwrap().is_none());
    }

    #[test]
    fn whoever_waits_gets_the_next_descriptor_and_hears_of_the_end() {
        let (daemon, child) = DescriptorSocket::pair().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| child.receive_blocking().unwrap().unwrap().bytes);
            daemon.send(b"x", daemon.as_fd()).unwrap();
            assert_eq!(waiting.join().unwrap(), b"x");
        });
        drop(daemon);
        assert!(child.receive_blocking().unwrap().is_none());
    }

    #[test]
    fn a_process_that_takes_none_holds_up_nobody() {
        let (daemon, child) = DescriptorSocket::pair().unwrap();
        let refused = (0..100_000).find_map(|_| daemon.send(b"x", daemon.as_fd()).err());
        assert_eq!(refused.unwrap().kind(), io::ErrorKind::WouldBlock);
        drop(child);
        let gone = daemon.send(b"x", daemon.as_fd()).unwrap_err().kind();
        assert!(matches!(gone, io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe), "{gone}");
        assert_eq!(
            daemon.send(&[0; PASSED_BYTES_MAX + 1], daemon.as_fd()).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }
}

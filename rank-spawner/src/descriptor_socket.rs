//! Socket that passes open descriptors to another process, each with a few bytes that describe it.
//!
//! ```text
//! daemon: one end, send(bytes, descriptor) ──> child: the other end, receives in a loop
//! ```

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};

use crate::syscalls::{Packet, receive_packet};

/// One end of a pair of sockets for descriptors. The socket preserves packet boundaries; neither end blocks.
#[derive(Debug)]
pub struct DescriptorSocket {
    socket: OwnedFd,
}

/// Received descriptor with its bytes.
#[derive(Debug)]
pub struct Passed {
    /// Bytes of the packet.
    pub bytes: Vec<u8>,
    /// The descriptor, close-on-exec.
    pub descriptor: OwnedFd,
}

/// Limit on the bytes that accompany a descriptor.
pub const PASSED_BYTES_MAX: usize = 512;

impl DescriptorSocket {
    /// Returns the two ends.
    ///
    /// # Errors
    /// Fails if no descriptor is left.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (one, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        Ok((Self { socket: one }, Self { socket: other }))
    }

    /// Sends a descriptor; this process keeps its own copy.
    ///
    /// # Errors
    /// `WouldBlock` if too many earlier packets are unread. `BrokenPipe` or `ConnectionReset` if the other end is closed. `InvalidInput` for
    /// more than [`PASSED_BYTES_MAX`] bytes, and for 0 bytes, which would look like end of file.
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

    /// Receives the next descriptor; `None` if the other end is closed. Skips packets without a descriptor: a packet loses its descriptor if
    /// this process has no free descriptor number.
    ///
    /// # Errors
    /// `WouldBlock` if no packet has arrived.
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

    /// Receives the next descriptor and blocks this thread until one arrives; `None` if the other end is closed.
    ///
    /// # Errors
    /// Returns the error of the system call; never `WouldBlock`.
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
    /// Uses a descriptor that [`DescriptorSocket::pair`] made in another process.
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
    /// Readable when a descriptor has arrived.
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
        // A child that another test forks has the other end until it calls exec.
        let gone = (0..1000).find_map(|_| {
            let kind = daemon.send(b"x", daemon.as_fd()).unwrap_err().kind();
            std::thread::sleep(std::time::Duration::from_millis(10));
            Some(kind).filter(|&kind| kind != io::ErrorKind::WouldBlock)
        });
        let gone = gone.unwrap();
        assert!(matches!(gone, io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe), "{gone}");
        assert_eq!(
            daemon.send(&[0; PASSED_BYTES_MAX + 1], daemon.as_fd()).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }
}

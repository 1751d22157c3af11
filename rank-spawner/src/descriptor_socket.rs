//! Socket that passes open descriptors to another process, each with a few bytes that say what it is.
//!
//! ```text
//! daemon: pair() ──┬─ one end stays: send(bytes, descriptor)
//!                  └─ give(over its socket) ──> child: take(from its socket), then receive() for ever
//! ```

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
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

/// Byte that comes with an end that is given.
const GIVEN: u8 = 1;

/// Bytes for a stream to say that no end is given there.
pub const NOTHING_GIVEN: [u8; 1] = [0];

/// Most bytes that can come with a descriptor.
pub const PASSED_BYTES_MAX: usize = 256;

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
        pass(self.socket.as_fd(), bytes, descriptor)
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

    /// Gives this end to the process at the other end of `stream`, ahead of what is written there next.
    ///
    /// # Errors
    /// Fails when that process is gone.
    pub fn give(self, stream: BorrowedFd<'_>) -> io::Result<()> {
        pass(stream, &[GIVEN], self.socket.as_fd())
    }

    /// Takes what [`give`](Self::give) sent, before anything else is read from `stream`, which blocks; `None` for
    /// [`NOTHING_GIVEN`].
    ///
    /// # Errors
    /// `UnexpectedEof` when the other end is closed, `InvalidData` when something else was sent; fails when this process has no
    /// descriptor left.
    pub fn take(stream: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let mut byte = [0];
        let Packet { len, descriptors } = receive_packet(stream, &mut byte)?;
        match (len, byte, descriptors.into_iter().next()) {
            (0, ..) => Err(io::ErrorKind::UnexpectedEof.into()),
            (_, NOTHING_GIVEN, None) => Ok(None),
            (_, [GIVEN], Some(socket)) => Ok(Some(Self { socket })),
            (_, [GIVEN], None) => Err(Errno::EMFILE.into()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl AsFd for DescriptorSocket {
    /// Readable when a descriptor has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn pass(socket: BorrowedFd<'_>, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let raw = [descriptor.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&raw)];
    let nobody: Option<&()> = None;
    sendmsg(socket.as_raw_fd(), &[IoSlice::new(bytes)], &rights, MsgFlags::MSG_NOSIGNAL, nobody)?;
    Ok(())
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
    fn an_end_is_given_over_a_stream_ahead_of_what_follows() {
        let (daemon, child) = DescriptorSocket::pair().unwrap();
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        child.give(ours.as_fd()).unwrap();
        ours.write_all(b"frame").unwrap();
        let taken = DescriptorSocket::take(theirs.as_fd()).unwrap().expect("an end was given");
        let mut rest = [0; 5];
        theirs.read_exact(&mut rest).unwrap();
        assert_eq!(rest, *b"frame");
        daemon.send(b"x", ours.as_fd()).unwrap();
        assert_eq!(taken.try_receive().unwrap().unwrap().bytes, b"x");
        ours.write_all(&NOTHING_GIVEN).unwrap();
        assert!(DescriptorSocket::take(theirs.as_fd()).unwrap().is_none());
        ours.write_all(&[GIVEN]).unwrap();
        assert!(DescriptorSocket::take(theirs.as_fd()).is_err(), "it came without its descriptor");
        drop(ours);
        let gone = DescriptorSocket::take(theirs.as_fd()).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_process_that_takes_none_holds_up_nobody() {
        let (daemon, child) = DescriptorSocket::pair().unwrap();
        let refused = (0..100_000).find_map(|_| daemon.send(b"x", daemon.as_fd()).err());
        assert_eq!(refused.unwrap().kind(), io::ErrorKind::WouldBlock);
        drop(child);
        let gone = daemon.send(b"x", daemon.as_fd()).unwrap_err().kind();
        assert!(matches!(gone, io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe), "{gone}");
        assert_eq!(daemon.send(&[0; 257], daemon.as_fd()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}

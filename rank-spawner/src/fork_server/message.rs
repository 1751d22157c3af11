//! Encoding of a fork server's messages on the socket to its daemon: one packet per message, descriptors in the ancillary data.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::unistd::Pid;

use super::{ForkEvent, ForkedProcess};
use crate::exit::RankExit;
use crate::syscalls::{Packet, receive_packet};

/// News on its way: three numbers, and for a process that was started the end of its door and its pidfd.
pub(super) struct Message {
    numbers: [i32; 3],
    descriptors: Vec<OwnedFd>,
}

impl Message {
    pub(super) const LEN: usize = 12;
    pub(super) const STARTED: i32 = 1;
    pub(super) const NOT_STARTED: i32 = 2;
    /// Ended with this status.
    pub(super) const EXITED: i32 = 3;
    /// Ended by this signal.
    pub(super) const KILLED: i32 = 4;

    pub(super) fn send(socket: BorrowedFd<'_>, numbers: [i32; 3], descriptors: &[BorrowedFd<'_>]) -> nix::Result<()> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let raw: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let rights = if raw.is_empty() { &[][..] } else { &rights };
        let nobody: Option<&()> = None;
        sendmsg(socket.as_raw_fd(), &[IoSlice::new(&bytes)], rights, MsgFlags::MSG_NOSIGNAL, nobody).map(drop)
    }

    /// Receives the next message; `None` when the server is gone.
    pub(super) fn receive(socket: BorrowedFd<'_>) -> nix::Result<Option<Self>> {
        // One byte more shows a packet that is too long.
        let mut bytes = [0; Self::LEN + 1];
        let Packet { len, descriptors } = receive_packet(socket, &mut bytes)?;
        if len == 0 {
            return Ok(None);
        }
        Self::decode(&bytes[..len], descriptors).map(Some)
    }

    /// The message in the bytes of one packet.
    pub(super) fn decode(packet: &[u8], descriptors: Vec<OwnedFd>) -> nix::Result<Self> {
        let packet: &[u8; Self::LEN] = packet.try_into().map_err(|_| Errno::EBADMSG)?;
        let mut numbers = [0; 3];
        for (number, bytes) in numbers.iter_mut().zip(packet.chunks_exact(4)) {
            *number = i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Ok(Self { numbers, descriptors })
    }

    pub(super) fn into_event(self) -> nix::Result<ForkEvent> {
        let [kind, number, detail] = self.numbers;
        let pid = Pid::from_raw(number);
        Ok(match kind {
            Self::STARTED => {
                // A daemon without descriptors left gets fewer than were sent. Those that came are closed here, and the child, whose
                // door is closed, exits.
                match <[OwnedFd; 2]>::try_from(self.descriptors) {
                    Ok([door, pidfd]) => ForkEvent::Started(ForkedProcess { pid, door: door.into(), pidfd }),
                    Err(_) => ForkEvent::NotStarted(Errno::EMFILE),
                }
            }
            Self::NOT_STARTED => ForkEvent::NotStarted(Errno::from_raw(number)),
            Self::EXITED => ForkEvent::Ended { pid, exit: RankExit::Code(detail) },
            Self::KILLED => ForkEvent::Ended { pid, exit: RankExit::Signal { signal: detail, core_dumped: false } },
            _ => return Err(Errno::EBADMSG),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_that_cannot_be_is_an_error() {
        let news = |numbers| Message { numbers, descriptors: Vec::new() }.into_event();
        assert_eq!(news([9, 0, 0]).unwrap_err(), Errno::EBADMSG);
        assert!(matches!(news([Message::STARTED, 7, 0]), Ok(ForkEvent::NotStarted(Errno::EMFILE))));
        assert!(matches!(
            news([Message::KILLED, 7, 9]),
            Ok(ForkEvent::Ended { exit: RankExit::Signal { signal: 9, .. }, .. })
        ));
    }
}

//! What a fork server tells its daemon, as it goes over their socket: one packet per message.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use nix::unistd::Pid;

use super::{ForkEvent, ForkedProcess};
use crate::exit::RankExit;

/// News on its way: three numbers, and for a process that was started its socket and its pidfd.
pub(super) struct Message {
    numbers: [i32; 3],
    descriptors: Vec<OwnedFd>,
}

impl Message {
    const LEN: usize = 12;
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

    /// `None` at the end.
    pub(super) fn receive(socket: BorrowedFd<'_>) -> nix::Result<Option<Self>> {
        let mut bytes = [0; Self::LEN];
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let mut space = cmsg_space!([i32; 2]);
        let received = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
        let len = received.bytes;
        let mut descriptors = Vec::new();
        for part in received.cmsgs()? {
            if let ControlMessageOwned::ScmRights(raw) = part {
                // SAFETY: the kernel has just made these descriptors for this message, so nobody else owns them.
                descriptors.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        let mut numbers = [0; 3];
        for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(4)) {
            *number = i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Ok((len > 0).then_some(Self { numbers, descriptors }))
    }

    pub(super) fn into_event(self) -> nix::Result<ForkEvent> {
        let [kind, number, detail] = self.numbers;
        let pid = Pid::from_raw(number);
        Ok(match kind {
            Self::STARTED => {
                // A process without descriptors left gets fewer than were sent.
                let [socket, pidfd] = self.descriptors.try_into().map_err(|_| Errno::EMFILE)?;
                ForkEvent::Started(ForkedProcess { pid, socket, pidfd })
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
        assert_eq!(news([Message::STARTED, 7, 0]).unwrap_err(), Errno::EMFILE);
        assert!(matches!(
            news([Message::KILLED, 7, 9]),
            Ok(ForkEvent::Ended { exit: RankExit::Signal { signal: 9, .. }, .. })
        ));
    }
}

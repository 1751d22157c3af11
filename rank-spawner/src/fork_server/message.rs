//! Encoding of the messages between a fork server and its daemon: one packet of three numbers per message, descriptors in the
//! ancillary data. A daemon of another version may adopt a fork server, so numbers keep their meaning.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::unistd::Pid;

use super::label::Label;
use super::{ForkEvent, ForkedProcess, KeptProcess, KeptState};
use crate::exit::RankExit;
use crate::syscalls::{Packet, receive_packet};

/// Version of the protocol in which a daemon adopts a fork server that it did not make. A daemon supports all versions up to its
/// own.
pub(super) const VERSION: i32 = 1;

/// Encoded message.
#[derive(Debug)]
pub(super) struct Message {
    numbers: [i32; 3],
    descriptors: Vec<OwnedFd>,
}

/// Message from a daemon.
#[derive(Debug)]
pub(super) enum Request {
    /// Requests a child for this order; `None` if this process had no free descriptor for it. Each request gets an answer.
    Start(Option<Label>),
    /// Kills the child.
    Kill(Pid),
    /// Message for the gate; `None` as in `Start`.
    Tell(Option<Label>),
    /// Keeps the child for later daemons.
    Keep { pid: Pid, door: OwnedFd, label: Label },
    /// Forgets the child: no daemon needs it.
    Forget(Pid),
    /// Ends all children now.
    End,
    /// Socket on which the server listens for later daemons.
    Listen(UnixListener),
    /// Adopts the server for a later daemon.
    TakeUp { version: i32 },
}

/// Message to a daemon that adopts the server.
#[derive(Debug)]
pub(super) enum Handover {
    Welcome {
        version: i32,
    },
    Kept(KeptProcess),
    /// No more children are kept.
    Done,
}

impl Message {
    pub(super) const LEN: usize = 12;
    pub(super) const STARTED: i32 = 1;
    pub(super) const NOT_STARTED: i32 = 2;
    /// The child exited with this status.
    pub(super) const EXITED: i32 = 3;
    /// The child was killed by this signal.
    pub(super) const KILLED: i32 = 4;
    /// No child was started: the gate refuses the order, with this reason.
    pub(super) const REFUSED: i32 = 5;
    /// The gate's answer to a message.
    pub(super) const TOLD: i32 = 6;

    pub(super) const WELCOME: i32 = 16;
    pub(super) const KEPT_RUNNING: i32 = 17;
    /// Kept child that exited with this status.
    pub(super) const KEPT_EXITED: i32 = 18;
    /// Kept child that was killed by this signal.
    pub(super) const KEPT_KILLED: i32 = 19;
    pub(super) const KEPT_ALL: i32 = 20;

    pub(super) const START: i32 = 32;
    pub(super) const KEEP: i32 = 33;
    pub(super) const FORGET: i32 = 34;
    pub(super) const END: i32 = 35;
    pub(super) const LISTEN: i32 = 36;
    pub(super) const TAKE_UP: i32 = 37;
    pub(super) const KILL: i32 = 38;
    pub(super) const TELL: i32 = 39;

    pub(super) fn send(socket: BorrowedFd<'_>, numbers: [i32; 3], descriptors: &[BorrowedFd<'_>]) -> nix::Result<()> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let raw: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let rights = if raw.is_empty() { &[][..] } else { &rights };
        let nobody: Option<&()> = None;
        sendmsg(socket.as_raw_fd(), &[IoSlice::new(&bytes)], rights, MsgFlags::MSG_NOSIGNAL, nobody).map(drop)
    }

    /// Receives the next message; `None` if the other end is closed.
    pub(super) fn receive(socket: BorrowedFd<'_>) -> nix::Result<Option<Self>> {
        // The additional byte detects a packet that is too long.
        let mut bytes = [0; Self::LEN + 1];
        let Packet { len, descriptors } = match receive_packet(socket, &mut bytes) {
            // The other end was closed while it had unread data. The messages that it sent are still readable.
            Err(Errno::ECONNRESET) => receive_packet(socket, &mut bytes)?,
            received => received?,
        };
        if len == 0 {
            return Ok(None);
        }
        Self::decode(&bytes[..len], descriptors).map(Some)
    }

    /// Decodes the bytes of one packet.
    fn decode(packet: &[u8], descriptors: Vec<OwnedFd>) -> nix::Result<Self> {
        let packet: &[u8; Self::LEN] = packet.try_into().map_err(|_| Errno::EBADMSG)?;
        let mut numbers = [0; 3];
        for (number, bytes) in numbers.iter_mut().zip(packet.chunks_exact(4)) {
            *number = i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Ok(Self { numbers, descriptors })
    }

    /// Converts the message to an event for a daemon.
    pub(super) fn into_event(self) -> nix::Result<ForkEvent> {
        let [kind, number, detail] = self.numbers;
        let pid = Pid::from_raw(number);
        Ok(match kind {
            Self::STARTED => {
                // A daemon without free descriptors receives fewer than were sent. The received descriptors are closed here. The
                // child exits, because its door is closed.
                match <[OwnedFd; 2]>::try_from(self.descriptors) {
                    Ok([door, pidfd]) => ForkEvent::Started(ForkedProcess { pid, door: door.into(), pidfd }),
                    Err(_) => ForkEvent::NotStarted(Errno::EMFILE),
                }
            }
            Self::NOT_STARTED => ForkEvent::NotStarted(Errno::from_raw(number)),
            Self::EXITED => ForkEvent::Ended { pid, exit: exited(detail) },
            Self::KILLED => ForkEvent::Ended { pid, exit: killed(detail) },
            // The descriptor may be missing for the same reason.
            Self::REFUSED => match only_label(self.descriptors) {
                Ok(why) => ForkEvent::Refused(why),
                Err(errno) => ForkEvent::NotStarted(errno),
            },
            Self::TOLD => ForkEvent::Told(only_label(self.descriptors).ok()),
            _ => return Err(Errno::EBADMSG),
        })
    }

    /// Converts the message for a daemon that adopts the server.
    pub(super) fn into_handover(self) -> nix::Result<Handover> {
        let [kind, number, detail] = self.numbers;
        let pid = Pid::from_raw(number);
        let ended = |exit, descriptors| {
            let label = only_label(descriptors)?;
            Ok(Handover::Kept(KeptProcess { pid, label, state: KeptState::Ended(exit) }))
        };
        match kind {
            Self::WELCOME => Ok(Handover::Welcome { version: number }),
            Self::KEPT_RUNNING => {
                let [door, pidfd, label] = <[OwnedFd; 3]>::try_from(self.descriptors).map_err(|_| Errno::EMFILE)?;
                let process = ForkedProcess { pid, door: door.into(), pidfd };
                Ok(Handover::Kept(KeptProcess { pid, label: label.into(), state: KeptState::Running(process) }))
            }
            Self::KEPT_EXITED => ended(exited(detail), self.descriptors),
            Self::KEPT_KILLED => ended(killed(detail), self.descriptors),
            Self::KEPT_ALL => Ok(Handover::Done),
            _ => Err(Errno::EBADMSG),
        }
    }

    /// Converts the message to a request for a fork server.
    pub(super) fn into_request(self) -> nix::Result<Request> {
        let [kind, number, _] = self.numbers;
        let pid = Pid::from_raw(number);
        match kind {
            Self::START => Ok(Request::Start(only_label(self.descriptors).ok())),
            Self::KILL => Ok(Request::Kill(pid)),
            Self::TELL => Ok(Request::Tell(only_label(self.descriptors).ok())),
            Self::KEEP => {
                let [door, label] = <[OwnedFd; 2]>::try_from(self.descriptors).map_err(|_| Errno::EMFILE)?;
                Ok(Request::Keep { pid, door, label: label.into() })
            }
            Self::FORGET => Ok(Request::Forget(pid)),
            Self::END => Ok(Request::End),
            Self::LISTEN => {
                let [socket] = <[OwnedFd; 1]>::try_from(self.descriptors).map_err(|_| Errno::EMFILE)?;
                Ok(Request::Listen(socket.into()))
            }
            Self::TAKE_UP => Ok(Request::TakeUp { version: number }),
            _ => Err(Errno::EBADMSG),
        }
    }
}

/// Returns the only descriptor of a message.
fn only_label(descriptors: Vec<OwnedFd>) -> nix::Result<Label> {
    let [label] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| Errno::EMFILE)?;
    Ok(label.into())
}

fn exited(status: i32) -> RankExit {
    RankExit::Code(status)
}

fn killed(signal: i32) -> RankExit {
    RankExit::Signal { signal, core_dumped: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(numbers: [i32; 3]) -> Message {
        Message { numbers, descriptors: Vec::new() }
    }

    #[test]
    fn news_that_cannot_be_is_an_error() {
        let news = |numbers| message(numbers).into_event();
        assert_eq!(news([9, 0, 0]).unwrap_err(), Errno::EBADMSG);
        assert!(matches!(news([Message::STARTED, 7, 0]), Ok(ForkEvent::NotStarted(Errno::EMFILE))));
        assert!(matches!(
            news([Message::KILLED, 7, 9]),
            Ok(ForkEvent::Ended { exit: RankExit::Signal { signal: 9, .. }, .. })
        ));
    }

    #[test]
    fn a_message_without_its_descriptors_is_an_error() {
        for kind in [Message::KEPT_RUNNING, Message::KEPT_EXITED, Message::KEPT_KILLED] {
            assert_eq!(message([kind, 7, 0]).into_handover().unwrap_err(), Errno::EMFILE);
        }
        assert!(matches!(message([Message::START, 0, 0]).into_request(), Ok(Request::Start(None))));
        assert!(matches!(message([Message::TELL, 0, 0]).into_request(), Ok(Request::Tell(None))));
        for kind in [Message::KEEP, Message::LISTEN] {
            assert_eq!(message([kind, 7, 0]).into_request().unwrap_err(), Errno::EMFILE);
        }
        assert_eq!(message([Message::STARTED, 7, 0]).into_request().unwrap_err(), Errno::EBADMSG);
        assert!(matches!(message([Message::REFUSED, 0, 0]).into_event(), Ok(ForkEvent::NotStarted(Errno::EMFILE))));
        assert!(matches!(message([Message::TOLD, 0, 0]).into_event(), Ok(ForkEvent::Told(None))));
        assert_eq!(message([Message::START, 7, 0]).into_handover().unwrap_err(), Errno::EBADMSG);
        assert!(
            matches!(message([Message::FORGET, 7, 0]).into_request(), Ok(Request::Forget(pid)) if pid.as_raw() == 7)
        );
    }
}

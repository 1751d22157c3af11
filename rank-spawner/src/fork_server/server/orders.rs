//! Orders of the daemon: the server sends an admitted order to the spare child, and hands the child out.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc;

use super::super::label::Label;
use super::super::message::Message;
use super::{Daemon, Server, Spare, Then};

impl Server {
    /// Hands out the spare child with an order that the gate admits. An admitted order is used up even if no child can be made.
    pub(super) fn hand_out(&mut self, order: Option<Label>) -> Then {
        let made = match &self.spare {
            _ if self.daemon != Daemon::First => Err(Errno::ESHUTDOWN.into()),
            Some(_) => Ok(()),
            None => self.make_spare(),
        };
        let order = match made.and_then(|()| order.ok_or_else(|| Errno::EMFILE.into())) {
            Ok(order) => order,
            Err(error) => return self.say_not_started(&error),
        };
        let unread = |error: io::Error| format!("the order for a session cannot be read: {error}");
        let admitted = match order.read_word().map_err(unread).and_then(|order| self.gate.admit(order)) {
            Ok(admitted) => admitted,
            Err(why) => return self.say_bytes(Message::REFUSED, why.as_bytes()),
        };
        let Some(Spare { pid, pidfd, door, cgroup }) = self.spare.take() else { return Then::GoOn };
        // No other process has had this end of the door, so the first message must come from this server. A child that receives no order
        // ends.
        let told = door.send(&admitted, order.as_fd()).and_then(|()| self.attend(pid, &admitted, &door));
        let then = match told {
            Ok(()) => self.say([Message::STARTED, pid.as_raw(), 0], &[door.as_fd(), pidfd.as_fd()]),
            Err(error) => self.say_not_started(&error),
        };
        self.children.start(pid, pidfd, cgroup);
        then
    }

    /// Answers a message for the gate. The answer to an unreadable message is empty.
    pub(super) fn answer(&mut self, word: Option<Label>) -> Then {
        let word = word.and_then(|word| word.read_word().ok());
        let answer = word.map(|word| self.gate.hear(word)).unwrap_or_default();
        self.say_bytes(Message::TOLD, &answer)
    }

    fn say_not_started(&self, error: &io::Error) -> Then {
        self.say([Message::NOT_STARTED, error.raw_os_error().unwrap_or(libc::EAGAIN), 0], &[])
    }

    fn say_bytes(&self, kind: i32, bytes: &[u8]) -> Then {
        match Label::new(bytes) {
            Ok(label) => self.say([kind, 0, 0], &[label.as_fd()]),
            // The daemon accepts a message that lacks its descriptor.
            Err(_) => self.say([kind, 0, 0], &[]),
        }
    }

    fn say(&self, numbers: [i32; 3], descriptors: &[BorrowedFd<'_>]) -> Then {
        let said = Message::send(self.control.as_fd(), numbers, descriptors);
        if said.is_ok() { Then::GoOn } else { Then::Alone }
    }
}

//! The bytes between rank and server: requests go out whole, replies come in however the system cuts them.
//!
//! The end of a reply is the protocol's business; it brings a function that finds the end in what has arrived so far.

use alloc::vec::Vec;
use core::ops::Range;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::error::{ClientError, Defect, quote};

/// The longest reply that is read, in bytes: the longest value that a server of Lattice takes, 64 KiB, whoever put it and whatever it
/// announces, with what is around it.
pub(crate) const MESSAGE_MAX: usize = 65 * 1024;

/// Position of the first message within the bytes that have arrived: its body, and the start of the next message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) body: Range<usize>,
    pub(crate) next: usize,
}

/// A connected stream socket, and what arrived on it but was not asked for yet.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Of any address family: only `send` and `recv` are called.
    stream: OwnedFd,
    arrived: Vec<u8>,
    /// True once it is not known which request the next reply answers: the last one had none, or another one's.
    is_out_of_step: bool,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { stream: socket, arrived: Vec::new(), is_out_of_step: false }
    }

    /// Sends `message` in one write, where the system allows.
    pub(crate) fn send(&mut self, command: &'static str, message: &[u8]) -> Result<(), ClientError> {
        if self.is_out_of_step {
            return Err(ClientError::Closed { command });
        }
        let sent = self.send_whole(message).map_err(|error| broken(command, error));
        sent.inspect_err(|_| self.lose_step())
    }

    fn send_whole(&self, mut message: &[u8]) -> Result<(), Errno> {
        while !message.is_empty() {
            match send(&self.stream, message, SendFlags::NOSIGNAL) {
                Ok(sent) => message = message.get(sent..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// A reply answered something else than what was asked: nothing more is asked.
    pub(crate) fn lose_step(&mut self) {
        self.is_out_of_step = true;
    }

    /// Waits for one message and returns its body. `extent` finds it; `None` means that more bytes are needed.
    pub(crate) fn receive(
        &mut self,
        command: &'static str,
        extent: fn(&[u8]) -> Result<Option<Extent>, Defect>,
    ) -> Result<Vec<u8>, ClientError> {
        self.read_message(command, extent).inspect_err(|_| self.lose_step())
    }

    fn read_message(
        &mut self,
        command: &'static str,
        extent: fn(&[u8]) -> Result<Option<Extent>, Defect>,
    ) -> Result<Vec<u8>, ClientError> {
        loop {
            let malformed = |defect| ClientError::Malformed { command, defect, seen: quote(&self.arrived) };
            if let Some(Extent { body, next }) = extent(&self.arrived).map_err(malformed)? {
                let message = self.arrived[body].to_vec();
                self.arrived.drain(..next);
                return Ok(message);
            }
            if self.arrived.len() > MESSAGE_MAX {
                return Err(malformed(Defect::TooLong { max: MESSAGE_MAX }));
            }
            self.read_more(command)?;
        }
    }

    /// Returns true if a message has arrived, or begun to, and if the server is gone: [`receive`](Self::receive) does not wait for others then.
    pub(crate) fn has_more(&self) -> Result<bool, ClientError> {
        if !self.arrived.is_empty() {
            return Ok(true);
        }
        let mut awaited = [PollFd::new(&self.stream, PollFlags::IN)];
        match poll(&mut awaited, Some(&Timespec::default())) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(broken("poll", error)),
        }
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn read_more(&mut self, command: &'static str) -> Result<(), ClientError> {
        let mut chunk = [0; 4096];
        loop {
            match recv(&self.stream, &mut chunk, RecvFlags::empty()).map(|(count, _)| count) {
                Ok(0) => return Err(ClientError::Closed { command }),
                Ok(count) => {
                    self.arrived.extend_from_slice(&chunk[..count]);
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(broken(command, error)),
            }
        }
    }
}

/// A server that is gone shows itself in several ways; they mean the same to the caller.
fn broken(command: &'static str, error: Errno) -> ClientError {
    match error {
        Errno::PIPE | Errno::CONNRESET => ClientError::Closed { command },
        error => ClientError::Io { command, source: error.into() },
    }
}

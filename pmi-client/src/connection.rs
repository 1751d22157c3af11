//! The bytes between rank and server: requests are sent whole, replies are received in pieces of any size.
//!
//! The protocol determines the end of a reply. It provides a function that finds the end in the received bytes.

use alloc::vec::Vec;
use core::ops::Range;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::error::{ClientError, Defect, quote};

/// The maximum length of a reply, in bytes: the longest value that a server of Lattice accepts, 64 KiB, and the text around it. The limit holds
/// for every sender and every announced length.
pub(crate) const MESSAGE_MAX: usize = 65 * 1024;

/// Position of the first message within the received bytes: its body, and the start of the next message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) body: Range<usize>,
    pub(crate) next: usize,
}

/// A connected stream socket, and the received bytes that no request has consumed yet.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Of any address family: only `send` and `recv` are called.
    stream: OwnedFd,
    arrived: Vec<u8>,
    /// True if the next reply cannot be assigned to a request: the last request had no reply, or the reply of another request.
    is_out_of_step: bool,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { stream: socket, arrived: Vec::new(), is_out_of_step: false }
    }

    /// Sends `message`, in one write if possible.
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

    /// Stops all further requests, because a reply belonged to another request.
    pub(crate) fn lose_step(&mut self) {
        self.is_out_of_step = true;
    }

    /// Waits for one message and returns its body. `extent` finds it, and returns `None` if more bytes are needed.
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

    /// Returns true if a message, or a part of one, has arrived, and if the server is gone. In both cases [`receive`](Self::receive) need not
    /// wait for other ranks.
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

/// A closed connection has several error numbers, with the same meaning to the caller.
fn broken(command: &'static str, error: Errno) -> ClientError {
    match error {
        Errno::PIPE | Errno::CONNRESET => ClientError::Closed { command },
        error => ClientError::Io { command, source: error.into() },
    }
}

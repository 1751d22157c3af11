//! A client's connection: its socket, and what that did not take yet.

use std::collections::VecDeque;
use std::io;
use std::net;
use std::os::fd::AsFd;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// A client that does not read its answers is not read from either, once this many bytes wait for it.
const PAUSE_ABOVE: usize = 64 * 1024;

/// Events come without being asked for; a client that leaves so much unread is given up.
const UNSENT_MAX: usize = 64 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct Connection {
    stream: Arc<TcpStream>,
    unsent: VecDeque<Bytes>,
    unsent_bytes: usize,
    /// Wakes the connection's task when what it waits for has changed.
    woken: Arc<Notify>,
}

/// What a connection's task waits for.
pub(super) struct Flow {
    pub(super) interest: Interest,
    pub(super) woken: Arc<Notify>,
}

impl Connection {
    pub(super) fn new(stream: Arc<TcpStream>) -> Self {
        Self { stream, unsent: VecDeque::new(), unsent_bytes: 0, woken: Arc::default() }
    }

    pub(super) fn is_over(&self, stream: &Arc<TcpStream>) -> bool {
        Arc::ptr_eq(&self.stream, stream)
    }

    pub(super) fn flow(&self) -> Flow {
        let interest = match self.unsent_bytes {
            0 => Interest::READABLE,
            1..=PAUSE_ABOVE => Interest::READABLE | Interest::WRITABLE,
            _ => Interest::WRITABLE,
        };
        Flow { interest, woken: Arc::clone(&self.woken) }
    }

    pub(super) fn may_be_read(&self) -> bool {
        self.unsent_bytes <= PAUSE_ABOVE
    }

    pub(super) fn wake(&self) {
        self.woken.notify_one();
    }

    /// Writes at once what the socket takes, and keeps the rest; false if that is too much.
    pub(super) fn send(&mut self, bytes: Bytes) -> bool {
        let had_unsent = !self.unsent.is_empty();
        self.unsent_bytes += bytes.len();
        self.unsent.push_back(bytes);
        if !had_unsent {
            self.write_unsent();
            if !self.unsent.is_empty() {
                self.wake();
            }
        }
        self.unsent_bytes <= UNSENT_MAX
    }

    /// Writes until the socket is full or nothing is left.
    pub(super) fn write_unsent(&mut self) {
        while let Some(bytes) = self.unsent.front_mut() {
            match self.stream.try_write(bytes) {
                Ok(written) => {
                    self.unsent_bytes -= written;
                    bytes.advance(written);
                    if bytes.is_empty() {
                        self.unsent.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The rank is gone; its reading side notices as well.
                Err(_) => {
                    self.unsent.clear();
                    self.unsent_bytes = 0;
                }
            }
        }
    }

    /// What the socket holds now: tokio would ask the kernel only after its next turn.
    pub(super) fn unread(&mut self) -> io::Result<net::TcpStream> {
        Ok(self.stream.as_fd().try_clone_to_owned()?.into())
    }
}

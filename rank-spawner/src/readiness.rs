//! Waiting in a tokio runtime: for the end of a rank, for its terminal, and for news of a fork server.

#![expect(unsafe_code, reason = "registering a borrowed descriptor")]

use std::io;
use std::os::fd::AsFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::descriptor_socket::{DescriptorSocket, Passed};
use crate::fork_server::ForkServer;
use crate::process::RankProcess;
use crate::terminal::Terminal;

impl RankProcess {
    /// Waits until the rank has ended; [`RankProcess::try_wait`] tells how, then.
    ///
    /// # Errors
    /// Fails when the runtime cannot watch another descriptor.
    pub async fn ended(&self) -> io::Result<()> {
        // SAFETY: the borrowed descriptor stays open as long as `self`, which this future borrows and so outlives the
        // registration; nothing replaces it meanwhile.
        let pidfd = unsafe { AsyncFd::register_with_interest(self.as_fd(), Interest::READABLE)? };
        pidfd.readable().await?.retain_ready();
        Ok(())
    }
}

impl Terminal {
    /// The terminal, which the runtime watches from now on: its output, and room for input.
    ///
    /// # Errors
    /// Fails when the runtime cannot watch another descriptor.
    pub fn watched(self) -> io::Result<AsyncFd<Self>> {
        // SAFETY: a terminal owns its descriptor, gives it to nobody, and moves into what watches it.
        unsafe { AsyncFd::register(self) }.map_err(Into::into)
    }
}

impl ForkServer {
    /// Waits until there is news, which [`ForkServer::next_event`] tells then.
    ///
    /// # Errors
    /// Fails when the runtime cannot watch another descriptor.
    pub async fn event_ready(&self) -> io::Result<()> {
        // SAFETY: the borrowed descriptor stays open as long as `self`, which this future borrows and so outlives the
        // registration; nothing replaces it meanwhile.
        let control = unsafe { AsyncFd::register_with_interest(self.as_fd(), Interest::READABLE)? };
        control.readable().await?.retain_ready();
        Ok(())
    }
}

impl DescriptorSocket {
    /// Waits for the next descriptor; `None` when the other end is closed. Cancel-safe.
    ///
    /// # Errors
    /// Fails when the runtime cannot watch another descriptor.
    pub async fn receive(&self) -> io::Result<Option<Passed>> {
        loop {
            match self.try_receive() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            // SAFETY: the borrowed descriptor stays open as long as `self`, which this future borrows and so outlives the
            // registration; nothing replaces it meanwhile.
            let socket = unsafe { AsyncFd::register_with_interest(self.as_fd(), Interest::READABLE)? };
            socket.readable().await?.retain_ready();
        }
    }
}

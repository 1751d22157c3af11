//! Waits in a tokio runtime: for the end of a rank, for its terminal, for messages of a fork server, and for descriptors.

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
    /// Waits until the rank has ended; then call [`RankProcess::try_wait`].
    ///
    /// # Errors
    /// Fails if the runtime cannot register another descriptor.
    pub async fn ended(&self) -> io::Result<()> {
        // SAFETY: the borrowed descriptor stays open as long as `self`. This future borrows `self`, so the descriptor
        // outlives the registration, and it is not replaced meanwhile.
        let pidfd = unsafe { AsyncFd::register_with_interest(self.as_fd(), Interest::READABLE)? };
        pidfd.readable().await?.retain_ready();
        Ok(())
    }
}

impl Terminal {
    /// Registers the terminal with the runtime, for output and for space for input.
    ///
    /// # Errors
    /// Fails if the runtime cannot register another descriptor.
    pub fn watched(self) -> io::Result<AsyncFd<Self>> {
        // SAFETY: a terminal owns its descriptor, passes it to no other owner, and moves into the `AsyncFd`.
        unsafe { AsyncFd::register(self) }.map_err(Into::into)
    }
}

impl ForkServer {
    /// Waits for a message; then call [`ForkServer::next_event`].
    ///
    /// # Errors
    /// Fails if the runtime cannot register another descriptor.
    pub async fn event_ready(&self) -> io::Result<()> {
        // SAFETY: the borrowed descriptor stays open as long as `self`. This future borrows `self`, so the descriptor
        // outlives the registration, and it is not replaced meanwhile.
        let control = unsafe { AsyncFd::register_with_interest(self.as_fd(), Interest::READABLE)? };
        control.readable().await?.retain_ready();
        Ok(())
    }
}

impl DescriptorSocket {
    /// Receives the next descriptor; `None` if the other end is closed. Cancel-safe.
    ///
    /// # Errors
    /// Fails if the runtime cannot register another descriptor.
    pub async fn receive(&self) -> io::Result<Option<Passed>> {
        loop {
            match self.try_receive() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            // SAFETY: the borrowed descriptor stays open as long as `self`. This future borrows `self`, so the descriptor
            // outlives the registration, and it is not replaced meanwhile.
            let socket = unsafe { AsyncFd::register_with_interest(self.as_fd(), Interest::READABLE)? };
            socket.readable().await?.retain_ready();
        }
    }
}

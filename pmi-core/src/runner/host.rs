//! A runner as its host uses it.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use tokio::task::JoinSet;

use super::connection::{ReadHalf, WriteHalf};
use super::protocol::Protocol;
use super::state::Shared;
use crate::connections::ConnectionId;
use crate::quiet;

/// A running [`Protocol`]. Its connections, tasks and timers end when it is dropped.
pub struct Runner<P: Protocol> {
    pub(super) shared: Arc<Shared<P>>,
}

impl<P: Protocol> Runner<P> {
    /// Runs `protocol`. Every method needs a tokio runtime with I/O and time.
    pub fn new(protocol: P) -> Self {
        Self { shared: Shared::new(protocol) }
    }

    /// Passes an input of the host to the protocol, and carries out all resulting effects.
    pub fn with<T>(&self, input: impl FnOnce(&mut P) -> T) -> T {
        let mut state = self.shared.state.lock();
        let result = input(&mut state.protocol);
        self.shared.carry_out(&mut state);
        result
    }

    /// Starts the conversation over a socket that belongs to a rank from the start; `begin` registers it with the protocol.
    ///
    /// # Errors
    /// Fails when the runtime cannot watch the socket, and as `begin` does.
    pub fn connect(
        &self,
        socket: UnixStream,
        begin: impl FnOnce(&mut P) -> io::Result<ConnectionId>,
    ) -> io::Result<()> {
        let (reader, writer) = quiet::split(socket)?;
        let mut state = self.shared.state.lock();
        let id = begin(&mut state.protocol)?;
        let writer = WriteHalf::Unix(writer);
        writer.ask_for_sender();
        self.shared.converse_with(&mut state, id, ReadHalf::Unix(reader), writer);
        self.shared.carry_out(&mut state);
        Ok(())
    }

    /// Keeps the runtime from sleeping for 50 us after each request, while [`Protocol::expects_requests`]. A client with successive
    /// requests then waits for its answer, and not for a sleeping core. Measured in a virtual machine: 10 us instead of 50 for each
    /// request.
    ///
    /// Useful only with a free core: with fewer ranks here than cores.
    pub fn stay_awake(&self) {
        let shared = Arc::clone(&self.shared);
        self.shared.state.lock().spawn(async move { shared.stay_awake().await });
    }

    /// Handles at once the messages that a connection has sent so far, up to 16 MiB. A host calls it after the end of a rank's process,
    /// so that the rank's last messages count before its end.
    pub fn drain(&self, connection_of: impl FnOnce(&P) -> Option<ConnectionId>) {
        let mut state = self.shared.state.lock();
        if let Some(id) = connection_of(&state.protocol) {
            // The task of the connection also reads the end of the stream, and handles it.
            self.shared.read_out(&mut state, id);
        }
    }
}

impl<P: Protocol> Drop for Runner<P> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        // The tasks hold the state, and the state holds the tasks. A task that waits for the lock now starts no other task.
        state.is_closed = true;
        state.tasks = JoinSet::new();
        state.connections.clear();
    }
}

//! The protocol that a runner runs, and its effects.

use std::fmt::Debug;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;

use crate::connections::ConnectionId;

/// A protocol's server for the ranks of one node: a pure state machine, together with the host's services.
///
/// The [`Runner`](super::Runner) calls one `handle_*` after the other, and carries out all effects after each.
pub trait Protocol: Sized + Send + 'static {
    /// Result of a task that an [`Effect::Run`] started, or of an [`Effect::Begin`].
    type Event: Send + 'static;
    /// Name of a timer; at most one timer of a name is pending.
    type Timer: Copy + Debug + Eq + Hash + Ord + Send + 'static;

    /// Opens a connection that arrived through a listener.
    fn accept(&mut self) -> ConnectionId;

    /// Returns true after the connection is assigned to a rank.
    fn is_claimed(&self, connection: ConnectionId) -> bool;

    /// Stores bytes from a connection: any number of messages, split anywhere. Handles none of them yet.
    fn push_bytes(&mut self, connection: ConnectionId, bytes: &[u8]);

    /// Handles the next message of a connection. Returns false if no message is complete, or no further message is allowed.
    fn handle_next(&mut self, connection: ConnectionId) -> bool;

    /// The peer closed the connection, or it broke, or its claim period expired.
    fn handle_disconnect(&mut self, connection: ConnectionId);

    /// A task of an [`Effect::Run`], or an [`Effect::Begin`], has completed.
    fn handle_event(&mut self, event: Self::Event);

    /// A timer of an [`Effect::SetTimer`] has expired.
    fn handle_timer(&mut self, timer: Self::Timer);

    /// Code of the host or of the server panicked, with this text. Ranks may wait indefinitely for its result, so the host must be
    /// notified to end the job. The server's state may be inconsistent, and receives no further input.
    fn handle_panic(&mut self, text: &str);

    /// Returns the next effect, in order; `None` until the next input.
    fn poll_effect(&mut self) -> Option<Effect<Self>>;

    /// The next bytes on a rank's own socket come from another process than before, while that process still runs. They are pushed next.
    /// Reported only after [`Effect::AskForSender`].
    fn handle_second_sender(&mut self, _connection: ConnectionId, _pid: u32) {}

    /// The socket has taken all bytes up to an [`Effect::SendAndTell`].
    fn handle_sent(&mut self, _connection: ConnectionId) {}

    /// Returns false while no request is likely soon, because ranks wait for other nodes. See
    /// [`Runner::stay_awake`](super::Runner::stay_awake).
    fn expects_requests(&self) -> bool {
        true
    }
}

/// A task of a protocol.
pub type Task<E> = Pin<Box<dyn Future<Output = E> + Send>>;

/// Passes the result of an [`Effect::Begin`] to its protocol, if that still runs.
pub struct Finish<P: Protocol>(Weak<dyn EventSink<P::Event>>);

/// Receiver of the results of operations.
pub(super) trait EventSink<E>: Send + Sync {
    /// Passes a result to the protocol, and carries out all resulting effects.
    fn receive(self: Arc<Self>, event: E);
}

impl<P: Protocol> Finish<P> {
    pub(super) fn new(sink: &Arc<impl EventSink<P::Event> + 'static>) -> Self {
        let sink = Arc::downgrade(sink);
        Self(sink)
    }

    /// Passes the result, and carries out all resulting effects. Must not be called during the [`Beginning`].
    pub fn with(self, event: P::Event) {
        if let Some(sink) = self.0.upgrade() {
            sink.receive(event);
        }
    }
}

/// Start of an operation of a protocol, which may complete at once.
pub type Beginning<P> = Box<dyn FnOnce(Finish<P>) -> Started<P> + Send>;

/// Outcome of a [`Beginning`].
pub enum Started<P: Protocol> {
    /// The operation is complete, with this result.
    Over(P::Event),
    /// The [`Finish`] receives the result later.
    Pending,
    /// The operation needs a task.
    Task(Task<P::Event>),
}

/// An action that a [`Protocol`] requests.
pub enum Effect<P: Protocol> {
    /// Send these bytes, after all earlier bytes on the same connection.
    Send {
        /// Connection to write to.
        connection: ConnectionId,
        /// Bytes to write.
        bytes: Bytes,
    },
    /// The same, and call [`Protocol::handle_sent`] after the socket has taken all bytes.
    SendAndTell {
        /// Connection to write to.
        connection: ConnectionId,
        /// Bytes to write.
        bytes: Bytes,
    },
    /// Find the process of the next bytes on this connection; see [`Protocol::handle_second_sender`]. Has no effect on TCP connections.
    AskForSender {
        /// The connection.
        connection: ConnectionId,
    },
    /// Read nothing more from this connection, and close it after it has taken all earlier bytes. A connection without a rank is closed
    /// at once.
    Close {
        /// Connection to close.
        connection: ConnectionId,
    },
    /// Handle at once the messages that this connection has sent so far, up to 16 MiB, and its end, if it has ended.
    ReadOut {
        /// Connection to read.
        connection: ConnectionId,
    },
    /// Begin this operation, and pass its result to [`Protocol::handle_event`].
    Begin(Beginning<P>),
    /// Run this task, and pass its result to [`Protocol::handle_event`].
    Run(Task<P::Event>),
    /// Call [`Protocol::handle_timer`] after this time, unless the timer is cancelled before.
    SetTimer {
        /// Name of the timer; a pending timer of the same name is replaced.
        timer: P::Timer,
        /// Time until it expires.
        after: Duration,
    },
    /// Cancel a timer. Not an error if it is not pending.
    CancelTimer(P::Timer),
}

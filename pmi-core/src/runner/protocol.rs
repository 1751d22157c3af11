//! What a runner runs: a protocol, and what it wants done.

use std::fmt::Debug;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Weak;
use std::time::Duration;

use bytes::Bytes;

use super::Shared;
use crate::connections::ConnectionId;

/// A protocol's server for the ranks of one node: a pure state machine, with the host's part of what it asks for.
///
/// The [`Runner`](super::Runner) calls one `handle_*` after the other, and takes every effect after each.
pub trait Protocol: Sized + Send + 'static {
    /// Result of a task that an [`Effect::Run`] started, or of an [`Effect::Begin`].
    type Event: Send + 'static;
    /// Names a timer; at most one of a name is pending.
    type Timer: Copy + Debug + Eq + Hash + Ord + Send + 'static;

    /// Begins the conversation over a connection that came through a listener.
    fn accept(&mut self) -> ConnectionId;

    /// Returns true once the connection is known to be a rank's.
    fn is_claimed(&self, connection: ConnectionId) -> bool;

    /// Takes what was read from a connection: any number of messages, cut anywhere. None of them is handled yet.
    fn push_bytes(&mut self, connection: ConnectionId, bytes: &[u8]);

    /// Handles the next message of a connection. Returns false if none has come whole, or no other will be handled.
    fn handle_next(&mut self, connection: ConnectionId) -> bool;

    /// The peer closed the connection, or it broke, or its time for a claim is over.
    fn handle_disconnect(&mut self, connection: ConnectionId);

    /// A task of an [`Effect::Run`], or an [`Effect::Begin`], is over.
    fn handle_event(&mut self, event: Self::Event);

    /// A timer of an [`Effect::SetTimer`] has run out.
    fn handle_timer(&mut self, timer: Self::Timer);

    /// Code of the host or of the server panicked, with this text: ranks may wait for ever for what it should have done, so the host is told
    /// to end the job. The server's own state may be half changed; nothing more is asked of it.
    fn handle_panic(&mut self, text: &str);

    /// Returns the next thing to do, in order; `None` until the next input.
    fn poll_effect(&mut self) -> Option<Effect<Self>>;

    /// Bytes of another process than before come over a rank's own socket, while that process still runs. They are pushed next. Reported as
    /// an answer to [`Effect::AskForSender`] alone.
    fn handle_second_sender(&mut self, _connection: ConnectionId, _pid: u32) {}

    /// A connection has taken everything up to an [`Effect::SendAndTell`].
    fn handle_sent(&mut self, _connection: ConnectionId) {}

    /// Returns false while no request is likely to come soon, because ranks wait for other nodes. See [`Runner::stay_awake`](super::Runner::stay_awake).
    fn expects_requests(&self) -> bool {
        true
    }
}

/// A task that a protocol wants run.
pub type Task<E> = Pin<Box<dyn Future<Output = E> + Send>>;

/// Takes the result of an [`Effect::Begin`] to its protocol, if that still runs.
pub struct Finish<P: Protocol>(pub(super) Weak<Shared<P>>);

impl<P: Protocol> Finish<P> {
    /// Hands the result over, and does everything that follows from it. Not to be called while the beginning runs.
    pub fn with(self, event: P::Event) {
        let Some(shared) = self.0.upgrade() else { return };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| shared.finish(event))) {
            shared.report_panic(&*panic);
        }
    }
}

/// Something that a protocol wants begun, which may be over at once.
pub type Beginning<P> = Box<dyn FnOnce(Finish<P>) -> Started<P> + Send>;

/// Outcome of a [`Beginning`].
pub enum Started<P: Protocol> {
    /// It is over, with this result.
    Over(P::Event),
    /// Its result goes to the [`Finish`].
    Pending,
    /// It takes a task.
    Task(Task<P::Event>),
}

/// Something that a [`Protocol`] wants done.
pub enum Effect<P: Protocol> {
    /// Send these bytes, after those sent before on the same connection.
    Send {
        /// Connection to write to.
        connection: ConnectionId,
        /// Bytes to write.
        bytes: Bytes,
    },
    /// The same, and call [`Protocol::handle_sent`] once the socket has taken everything.
    SendAndTell {
        /// Connection to write to.
        connection: ConnectionId,
        /// Bytes to write.
        bytes: Bytes,
    },
    /// Find the process that sends next on this connection; see [`Protocol::handle_second_sender`]. Has no effect on TCP connections.
    AskForSender {
        /// The connection.
        connection: ConnectionId,
    },
    /// Read nothing more from this connection, and close it once it has taken what was sent before. A connection that is no rank's is
    /// closed at once.
    Close {
        /// Connection to close.
        connection: ConnectionId,
    },
    /// Handle at once what this connection has sent so far, up to 16 MiB, and its end, if it has ended.
    ReadOut {
        /// Connection to read.
        connection: ConnectionId,
    },
    /// Begin this, and hand its result to [`Protocol::handle_event`].
    Begin(Beginning<P>),
    /// Run this task, and hand its result to [`Protocol::handle_event`].
    Run(Task<P::Event>),
    /// Call [`Protocol::handle_timer`] after this time, unless the timer is cancelled before.
    SetTimer {
        /// Name of the timer; one of the same name that is pending is replaced.
        timer: P::Timer,
        /// Time until it runs out.
        after: Duration,
    },
    /// Forget a timer. Not an error if it is not pending.
    CancelTimer(P::Timer),
}

//! State of a runner, which its tasks share.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::connection::Connection;
use super::deadlines::{Deadline, Deadlines};
use super::protocol::Protocol;
use crate::connections::ConnectionId;

/// Most requests are shorter than this; a longer one takes several reads.
pub(super) const READ_SIZE: usize = 4096;

/// Pause before a retry, when a socket cannot be accepted or watched for lack of descriptors or memory.
pub(super) const SHORTAGE_PAUSE: Duration = Duration::from_millis(20);

/// Time that [`Runner::stay_awake`](super::Runner::stay_awake) keeps the runtime awake after a request.
const AWAKE: Duration = Duration::from_micros(50);

/// A runner, as its tasks share it.
pub(super) struct Shared<P: Protocol> {
    pub(super) state: Mutex<State<P>>,
    /// Wakes the task that keeps the runtime awake, if any.
    pub(super) requested: Notify,
    /// Wakes the task that waits for the next deadline, when the deadline has changed.
    pub(super) rescheduled: Notify,
}

/// State of a runner, under its lock.
pub(super) struct State<P: Protocol> {
    pub(super) protocol: P,
    /// By connection id.
    pub(super) connections: Vec<Option<Connection>>,
    /// Connections without a claimed rank; each has a deadline for its claim.
    pub(super) unclaimed: usize,
    pub(super) deadlines: Deadlines<Deadline<P::Timer>>,
    /// True after a task has started to wait for deadlines.
    pub(super) keeps_time: bool,
    pub(super) last_request: Instant,
    /// Buffer for one read.
    pub(super) room: Box<[u8]>,
    pub(super) tasks: JoinSet<()>,
    /// This state, for tasks that outlive their starter.
    pub(super) shared: Weak<Shared<P>>,
    /// True after the runner is dropped: no new task starts.
    pub(super) is_closed: bool,
}

impl<P: Protocol> Shared<P> {
    pub(super) fn new(protocol: P) -> Arc<Self> {
        Arc::new_cyclic(|shared| {
            let state = State {
                protocol,
                connections: Vec::new(),
                unclaimed: 0,
                deadlines: Deadlines::default(),
                keeps_time: false,
                last_request: Instant::now(),
                room: vec![0; READ_SIZE].into(),
                tasks: JoinSet::new(),
                shared: Weak::clone(shared),
                is_closed: false,
            };
            Self { state: Mutex::new(state), requested: Notify::new(), rescheduled: Notify::new() }
        })
    }
}

impl<P: Protocol> State<P> {
    pub(super) fn add(&mut self, id: ConnectionId, connection: Connection) {
        let index = id.0 as usize;
        if index >= self.connections.len() {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] = Some(connection);
    }

    pub(super) fn connection(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(id.0 as usize)?.as_mut()
    }

    /// Returns true while the connection with `drained` is read: it is open, and `id` does not belong to a later connection.
    pub(super) fn is_read(&mut self, id: ConnectionId, drained: &Arc<Notify>) -> bool {
        let connection = self.connection(id);
        connection.is_some_and(|connection| Arc::ptr_eq(&connection.drained, drained) && !connection.is_ending)
    }

    /// Aborts a task when its connection closes.
    pub(super) fn end_with(&mut self, id: ConnectionId, task: AbortHandle) {
        if let Some(connection) = self.connection(id) {
            connection.tasks.retain(|task| !task.is_finished());
            connection.tasks.push(task);
        }
    }

    /// Closes and removes a connection.
    pub(super) fn close(&mut self, id: ConnectionId) {
        self.end_claim(id);
        let connection = self.connections.get_mut(id.0 as usize).and_then(Option::take);
        for task in connection.map(|connection| connection.tasks).unwrap_or_default() {
            task.abort();
        }
    }

    /// Ends the claim period of a connection that has claimed a rank or is closed.
    pub(super) fn end_claim(&mut self, id: ConnectionId) {
        if self.deadlines.cancel(Deadline::Claim(id)) {
            self.unclaimed -= 1;
        }
    }

    /// Handles the end of the peer's stream.
    pub(super) fn hang_up(&mut self, id: ConnectionId) {
        self.protocol.handle_disconnect(id);
        self.close_after_last_answer(id);
    }

    /// Reads nothing more from a connection, and closes it. A rank still receives its earlier answers.
    pub(super) fn close_after_last_answer(&mut self, id: ConnectionId) {
        let is_claimed = self.protocol.is_claimed(id);
        match self.connection(id) {
            Some(connection) if is_claimed && !connection.unsent.is_empty() => connection.is_ending = true,
            _ => self.close(id),
        }
    }

    /// Returns true if another request is likely to come at once.
    pub(super) fn expects_request(&self) -> bool {
        self.protocol.expects_requests() && self.last_request.elapsed() < AWAKE
    }
}

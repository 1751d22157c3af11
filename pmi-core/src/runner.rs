//! Runs a pure protocol server over sockets with tokio. Every server of this project runs on it, with any protocol.
//!
//! ```text
//!  socket ──read──> task of the connection ─────────┐                      ┌─> write, at once if the socket takes it;
//!  listener ──accept──> owner's uid? ──> Connection │                      │   else queued, flushed by a task
//!  task (fence, call), deadline ────────────────────┼─> lock: a `handle_*`,│
//!  host ──Runner::with──> method call ──────────────┘   then every Effect ─┴─> start a task, set or cancel a timer
//! ```
//!
//! The lock is a plain mutex. It is held while one input is handled and its answers are written to nonblocking sockets. Nothing blocks or
//! awaits while it is held. The [`Protocol`] holds all protocol state, and interprets the messages.

mod announcement;
mod connection;
mod deadlines;
mod fences;
mod listening;
mod owner;
mod protocol;
mod senders;
mod tasks;
mod timing;

use std::future::poll_fn;
use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use tokio::io::ReadBuf;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{self, Instant};

pub use self::announcement::Announcement;
use self::connection::{Connection, ReadHalf, WriteHalf};
use self::deadlines::Deadlines;
pub use self::fences::begin_fence;
pub use self::listening::Admission;
pub use self::protocol::{Beginning, Effect, Finish, Protocol, Started, Task};
use self::timing::Deadline;
use crate::connections::{ANSWER_MAX, ConnectionId};
use crate::quiet;

/// Unsent bytes to a rank above which its further requests wait (back-pressure).
const PAUSE_ABOVE: usize = 64 * 1024;

/// Unsent bytes to a rank above which its connection is closed: the longest answer, and events. Events are unsolicited, so that a pause
/// does not bound them.
const UNSENT_MAX: usize = ANSWER_MAX + 64 * 1024 * 1024;

/// Maximum number of bytes read from a rank after the end of its process: more than a socket holds. A child process of the rank may
/// continue to write.
const LAST_WORDS_MAX: usize = 16 * 1024 * 1024;

/// Most requests are shorter than this; a longer one takes several reads.
const READ_SIZE: usize = 4096;

/// Pause before a retry, when a socket cannot be accepted or watched for lack of descriptors or memory.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(20);

/// Time that [`Runner::stay_awake`] keeps the runtime awake after a request.
const AWAKE: Duration = Duration::from_micros(50);

/// A running [`Protocol`]. Its connections, tasks and timers end when it is dropped.
pub struct Runner<P: Protocol> {
    shared: Arc<Shared<P>>,
}

struct Shared<P: Protocol> {
    state: Mutex<State<P>>,
    /// Wakes the task that keeps the runtime awake, if any.
    requested: Notify,
    /// Wakes the task that waits for the next deadline, when the deadline has changed.
    rescheduled: Notify,
}

struct State<P: Protocol> {
    protocol: P,
    /// By connection id.
    connections: Vec<Option<Connection>>,
    /// Connections without a claimed rank; each has a deadline for its claim.
    unclaimed: usize,
    deadlines: Deadlines<Deadline<P::Timer>>,
    /// True after a task has started to wait for deadlines.
    keeps_time: bool,
    last_request: Instant,
    /// Buffer for one read.
    room: Box<[u8]>,
    tasks: JoinSet<()>,
    /// This state, for tasks that outlive their starter.
    shared: Weak<Shared<P>>,
    /// True after the runner is dropped: no new task starts.
    is_closed: bool,
}

impl<P: Protocol> Runner<P> {
    /// Runs `protocol`. Every method needs a tokio runtime with I/O and time.
    pub fn new(protocol: P) -> Self {
        let shared = Arc::new_cyclic(|shared| {
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
            Shared { state: Mutex::new(state), requested: Notify::new(), rescheduled: Notify::new() }
        });
        Self { shared }
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
        socket: StdUnixStream,
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

impl<P: Protocol> State<P> {
    fn add(&mut self, id: ConnectionId, connection: Connection) {
        let index = id.0 as usize;
        if index >= self.connections.len() {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] = Some(connection);
    }

    fn connection(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(id.0 as usize)?.as_mut()
    }

    /// Returns true while the connection with `drained` is read: it is open, and `id` does not belong to a later connection.
    fn is_read(&mut self, id: ConnectionId, drained: &Arc<Notify>) -> bool {
        let connection = self.connection(id);
        connection.is_some_and(|connection| Arc::ptr_eq(&connection.drained, drained) && !connection.is_ending)
    }

    /// Aborts a task when its connection closes.
    fn end_with(&mut self, id: ConnectionId, task: AbortHandle) {
        if let Some(connection) = self.connection(id) {
            connection.tasks.retain(|task| !task.is_finished());
            connection.tasks.push(task);
        }
    }

    /// Closes and removes a connection.
    fn close(&mut self, id: ConnectionId) {
        self.end_claim(id);
        let connection = self.connections.get_mut(id.0 as usize).and_then(Option::take);
        for task in connection.map(|connection| connection.tasks).unwrap_or_default() {
            task.abort();
        }
    }

    /// Ends the claim period of a connection that has claimed a rank or is closed.
    fn end_claim(&mut self, id: ConnectionId) {
        if self.deadlines.cancel(Deadline::Claim(id)) {
            self.unclaimed -= 1;
        }
    }

    /// Handles the end of the peer's stream.
    fn hang_up(&mut self, id: ConnectionId) {
        self.protocol.handle_disconnect(id);
        self.close_after_last_answer(id);
    }

    /// Reads nothing more from a connection, and closes it. A rank still receives its earlier answers.
    fn close_after_last_answer(&mut self, id: ConnectionId) {
        let is_claimed = self.protocol.is_claimed(id);
        match self.connection(id) {
            Some(connection) if is_claimed && !connection.unsent.is_empty() => connection.is_ending = true,
            _ => self.close(id),
        }
    }

    /// Returns true if another request is likely to come at once.
    fn expects_request(&self) -> bool {
        self.protocol.expects_requests() && self.last_request.elapsed() < AWAKE
    }
}

/// Outcome of an attempt to read.
enum Turn {
    /// Bytes were read and handled.
    Read,
    /// Bytes were read and handled, but the rank does not read its answers.
    Pause,
    /// The connection has ended.
    Over,
}

impl<P: Protocol> Shared<P> {
    /// Starts to read from a connection.
    fn converse_with(self: &Arc<Self>, state: &mut State<P>, id: ConnectionId, reader: ReadHalf, writer: WriteHalf) {
        let connection = Connection::new(writer);
        let drained = Arc::clone(&connection.drained);
        state.add(id, connection);
        let shared = Arc::clone(self);
        let reading = state.spawn(async move { shared.converse(id, reader, &drained).await });
        state.end_with(id, reading);
    }

    /// Reads from one connection until it ends.
    async fn converse(self: Arc<Self>, id: ConnectionId, mut reader: ReadHalf, drained: &Arc<Notify>) {
        loop {
            match poll_fn(|context| self.poll_turn(id, drained, &mut reader, context)).await {
                Turn::Read => {}
                Turn::Pause => drained.notified().await,
                Turn::Over => return,
            }
        }
    }

    /// Reads and handles the available bytes, all under the lock.
    fn poll_turn(
        self: &Arc<Self>,
        id: ConnectionId,
        drained: &Arc<Notify>,
        reader: &mut ReadHalf,
        context: &mut Context<'_>,
    ) -> Poll<Turn> {
        let mut state = self.state.lock();
        if !state.is_read(id, drained) {
            return Poll::Ready(Turn::Over);
        }
        if state.connection(id).is_some_and(|connection| connection.is_paused) {
            return Poll::Ready(self.handle_all(&mut state, id));
        }
        let mut buffer = ReadBuf::new(&mut state.room);
        let Poll::Ready(result) = reader.poll_read(context, &mut buffer) else { return Poll::Pending };
        let read = buffer.filled().len();
        // An error means that the rank is gone, as the end of the stream does.
        if result.is_err() || read == 0 {
            state.hang_up(id);
            self.carry_out(&mut state);
            return Poll::Ready(Turn::Over);
        }
        if let Some(sender) = reader.take_sender() {
            state.note_sender(id, sender);
        }
        let State { room, protocol, .. } = &mut *state;
        protocol.push_bytes(id, &room[..read]);
        let turn = self.handle_all(&mut state, id);
        state.last_request = Instant::now();
        self.requested.notify_one();
        Poll::Ready(turn)
    }

    /// Handles the received messages of a connection, as long as its rank reads the answers.
    fn handle_all(self: &Arc<Self>, state: &mut State<P>, id: ConnectionId) -> Turn {
        loop {
            let Some(connection) = state.connection(id) else { return Turn::Over };
            connection.is_paused = connection.unsent_bytes > PAUSE_ABOVE;
            if connection.is_paused {
                return Turn::Pause;
            }
            if !self.handle_next(state, id) {
                return Turn::Read;
            }
        }
    }

    /// Handles the next message of a connection, and carries out its effects. Returns false if there is none.
    fn handle_next(self: &Arc<Self>, state: &mut State<P>, id: ConnectionId) -> bool {
        let was_there = state.protocol.handle_next(id);
        if state.unclaimed > 0 && state.protocol.is_claimed(id) {
            state.end_claim(id);
        }
        self.carry_out(state);
        was_there
    }

    /// Handles the messages that a connection has sent so far, up to 16 MiB. Returns true if it has ended.
    fn read_out(self: &Arc<Self>, state: &mut State<P>, id: ConnectionId) -> bool {
        let Some(Ok(mut unread)) = state.connection(id).map(|connection| connection.socket.unread()) else {
            return false;
        };
        let (mut buffer, mut left) = ([0; READ_SIZE], LAST_WORDS_MAX);
        while left > 0 && state.connection(id).is_some() {
            match unread.read(&mut buffer) {
                Ok(length @ 1..) => {
                    state.protocol.push_bytes(id, &buffer[..length]);
                    while self.handle_next(state, id) {}
                    left = left.saturating_sub(length);
                }
                Ok(0) => return true,
                Err(error) => return !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
            }
        }
        false
    }

    /// Yields to other tasks repeatedly, until no request has arrived for a while.
    async fn stay_awake(self: Arc<Self>) {
        loop {
            self.requested.notified().await;
            while self.state.lock().expects_request() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Carries out all effects of the protocol.
    fn carry_out(self: &Arc<Self>, state: &mut State<P>) {
        while let Some(effect) = state.protocol.poll_effect() {
            match effect {
                Effect::Send { connection, bytes } => self.send(state, connection, bytes),
                Effect::SendAndTell { connection, bytes } => {
                    self.send(state, connection, bytes);
                    match state.connection(connection) {
                        Some(unsent) if !unsent.unsent.is_empty() => unsent.tells = true,
                        Some(_) => state.protocol.handle_sent(connection),
                        None => {}
                    }
                }
                Effect::AskForSender { connection } => {
                    if let Some(connection) = state.connection(connection) {
                        connection.socket.ask_for_sender();
                    }
                }
                Effect::Close { connection } => state.close_after_last_answer(connection),
                Effect::ReadOut { connection } => {
                    if self.read_out(state, connection) {
                        state.hang_up(connection);
                    }
                }
                Effect::Begin(begin) => match begin(Finish(Arc::downgrade(self))) {
                    Started::Over(event) => state.protocol.handle_event(event),
                    Started::Pending => {}
                    Started::Task(task) => self.run(state, task),
                },
                Effect::Run(task) => self.run(state, task),
                Effect::SetTimer { timer, after } => self.set(state, Deadline::Timer(timer), after),
                Effect::CancelTimer(timer) => {
                    state.deadlines.cancel(Deadline::Timer(timer));
                }
            }
        }
    }

    fn run(self: &Arc<Self>, state: &mut State<P>, task: Task<P::Event>) {
        let shared = Arc::clone(self);
        state.spawn(async move { shared.finish(task.await) });
    }

    fn finish(self: &Arc<Self>, event: P::Event) {
        let mut state = self.state.lock();
        state.protocol.handle_event(event);
        self.carry_out(&mut state);
    }

    /// Writes as much as the socket takes at once, and leaves the rest to a task.
    fn send(self: &Arc<Self>, state: &mut State<P>, id: ConnectionId, mut bytes: Bytes) {
        let Some(connection) = state.connection(id) else { return };
        if connection.unsent.is_empty() {
            while !bytes.is_empty() {
                match connection.socket.try_write(&bytes) {
                    Ok(written) => bytes.advance(written),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // The rank is gone; the reading side detects it too.
                    Err(_) => return,
                }
            }
            if bytes.is_empty() {
                return;
            }
            let socket = Arc::clone(&connection.socket);
            connection.queue(bytes);
            let shared = Arc::clone(self);
            let flush = state.spawn(async move { shared.flush(id, &socket).await });
            state.end_with(id, flush);
        } else if connection.unsent_bytes + bytes.len() > UNSENT_MAX {
            tracing::warn!("closed the connection of a rank that does not read: {UNSENT_MAX} bytes wait for it");
            state.protocol.handle_disconnect(id);
            state.close(id);
        } else {
            connection.queue(bytes);
        }
    }

    /// Writes the queue of a connection, as fast as its rank reads. Without free descriptors the socket cannot be watched, and the task
    /// retries after a pause.
    async fn flush(self: Arc<Self>, id: ConnectionId, socket: &WriteHalf) {
        let mut is_told = false;
        loop {
            if let Err(error) = socket.writable().await {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!("an answer to a rank waits, as its socket cannot be watched: {error}");
                }
                time::sleep(SHORTAGE_PAUSE).await;
            }
            let mut state = self.state.lock();
            let Some(connection) = state.connection(id) else { return };
            if !connection.write_queued() {
                connection.drained.notify_one();
                let tells = std::mem::take(&mut connection.tells);
                if connection.is_ending {
                    state.close(id);
                }
                if tells {
                    state.protocol.handle_sent(id);
                    self.carry_out(&mut state);
                }
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;

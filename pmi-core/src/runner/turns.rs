//! Turns of a runner: it reads from connections, passes messages to the protocol, and carries out the effects.

use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::ReadBuf;
use tokio::sync::Notify;
use tokio::time::{self, Instant};

use super::connection::{Connection, ReadHalf, WriteHalf};
use super::deadlines::Deadline;
use super::protocol::{Effect, EventSink, Finish, Protocol, Started, Task};
use super::state::{READ_SIZE, SHORTAGE_PAUSE, Shared, State};
use crate::connections::{ANSWER_MAX, ConnectionId};

/// Unsent bytes to a rank above which its further requests wait (back-pressure).
const PAUSE_ABOVE: usize = 64 * 1024;

/// Unsent bytes to a rank above which its connection is closed: the longest answer, and events. Events are unsolicited, so that a pause
/// does not bound them.
const UNSENT_MAX: usize = ANSWER_MAX + 64 * 1024 * 1024;

/// Maximum number of bytes read from a rank after the end of its process: more than a socket holds. A child process of the rank may
/// continue to write.
const LAST_WORDS_MAX: usize = 16 * 1024 * 1024;

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
    pub(super) fn converse_with(
        self: &Arc<Self>,
        state: &mut State<P>,
        id: ConnectionId,
        reader: ReadHalf,
        writer: WriteHalf,
    ) {
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
    pub(super) fn read_out(self: &Arc<Self>, state: &mut State<P>, id: ConnectionId) -> bool {
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
    pub(super) async fn stay_awake(self: Arc<Self>) {
        loop {
            self.requested.notified().await;
            while self.state.lock().expects_request() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Carries out all effects of the protocol.
    pub(super) fn carry_out(self: &Arc<Self>, state: &mut State<P>) {
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
                Effect::Begin(begin) => match begin(Finish::new(self)) {
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

impl<P: Protocol> EventSink<P::Event> for Shared<P> {
    fn receive(self: Arc<Self>, event: P::Event) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.finish(event))) {
            self.report_panic(&*panic);
        }
    }
}

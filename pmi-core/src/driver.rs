//! Drives a [`Server`] over the sockets of its ranks with tokio. Nothing else in this crate does I/O.
//!
//! ```text
//!  rank's socket ──read──> task of the connection ─┐                       ┌─> write to any rank's socket, at once if it
//!  fence, host service ──> task of its own ────────┼─> lock: Server::handle_*, │   takes it; else queued, flushed by a task
//!  host (exits, queries) ──> method call ──────────┘   then every Action ───┴─> start a fence or call; report the end
//! ```
//!
//! The lock is a plain mutex, held while one input is handled and its answers are written to nonblocking sockets; nobody waits for
//! anything while holding it.

mod connection;

use std::future::poll_fn;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use std::{io, net};

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time;

use self::connection::{Connection, WriteHalf};
use crate::fence::{Contribution, Fence, FenceId};
use crate::ids::{LocalRank, Rank};
use crate::quiet;
use crate::server::{Action, ConnectionId, EndReason, Progress, Server, Standing, Ticket, Trace};
use crate::services::{Call, Services};

/// Takes every message of a traced server, in order.
pub type TraceSink = Box<dyn FnMut(&Trace) + Send>;

/// A rank that does not read its answers is not read from either, once this many bytes wait for it.
const UNSENT_MAX: usize = 64 * 1024;

/// Requests are shorter than this, as a rule; a longer one takes several reads.
const READ_SIZE: usize = 2048;

/// How long a runtime that stays awake does so after a request.
const AWAKE: Duration = Duration::from_micros(50);

/// The most connections through `PMI_PORT` that have not said which rank they are.
const UNCLAIMED_MAX: usize = 1024;

/// A running [`Server`]. Its conversations end when it is dropped.
pub struct Driver {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Wakes the task that keeps the runtime awake, if there is one.
    requested: Notify,
    fence: Arc<dyn Fence>,
    services: Arc<dyn Services>,
}

struct State {
    server: Server,
    /// By connection id.
    connections: Vec<Option<Connection>>,
    unclaimed: usize,
    last_request: Instant,
    /// Fences that wait for other nodes.
    fences: usize,
    tasks: JoinSet<()>,
    ended: Option<oneshot::Sender<EndReason>>,
    trace: Option<TraceSink>,
}

impl Driver {
    /// Runs `server`. The receiver tells, once, why the job must end, if it must. Needs a tokio runtime, of any kind.
    pub fn new(
        server: Server,
        fence: Arc<dyn Fence>,
        services: Arc<dyn Services>,
        trace: Option<TraceSink>,
    ) -> (Self, oneshot::Receiver<EndReason>) {
        let (ended, end) = oneshot::channel();
        let state = State {
            server,
            connections: Vec::new(),
            unclaimed: 0,
            last_request: Instant::now(),
            fences: 0,
            tasks: JoinSet::new(),
            ended: Some(ended),
            trace,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), requested: Notify::new(), fence, services });
        (Self { shared }, end)
    }

    /// Begins the conversation with a rank over the server's end of its socket pair.
    ///
    /// # Errors
    /// Fails when the runtime cannot watch the socket.
    ///
    /// # Panics
    /// If the server's node has no such rank.
    pub fn connect(&self, local: LocalRank, socket: StdUnixStream) -> io::Result<()> {
        let (reader, writer) = quiet::split(socket)?;
        let mut state = self.shared.state.lock();
        let id = state.server.connect(local);
        let drained = state.add(id, WriteHalf::Unix(writer));
        let shared = Arc::clone(&self.shared);
        let reader = state.spawn(async move { shared.converse(id, reader, &drained).await });
        state.end_with(id, reader);
        Ok(())
    }

    /// Also serves ranks that come through `PMI_PORT`. Each must say which rank it is within `claim_within`.
    ///
    /// Nothing in the protocol proves that it is that rank: listen on a loopback or private address only.
    ///
    /// # Errors
    /// Fails when the runtime cannot watch the listener.
    pub fn listen(&self, listener: net::TcpListener, claim_within: Duration) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let shared = Arc::clone(&self.shared);
        self.shared.state.lock().spawn(async move { shared.accept_all(listener, claim_within).await });
        Ok(())
    }

    /// Keeps the runtime from sleeping for 50 us after each request that begins no fence: a client that asks one thing after
    /// the other then waits for its answer and not for a sleeping core (measured in a virtual machine: 10 us instead of 50 for
    /// each request).
    ///
    /// Worth it only while a core is free for it: with fewer ranks here than cores.
    pub fn stay_awake(&self) {
        let shared = Arc::clone(&self.shared);
        self.shared.state.lock().spawn(async move { shared.stay_awake().await });
    }

    /// Handles at once what the rank has sent so far. A host calls it when the rank's process has ended, so that the rank's last
    /// words count before its end does.
    pub fn drain(&self, local: LocalRank) {
        let mut state = self.shared.state.lock();
        let Some(id) = state.server.connection_of(local) else { return };
        let Some(Ok(mut unread)) = state.connection(id).map(|connection| connection.socket.unread()) else { return };
        let mut buffer = [0; READ_SIZE];
        // The task of the connection sees the end of the stream as well, and takes care of it.
        while let Ok(length @ 1..) = unread.read(&mut buffer) {
            state.server.handle_bytes(id, &buffer[..length]);
            self.shared.carry_out(&mut state);
        }
    }

    /// The rank's process returned status 0.
    pub fn rank_exited(&self, local: LocalRank) {
        let mut state = self.shared.state.lock();
        state.server.handle_exit(local);
        self.shared.carry_out(&mut state);
    }

    /// How far a rank's dialogue has come.
    pub fn progress(&self, local: LocalRank) -> Option<Progress> {
        self.shared.state.lock().server.progress(local)
    }

    /// The fences in which ranks of this node wait.
    pub fn standings(&self) -> Vec<Standing> {
        self.shared.state.lock().server.standings()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        // The tasks hold the state that holds the tasks.
        state.tasks = JoinSet::new();
        state.connections.clear();
    }
}

impl State {
    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(task)
    }

    fn add(&mut self, id: ConnectionId, writer: WriteHalf) -> Arc<Notify> {
        let connection = Connection::new(writer);
        let drained = Arc::clone(&connection.drained);
        let index = id.0 as usize;
        if index >= self.connections.len() {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] = Some(connection);
        drained
    }

    /// Whether another request is likely to come at once. Not while a fence lasts: its end comes from other nodes, and ranks
    /// on nodes that share this machine need the core for it.
    fn expects_request(&self) -> bool {
        self.fences == 0 && self.last_request.elapsed() < AWAKE
    }

    fn connection(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(id.0 as usize)?.as_mut()
    }

    /// Whether `id` still names the connection that was made with `drained`, and no later one.
    fn is_current(&mut self, id: ConnectionId, drained: &Arc<Notify>) -> bool {
        self.connection(id).is_some_and(|connection| Arc::ptr_eq(&connection.drained, drained))
    }

    /// Lets a task end with its connection.
    fn end_with(&mut self, id: ConnectionId, task: AbortHandle) {
        if let Some(connection) = self.connection(id) {
            connection.tasks.retain(|task| !task.is_finished());
            connection.tasks.push(task);
        }
    }

    /// Closes a connection and forgets it.
    fn close(&mut self, id: ConnectionId) {
        let connection = self.connections.get_mut(id.0 as usize).and_then(Option::take);
        for task in connection.map(|connection| connection.tasks).unwrap_or_default() {
            task.abort();
        }
    }

    /// The other end was closed. A rank still gets the answers that it was given before.
    fn hang_up(&mut self, id: ConnectionId) {
        self.server.handle_disconnect(id);
        let is_rank = self.server.rank_of(id).is_some();
        match self.connection(id) {
            Some(connection) if is_rank && !connection.unsent.is_empty() => connection.hung_up = true,
            _ => self.close(id),
        }
    }
}

/// What became of an attempt to read.
enum Turn {
    /// Something was read and handled.
    Read,
    /// The same, and the rank does not read its answers.
    Pause,
    /// The connection is over.
    Over,
}

impl Shared {
    /// Reads from one connection until it ends.
    async fn converse(self: Arc<Self>, id: ConnectionId, mut reader: impl AsyncRead + Unpin, drained: &Arc<Notify>) {
        loop {
            match poll_fn(|context| self.poll_turn(id, drained, &mut reader, context)).await {
                Turn::Read => {}
                Turn::Pause => drained.notified().await,
                Turn::Over => return,
            }
        }
    }

    /// Lets other tasks run, again and again, until no request has come for a while.
    async fn stay_awake(self: Arc<Self>) {
        loop {
            self.requested.notified().await;
            while self.state.lock().expects_request() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Reads what is there and handles it, all under the lock.
    fn poll_turn(
        self: &Arc<Self>,
        id: ConnectionId,
        drained: &Arc<Notify>,
        reader: &mut (impl AsyncRead + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<Turn> {
        let mut state = self.state.lock();
        if !state.is_current(id, drained) {
            return Poll::Ready(Turn::Over);
        }
        let mut bytes = [0; READ_SIZE];
        let mut buffer = ReadBuf::new(&mut bytes);
        let Poll::Ready(result) = Pin::new(reader).poll_read(context, &mut buffer) else { return Poll::Pending };
        // An error says that the rank is gone, as the end of the stream does.
        if result.is_err() || buffer.filled().is_empty() {
            state.hang_up(id);
            return Poll::Ready(Turn::Over);
        }
        state.server.handle_bytes(id, buffer.filled());
        self.carry_out(&mut state);
        state.last_request = Instant::now();
        self.requested.notify_one();
        let unsent = state.connection(id).map_or(0, |connection| connection.unsent_bytes);
        Poll::Ready(if unsent > UNSENT_MAX { Turn::Pause } else { Turn::Read })
    }

    async fn accept_all(self: Arc<Self>, listener: TcpListener, claim_within: Duration) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => self.accept(stream, claim_within),
                // Out of descriptors or memory, or a client that left at once: none is a reason to stop listening.
                Err(_) => time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    fn accept(self: &Arc<Self>, stream: TcpStream, claim_within: Duration) {
        let mut state = self.state.lock();
        if state.unclaimed >= UNCLAIMED_MAX || stream.set_nodelay(true).is_err() {
            return;
        }
        state.unclaimed += 1;
        let (reader, writer) = stream.into_split();
        let id = state.server.accept();
        let drained = state.add(id, WriteHalf::Tcp(writer));
        let shared = Arc::clone(self);
        let connection = Arc::clone(&drained);
        let conversation = state.spawn(async move { shared.converse(id, reader, &connection).await });
        state.end_with(id, conversation);
        let shared = Arc::clone(self);
        state.spawn(async move {
            time::sleep(claim_within).await;
            let mut state = shared.state.lock();
            state.unclaimed -= 1;
            if state.is_current(id, &drained) && state.server.rank_of(id).is_none() {
                state.server.handle_disconnect(id);
                state.close(id);
            }
        });
    }

    /// Does everything that the server wants done.
    fn carry_out(self: &Arc<Self>, state: &mut State) {
        while let Some(action) = state.server.poll_action() {
            match action {
                Action::Send { connection, bytes } => self.send(state, connection, bytes),
                Action::Close { connection } => state.close(connection),
                Action::Fence { id, contribution } => {
                    let shared = Arc::clone(self);
                    state.fences += 1;
                    state.spawn(async move { shared.exchange(id, contribution).await });
                }
                Action::Call { ticket, rank, call } => {
                    let shared = Arc::clone(self);
                    state.spawn(async move { shared.ask(ticket, rank, call).await });
                }
                Action::End(reason) => {
                    if let Some(ended) = state.ended.take() {
                        // Nobody listens any more when the host is ending the job already.
                        let _ = ended.send(reason);
                    }
                }
                Action::Trace(trace) => {
                    if let Some(sink) = &mut state.trace {
                        sink(&trace);
                    }
                }
            }
        }
    }

    async fn exchange(self: Arc<Self>, id: FenceId, contribution: Contribution) {
        let result = self.fence.exchange(&id, contribution).await;
        let mut state = self.state.lock();
        state.fences -= 1;
        state.server.handle_fence(&id, result);
        self.carry_out(&mut state);
    }

    async fn ask(self: Arc<Self>, ticket: Ticket, rank: Rank, call: Call) {
        let answer = call.ask(&*self.services, rank).await;
        let mut state = self.state.lock();
        state.server.handle_answer(ticket, &answer);
        self.carry_out(&mut state);
    }

    /// Writes at once what the socket takes, and leaves the rest to a task.
    fn send(self: &Arc<Self>, state: &mut State, id: ConnectionId, mut bytes: Bytes) {
        let Some(connection) = state.connection(id) else { return };
        if connection.unsent.is_empty() {
            while !bytes.is_empty() {
                match connection.socket.try_write(&bytes) {
                    Ok(written) => bytes.advance(written),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // The rank is gone; its reading side notices as well.
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
        } else {
            connection.queue(bytes);
        }
    }

    /// Writes what is queued for a connection, as fast as its rank reads.
    async fn flush(self: Arc<Self>, id: ConnectionId, socket: &WriteHalf) {
        while socket.writable().await.is_ok() {
            let mut state = self.state.lock();
            let Some(connection) = state.connection(id) else { return };
            if !connection.write_queued() {
                connection.drained.notify_one();
                if connection.hung_up {
                    state.close(id);
                }
                return;
            }
        }
    }
}

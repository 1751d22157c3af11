//! Drives a [`Server`] behind a listener on the loopback address. The only part of this crate that does I/O.
//!
//! ```text
//!  listener ──accept──> owner's uid? ──> task of the connection ──┐                   ┌─> write at once; what the socket does not
//!  fence, host service, time ──> task of its own ─────────────────┼─> lock: handle_*, │   take is written by the connection's task
//!  host (exits, queries) ──> method call ─────────────────────────┘   every Action ───┴─> start a fence or call; report the end
//! ```
//!
//! The lock is a plain mutex, held while one input is handled and its answers are written to nonblocking sockets; nobody waits for
//! anything while holding it.

mod connection;
mod owner;

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, net};

use bytes::Bytes;
use parking_lot::Mutex;
use pmi_core::driver::TraceSink;
use pmi_core::fence::{Contribution, Fence, FenceId};
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::server::{ConnectionId, EndReason, Progress, Standing};
use pmi_core::services::Services;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time;

use self::connection::{Connection, Flow};
use self::owner::owner_of;
use crate::clean_up::CleanUp;
use crate::namespace::{JobIndex, Namespace, Seat};
use crate::server::{Action, Server, Ticket};
use crate::services::{Call, Peers};

/// A client must say within this time which rank it is.
const CLAIM_WITHIN: Duration = Duration::from_secs(30);

/// The most connections that have not said which rank they are.
const UNCLAIMED_MAX: usize = 1024;

/// Requests are shorter than this, as a rule; a longer one takes several reads.
const READ_SIZE: usize = 8192;

/// Takes what ranks say through their server, for a stream of theirs.
pub type SaySink = Box<dyn FnMut(Said) + Send>;

/// Text that a rank says through its server, such as Open MPI's help messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Whose job.
    pub job: JobIndex,
    /// Which rank.
    pub rank: Rank,
    /// For its standard error; else for its standard output.
    pub on_stderr: bool,
    /// The text.
    pub text: Bytes,
}

/// Where things go that are no answer to anybody.
pub struct Sinks {
    /// What ranks say.
    pub say: SaySink,
    /// Every message of a traced server.
    pub trace: Option<TraceSink>,
}

/// A running [`Server`]. Its conversations end when it is dropped.
pub struct Driver {
    shared: Arc<Shared>,
    address: SocketAddr,
}

struct Shared {
    state: Mutex<State>,
    /// Only processes of this user are served.
    uid: u32,
    peers: Arc<dyn Peers>,
}

struct State {
    server: Server,
    /// Of the launch's own jobs.
    hosts: HashMap<JobIndex, Host>,
    /// By connection id.
    connections: Vec<Option<Connection>>,
    unclaimed: usize,
    tasks: JoinSet<()>,
    ended: Option<oneshot::Sender<(JobIndex, EndReason)>>,
    sinks: Sinks,
    /// Where the answers to other nodes' questions go.
    replies: HashMap<Ticket, oneshot::Sender<Bytes>>,
}

/// What a job can reach beyond its server.
#[derive(Clone)]
struct Host {
    fence: Arc<dyn Fence>,
    services: Arc<dyn Services>,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Driver {
    /// Runs `server` for processes of the user `uid`; `peers` are the same launch's servers on other nodes. The receiver tells,
    /// once, why the launch must end, if it must, and which job ends it. Needs a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// Fails when no port of the loopback address can be listened on.
    pub fn new(
        server: Server,
        uid: u32,
        peers: Arc<dyn Peers>,
        sinks: Sinks,
    ) -> io::Result<(Self, oneshot::Receiver<(JobIndex, EndReason)>)> {
        let listener = net::TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let listener = TcpListener::from_std(listener)?;
        let (ended, end) = oneshot::channel();
        let state = State {
            server,
            hosts: HashMap::new(),
            connections: Vec::new(),
            unclaimed: 0,
            tasks: JoinSet::new(),
            ended: Some(ended),
            sinks,
            replies: HashMap::new(),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), uid, peers });
        let accepting = Arc::clone(&shared);
        shared.state.lock().spawn(async move { accepting.accept_all(listener).await });
        Ok((Self { shared, address }, end))
    }

    /// Where ranks find the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves one more job.
    pub fn add(&self, namespace: Namespace, fence: Arc<dyn Fence>, services: Arc<dyn Services>) -> JobIndex {
        let mut state = self.shared.state.lock();
        let job = state.server.add(namespace);
        state.hosts.insert(job, Host { fence, services });
        self.shared.carry_out(&mut state);
        job
    }

    /// Takes a question that this launch's server of another node sent through its [`Peers`]. The answer comes when it is known, and
    /// not at all when the driver is dropped before.
    pub fn question(&self, question: &Bytes) -> oneshot::Receiver<Bytes> {
        let (reply, answer) = oneshot::channel();
        let mut state = self.shared.state.lock();
        let ticket = state.server.handle_question(question);
        state.replies.insert(ticket, reply);
        self.shared.carry_out(&mut state);
        answer
    }

    /// Handles at once what the rank has sent so far. A host calls it when the rank's process has ended, so that the rank's last
    /// words count before its end does.
    pub fn drain(&self, seat: Seat) {
        let mut state = self.shared.state.lock();
        let Some(id) = state.server.connection_of(seat) else { return };
        let Some(Ok(mut unread)) = state.connection(id).map(Connection::unread) else { return };
        let mut buffer = [0; READ_SIZE];
        // The task of the connection sees the end of the stream as well, and takes care of it.
        while let Ok(length @ 1..) = unread.read(&mut buffer) {
            state.server.handle_bytes(id, &buffer[..length]);
            self.shared.carry_out(&mut state);
        }
    }

    /// The rank's process returned status 0.
    pub fn rank_exited(&self, seat: Seat) {
        let mut state = self.shared.state.lock();
        state.server.handle_exit(seat);
        self.shared.carry_out(&mut state);
    }

    /// What a rank wants removed now that it has ended; told once.
    pub fn take_clean_up(&self, seat: Seat) -> Vec<CleanUp> {
        self.shared.state.lock().server.take_clean_up(seat)
    }

    /// How far a rank's dialogue has come.
    pub fn progress(&self, seat: Seat) -> Option<Progress> {
        self.shared.state.lock().server.progress(seat)
    }

    /// The collectives in which ranks of a job wait on this node.
    pub fn standings(&self, job: JobIndex) -> Vec<Standing> {
        self.shared.state.lock().server.standings(job)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        // The tasks hold the state that holds the tasks.
        state.tasks = JoinSet::new();
        state.connections.clear();
        state.replies.clear();
    }
}

impl State {
    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(task);
    }

    fn connection(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(id.0 as usize)?.as_mut()
    }

    /// The connection `id` if it still is the one over this stream, and no later one.
    fn current(&mut self, id: ConnectionId, stream: &Arc<TcpStream>) -> Option<&mut Connection> {
        self.connection(id).filter(|connection| connection.is_over(stream))
    }

    fn add(&mut self, id: ConnectionId, connection: Connection) {
        let index = id.0 as usize;
        if index >= self.connections.len() {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] = Some(connection);
    }

    /// Closes a connection and forgets it; its task notices.
    fn close(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(id.0 as usize).and_then(Option::take) {
            connection.wake();
        }
    }

    fn hang_up(&mut self, id: ConnectionId) {
        self.server.handle_disconnect(id);
        self.close(id);
    }
}

impl Shared {
    async fn accept_all(self: Arc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.accept(stream, peer),
                // Out of descriptors or memory, or a client that left at once: none is a reason to stop listening.
                Err(_) => time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    fn accept(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) {
        match owner_of(peer) {
            Some(uid) if uid == self.uid => {}
            Some(uid) => return tracing::warn!("refused a process of user {uid} at the PMIx port"),
            // It is gone again.
            None => return,
        }
        let mut state = self.state.lock();
        if state.unclaimed >= UNCLAIMED_MAX || stream.set_nodelay(true).is_err() {
            return;
        }
        state.unclaimed += 1;
        let stream = Arc::new(stream);
        let id = state.server.accept();
        state.add(id, Connection::new(Arc::clone(&stream)));
        let (shared, conversing) = (Arc::clone(self), Arc::clone(&stream));
        state.spawn(async move { shared.converse(id, &conversing).await });
        let shared = Arc::clone(self);
        // It must not keep a connection open that was closed before.
        let stream = Arc::downgrade(&stream);
        state.spawn(async move {
            time::sleep(CLAIM_WITHIN).await;
            let mut state = shared.state.lock();
            state.unclaimed -= 1;
            let lasts = stream.upgrade().is_some_and(|stream| state.current(id, &stream).is_some());
            if lasts && state.server.seat_of(id).is_none() {
                state.hang_up(id);
            }
        });
    }

    /// Reads from one connection and writes what is left to be written to it, until it ends.
    async fn converse(self: Arc<Self>, id: ConnectionId, stream: &Arc<TcpStream>) {
        loop {
            let flow = match self.state.lock().current(id, stream) {
                Some(connection) => connection.flow(),
                None => return,
            };
            let Flow { interest, woken } = flow;
            tokio::select! {
                ready = stream.ready(interest) => {
                    let Ok(ready) = ready else { return self.state.lock().hang_up(id) };
                    if !self.turn(id, stream, ready.is_readable() || ready.is_read_closed()) {
                        return;
                    }
                }
                () = woken.notified() => {}
            }
        }
    }

    /// Writes and reads what there is, all under the lock; false when the connection is over.
    fn turn(self: &Arc<Self>, id: ConnectionId, stream: &Arc<TcpStream>, readable: bool) -> bool {
        let mut state = self.state.lock();
        let Some(connection) = state.current(id, stream) else { return false };
        connection.write_unsent();
        if !readable || !connection.may_be_read() {
            return true;
        }
        let mut buffer = [0; READ_SIZE];
        match stream.try_read(&mut buffer) {
            Ok(length @ 1..) => {
                state.server.handle_bytes(id, &buffer[..length]);
                self.carry_out(&mut state);
                true
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
            // An error says that the rank is gone, as the end of the stream does.
            Ok(0) | Err(_) => {
                state.hang_up(id);
                self.carry_out(&mut state);
                false
            }
        }
    }

    /// Does everything that the server wants done.
    fn carry_out(self: &Arc<Self>, state: &mut State) {
        while let Some(action) = state.server.poll_action() {
            match action {
                Action::Send { connection, bytes } => {
                    if state.connection(connection).is_some_and(|connection| !connection.send(bytes)) {
                        tracing::warn!("closed the PMIx connection of a rank that does not read");
                        state.hang_up(connection);
                    }
                }
                Action::Close { connection } => state.close(connection),
                Action::Fence { job, id, contribution } => {
                    let (shared, host) = (Arc::clone(self), state.hosts[&job].clone());
                    state.spawn(async move { shared.exchange(&*host.fence, job, id, contribution).await });
                }
                Action::Call { ticket, job, rank, call } => {
                    let (shared, host) = (Arc::clone(self), state.hosts[&job].clone());
                    state.spawn(async move { shared.ask(&*host.services, ticket, rank, call).await });
                }
                Action::Ask { ticket, node, question } => {
                    let shared = Arc::clone(self);
                    state.spawn(async move { shared.ask_peer(ticket, node, question).await });
                }
                Action::Reply { ticket, answer } => {
                    if let Some(reply) = state.replies.remove(&ticket) {
                        // The one who asked may be gone.
                        let _ = reply.send(answer);
                    }
                }
                Action::Wake { ticket, after } => {
                    let shared = Arc::clone(self);
                    state.spawn(async move {
                        time::sleep(after).await;
                        let mut state = shared.state.lock();
                        state.server.handle_time(ticket);
                        shared.carry_out(&mut state);
                    });
                }
                Action::Say { job, rank, on_stderr, text } => {
                    (state.sinks.say)(Said { job, rank, on_stderr, text });
                }
                Action::End { job, reason } => {
                    if let Some(ended) = state.ended.take() {
                        // Nobody listens any more when the host is ending the launch already.
                        let _ = ended.send((job, reason));
                    }
                }
                Action::Trace(trace) => {
                    if let Some(sink) = &mut state.sinks.trace {
                        sink(&trace);
                    }
                }
            }
        }
    }

    async fn exchange(self: Arc<Self>, fence: &dyn Fence, job: JobIndex, id: FenceId, contribution: Contribution) {
        let result = fence.exchange(&id, contribution).await;
        let mut state = self.state.lock();
        state.server.handle_fence(job, &id, result);
        self.carry_out(&mut state);
    }

    async fn ask_peer(self: Arc<Self>, ticket: Ticket, node: NodeIndex, question: Bytes) {
        let answer = self.peers.ask(node, question).await;
        let mut state = self.state.lock();
        state.server.handle_peer_answer(ticket, answer.as_ref());
        self.carry_out(&mut state);
    }

    async fn ask(self: Arc<Self>, services: &dyn Services, ticket: Ticket, rank: Rank, call: Call) {
        let answer = call.ask(services, rank).await;
        let mut state = self.state.lock();
        state.server.handle_answer(ticket, &answer);
        self.carry_out(&mut state);
    }
}

//! Drives a [`Server`] over the sockets of its ranks with tokio, on a [`Runner`].

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::{io, net};

use tokio::sync::oneshot;

use crate::connections::ConnectionId;
use crate::fence::{Fence, FenceError, FenceId, Merged};
use crate::ids::LocalRank;
use crate::report::{EndReason, FenceStatus, Progress, Trace};
pub use crate::runner::Admission;
use crate::runner::{Announcement, Effect, Protocol, Runner};
use crate::server::{Action, Server, Ticket};
use crate::services::{Answer, Services};

/// Takes every message of a traced server, in order.
pub type TraceSink = Box<dyn FnMut(&Trace) + Send>;

/// A running [`Server`]. Its conversations end when it is dropped.
pub struct Driver {
    runner: Runner<Pmi>,
}

/// A server with what its host gives it.
struct Pmi {
    server: Server,
    fence: Arc<dyn Fence>,
    services: Arc<dyn Services>,
    /// Fences that wait for other nodes.
    fences: usize,
    ended: Announcement<EndReason>,
    trace: Option<TraceSink>,
}

/// Something that the server asked for is over.
enum Event {
    Fence(FenceId, Result<Merged, FenceError>),
    Answer(Ticket, Answer),
}

impl Driver {
    /// Runs `server`. The receiver gets, once, the reason why the job must end, if it must. Needs a tokio runtime with I/O, of any
    /// flavour.
    pub fn new(
        server: Server,
        fence: Arc<dyn Fence>,
        services: Arc<dyn Services>,
        trace: Option<TraceSink>,
    ) -> (Self, oneshot::Receiver<EndReason>) {
        let (ended, end) = Announcement::new();
        let pmi = Pmi { server, fence, services, fences: 0, ended, trace };
        (Self { runner: Runner::new(pmi) }, end)
    }

    /// Begins the conversation with a rank over the server's end of its socket pair.
    ///
    /// # Errors
    /// Fails when the runtime cannot watch the socket.
    ///
    /// # Panics
    /// If the server's node has no such rank.
    pub fn connect(&self, local: LocalRank, socket: UnixStream) -> io::Result<()> {
        self.runner.connect(socket, |pmi| pmi.server.connect(local))
    }

    /// Also serves ranks that come through `PMI_PORT`. See [`Admission`] for who is let in. Needs the runtime's time.
    ///
    /// # Errors
    /// Fails when the runtime cannot watch the listener.
    pub fn listen(&self, listener: net::TcpListener, admission: Admission) -> io::Result<()> {
        self.runner.listen(listener, admission)
    }

    /// Keeps the runtime awake for a moment after each request. See [`Runner::stay_awake`].
    pub fn stay_awake(&self) {
        self.runner.stay_awake();
    }

    /// Handles at once what the rank has sent so far. See [`Runner::drain`].
    pub fn drain(&self, local: LocalRank) {
        self.runner.drain(|pmi| pmi.server.connection_of(local));
    }

    /// The rank's process returned status 0.
    pub fn rank_exited(&self, local: LocalRank) {
        self.runner.with(|pmi| pmi.server.handle_exit(local));
    }

    /// State of a rank's dialogue; `None` if the node has no such rank.
    pub fn progress(&self, local: LocalRank) -> Option<Progress> {
        self.runner.with(|pmi| pmi.server.progress(local))
    }

    /// The fences in which ranks of this node wait.
    pub fn pending_fences(&self) -> Vec<FenceStatus> {
        self.runner.with(|pmi| pmi.server.pending_fences())
    }
}

impl Protocol for Pmi {
    type Event = Event;
    /// A PMI server has no limits of time.
    type Timer = std::convert::Infallible;

    fn accept(&mut self) -> ConnectionId {
        self.server.accept()
    }

    fn is_claimed(&self, connection: ConnectionId) -> bool {
        self.server.rank_of(connection).is_some()
    }

    fn handle_bytes(&mut self, connection: ConnectionId, bytes: &[u8]) {
        self.server.handle_bytes(connection, bytes);
    }

    fn handle_disconnect(&mut self, connection: ConnectionId) {
        self.server.handle_disconnect(connection);
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Fence(id, result) => {
                self.fences -= 1;
                self.server.handle_fence(&id, result);
            }
            Event::Answer(ticket, answer) => self.server.handle_answer(ticket, &answer),
        }
    }

    fn handle_timer(&mut self, timer: Self::Timer) {
        match timer {}
    }

    fn poll_effect(&mut self) -> Option<Effect<Self>> {
        loop {
            match self.server.poll_action()? {
                Action::Send { connection, bytes } => return Some(Effect::Send { connection, bytes }),
                Action::Close { connection } => return Some(Effect::Close { connection }),
                Action::Fence { id, contribution } => {
                    self.fences += 1;
                    let fence = Arc::clone(&self.fence);
                    return Some(Effect::Run(Box::pin(async move {
                        let result = fence.exchange(&id, contribution).await;
                        Event::Fence(id, result)
                    })));
                }
                Action::Call { ticket, rank, call } => {
                    let services = Arc::clone(&self.services);
                    return Some(Effect::Run(Box::pin(async move {
                        Event::Answer(ticket, call.ask(&*services, rank).await)
                    })));
                }
                Action::End(reason) => self.ended.make(reason),
                Action::Trace(trace) => {
                    if let Some(sink) = &mut self.trace {
                        sink(&trace);
                    }
                }
            }
        }
    }

    /// The end of a fence comes from other nodes, and ranks on nodes that share this machine need the core for it.
    fn expects_requests(&self) -> bool {
        self.fences == 0
    }
}

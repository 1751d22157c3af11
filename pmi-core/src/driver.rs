//! Runs a [`Server`] over the sockets of its ranks with tokio, on a [`Runner`].

use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::{io, mem, net};

use tokio::sync::oneshot;

use crate::connections::ConnectionId;
use crate::deaths::{Death, DeathKind};
use crate::fence::{Fence, FenceError, FenceId, Merged, Scope};
use crate::ids::LocalRank;
use crate::report::{EndReason, FenceStatus, Progress, Trace};
pub use crate::runner::Admission;
use crate::runner::{Announcement, Effect, Protocol, Runner, begin_fence};
use crate::segment::Segment;
use crate::server::{Action, ReleaseTimer, Server, Ticket};
use crate::services::{Answer, Services};

/// Receives every message of a traced server, in order.
pub type TraceSink = Box<dyn FnMut(&Trace) + Send>;

/// Receives each dead rank of a node once, if the other ranks continue.
pub type DeathSink = Box<dyn FnMut(Death) + Send>;

/// Receives the number of restarts after each restart of all ranks, before the ranks are notified. The host can then remove the files
/// that earlier programs left on this node. The call must be quick, because all ranks wait for it.
pub type RestartSink = Box<dyn FnMut(u32) + Send>;

/// Publishes the pairs of fences to the ranks of a node, in memory that the ranks read. The server still answers gets.
pub trait Publisher: Send {
    /// Returns true after a rank requests to read there. Called when a fence of the whole job is complete, until it returns true.
    fn is_wanted(&self) -> bool;

    /// Reserves room for `keys` keys in all. Returns false without room; publishing then stops.
    fn reserve(&mut self, keys: usize) -> bool;

    /// Publishes a pair, which replaces an older pair of its key. Returns false on failure; publishing then stops.
    fn publish(&mut self, key: &[u8], value: &[u8]) -> bool;

    /// Reports that the pairs of `fences` fences are published. The ranks now leave the last of these fences.
    fn complete(&mut self, fences: u64);
}

/// A running [`Server`]. Its conversations end when it is dropped.
pub struct Driver {
    runner: Runner<Pmi>,
}

/// A server and the callbacks of its host.
struct Pmi {
    server: Server,
    fence: Arc<dyn Fence>,
    services: Arc<dyn Services>,
    /// Fences that wait for other nodes.
    fences: Vec<FenceId>,
    ended: Announcement<EndReason>,
    trace: Option<TraceSink>,
    deaths: Option<DeathSink>,
    restarts: Option<RestartSink>,
    publishing: Publishing,
}

/// Progress of a [`Publisher`].
enum Publishing {
    /// No publisher exists, or it has failed.
    Off,
    /// No rank has requested to read.
    Unwanted(Box<dyn Publisher>),
    On(Box<dyn Publisher>),
}

/// Completion of an operation of the server.
enum Event {
    Fence(FenceId, Result<Merged, FenceError>),
    Answer(Ticket, Answer),
    /// The host has received a report.
    Told,
}

impl Driver {
    /// Runs `server`. If the job must end, the receiver gets the reason once. Needs a tokio runtime with I/O and time, of any flavour.
    pub fn new(
        mut server: Server,
        fence: Arc<dyn Fence>,
        services: Arc<dyn Services>,
        trace: Option<TraceSink>,
    ) -> (Self, oneshot::Receiver<EndReason>) {
        if !services.has_names() {
            server.offer_no_names();
        }
        let (ended, end) = Announcement::new();
        let (deaths, restarts, publishing) = (None, None, Publishing::Off);
        let pmi = Pmi { server, fence, services, fences: Vec::new(), ended, trace, deaths, restarts, publishing };
        (Self { runner: Runner::new(pmi) }, end)
    }

    /// Publishes the results of fences through `publisher`, from the first complete fence after a rank has requested them.
    pub fn publish_to(&self, publisher: Box<dyn Publisher>) {
        self.runner.with(|pmi| pmi.publishing = Publishing::Unwanted(publisher));
    }

    /// Starts the conversation with a rank over the server's end of its socket pair.
    ///
    /// # Errors
    /// Fails when the runtime cannot watch the socket, and as [`Server::connect`].
    pub fn connect(&self, local: LocalRank, socket: UnixStream) -> io::Result<()> {
        let refused = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        self.runner.connect(socket, |pmi| pmi.server.connect(local).map_err(refused))
    }

    /// Also serves ranks that connect through `PMI_PORT`. [`Admission`] defines which clients are admitted.
    ///
    /// # Errors
    /// Fails when the runtime cannot watch the listener.
    pub fn listen(&self, listener: net::TcpListener, admission: Admission) -> io::Result<()> {
        self.runner.listen(listener, admission)
    }

    /// Also serves ranks that connect through a socket in the file system.
    ///
    /// # Errors
    /// Fails when the runtime cannot watch the listener.
    pub fn listen_at_file(&self, listener: UnixListener, admission: Admission) -> io::Result<()> {
        self.runner.listen_at_file(listener, admission)
    }

    /// Keeps the runtime awake for a moment after each request. See [`Runner::stay_awake`].
    pub fn stay_awake(&self) {
        self.runner.stay_awake();
    }

    /// Handles all messages that the rank has sent so far. See [`Runner::drain`].
    pub fn drain(&self, local: LocalRank) {
        self.runner.drain(|pmi| pmi.server.connection_of(local));
    }

    /// Reports that the rank's process returned status 0.
    pub fn rank_exited(&self, local: LocalRank) {
        self.runner.with(|pmi| pmi.server.handle_exit(local));
    }

    /// Reports that the rank's process failed, and that the other ranks continue if they can.
    pub fn rank_failed(&self, local: LocalRank, kind: DeathKind) {
        self.runner.with(|pmi| pmi.server.handle_borne_failure(local, kind));
    }

    /// Reports that ranks of other nodes have died, and that the other ranks continue.
    pub fn ranks_died(&self, deaths: &[Death]) {
        self.runner.with(|pmi| pmi.server.handle_deaths(deaths));
    }

    /// Sets the sink for dead ranks of this node, where the other ranks continue.
    pub fn tell_deaths_to(&self, sink: DeathSink) {
        self.runner.with(|pmi| pmi.deaths = Some(sink));
    }

    /// Sets the sink for restarts of all ranks.
    pub fn tell_restarts_to(&self, sink: RestartSink) {
        self.runner.with(|pmi| pmi.restarts = Some(sink));
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

impl Drop for Pmi {
    /// Gives up incomplete fences, because other nodes wait for them.
    fn drop(&mut self) {
        self.fences.iter().for_each(|id| self.fence.give_up(id));
    }
}

impl Pmi {
    /// Publishes all current pairs if a rank has requested them. The pairs of the fence follow.
    fn begin_publishing(&mut self, fence: &FenceId) {
        if !matches!((&self.publishing, &fence.scope), (Publishing::Unwanted(_), Scope::World)) {
            return;
        }
        self.publishing = match mem::replace(&mut self.publishing, Publishing::Off) {
            Publishing::Unwanted(mut publisher) if publisher.is_wanted() => {
                let mut pairs = self.server.pairs();
                let all_shown =
                    publisher.reserve(pairs.len()) && pairs.all(|(key, value)| publisher.publish(key, value));
                if all_shown { Publishing::On(publisher) } else { Publishing::Off }
            }
            unchanged => unchanged,
        };
        if matches!(self.publishing, Publishing::On(_)) {
            self.server.report_merged();
        }
    }

    fn publish(&mut self, fences: u64, brought: &[Segment]) {
        let Publishing::On(publisher) = &mut self.publishing else { return };
        let keys = || brought.iter().flat_map(Segment::pairs).map(|(key, _)| key);
        let shown = |publisher: &mut dyn Publisher, key| {
            self.server.value(key).is_none_or(|value| publisher.publish(key, value))
        };
        if publisher.reserve(self.server.pairs().len()) && keys().all(|key| shown(&mut **publisher, key)) {
            publisher.complete(fences);
        } else {
            self.publishing = Publishing::Off;
        }
    }
}

impl Protocol for Pmi {
    type Event = Event;
    type Timer = ReleaseTimer;

    fn accept(&mut self) -> ConnectionId {
        self.server.accept()
    }

    fn is_claimed(&self, connection: ConnectionId) -> bool {
        self.server.rank_of(connection).is_some()
    }

    fn push_bytes(&mut self, connection: ConnectionId, bytes: &[u8]) {
        self.server.push_bytes(connection, bytes);
    }

    fn handle_next(&mut self, connection: ConnectionId) -> bool {
        self.server.handle_next(connection)
    }

    fn handle_second_sender(&mut self, connection: ConnectionId, pid: u32) {
        self.server.handle_second_sender(connection, pid);
    }

    fn handle_disconnect(&mut self, connection: ConnectionId) {
        self.server.handle_disconnect(connection);
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Fence(id, result) => {
                self.fences.retain(|open| *open != id);
                self.begin_publishing(&id);
                self.server.handle_fence(&id, result);
            }
            Event::Answer(ticket, answer) => self.server.handle_answer(ticket, &answer),
            Event::Told => {}
        }
    }

    fn handle_panic(&mut self, text: &str) {
        self.ended.make(EndReason::Panicked { text: text.to_owned() });
    }

    fn handle_timer(&mut self, timer: ReleaseTimer) {
        self.server.handle_timer(timer);
    }

    fn poll_effect(&mut self) -> Option<Effect<Self>> {
        loop {
            match self.server.poll_action()? {
                Action::Send { connection, bytes } => return Some(Effect::Send { connection, bytes }),
                Action::Close { connection } => return Some(Effect::Close { connection }),
                Action::ReadOut { connection } => return Some(Effect::ReadOut { connection }),
                Action::AskForSender { connection } => return Some(Effect::AskForSender { connection }),
                Action::SecondProcess { rank, pid } => {
                    let services = Arc::clone(&self.services);
                    return Some(Effect::Run(Box::pin(async move {
                        services.second_process(rank, pid).await;
                        Event::Told
                    })));
                }
                Action::Fence { id, contribution } => {
                    self.fences.push(id.clone());
                    return Some(Effect::Begin(begin_fence(Arc::clone(&self.fence), id, contribution, Event::Fence)));
                }
                Action::Call { ticket, rank, call } => {
                    let services = Arc::clone(&self.services);
                    return Some(Effect::Run(Box::pin(async move {
                        Event::Answer(ticket, call.ask(&*services, rank).await)
                    })));
                }
                Action::SetTimer { timer, after } => return Some(Effect::SetTimer { timer, after }),
                Action::CancelTimer(timer) => return Some(Effect::CancelTimer(timer)),
                Action::Overdue { rank, resource, within } => {
                    let services = Arc::clone(&self.services);
                    return Some(Effect::Run(Box::pin(async move {
                        services.release_overdue(rank, resource, within).await;
                        Event::Told
                    })));
                }
                Action::Merged { fences, segments } => self.publish(fences, &segments),
                Action::Restarted { generation } => {
                    if let Some(sink) = &mut self.restarts {
                        sink(generation);
                    }
                }
                Action::Died(death) => {
                    if let Some(sink) = &mut self.deaths {
                        sink(death);
                    }
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

    /// The end of a fence comes from other nodes. Ranks of nodes that share this machine need the core for it.
    fn expects_requests(&self) -> bool {
        self.fences.is_empty()
    }
}

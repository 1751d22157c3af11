//! Runs a [`Server`] on a listener at the loopback address with tokio, on a [`Runner`].

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use pmi_core::connections::ConnectionId;
use pmi_core::deaths::{Death, DeathKind};
use pmi_core::driver::TraceSink;
use pmi_core::fence::{Fence, FenceError, FenceId, Merged};
use pmi_core::ids::Rank;
use pmi_core::report::{EndReason, FenceStatus, Progress};
use pmi_core::runner::{Admission, Announcement, Effect, Protocol, Runner, Task, begin_fence};
use pmi_core::services::Services;
use tokio::sync::{oneshot, watch};

use crate::clean_up::CleanUp;
use crate::namespace::{JobIndex, Namespace, Seat};
use crate::server::{Action, GroupFacts, Need, Server, Ticket};
use crate::services::{Answer, Peers};

/// Time limit for a client's claim of a rank.
const CLAIM_WITHIN: Duration = Duration::from_secs(30);

/// Receives text that ranks write through their server, for one of their streams. The host must acknowledge each text with
/// [`Driver::heard`].
pub type SaySink = Box<dyn FnMut(RankText) + Send>;

/// Receives dead ranks, each with its job.
pub type DeathSink = Box<dyn FnMut(JobIndex, Death) + Send>;

/// Receives files to remove at the end of a rank. The host can then have them removed even if it is killed itself.
pub type FileSink = Box<dyn FnMut(Vec<PathBuf>) + Send>;

/// Text that a rank writes through its server, such as Open MPI's help messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankText {
    /// Job of the rank.
    pub job: JobIndex,
    /// The rank.
    pub rank: Rank,
    /// True for the rank's standard error; else its standard output.
    pub on_stderr: bool,
    /// The text.
    pub text: Bytes,
}

/// Receivers of all output except answers to ranks.
pub struct Sinks {
    /// Receives text that ranks write through their server.
    pub say: SaySink,
    /// Receives each dead rank of this node once, if the other ranks continue.
    pub died: DeathSink,
    /// Receives files that ranks of this node have registered; [`Driver::take_clean_up`] returns them after the end of the rank.
    pub registered: FileSink,
    /// Receives every message of a traced server.
    pub trace: Option<TraceSink>,
}

impl Default for Sinks {
    /// Receivers that discard their input.
    fn default() -> Self {
        Self { say: Box::new(|_| {}), died: Box::new(|_, _| {}), registered: Box::new(|_| {}), trace: None }
    }
}

/// A running [`Server`]. Its conversations end when it is dropped.
pub struct Driver {
    runner: Runner<Pmix>,
    address: SocketAddr,
    needed: watch::Receiver<Need>,
    pulled: Arc<AtomicBool>,
}

/// A server and the callbacks of its host.
struct Pmix {
    server: Server,
    /// Hosts of the jobs of this launch.
    hosts: HashMap<JobIndex, Host>,
    peers: Arc<dyn Peers>,
    ended: Announcement<(JobIndex, EndReason)>,
    sinks: Sinks,
    /// Time for which servers of other nodes may ask this one.
    needed: watch::Sender<Need>,
    /// True while a client or node requests output of ranks.
    pulled: Arc<AtomicBool>,
    /// Receivers of the answers to other nodes' questions.
    replies: HashMap<Ticket, oneshot::Sender<Bytes>>,
}

/// A job's connection to other nodes and host services.
struct Host {
    fence: Arc<dyn Fence>,
    services: Arc<dyn Services>,
    /// Fences in progress.
    fences: Vec<FenceId>,
}

impl Drop for Host {
    /// Gives up incomplete fences, because other nodes wait for them.
    fn drop(&mut self) {
        self.fences.iter().for_each(|id| self.fence.give_up(id));
    }
}

/// Completion of an operation of the server.
enum Event {
    Fence(JobIndex, FenceId, Result<Merged, FenceError>),
    Answer(Ticket, Answer),
    PeerAnswer(Ticket, Option<Bytes>),
    /// A report has reached the host.
    Reported,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Driver {
    /// Runs `server` for processes of the user `uid`; `peers` are the same launch's servers on other nodes. If the launch must end, the
    /// receiver gets once the reason, and the job that causes it. Needs a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// Fails when no port of the loopback address is available.
    pub fn new(
        server: Server,
        uid: u32,
        peers: Arc<dyn Peers>,
        sinks: Sinks,
    ) -> io::Result<(Self, oneshot::Receiver<(JobIndex, EndReason)>)> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let (ended, end) = Announcement::new();
        let (hosts, replies) = (HashMap::new(), HashMap::new());
        let (tell, needed) = watch::channel(Need::Over);
        let pulled = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&pulled);
        let runner = Runner::new(Pmix { server, hosts, peers, ended, sinks, needed: tell, pulled: told, replies });
        runner.listen(listener, Admission { uid, claim_within: CLAIM_WITHIN })?;
        Ok((Self { runner, address, needed, pulled }, end))
    }

    /// Address of the server for ranks.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds a job.
    pub fn add(&self, namespace: Namespace, fence: Arc<dyn Fence>, services: Arc<dyn Services>) -> JobIndex {
        self.runner.with(|pmix| {
            let job = pmix.server.add(namespace);
            pmix.hosts.insert(job, Host { fence, services, fences: Vec::new() });
            job
        })
    }

    /// Ends the service of a job. See [`Server::remove`].
    pub fn remove(&self, job: JobIndex) {
        self.runner.with(|pmix| {
            pmix.server.remove(job);
            pmix.hosts.remove(&job);
        });
    }

    /// Sets the number of the launch. See [`Server::number_launch`].
    pub fn number_launch(&self, number: u32) {
        self.runner.with(|pmix| pmix.server.number_launch(number));
    }

    /// Handles a question that this launch's server on another node sent through its [`Peers`]. The receiver gets the answer when it is
    /// known, or no answer when the driver is dropped first.
    pub fn question(&self, question: &Bytes) -> oneshot::Receiver<Bytes> {
        let (reply, answer) = oneshot::channel();
        self.runner.with(|pmix| {
            let ticket = pmix.server.handle_question(question);
            pmix.replies.insert(ticket, reply);
        });
        answer
    }

    /// Handles at once the messages that the rank has sent so far. See [`Runner::drain`].
    pub fn drain(&self, seat: Seat) {
        self.runner.drain(|pmix| pmix.server.connection_of(seat));
    }

    /// Reports that the rank's process returned status 0.
    pub fn rank_exited(&self, seat: Seat) {
        self.runner.with(|pmix| pmix.server.handle_exit(seat));
    }

    /// Reports that the rank's process ended in a way that the host handles itself.
    pub fn rank_died(&self, seat: Seat) {
        self.runner.with(|pmix| pmix.server.handle_death(seat));
    }

    /// Reports that the rank's process failed, and that the other ranks continue if they can.
    pub fn rank_failed(&self, seat: Seat, kind: DeathKind) {
        self.runner.with(|pmix| pmix.server.handle_borne_failure(seat, kind));
    }

    /// Reports output of a rank to one of its streams (see [`channel`](crate::wire::forwarding::channel)); no bytes mean the end of the
    /// stream. Never waits, and costs nothing while the output is not requested.
    pub fn rank_wrote(&self, seat: Seat, channel: u16, bytes: &[u8]) {
        if self.pulled.load(Ordering::Relaxed) {
            self.runner.with(|pmix| pmix.server.handle_output(seat, channel, bytes));
        }
    }

    /// Reports that the host has forwarded `bytes` bytes of text from the [`SaySink`]. Until then they count against the limit on texts
    /// ([`Settings::texts_max`](crate::server::Settings::texts_max)).
    pub fn heard(&self, bytes: usize) {
        self.runner.with(|pmix| pmix.server.handle_heard(bytes));
    }

    /// Returns true while output waits for a client that has requested it.
    pub fn is_forwarding(&self) -> bool {
        self.pulled.load(Ordering::Relaxed) && self.runner.with(|pmix| pmix.server.is_forwarding())
    }

    /// Returns true while servers of other nodes request output of ranks here.
    pub fn is_asked_for_output(&self) -> bool {
        self.pulled.load(Ordering::Relaxed) && self.runner.with(|pmix| pmix.server.is_asked_for_output())
    }

    /// Reports that ranks here write no further output. See [`Server::end_output`].
    pub fn end_output(&self) {
        self.runner.with(|pmix| pmix.server.end_output());
    }

    /// Reports that ranks of a job on other nodes have died, and that the other ranks continue.
    pub fn ranks_died(&self, job: JobIndex, deaths: &[Death]) {
        self.runner.with(|pmix| pmix.server.handle_deaths(job, deaths));
    }

    /// Returns how long servers of other nodes may request data that ranks of this node have committed. The driver must be kept for that
    /// time after its last rank has ended, unless the launch ends abnormally.
    pub fn needed(&self) -> watch::Receiver<Need> {
        self.needed.clone()
    }

    /// Returns the files to remove after the end of a rank; only once.
    pub fn take_clean_up(&self, seat: Seat) -> Vec<CleanUp> {
        self.runner.with(|pmix| pmix.server.take_clean_up(seat))
    }

    /// State of a rank's dialogue; `None` if there is no such rank.
    pub fn progress(&self, seat: Seat) -> Option<Progress> {
        self.runner.with(|pmix| pmix.server.progress(seat))
    }

    /// Returns true if a tool has connected with the name of this rank: the rank itself, or a process that it started.
    pub fn has_tool(&self, seat: Seat) -> bool {
        self.runner.with(|pmix| pmix.server.has_tool(seat))
    }

    /// The groups that ranks of this node have created. See [`Server::groups`].
    pub fn groups(&self) -> Vec<GroupFacts> {
        self.runner.with(|pmix| pmix.server.groups())
    }

    /// The collectives in which ranks of a job wait on this node.
    pub fn pending_fences(&self, job: JobIndex) -> Vec<FenceStatus> {
        self.runner.with(|pmix| pmix.server.pending_fences(job))
    }
}

impl Protocol for Pmix {
    type Event = Event;
    type Timer = Ticket;

    fn accept(&mut self) -> ConnectionId {
        self.server.accept()
    }

    fn is_claimed(&self, connection: ConnectionId) -> bool {
        self.server.seat_of(connection).is_some()
    }

    fn push_bytes(&mut self, connection: ConnectionId, bytes: &[u8]) {
        self.server.push_bytes(connection, bytes);
    }

    fn handle_next(&mut self, connection: ConnectionId) -> bool {
        self.server.handle_next(connection)
    }

    fn handle_disconnect(&mut self, connection: ConnectionId) {
        self.server.handle_disconnect(connection);
    }

    fn handle_sent(&mut self, connection: ConnectionId) {
        self.server.handle_sent(connection);
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Fence(job, id, result) => {
                if let Some(host) = self.hosts.get_mut(&job) {
                    host.fences.retain(|open| *open != id);
                }
                self.server.handle_fence(job, &id, result);
            }
            Event::Answer(ticket, answer) => self.server.handle_answer(ticket, &answer),
            Event::PeerAnswer(ticket, answer) => self.server.handle_peer_answer(ticket, answer.as_ref()),
            Event::Reported => {}
        }
    }

    fn handle_panic(&mut self, text: &str) {
        // A panic ends all jobs of the launch.
        self.ended.make((JobIndex(0), EndReason::Panicked { text: text.to_owned() }));
    }

    fn handle_timer(&mut self, timer: Ticket) {
        self.server.handle_timer(timer);
    }

    fn poll_effect(&mut self) -> Option<Effect<Self>> {
        loop {
            let action = self.server.poll_action()?;
            if let Some(effect) = self.effect_of(action) {
                return Some(effect);
            }
        }
    }
}

impl Pmix {
    /// Returns the effect of an action for the runner, or carries out an action that takes no time.
    fn effect_of(&mut self, action: Action) -> Option<Effect<Self>> {
        match action {
            Action::Send { connection, bytes } => return Some(Effect::Send { connection, bytes }),
            Action::SendAndTell { connection, bytes } => return Some(Effect::SendAndTell { connection, bytes }),
            Action::Close { connection } => return Some(Effect::Close { connection }),
            Action::SetTimer { ticket, after } => return Some(Effect::SetTimer { timer: ticket, after }),
            Action::CancelTimer { ticket } => return Some(Effect::CancelTimer(ticket)),
            Action::Reply { ticket, answer } => {
                if let Some(reply) = self.replies.remove(&ticket) {
                    // The requester may be gone.
                    let _ = reply.send(answer);
                }
            }
            Action::Needed(needed) => drop(self.needed.send_replace(needed)),
            Action::Pulled(is_pulled) => self.pulled.store(is_pulled, Ordering::Relaxed),
            Action::Say { job, rank, on_stderr, text } => (self.sinks.say)(RankText { job, rank, on_stderr, text }),
            Action::Died { job, death } => (self.sinks.died)(job, death),
            Action::Registered { files } => (self.sinks.registered)(files),
            Action::End { job, reason } => self.ended.make((job, reason)),
            Action::Trace(trace) => {
                if let Some(sink) = &mut self.sinks.trace {
                    sink(&trace);
                }
            }
            Action::Fence { job, id, contribution } => {
                let host = self.hosts.get_mut(&job)?;
                host.fences.push(id.clone());
                let event = move |id, result| Event::Fence(job, id, result);
                return Some(Effect::Begin(begin_fence(Arc::clone(&host.fence), id, contribution, event)));
            }
            Action::Call { .. } | Action::Ask { .. } | Action::SecondProcess { .. } => {
                return self.task_of(action).map(Effect::Run);
            }
        }
        None
    }

    /// Returns the task of an action that takes time.
    fn task_of(&self, action: Action) -> Option<Task<Event>> {
        Some(match action {
            Action::Call { ticket, job, rank, call } => {
                let services = Arc::clone(&self.hosts.get(&job)?.services);
                Box::pin(async move { Event::Answer(ticket, call.ask(&*services, rank).await) })
            }
            Action::SecondProcess { job, rank } => {
                let services = Arc::clone(&self.hosts.get(&job)?.services);
                Box::pin(async move {
                    services.second_process(rank, None).await;
                    Event::Reported
                })
            }
            Action::Ask { ticket, node, question } => {
                let peers = Arc::clone(&self.peers);
                Box::pin(async move { Event::PeerAnswer(ticket, peers.ask(node, question).await) })
            }
            _ => return None,
        })
    }
}

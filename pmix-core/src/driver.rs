//! Drives a [`Server`] behind a listener on the loopback address with tokio, on a [`Runner`].

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

/// Time within which a client must say which rank it is.
const CLAIM_WITHIN: Duration = Duration::from_secs(30);

/// Takes text that ranks write through their server, for a stream of theirs. Each is to be acknowledged by [`Driver::heard`].
pub type SaySink = Box<dyn FnMut(Said) + Send>;

/// Takes ranks that have died, each with its job.
pub type DeathSink = Box<dyn FnMut(JobIndex, Death) + Send>;

/// Takes files that a rank wants removed when it ends, for a host that has them removed as well if it is killed itself.
pub type FileSink = Box<dyn FnMut(Vec<PathBuf>) + Send>;

/// Text that a rank writes through its server, such as Open MPI's help messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Job of the rank.
    pub job: JobIndex,
    /// The rank.
    pub rank: Rank,
    /// True for its standard error; else its standard output.
    pub on_stderr: bool,
    /// The text.
    pub text: Bytes,
}

/// Receivers of what is no answer to a rank.
pub struct Sinks {
    /// Text that ranks write through their server.
    pub say: SaySink,
    /// Ranks of this node that have died and that the others go on without, each once.
    pub died: DeathSink,
    /// Files that ranks of this node have registered; [`Driver::take_clean_up`] tells of them when the rank has ended.
    pub registered: FileSink,
    /// Every message of a traced server.
    pub trace: Option<TraceSink>,
}

impl Default for Sinks {
    /// Receivers that drop what they are given.
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

/// A server with what its host gives it.
struct Pmix {
    server: Server,
    /// By job of this launch.
    hosts: HashMap<JobIndex, Host>,
    peers: Arc<dyn Peers>,
    ended: Announcement<(JobIndex, EndReason)>,
    sinks: Sinks,
    /// True while servers of other nodes may ask this one.
    needed: watch::Sender<Need>,
    /// True while somebody wants output of ranks.
    pulled: Arc<AtomicBool>,
    /// Receivers of the answers to other nodes' questions.
    replies: HashMap<Ticket, oneshot::Sender<Bytes>>,
}

/// A job's way beyond its server.
struct Host {
    fence: Arc<dyn Fence>,
    services: Arc<dyn Services>,
    /// Fences that have not ended.
    fences: Vec<FenceId>,
}

impl Drop for Host {
    /// Other nodes wait for what this one does not complete.
    fn drop(&mut self) {
        self.fences.iter().for_each(|id| self.fence.give_up(id));
    }
}

/// Something that the server asked for is over.
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
    /// Runs `server` for processes of the user `uid`; `peers` are the same launch's servers on other nodes. The receiver gets, once,
    /// the reason why the launch must end, if it must, and the job that ends it. Needs a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// Fails when no port of the loopback address can be listened on.
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

    /// Address at which ranks find the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves one more job.
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

    /// Numbers the launch. See [`Server::number_launch`].
    pub fn number_launch(&self, number: u32) {
        self.runner.with(|pmix| pmix.server.number_launch(number));
    }

    /// Takes a question that this launch's server of another node sent through its [`Peers`]. The answer comes when it is known, and
    /// not at all when the driver is dropped before.
    pub fn question(&self, question: &Bytes) -> oneshot::Receiver<Bytes> {
        let (reply, answer) = oneshot::channel();
        self.runner.with(|pmix| {
            let ticket = pmix.server.handle_question(question);
            pmix.replies.insert(ticket, reply);
        });
        answer
    }

    /// Handles at once what the rank has sent so far. See [`Runner::drain`].
    pub fn drain(&self, seat: Seat) {
        self.runner.drain(|pmix| pmix.server.connection_of(seat));
    }

    /// The rank's process returned status 0.
    pub fn rank_exited(&self, seat: Seat) {
        self.runner.with(|pmix| pmix.server.handle_exit(seat));
    }

    /// The rank's process ended in a way that the host has judged by itself.
    pub fn rank_died(&self, seat: Seat) {
        self.runner.with(|pmix| pmix.server.handle_death(seat));
    }

    /// The rank's process failed, and the others go on if they can.
    pub fn rank_failed(&self, seat: Seat, kind: DeathKind) {
        self.runner.with(|pmix| pmix.server.handle_borne_failure(seat, kind));
    }

    /// A rank has written to one of its streams (see [`channel`](crate::wire::forwarding::channel)); nothing stands for the end of the stream.
    /// Waits for nobody, and costs nothing while nobody wants to have it.
    pub fn rank_wrote(&self, seat: Seat, channel: u16, bytes: &[u8]) {
        if self.pulled.load(Ordering::Relaxed) {
            self.runner.with(|pmix| pmix.server.handle_output(seat, channel, bytes));
        }
    }

    /// A text of so many bytes that the [`SaySink`] was given is passed on. Until then it counts for what ranks may write
    /// ([`Settings::texts_max`](crate::server::Settings::texts_max)).
    pub fn heard(&self, bytes: usize) {
        self.runner.with(|pmix| pmix.server.handle_heard(bytes));
    }

    /// True while output waits for a client that wants to have it.
    pub fn is_forwarding(&self) -> bool {
        self.pulled.load(Ordering::Relaxed) && self.runner.with(|pmix| pmix.server.is_forwarding())
    }

    /// True while servers of other nodes want output of ranks here.
    pub fn is_asked_for_output(&self) -> bool {
        self.pulled.load(Ordering::Relaxed) && self.runner.with(|pmix| pmix.server.is_asked_for_output())
    }

    /// Ranks here write nothing more. See [`Server::end_output`].
    pub fn end_output(&self) {
        self.runner.with(|pmix| pmix.server.end_output());
    }

    /// Ranks of a job on other nodes have died, and the others go on.
    pub fn ranks_died(&self, job: JobIndex, deaths: &[Death]) {
        self.runner.with(|pmix| pmix.server.handle_deaths(job, deaths));
    }

    /// Tells how long servers of other nodes may ask this one for data that its ranks have committed. As long as that, the driver is
    /// to be kept when its last rank has ended, unless the launch ends in disorder.
    pub fn needed(&self) -> watch::Receiver<Need> {
        self.needed.clone()
    }

    /// Files that a rank wants removed now that it has ended; returned once.
    pub fn take_clean_up(&self, seat: Seat) -> Vec<CleanUp> {
        self.runner.with(|pmix| pmix.server.take_clean_up(seat))
    }

    /// State of a rank's dialogue; `None` if there is no such rank.
    pub fn progress(&self, seat: Seat) -> Option<Progress> {
        self.runner.with(|pmix| pmix.server.progress(seat))
    }

    /// Returns true if a tool has come with the name of this rank: the rank itself, or a process that it has started.
    pub fn has_tool(&self, seat: Seat) -> bool {
        self.runner.with(|pmix| pmix.server.has_tool(seat))
    }

    /// The groups that ranks of this node have made. See [`Server::groups`].
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
        // All jobs of the launch end with it.
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
    /// Returns what the runner has to do for an action, or does it, where that takes no time.
    fn effect_of(&mut self, action: Action) -> Option<Effect<Self>> {
        match action {
            Action::Send { connection, bytes } => return Some(Effect::Send { connection, bytes }),
            Action::SendAndTell { connection, bytes } => return Some(Effect::SendAndTell { connection, bytes }),
            Action::Close { connection } => return Some(Effect::Close { connection }),
            Action::SetTimer { ticket, after } => return Some(Effect::SetTimer { timer: ticket, after }),
            Action::CancelTimer { ticket } => return Some(Effect::CancelTimer(ticket)),
            Action::Reply { ticket, answer } => {
                if let Some(reply) = self.replies.remove(&ticket) {
                    // The one who asked may be gone.
                    let _ = reply.send(answer);
                }
            }
            Action::Needed(needed) => drop(self.needed.send_replace(needed)),
            Action::Pulled(is_pulled) => self.pulled.store(is_pulled, Ordering::Relaxed),
            Action::Say { job, rank, on_stderr, text } => (self.sinks.say)(Said { job, rank, on_stderr, text }),
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

    /// The actions that take time.
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

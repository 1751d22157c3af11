//! The PMIx server of the jobs of one launch on one node, as a state machine without I/O, clock, lock or task.
//!
//! Input goes in through the `handle_*` methods; what is to be done comes out of [`Server::poll_action`], as in
//! [`pmi_core::server`], whose words for ends and progress are used here too. A launch begins with one job; each spawn adds
//! another ([`Server::add`]), and the ranks of all of them can meet in one collective.
//!
//! ```text
//!                 handshake                FINALIZE
//! Silent (rank) ─────────────> Open ─────────────────────> Finalized
//!                               ^                              │ handshake (MPI is initialized again)
//!                               └──────────────────────────────┘
//! ```

mod action;
mod allocations;
mod collectives;
mod commits;
mod contexts;
mod data;
mod deserters;
mod events;
mod forwarding;
mod greeting;
mod groups;
mod host;
mod inquiries;
mod jobs;
mod meetings;
mod members;
mod mortality;
mod names;
mod need;
mod node_processes;
mod pending;
mod queries;
mod question;
mod refresh;
mod remote;
mod remote_output;
mod requests;
mod tools;
mod withheld;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pmi_core::Phase;
use pmi_core::connections::{ConnectionId, Connections};
use pmi_core::fence::{Exchange, FenceError, FenceId, Merged};
use pmi_core::gathering::{Gathering, Groups};
use pmi_core::ids::{LocalRank, Rank};
use pmi_core::report::{EndReason, FenceStatus, Offence, Progress, Sender, Trace};
use pmi_core::roster::RankState;

pub use self::action::{Action, Need};
use self::collectives::Waiter;
use self::contexts::Contexts;
use self::data::{Wait, Wanted};
use self::forwarding::Forwards;
use self::groups::NamedGroups;
pub use self::groups::{GroupFacts, GroupMembers};
use self::host::Asked;
use self::inquiries::Inquiry;
use self::jobs::Jobs;
use self::pending::Pending;
use self::question::DataQuestion;
use self::remote::PeerQuestion;
use self::remote_output::RemoteOutput;
use self::withheld::Withheld;
use crate::clean_up::CleanUp;
use crate::namespace::{JobIndex, JobState, Namespace, Seat};
use crate::wire::Encoding;
use crate::wire::describe::describe;
use crate::wire::frame::{self, Frame, FrameBuffer};
use crate::wire::handshake::Version;

/// Settings of a [`Server`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of keys and values that are kept of one rank's commits and published names; each pair counts for 64 more.
    pub bytes_per_rank: usize,
    /// Unanswered questions that one rank may have (waiting reads, names, spawns).
    pub questions_per_rank: usize,
    /// Bytes of texts that ranks write through the server and that the host has not passed on yet; each text counts for 64 more. A rank
    /// that writes more is told that there is no room. Not below the longest message (16 MiB), or a text could be too long for ever.
    pub texts_max: usize,
    /// Time for which a get waits for a key that a rank has not committed, though it has committed others.
    pub key_timeout: Duration,
    /// Time for which a get waits for a rank that has not committed anything.
    pub rank_timeout: Duration,
    /// Way of the data of collecting fences: to all nodes at once, to those that ask for it, or as is cheaper.
    pub exchange: Exchange,
    /// Report every message as an [`Action::Trace`].
    pub trace: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            bytes_per_rank: 64 * 1024 * 1024,
            questions_per_rank: 1024,
            texts_max: 32 * 1024 * 1024,
            key_timeout: Duration::from_secs(2),
            rank_timeout: Duration::from_secs(120),
            exchange: Exchange::Auto,
            trace: false,
        }
    }
}

/// Names a question, or an [`Action::SetTimer`], until its answer comes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(u64);

/// The PMIx server of a launch's jobs on one node. See the [module](self) for how to drive it.
#[derive(Default)]
pub struct Server {
    settings: Settings,
    jobs: Jobs,
    clients: Connections<Client>,
    collectives: Groups<Seat, Waiter>,
    /// Gets that wait for a commit of a rank.
    waits: Pending<(JobIndex, Rank), Wait>,
    /// Questions to other nodes' servers that they have not answered yet.
    asking: HashMap<Ticket, PeerQuestion>,
    /// Fences that have ended here. An answer from before one may be older than the data of the fence.
    fences_ended: u64,
    /// Values asked for, without their tickets: nothing is asked for twice.
    wanted: HashSet<Wanted>,
    /// Questions of other nodes' servers that wait for a commit, by namespace and rank.
    parked: Pending<(Bytes, Rank), DataQuestion>,
    /// Collectives whose data stayed with the nodes.
    withheld: Withheld,
    /// True once a rank commits nothing more whose data no fence has taken to all nodes.
    holds_unspread: bool,
    /// The need that the host was told of.
    need: Need,
    /// Ranks with values that are withdrawn when their process has ended.
    publishers: HashSet<Seat>,
    /// Questions to the host that are not answered yet.
    asked: HashMap<Ticket, Asked>,
    /// Requests that wait for answers of several nodes.
    inquiries: HashMap<Ticket, Inquiry>,
    /// Jobs of tools, those included that wait for the next tool.
    tools: Vec<JobIndex>,
    /// Ranks whose names tools have had: the ranks themselves, or processes that they have started.
    named_tools: HashSet<Seat>,
    next_ticket: u64,
    contexts: Contexts,
    /// What context ids of groups begin with; `None` stands for a hash of the first namespace.
    launch_number: Option<u32>,
    groups: NamedGroups,
    /// Clients that pull output of ranks.
    pullers: BTreeSet<ConnectionId>,
    remote_output: RemoteOutput,
    /// Bytes of texts that the host has not passed on yet.
    unheard: usize,
    /// What the host was told last of whether anybody wants output of ranks.
    is_output_wanted: bool,
    /// The commands that were refused, each bit one of them: a warning is said once.
    refused: u64,
    ended: bool,
    actions: VecDeque<Action>,
}

/// One connection and who is at its other end.
#[derive(Debug, Default)]
struct Client {
    frames: FrameBuffer,
    identity: Option<Identity>,
    /// The events it wants to hear of.
    interest: events::Interest,
    /// Output of ranks on its way to it.
    forwards: Forwards,
    /// Other jobs whose facts it was told with a get: it keeps them until it disconnects from the job.
    told: BTreeSet<JobIndex>,
}

/// Result of a client's handshake.
#[derive(Clone, Copy, Debug)]
struct Identity {
    seat: Seat,
    /// Ticket of the handshake: a rank that initializes MPI again is another client, perhaps with the same connection number.
    claim: Ticket,
    encoding: Encoding,
    version: Version,
    /// The name of its encoding.
    module: &'static str,
}

/// Address of an answer, with its encoding.
#[derive(Clone, Copy, Debug)]
struct Address {
    connection: ConnectionId,
    tag: u32,
    identity: Identity,
}

impl Server {
    /// A server without a job yet.
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Has the context ids of groups that are made from now on begin with this number, which no other launch has that ranks may meet. Before, it is a
    /// hash of the first namespace.
    pub fn number_launch(&mut self, number: u32) {
        self.launch_number = Some(number);
    }

    /// Serves one more job.
    pub fn add(&mut self, namespace: Namespace) -> JobIndex {
        let job = self.jobs.add(JobState::new(namespace));
        self.serve_peers_about(job);
        self.ask_for_output();
        job
    }

    /// State of a rank's dialogue; `None` if there is no such rank.
    pub fn progress(&self, seat: Seat) -> Option<Progress> {
        let job = self.jobs.get(seat.job)?;
        job.ranks.progress(seat.local, job.fences)
    }

    /// The collectives in which ranks of a job wait on this node. The numbers of ranks are those within that job.
    pub fn pending_fences(&self, job: JobIndex) -> Vec<FenceStatus> {
        let of_job = |seats: Vec<Seat>| -> Vec<LocalRank> {
            seats.into_iter().filter(|seat| seat.job == job).map(|seat| seat.local).collect()
        };
        let status = |(name, gathering): (&Arc<str>, &Gathering<Seat, Waiter>)| {
            let (epoch, waiting, missing) = gathering.status()?;
            let (mut waiting, mut missing) = (of_job(waiting), of_job(missing));
            waiting.retain(|&local| !self.jobs[job].can_do_without(local));
            missing.retain(|&local| !self.jobs[job].can_do_without(local));
            let whole_job = gathering.waiters().next()?.takes_whole(job);
            let takes_part = !waiting.is_empty() || !missing.is_empty();
            let (name, at_start) = (Arc::clone(name), self.jobs[job].fences == 0);
            takes_part.then_some(FenceStatus { name, epoch, whole_job, at_start, waiting, missing })
        };
        self.collectives.named().filter_map(status).collect()
    }

    /// Takes the files that a rank wants removed now that it has ended; returned once.
    pub fn take_clean_up(&mut self, seat: Seat) -> Vec<CleanUp> {
        let registered = self.jobs.get_mut(seat.job).and_then(|job| job.clean_up(seat.local));
        registered.map(mem::take).unwrap_or_default()
    }

    /// Begins a conversation with a process that connected. The server has no clock: the driver closes a connection whose handshake
    /// takes too long.
    pub fn accept(&mut self) -> ConnectionId {
        self.clients.open()
    }

    /// The rank of a connection, once known.
    pub fn seat_of(&self, connection: ConnectionId) -> Option<Seat> {
        Some(self.clients.get(connection)?.identity?.seat)
    }

    /// The connection of a rank, while it has one.
    pub fn connection_of(&self, seat: Seat) -> Option<ConnectionId> {
        self.jobs.get(seat.job)?.ranks.get(seat.local)?.connection
    }

    /// Takes what was read from a connection: any number of messages, cut anywhere.
    pub fn handle_bytes(&mut self, connection: ConnectionId, bytes: &[u8]) {
        self.push_bytes(connection, bytes);
        while self.handle_next(connection) {}
    }

    /// Takes the same, and leaves each message to a call of [`Server::handle_next`]: between two of them a host sees how much of the
    /// answers the client has read.
    pub fn push_bytes(&mut self, connection: ConnectionId, bytes: &[u8]) {
        if self.clients.is_open(connection) {
            self.clients[connection].frames.push(bytes);
        }
    }

    /// Handles the next message of a connection. Returns false if none has come whole, or no other will be handled.
    pub fn handle_next(&mut self, connection: ConnectionId) -> bool {
        if self.ended || !self.clients.is_open(connection) {
            return false;
        }
        match self.clients[connection].frames.next_frame() {
            Ok(None) => return false,
            Ok(Some(Frame::Handshake(payload))) => self.greet(connection, &payload),
            Ok(Some(Frame::Message { tag, payload })) => self.handle_message(connection, tag, payload),
            Err(error) => self.offend(connection, Arc::new(error)),
        }
        true
    }

    /// The connection was closed by its rank, or broke. The end of the rank's process decides if that is an offence.
    pub fn handle_disconnect(&mut self, connection: ConnectionId) {
        let Some(client) = self.clients.get_mut(connection) else { return };
        let identity = client.identity.take();
        self.end_pulls(connection);
        self.clients.release(connection);
        let Some(Identity { seat, .. }) = identity else { return };
        let is_tool = self.is_tool(seat);
        let Some(state) = self.rank_mut(seat) else { return };
        state.connection = None;
        if state.phase == Phase::Open && !is_tool {
            self.tell_of_loss(seat);
        }
    }

    /// The rank's process returned status 0. (Any other end of a process is the host's to judge.)
    pub fn handle_exit(&mut self, seat: Seat) {
        let Some(state) = self.rank_mut(seat) else { return };
        state.exited = true;
        let (rank, phase) = (state.rank, state.phase);
        self.jobs[seat.job].has_left = true;
        self.give_up_on(seat.job, rank);
        self.end_publisher(seat);
        match phase {
            Phase::Open => self.end(seat.job, EndReason::LeftWithoutFinalize { rank }),
            Phase::Silent | Phase::Finalized => {
                self.look_for_deserters();
                self.look_for_last_exits();
            }
        }
    }

    /// The rank's process ended in a way that the host has judged.
    pub fn handle_death(&mut self, seat: Seat) {
        let Some(state) = self.rank_mut(seat) else { return };
        state.exited = true;
        let rank = state.rank;
        self.jobs[seat.job].has_left = true;
        self.give_up_on(seat.job, rank);
        self.end_publisher(seat);
        self.look_for_last_exits();
    }

    /// A fence that an [`Action::Fence`] asked for is over.
    pub fn handle_fence(&mut self, job: JobIndex, id: &FenceId, result: Result<Merged, FenceError>) {
        if self.ended {
            return;
        }
        self.fences_ended += 1;
        let result = result.map_err(Arc::new);
        if self.on_withheld_fence(job, id, &result) {
            return;
        }
        match result {
            Ok(merged) => self.leave(id, &merged),
            Err(error) => self.end(job, EndReason::Fence(error)),
        }
    }

    /// The next thing to do, in order; `None` until the next input.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(crate) fn job_named(&self, namespace: &[u8]) -> Option<JobIndex> {
        self.jobs.named(namespace)
    }

    fn rank_mut(&mut self, seat: Seat) -> Option<&mut RankState> {
        self.jobs.get_mut(seat.job)?.ranks.get_mut(seat.local)
    }

    fn rank(&self, seat: Seat) -> &RankState {
        &self.jobs[seat.job].ranks[seat.local]
    }

    /// Returns the number of unanswered questions that a client may have.
    fn questions_max(&self, seat: Seat) -> usize {
        if self.is_tool(seat) { tools::QUESTIONS_MAX } else { self.settings.questions_per_rank }
    }

    /// Answers a request, if its client is still there.
    fn reply(&mut self, address: Address, payload: &[u8]) {
        self.reply_in_parts(address, payload, Bytes::new());
    }

    /// Answers with what other clients may be told as well. A short reply is copied: one write costs less than two.
    fn reply_shared(&mut self, address: Address, payload: &Bytes) {
        const COPIED_MAX: usize = 4096;
        match payload.len() {
            ..=COPIED_MAX => self.reply(address, payload),
            _ => self.reply_in_parts(address, &[], payload.clone()),
        }
    }

    /// Answers with `begin` and then `rest`, which is shared by many answers and not copied.
    fn reply_in_parts(&mut self, address: Address, begin: &[u8], rest: Bytes) {
        let Address { connection, tag, identity } = address;
        let is_there = |client: &Client| client.identity.is_some_and(|there| there.claim == identity.claim);
        if !self.clients.get(connection).is_some_and(is_there) {
            return;
        }
        let head = frame::header(tag, begin.len() + rest.len());
        if self.settings.trace {
            self.trace(connection, Sender::Server, tag, &[begin, &rest[..]].concat());
        }
        self.push_send(connection, [&head[..], begin].concat().into());
        if !rest.is_empty() {
            self.push_send(connection, rest);
        }
    }

    fn push_send(&mut self, connection: ConnectionId, bytes: Bytes) {
        if self.ended {
            return;
        }
        self.actions.push_back(Action::Send { connection, bytes });
    }

    /// Reports a message in words.
    fn trace(&mut self, connection: ConnectionId, sender: Sender, tag: u32, payload: &[u8]) {
        let Client { identity: Some(Identity { seat, encoding, .. }), .. } = self.clients[connection] else {
            return;
        };
        let bytes = describe(encoding, sender, tag, payload).into();
        let rank = if self.is_tool(seat) { None } else { Some(self.rank(seat).rank) };
        self.actions.push_back(Action::Trace(Trace { rank, sender, bytes }));
    }

    fn new_ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    fn close(&mut self, connection: ConnectionId) {
        match self.seat_of(connection) {
            Some(seat) if !self.is_tool(seat) => {
                self.end_pulls(connection);
                self.clients.close(connection);
            }
            _ => self.handle_disconnect(connection),
        }
        self.actions.push_back(Action::Close { connection });
    }

    /// Nothing more of this connection can be understood. A rank's job ends with it; a stranger's or a tool's does not matter.
    fn offend(&mut self, connection: ConnectionId, error: Arc<dyn std::error::Error + Send + Sync>) {
        self.close(connection);
        match self.seat_of(connection) {
            Some(seat) => {
                let rank = self.rank(seat).rank;
                tracing::warn!("rank {rank} broke the PMIx protocol: {error}");
                let offence = Offence::Foreign { protocol: "PMIx", error };
                self.end(seat.job, EndReason::Offence { rank, offence });
            }
            None => tracing::warn!("closed a connection to the PMIx port: {error}"),
        }
    }

    fn end(&mut self, job: JobIndex, reason: EndReason) {
        if !mem::replace(&mut self.ended, true) {
            self.actions.push_back(Action::End { job, reason });
        }
    }
}

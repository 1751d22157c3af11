//! The PMIx server of the jobs of one launch on one node, as a state machine without I/O, clock, lock or task.
//!
//! Input arrives through the `handle_*` methods; [`Server::poll_action`] returns the resulting actions, as in [`pmi_core::server`]. The
//! terms for ends and progress are also defined there. A launch begins with one job. Each spawn adds another job ([`Server::add`]), and
//! ranks of all jobs can take part in one collective.
//!
//! ```text
//!                 handshake                FINALIZE
//! Silent (rank) ─────────────> Open ─────────────────────> Finalized
//!                               ^                              │ handshake (MPI is initialized again)
//!                               └──────────────────────────────┘
//! ```

mod action;
mod allocations;
mod client;
mod collectives;
mod commits;
mod contexts;
mod data;
mod deserters;
mod events;
mod forwarding;
mod forwards;
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
mod open_questions;
mod pending;
mod queries;
mod question;
mod refresh;
mod remote;
mod remote_output;
mod requests;
mod settings;
mod tools;
mod withheld;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::mem;
use std::sync::Arc;

use bytes::Bytes;
use pmi_core::Phase;
use pmi_core::connections::{ConnectionId, Connections};
use pmi_core::fence::{FenceError, FenceId, Merged};
use pmi_core::gathering::{Gathering, Groups};
use pmi_core::ids::{LocalRank, Rank};
use pmi_core::report::{EndReason, FenceStatus, Offence, Progress, Sender, Trace};
use pmi_core::roster::RankState;

pub use self::action::{Action, Need, Ticket};
use self::client::{Address, Client, Identity};
use self::collectives::Waiter;
use self::contexts::Contexts;
use self::data::Wait;
use self::groups::NamedGroups;
pub use self::groups::{GroupFacts, GroupMembers};
use self::inquiries::Inquiry;
use self::jobs::Jobs;
use self::open_questions::{AnswerReceiver, AwaitedValue, PeerQuestion};
use self::pending::Pending;
use self::question::DataQuestion;
use self::remote_output::RemoteOutput;
pub use self::settings::Settings;
use self::withheld::WithheldData;
use crate::clean_up::CleanUp;
use crate::namespace::{JobIndex, JobState, Namespace, Seat};
use crate::wire::describe::describe;
use crate::wire::frame::{self, Frame};

/// The PMIx server of a launch's jobs on one node. See the [module](self) for how to drive it.
#[derive(Default)]
pub struct Server {
    settings: Settings,
    jobs: Jobs,
    clients: Connections<Client>,
    collectives: Groups<Seat, Waiter>,
    /// Gets that wait for a commit of a rank.
    waits: Pending<(JobIndex, Rank), Wait>,
    /// Questions to other nodes' servers without an answer so far.
    asking: HashMap<Ticket, PeerQuestion>,
    /// Number of fences that have ended here. An answer from before a fence may be older than the data of the fence.
    fences_ended: u64,
    /// Requested values, without their tickets: no value is requested twice.
    wanted: HashSet<AwaitedValue>,
    /// Questions of other nodes' servers that wait for a commit, by namespace and rank.
    parked: Pending<(Bytes, Rank), DataQuestion>,
    /// Collectives with data that stayed on the nodes.
    withheld: WithheldData,
    /// True when a rank commits nothing more, and no fence has distributed all its data to all nodes.
    holds_unspread: bool,
    /// The last need reported to the host.
    need: Need,
    /// Ranks with values that are withdrawn at the end of their process.
    publishers: HashSet<Seat>,
    /// Questions to the host without an answer so far.
    asked: HashMap<Ticket, AnswerReceiver>,
    /// Requests that wait for answers of several nodes.
    inquiries: HashMap<Ticket, Inquiry>,
    /// Jobs of tools, including the free ones for the next tool.
    tools: Vec<JobIndex>,
    /// Ranks with names that tools have used: the ranks themselves, or processes that they started.
    named_tools: HashSet<Seat>,
    next_ticket: u64,
    contexts: Contexts,
    /// Prefix of the context ids of groups; `None` means a hash of the first namespace.
    launch_number: Option<u32>,
    groups: NamedGroups,
    /// Clients that pull output of ranks.
    pullers: BTreeSet<ConnectionId>,
    remote_output: RemoteOutput,
    /// Bytes of texts that the host has not forwarded yet.
    unheard: usize,
    /// The last report to the host whether output of ranks is requested.
    is_output_wanted: bool,
    /// The refused commands, one bit for each: each warning is logged once.
    refused: u64,
    ended: bool,
    actions: VecDeque<Action>,
}

impl Server {
    /// Creates a server without a job.
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Sets the prefix for context ids of later groups. No other launch that ranks may meet has this number. The default is a hash of the
    /// first namespace.
    pub fn number_launch(&mut self, number: u32) {
        self.launch_number = Some(number);
    }

    /// Adds a job.
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

    /// The collectives in which ranks of a job wait on this node, with the rank numbers of that job.
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

    /// Returns the files to remove after the end of a rank; only once.
    pub fn take_clean_up(&mut self, seat: Seat) -> Vec<CleanUp> {
        let registered = self.jobs.get_mut(seat.job).and_then(|job| job.clean_up(seat.local));
        registered.map(mem::take).unwrap_or_default()
    }

    /// Begins a conversation with a process that connected. The server has no clock: the driver closes a connection with a slow
    /// handshake.
    pub fn accept(&mut self) -> ConnectionId {
        self.clients.open()
    }

    /// The rank of a connection, if known.
    pub fn seat_of(&self, connection: ConnectionId) -> Option<Seat> {
        Some(self.clients.get(connection)?.identity?.seat)
    }

    /// The connection of a rank, if any.
    pub fn connection_of(&self, seat: Seat) -> Option<ConnectionId> {
        self.jobs.get(seat.job)?.ranks.get(seat.local)?.connection
    }

    /// Handles bytes from a connection: any number of messages, split anywhere.
    pub fn handle_bytes(&mut self, connection: ConnectionId, bytes: &[u8]) {
        self.push_bytes(connection, bytes);
        while self.handle_next(connection) {}
    }

    /// Stores bytes from a connection, and leaves each message to a call of [`Server::handle_next`]. Between two messages, a host can
    /// check how much of the answers the client has read.
    pub fn push_bytes(&mut self, connection: ConnectionId, bytes: &[u8]) {
        if self.clients.is_open(connection) {
            self.clients[connection].frames.push(bytes);
        }
    }

    /// Handles the next message of a connection. Returns false if no message is complete, or no further message is allowed.
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

    /// The rank has closed the connection, or it broke. The end of the rank's process decides whether that is an offence.
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

    /// The rank's process returned status 0. The host evaluates any other end of a process.
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

    /// The rank's process ended in a way that the host handles.
    pub fn handle_death(&mut self, seat: Seat) {
        let Some(state) = self.rank_mut(seat) else { return };
        state.exited = true;
        let rank = state.rank;
        self.jobs[seat.job].has_left = true;
        self.give_up_on(seat.job, rank);
        self.end_publisher(seat);
        self.look_for_last_exits();
    }

    /// A fence of an [`Action::Fence`] is complete or has failed.
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

    /// Returns the next action, in order; `None` until the next input.
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

    /// Returns the maximum number of unanswered questions of a client.
    fn questions_max(&self, seat: Seat) -> usize {
        if self.is_tool(seat) { tools::QUESTIONS_MAX } else { self.settings.questions_per_rank }
    }

    /// Answers a request, if its client is still connected.
    fn reply(&mut self, address: Address, payload: &[u8]) {
        self.reply_in_parts(address, payload, Bytes::new());
    }

    /// Sends an answer that other clients may receive too. A short answer is copied: one write costs less than two.
    fn reply_shared(&mut self, address: Address, payload: &Bytes) {
        const COPIED_MAX: usize = 4096;
        match payload.len() {
            ..=COPIED_MAX => self.reply(address, payload),
            _ => self.reply_in_parts(address, &[], payload.clone()),
        }
    }

    /// Answers with `begin` and then `rest`, which many answers share without a copy.
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

    /// Reports a message as text.
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

    /// The rest of this connection cannot be parsed. For a rank, the job ends; a tool or a connection without a rank is only closed.
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

//! The PMIx server of the jobs of one launch on one node, as a state machine without I/O, clock, lock or task.
//!
//! Input arrives through the `handle_*` methods; [`Server::poll_action`] returns the resulting actions, as in [`pmi_core::server`]. The
//! terms for ends and progress are also defined there. A launch begins with one job. Each spawn adds another job ([`Server::add`]), and
//! ranks of all jobs can take part in one collective.
//!
//! A server routes each input to its parts: data, collectives, streams, inquiries, publishers and tools. Each part has its own state, and
//! receives the state of the launch with each call.
//!
//! ```text
//!                 handshake                FINALIZE
//! Silent (rank) ─────────────> Open ─────────────────────> Finalized
//!                               ^                              │ handshake (MPI is initialized again)
//!                               └──────────────────────────────┘
//! ```

mod action;
mod allocations;
mod answers;
mod client;
mod collectives;
mod commits;
mod contexts;
mod data;
mod deserters;
mod ends;
mod events;
mod facts;
mod forwards;
mod gets;
mod greeting;
mod groups;
mod host;
mod inquiries;
mod jobs;
mod launch;
mod meetings;
mod members;
mod mortality;
mod names;
mod node_processes;
mod open_questions;
mod peer_gets;
mod pending;
mod queries;
mod question;
mod refresh;
mod remote_output;
mod requests;
mod segments;
mod settings;
mod streams;
mod tools;
mod withheld;

use std::mem;
use std::sync::Arc;

use pmi_core::Phase;
use pmi_core::connections::ConnectionId;
use pmi_core::deaths::{Death, DeathKind};
use pmi_core::fence::{FenceError, FenceId, Merged};
use pmi_core::ids::Rank;
use pmi_core::report::{EndReason, FenceStatus, Progress};

pub use self::action::{Action, Need, Ticket};
use self::client::Client;
use self::collectives::Collectives;
use self::data::Data;
use self::ends::{disconnect, offend};
use self::events::report_deaths;
use self::greeting::greet;
pub use self::groups::{GroupFacts, GroupMembers};
use self::inquiries::Inquiries;
use self::launch::Launch;
use self::mortality::report_own_deaths;
use self::names::Publishers;
pub use self::settings::Settings;
use self::streams::Streams;
use self::tools::Tools;
use crate::clean_up::CleanUp;
use crate::namespace::{JobIndex, JobState, Namespace, Seat};
use crate::wire::frame::Frame;

/// The PMIx server of a launch's jobs on one node. See the [module](self) for how to drive it.
#[derive(Default)]
pub struct Server {
    launch: Launch,
    data: Data,
    collectives: Collectives,
    streams: Streams,
    inquiries: Inquiries,
    publishers: Publishers,
    tools: Tools,
    /// The refused commands, one bit for each: each warning is logged once.
    refused: u64,
}

impl Server {
    /// Creates a server without a job.
    pub fn new(settings: Settings) -> Self {
        Self { launch: Launch::new(settings), ..Self::default() }
    }

    /// Sets the prefix for context ids of later groups. No other launch that ranks may meet has this number. The default is a hash of the
    /// first namespace.
    pub fn number_launch(&mut self, number: u32) {
        self.collectives.contexts.launch_number = Some(number);
    }

    /// Adds a job.
    pub fn add(&mut self, namespace: Namespace) -> JobIndex {
        let job = self.launch.jobs.add(JobState::new(namespace));
        self.data.peer_gets.serve_job(&mut self.launch, job);
        self.streams.request(&mut self.launch);
        job
    }

    /// Ends the service of a job after its ranks have ended on all nodes. Its namespace is then unknown, and gets of its ranks' values
    /// fail. Collectives with its members end with the status of lost members.
    pub fn remove(&mut self, job: JobIndex) {
        let Self { launch, data, collectives, streams, publishers, tools, .. } = self;
        let is_of_job = |client: &Client| client.identity.is_some_and(|identity| identity.seat.job == job);
        let of_job = launch.clients.iter().filter(|(_, client)| is_of_job(client));
        let connections: Vec<ConnectionId> = of_job.map(|(connection, _)| connection).collect();
        for connection in connections {
            disconnect(launch, streams, connection);
            launch.actions.push_back(Action::Close { connection });
        }
        data.give_up_on_job(launch, job);
        let clients: Vec<ConnectionId> = launch.clients.iter().map(|(connection, _)| connection).collect();
        for connection in clients {
            launch.clients[connection].known_jobs.remove(&job);
        }
        launch.jobs.remove(job);
        collectives.remove(launch, job);
        data.remove(launch, job);
        publishers.remove(job);
        tools.remove(job);
    }

    /// State of a rank's dialogue; `None` if there is no such rank.
    pub fn progress(&self, seat: Seat) -> Option<Progress> {
        let job = self.launch.jobs.get(seat.job)?;
        job.ranks.progress(seat.local, job.fences)
    }

    /// The collectives in which ranks of a job wait on this node, with the rank numbers of that job.
    pub fn pending_fences(&self, job: JobIndex) -> Vec<FenceStatus> {
        self.collectives.pending(&self.launch.jobs, job)
    }

    /// The groups that ranks of this node have created and not left, in the order of their names: the first 1,024 with 1,048,576 members
    /// that are listed one by one.
    pub fn groups(&self) -> Vec<GroupFacts> {
        self.collectives.groups.facts(&self.launch.jobs)
    }

    /// Returns true if a tool has connected with the name of this rank: the rank itself, or a process that it started.
    pub fn has_tool(&self, seat: Seat) -> bool {
        self.tools.has(seat)
    }

    /// Returns the files to remove after the end of a rank; only once.
    pub fn take_clean_up(&mut self, seat: Seat) -> Vec<CleanUp> {
        let registered = self.launch.jobs.get_mut(seat.job).and_then(|job| job.clean_up(seat.local));
        registered.map(mem::take).unwrap_or_default()
    }

    /// Begins a conversation with a process that connected. The server has no clock: the driver closes a connection with a slow
    /// handshake.
    pub fn accept(&mut self) -> ConnectionId {
        self.launch.clients.open()
    }

    /// The rank of a connection, if known.
    pub fn seat_of(&self, connection: ConnectionId) -> Option<Seat> {
        self.launch.seat_of(connection)
    }

    /// The connection of a rank, if any.
    pub fn connection_of(&self, seat: Seat) -> Option<ConnectionId> {
        self.launch.jobs.get(seat.job)?.ranks.get(seat.local)?.connection
    }

    /// Handles bytes from a connection: any number of messages, split anywhere.
    pub fn handle_bytes(&mut self, connection: ConnectionId, bytes: &[u8]) {
        self.push_bytes(connection, bytes);
        while self.handle_next(connection) {}
    }

    /// Stores bytes from a connection, and leaves each message to a call of [`Server::handle_next`]. Between two messages, a host can
    /// check how much of the answers the client has read.
    pub fn push_bytes(&mut self, connection: ConnectionId, bytes: &[u8]) {
        let clients = &mut self.launch.clients;
        if clients.is_open(connection) {
            clients[connection].frames.push(bytes);
        }
    }

    /// Handles the next message of a connection. Returns false if no message is complete, or no further message is allowed.
    pub fn handle_next(&mut self, connection: ConnectionId) -> bool {
        let Self { launch, collectives, streams, tools, .. } = self;
        if launch.ended || !launch.clients.is_open(connection) {
            return false;
        }
        match launch.clients[connection].frames.next_frame() {
            Ok(None) => return false,
            Ok(Some(Frame::Handshake(payload))) => {
                if greet(launch, streams, tools, connection, &payload) {
                    collectives.look_for_deserters(launch);
                }
            }
            Ok(Some(Frame::Message { tag, payload })) => self.handle_message(connection, tag, payload),
            Err(error) => offend(launch, streams, connection, Arc::new(error)),
        }
        true
    }

    /// The rank has closed the connection, or it broke. The end of the rank's process decides whether that is an offence.
    pub fn handle_disconnect(&mut self, connection: ConnectionId) {
        disconnect(&mut self.launch, &mut self.streams, connection);
    }

    /// The rank's process returned status 0. The host evaluates any other end of a process.
    pub fn handle_exit(&mut self, seat: Seat) {
        let Self { launch, data, collectives, publishers, .. } = self;
        let Some((rank, phase)) = end_process(launch, data, publishers, seat) else { return };
        match phase {
            Phase::Open => launch.end(seat.job, EndReason::LeftWithoutFinalize { rank }),
            Phase::Silent | Phase::Finalized => {
                collectives.look_for_deserters(launch);
                data.withheld.look_for_last_exits(launch);
            }
        }
    }

    /// The rank's process ended in a way that the host handles.
    pub fn handle_death(&mut self, seat: Seat) {
        let Self { launch, data, publishers, .. } = self;
        if end_process(launch, data, publishers, seat).is_some() {
            data.withheld.look_for_last_exits(launch);
        }
    }

    /// The rank's process failed, and the host lets the other ranks continue. The launch ends if ranks wait for it during the
    /// initialization of MPI. Otherwise they continue without it, and the server emits an [`Action::Died`].
    pub fn handle_borne_failure(&mut self, seat: Seat, kind: DeathKind) {
        let Self { launch, data, collectives, publishers, .. } = self;
        let Some(state) = launch.jobs.rank_mut(seat) else { return };
        state.fail(kind);
        let rank = state.rank;
        launch.jobs[seat.job].has_left = true;
        publishers.end(launch, seat);
        if launch.ended {
            return;
        }
        data.give_up_on(launch, seat.job, rank);
        report_own_deaths(launch, seat.job);
        collectives.begin_collectives(launch);
        data.withheld.look_for_last_exits(launch);
        collectives.look_for_deserters(launch);
    }

    /// Ranks of a job on other nodes have died, and the other ranks continue. The launch ends if ranks of this node wait, during the
    /// initialization of MPI, for data of a node without living ranks.
    pub fn handle_deaths(&mut self, job: JobIndex, deaths: &[Death]) {
        let Self { launch, collectives, .. } = self;
        let Some(state) = launch.jobs.get_mut(job) else { return };
        let new: Vec<Death> = deaths.iter().copied().filter(|death| state.deaths.add(death.rank)).collect();
        report_deaths(launch, job, &new);
        collectives.look_for_missed_node(launch, job);
    }

    /// A fence of an [`Action::Fence`] is complete or has failed.
    pub fn handle_fence(&mut self, job: JobIndex, id: &FenceId, result: Result<Merged, FenceError>) {
        let Self { launch, data, collectives, .. } = self;
        if launch.ended {
            return;
        }
        launch.fences_ended += 1;
        let result = result.map_err(Arc::new);
        if data.on_fence(launch, job, id, &result) {
            return;
        }
        match result {
            Ok(merged) => collectives.leave(launch, data, id, &merged),
            Err(error) => launch.end(job, EndReason::Fence(error)),
        }
    }

    /// A rank has written to one of its streams; no bytes mean the end of the stream.
    pub fn handle_output(&mut self, seat: Seat, channel: u16, bytes: &[u8]) {
        self.streams.write(&mut self.launch, seat, channel, bytes);
    }

    /// Ranks here write no further output: nodes that wait for output receive an empty answer.
    pub fn end_output(&mut self) {
        self.streams.end(&mut self.launch);
    }

    /// Returns true while another node requests output of ranks here.
    pub fn is_asked_for_output(&self) -> bool {
        self.streams.remote.is_requested()
    }

    /// Returns true while output waits for a client, here or on another node.
    pub fn is_forwarding(&self) -> bool {
        self.streams.is_forwarding()
    }

    /// The connection has taken the message of the last [`Action::SendAndTell`].
    pub fn handle_sent(&mut self, connection: ConnectionId) {
        self.streams.on_sent(&mut self.launch, connection);
    }

    /// The host has forwarded a text of `bytes` bytes from a rank: there is room for further texts.
    pub fn handle_heard(&mut self, bytes: usize) {
        self.streams.on_forwarded(bytes);
    }

    /// Returns the next action, in order; `None` until the next input.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.launch.actions.pop_front()
    }
}

/// The process of a rank has ended. Returns the rank, and the phase of its dialogue.
fn end_process(launch: &mut Launch, data: &mut Data, publishers: &mut Publishers, seat: Seat) -> Option<(Rank, Phase)> {
    let state = launch.jobs.rank_mut(seat)?;
    state.exited = true;
    let (rank, phase) = (state.rank, state.phase);
    launch.jobs[seat.job].has_left = true;
    data.give_up_on(launch, seat.job, rank);
    publishers.end(launch, seat);
    Some((rank, phase))
}

//! Output of ranks for clients that pull it (`PMIx_IOF_pull`): tools and ranks. Also the texts that ranks write to their streams.
//!
//! ```text
//! handle_output ─┬─> waiting, one queue for each client ──Action::SendAndTell, one at a time──> handle_sent ──> the next one
//! other nodes ───┘
//! ```
//! The server [requests](super::remote_output) output of ranks on other nodes.

use std::collections::BTreeMap;
use std::mem;

use bytes::Bytes;
use pmi_core::connections::ConnectionId;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::roster::Quota;

use super::action::{Action, Ticket};
use super::client::Address;
use super::forwards::{Forwards, Origin, Output, Source};
use super::jobs::Jobs;
use super::launch::Launch;
use super::question::WantedOutput;
use super::remote_output::RemoteOutput;
use crate::namespace::{JobIndex, JobState, Seat};
use crate::wire::forwarding::{Pull, channel, pulled};
use crate::wire::reader::Proc;
use crate::wire::value::{Info, Value};
use crate::wire::{status, types};

/// Maximum number of ranks or jobs in one pull.
const SOURCES_MAX: usize = 4096;

/// Output of ranks, and texts for their streams.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// Output in transit to clients that pull it, or have pulled it.
    clients: BTreeMap<ConnectionId, Forwards>,
    pub(super) remote: RemoteOutput,
    /// Bytes of texts that the host has not forwarded yet.
    text_bytes: usize,
    /// The last report to the host whether output of ranks is requested.
    is_wanted: bool,
}

impl Streams {
    /// A client requests output of ranks.
    pub(super) fn pull(&mut self, launch: &mut Launch, address: Address, pull: &Pull<'_>) {
        match self.begin_pull(launch, address, pull) {
            Ok(number) => launch.reply(address, &pulled(address.identity.encoding, number)),
            Err(refusal) => launch.answer(address, refusal),
        }
    }

    fn begin_pull(&mut self, launch: &mut Launch, address: Address, pull: &Pull<'_>) -> Result<u64, i32> {
        let sources = sources_of(&launch.jobs, pull)?;
        let Ticket(number) = launch.new_ticket();
        self.clients.entry(address.connection).or_default().begin(number, pull, sources)?;
        self.report_wanted(launch);
        self.request(launch);
        Ok(number)
    }

    /// A client ends a pull. Its queued messages are dropped, because libpmix would write them to the client's own output.
    pub(super) fn end_pull(&mut self, launch: &mut Launch, address: Address, number: u64) {
        let was_there = self.clients.get_mut(&address.connection).is_some_and(|forwards| forwards.end(number));
        self.report_wanted(launch);
        self.request(launch);
        launch.answer(address, if was_there { status::SUCCESS } else { status::NOT_FOUND });
    }

    /// The client is gone, or ends all its pulls.
    pub(super) fn end_pulls(&mut self, launch: &mut Launch, connection: ConnectionId) {
        if self.clients.remove(&connection).is_some_and(|forwards| !forwards.pulls().is_empty()) {
            self.report_wanted(launch);
            self.request(launch);
        }
    }

    /// Reports to the host when requests for output of ranks here begin or end.
    fn report_wanted(&mut self, launch: &mut Launch) {
        let is_wanted = self.pullers().next().is_some() || self.remote.is_requested();
        if mem::replace(&mut self.is_wanted, is_wanted) != is_wanted {
            launch.actions.push_back(Action::Pulled(is_wanted));
        }
    }

    /// The clients that pull output.
    fn pullers(&self) -> impl Iterator<Item = &Forwards> {
        self.clients.values().filter(|forwards| !forwards.pulls().is_empty())
    }

    /// Requests output from other nodes for the pulls of clients here, as far as the pulls have changed.
    pub(super) fn request(&mut self, launch: &mut Launch) {
        let wanted = self.output_wanted(&launch.jobs);
        self.remote.request(launch, wanted);
    }

    /// Output that clients here request from each other node.
    fn output_wanted(&self, jobs: &Jobs) -> BTreeMap<NodeIndex, WantedOutput> {
        let mut wanted = BTreeMap::<_, WantedOutput>::new();
        for pull in self.pullers().flat_map(Forwards::pulls) {
            for &Source { job, rank } in pull.sources() {
                for state in jobs_meant(jobs, job) {
                    let namespace = Bytes::copy_from_slice(state.namespace.name.as_bytes());
                    for node in state.nodes_elsewhere(rank) {
                        wanted.entry(node).or_default().add(pull.channels(), &namespace, rank);
                    }
                }
            }
        }
        wanted
    }

    /// A rank has written to one of its streams; no bytes mean the end of the stream.
    pub(super) fn write(&mut self, launch: &mut Launch, seat: Seat, channel: u16, bytes: &[u8]) {
        let Some(rank) = launch.jobs.get(seat.job).and_then(|job| Some(job.ranks.get(seat.local)?.rank)) else {
            return;
        };
        let output = Output { origin: Origin { job: seat.job, rank }, channel, lost: 0, bytes };
        self.deliver(launch, output);
        self.remote.push(launch, output);
    }

    /// Delivers output of a rank to clients here.
    fn deliver(&mut self, launch: &mut Launch, output: Output<'_>) {
        for (&connection, forwards) in self.clients.iter_mut().filter(|(_, forwards)| !forwards.pulls().is_empty()) {
            if let Some(identity) = launch.clients.get(connection).and_then(|client| client.identity) {
                forwards.push_output(&launch.jobs, identity, output);
            }
            send_next(launch, connection, forwards);
        }
    }

    /// A node has returned output of its ranks; `None` if it gives no answer.
    pub(super) fn on_output(&mut self, launch: &mut Launch, ticket: Ticket, node: NodeIndex, answer: Option<&Bytes>) {
        for piece in self.remote.on_output(launch, ticket, node, answer) {
            if let Some(job) = launch.jobs.own(&piece.namespace) {
                let origin = Origin { job, rank: piece.rank };
                self.deliver(launch, Output { origin, channel: piece.channel, lost: piece.lost, bytes: &piece.bytes });
            }
        }
    }

    /// A server of another node requests output of ranks here.
    pub(super) fn on_question(&mut self, launch: &mut Launch, ticket: Ticket, asker: NodeIndex, wanted: WantedOutput) {
        self.remote.on_question(launch, ticket, asker, wanted);
        self.report_wanted(launch);
    }

    /// Ranks here write no further output: nodes that wait for output receive an empty answer.
    pub(super) fn end(&mut self, launch: &mut Launch) {
        self.remote.end(launch);
        self.report_wanted(launch);
    }

    /// Returns true while output waits for a client, here or on another node.
    pub(super) fn is_forwarding(&self) -> bool {
        self.remote.has_pieces() || self.clients.values().any(Forwards::is_forwarding)
    }

    /// The connection has taken the message of the last [`Action::SendAndTell`].
    pub(super) fn on_sent(&mut self, launch: &mut Launch, connection: ConnectionId) {
        if let Some(forwards) = self.clients.get_mut(&connection) {
            forwards.is_sending = false;
            send_next(launch, connection, forwards);
        }
    }

    /// Forwards texts: all of them, or none if too many bytes wait for the host.
    pub(super) fn log(&mut self, launch: &mut Launch, address: Address, infos: &[Info<'_>]) {
        let seat = address.identity.seat;
        let rank = launch.jobs.rank(seat).rank;
        let texts: Vec<(bool, &[u8])> = infos.iter().filter_map(text_of).collect();
        if texts.is_empty() {
            return launch.answer(address, status::NOT_SUPPORTED);
        }
        let bytes: usize = texts.iter().map(|(_, text)| text_cost(text.len())).sum();
        if self.text_bytes.saturating_add(bytes) > launch.settings.texts_max {
            return launch.answer(address, status::OUT_OF_RESOURCE);
        }
        self.text_bytes += bytes;
        for (on_stderr, text) in texts {
            let channel = if on_stderr { channel::STDERR } else { channel::STDOUT };
            self.write(launch, seat, channel, text);
            let text = Bytes::copy_from_slice(text);
            launch.actions.push_back(Action::Say { job: seat.job, rank, on_stderr, text });
        }
        launch.answer(address, status::SUCCESS);
    }

    /// The host has forwarded a text of `bytes` bytes from a rank: there is room for further texts.
    pub(super) fn on_forwarded(&mut self, bytes: usize) {
        self.text_bytes = self.text_bytes.saturating_sub(text_cost(bytes));
    }
}

/// Sends the next message to a connection, if it has taken the previous one.
fn send_next(launch: &mut Launch, connection: ConnectionId, forwards: &mut Forwards) {
    let identity = launch.clients.get(connection).and_then(|client| client.identity);
    if let Some(bytes) = forwards.take_next(&launch.jobs, identity)
        && !launch.ended
    {
        forwards.is_sending = true;
        launch.actions.push_back(Action::SendAndTell { connection, bytes });
    }
}

/// Returns the sources of a pull, or the status of its refusal.
fn sources_of(jobs: &Jobs, pull: &Pull<'_>) -> Result<Vec<Source>, i32> {
    if pull.channels & channel::STDIN != 0 || pull.infos.iter().any(Info::is_required) {
        return Err(status::NOT_SUPPORTED);
    }
    if pull.sources.is_empty() || pull.channels & (channel::STDOUT | channel::STDERR) == 0 {
        return Err(status::BAD_PARAM);
    }
    if pull.sources.len() > SOURCES_MAX {
        return Err(status::OUT_OF_RESOURCE);
    }
    pull.sources.iter().map(|&source| source_of(jobs, source)).collect()
}

fn source_of(jobs: &Jobs, source: Proc<'_>) -> Result<Source, i32> {
    let rank = (source.rank != types::RANK_WILDCARD).then_some(Rank(source.rank));
    if source.namespace.is_empty() {
        return Ok(Source { job: None, rank });
    }
    let job = jobs.own(source.namespace).ok_or(status::NOT_FOUND)?;
    let is_known = |rank: Rank| rank.0 < jobs[job].namespace.job.size();
    match rank {
        Some(rank) if !is_known(rank) => Err(status::NOT_FOUND),
        _ => Ok(Source { job: Some(job), rank }),
    }
}

fn jobs_meant(jobs: &Jobs, job: Option<JobIndex>) -> impl Iterator<Item = &JobState> {
    let is_meant = move |index: JobIndex| job.is_none_or(|job| job == index);
    let own = jobs.indexed().filter(move |(index, job)| job.is_own() && is_meant(*index));
    own.map(|(_, job)| job)
}

impl JobState {
    /// The other nodes that hold this rank, or any rank.
    fn nodes_elsewhere(&self, rank: Option<Rank>) -> Vec<NodeIndex> {
        let placement = &self.namespace.job.placement;
        let mut nodes: Vec<NodeIndex> = match rank {
            Some(rank) => placement.node_of(rank).into_iter().collect(),
            None => placement.nodes_with_ranks(),
        };
        nodes.retain(|&node| node != self.namespace.node);
        nodes
    }
}

/// Returns a text for one of the rank's streams, and true for standard error.
fn text_of<'a>(info: &Info<'a>) -> Option<(bool, &'a [u8])> {
    let on_stderr = match info.key {
        b"pmix.log.stderr" => true,
        b"pmix.log.stdout" => false,
        _ => return None,
    };
    match info.value {
        Value::Text(text) => Some((on_stderr, text)),
        _ => None,
    }
}

/// Bytes that a text counts for until the host has forwarded it.
fn text_cost(bytes: usize) -> usize {
    bytes.saturating_add(Quota::PAIR_COST)
}

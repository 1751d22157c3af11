//! Output of ranks for clients that pull it (`PMIx_IOF_pull`): tools and ranks.
//!
//! Output that a client has not read is queued, up to a limit. Further output is dropped, and the number of dropped bytes precedes the
//! next piece. So a client that does not read never blocks a rank, and costs no more memory than the limit.
//!
//! ```text
//! handle_output ─┬─> waiting, one queue for each client ──Action::SendAndTell, one at a time──> handle_sent ──> the next one
//! other nodes ───┘
//! ```
//! The server [requests](super::remote_output) output of ranks on other nodes.

use pmi_core::connections::ConnectionId;
use pmi_core::ids::Rank;

use super::forwards::{Active, Forwards, Lost, Origin, Source};
use super::{Action, Address, Server};
use crate::namespace::Seat;
use crate::wire::forwarding::{Delivery, Pull, channel, pulled};
use crate::wire::reader::Proc;
use crate::wire::value::Info;
use crate::wire::{frame, status, types};

/// Maximum number of pulls of one client.
const PULLS_MAX: usize = 64;
/// Maximum number of ranks or jobs in one pull.
const SOURCES_MAX: usize = 4096;

impl Server {
    /// A client requests output of ranks.
    pub(super) fn pull(&mut self, address: Address, pull: &Pull<'_>) {
        let taken = match self.sources_of(pull) {
            Ok(sources) => self.begin_pull(address, pull, sources),
            Err(refusal) => Err(refusal),
        };
        match taken {
            Ok(number) => self.reply(address, &pulled(address.identity.encoding, number)),
            Err(refusal) => self.answer(address, refusal),
        }
    }

    fn begin_pull(&mut self, address: Address, pull: &Pull<'_>, sources: Vec<Source>) -> Result<u64, i32> {
        let number = self.new_ticket().0;
        let forwards = &mut self.clients[address.connection].forwards;
        if forwards.pulls.len() >= PULLS_MAX {
            return Err(status::OUT_OF_RESOURCE);
        }
        let Pull { channels, reference, .. } = *pull;
        forwards.pulls.push(Active { number, reference, channels, sources, lost: None });
        self.pullers.insert(address.connection);
        self.tell_whether_output_is_wanted();
        self.ask_for_output();
        Ok(number)
    }

    /// Returns the sources of a pull, or the status of its refusal.
    fn sources_of(&self, pull: &Pull<'_>) -> Result<Vec<Source>, i32> {
        if pull.channels & channel::STDIN != 0 || pull.infos.iter().any(Info::is_required) {
            return Err(status::NOT_SUPPORTED);
        }
        if pull.sources.is_empty() || pull.channels & (channel::STDOUT | channel::STDERR) == 0 {
            return Err(status::BAD_PARAM);
        }
        if pull.sources.len() > SOURCES_MAX {
            return Err(status::OUT_OF_RESOURCE);
        }
        pull.sources.iter().map(|&source| self.source_of(source)).collect()
    }

    fn source_of(&self, source: Proc<'_>) -> Result<Source, i32> {
        let rank = (source.rank != types::RANK_WILDCARD).then_some(Rank(source.rank));
        if source.namespace.is_empty() {
            return Ok(Source { job: None, rank });
        }
        let job = self.own_job(source.namespace).ok_or(status::NOT_FOUND)?;
        let is_known = |rank: Rank| rank.0 < self.jobs[job].namespace.job.size();
        match rank {
            Some(rank) if !is_known(rank) => Err(status::NOT_FOUND),
            _ => Ok(Source { job: Some(job), rank }),
        }
    }

    /// A client ends a pull. Its queued messages are dropped, because libpmix would write them to the client's own output.
    pub(super) fn end_pull(&mut self, address: Address, number: u64) {
        let forwards = &mut self.clients[address.connection].forwards;
        let was_there = forwards.end(number);
        if forwards.pulls.is_empty() {
            self.forget_puller(address.connection);
        } else {
            self.ask_for_output();
        }
        self.answer(address, if was_there { status::SUCCESS } else { status::NOT_FOUND });
    }

    /// The client is gone, or ends all its pulls.
    pub(super) fn end_pulls(&mut self, connection: ConnectionId) {
        if let Some(client) = self.clients.get_mut(connection) {
            client.forwards = Forwards::default();
        }
        self.forget_puller(connection);
    }

    fn forget_puller(&mut self, connection: ConnectionId) {
        if self.pullers.remove(&connection) {
            self.tell_whether_output_is_wanted();
            self.ask_for_output();
        }
    }

    /// Reports to the host when requests for output of ranks here begin or end.
    pub(super) fn tell_whether_output_is_wanted(&mut self) {
        let is_wanted = !self.pullers.is_empty() || self.is_asked_for_output();
        if std::mem::replace(&mut self.is_output_wanted, is_wanted) != is_wanted {
            self.actions.push_back(Action::Pulled(is_wanted));
        }
    }

    /// A rank has written to one of its streams; no bytes mean the end of the stream.
    pub fn handle_output(&mut self, seat: Seat, channel: u16, bytes: &[u8]) {
        let Some(rank) = self.jobs.get(seat.job).and_then(|job| Some(job.ranks.get(seat.local)?.rank)) else {
            return;
        };
        let origin = Origin { job: seat.job, rank };
        self.deliver(origin, channel, 0, bytes);
        self.keep_for_nodes(origin, channel, bytes);
    }

    /// Delivers output of a rank to clients here; `lost` bytes were dropped before it.
    pub(super) fn deliver(&mut self, origin: Origin, channel: u16, lost: u64, bytes: &[u8]) {
        for connection in self.pullers.clone() {
            self.forward(connection, origin, channel, lost, bytes);
            self.send_forwards(connection);
        }
    }

    /// Queues a piece for each matching pull of a client. No process receives its own output.
    fn forward(&mut self, connection: ConnectionId, origin: Origin, channel: u16, lost_before: u64, bytes: &[u8]) {
        let (Some(job), Some(client)) = (self.jobs.get(origin.job), self.clients.get_mut(connection)) else { return };
        let Some(identity) = client.identity else { return };
        let reader = &self.jobs[identity.seat.job];
        let name = job.namespace.name.as_bytes();
        if reader.namespace.name.as_bytes() == name && reader.ranks[identity.seat.local].rank == origin.rank {
            return;
        }
        let forwards = &mut client.forwards;
        let meant: Vec<usize> =
            (0..forwards.pulls.len()).filter(|&index| forwards.pulls[index].matches(origin, channel)).collect();
        for index in meant {
            let pull = &forwards.pulls[index];
            let source = Proc { namespace: name, rank: origin.rank.0 };
            let lost = pull.lost.map_or(0, |lost| lost.bytes) + lost_before;
            let delivery =
                Delivery { source, channel, reference: pull.reference, lost, is_last: bytes.is_empty(), bytes };
            let message = frame::message(frame::TAG_FORWARD, &delivery.encode(identity.encoding));
            // The end of a stream is sent only once.
            if bytes.is_empty() || forwards.has_room_for(&message) {
                forwards.push(pull.number, message);
                forwards.pulls[index].lost = None;
                continue;
            }
            forwards.pulls[index].lost = Some(Lost { bytes: lost + bytes.len() as u64, origin, channel });
            if !std::mem::replace(&mut forwards.is_known_slow, true) {
                let client = String::from_utf8_lossy(reader.namespace.name.as_bytes());
                tracing::warn!(
                    "{client} reads output of ranks more slowly than they write it: some of it is dropped, and the amount is reported"
                );
            }
        }
    }

    /// Returns true while output waits for a client, here or on another node.
    pub fn is_forwarding(&self) -> bool {
        self.keeps_output()
            || self.pullers.iter().any(|&puller| {
                let forwards = &self.clients[puller].forwards;
                forwards.is_sending || !forwards.waiting.is_empty()
            })
    }

    /// The connection has taken the message of the last [`Action::SendAndTell`].
    pub fn handle_sent(&mut self, connection: ConnectionId) {
        if let Some(client) = self.clients.get_mut(connection) {
            client.forwards.is_sending = false;
        }
        self.send_forwards(connection);
    }

    /// Sends the next message to a connection, if it has taken the previous one.
    fn send_forwards(&mut self, connection: ConnectionId) {
        let Some(client) = self.clients.get(connection).filter(|client| !client.forwards.is_sending) else { return };
        if client.forwards.waiting.is_empty() {
            self.tell_of_lost(connection);
        }
        let Some(client) = self.clients.get_mut(connection) else { return };
        if let Some(bytes) = client.forwards.pop()
            && !self.ended
        {
            client.forwards.is_sending = true;
            self.actions.push_back(Action::SendAndTell { connection, bytes });
        }
    }

    /// All queued messages are sent: reports the bytes dropped since then, without waiting for more output.
    fn tell_of_lost(&mut self, connection: ConnectionId) {
        let Some(client) = self.clients.get_mut(connection) else { return };
        let Some(identity) = client.identity else { return };
        for index in 0..client.forwards.pulls.len() {
            let pull = &mut client.forwards.pulls[index];
            let Some(Lost { bytes: lost, origin, channel }) = pull.lost.take() else { continue };
            let job = &self.jobs[origin.job];
            let source = Proc { namespace: job.namespace.name.as_bytes(), rank: origin.rank.0 };
            let delivery = Delivery { source, channel, reference: pull.reference, lost, is_last: false, bytes: b"" };
            let message = frame::message(frame::TAG_FORWARD, &delivery.encode(identity.encoding));
            let number = pull.number;
            client.forwards.push(number, message);
        }
    }
}

//! Output of ranks in transit to one client.
//!
//! Output that the client has not read is queued, up to a limit. Further output is dropped, and the number of dropped bytes precedes the
//! next piece. So a client that does not read never blocks a rank, and costs no more memory than the limit.

use std::collections::VecDeque;

use bytes::Bytes;
use pmi_core::ids::Rank;

use super::client::Identity;
use super::jobs::Jobs;
use crate::namespace::JobIndex;
use crate::wire::forwarding::{Delivery, Pull};
use crate::wire::reader::Proc;
use crate::wire::{Encoding, frame, status};

/// Maximum number of queued bytes for one client; further bytes are dropped.
const WAITING_MAX: usize = 1024 * 1024;
/// Maximum number of pulls of one client.
const PULLS_MAX: usize = 64;

/// Output in transit to one client.
#[derive(Debug, Default)]
pub(super) struct Forwards {
    pulls: Vec<Active>,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// True while the connection has not taken the last message.
    pub(super) is_sending: bool,
    /// True after the log has reported the slow reader.
    is_known_slow: bool,
}

/// Rank that wrote output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) job: JobIndex,
    pub(super) rank: Rank,
}

/// A piece of output of a rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output<'a> {
    pub(super) origin: Origin,
    pub(super) channel: u16,
    /// Bytes that were dropped before it.
    pub(super) lost: u64,
    /// Without bytes, the end of the stream.
    pub(super) bytes: &'a [u8],
}

/// Source of output for a pull.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    /// `None` means all jobs of the launch.
    pub(super) job: Option<JobIndex>,
    /// `None` means all ranks.
    pub(super) rank: Option<Rank>,
}

/// An active pull.
#[derive(Debug)]
pub(super) struct Active {
    /// The server's identifier of the pull.
    number: u64,
    /// The client's identifier of the pull.
    reference: u64,
    channels: u16,
    sources: Vec<Source>,
    /// Dropped output without a report, with the rank and the stream of the last dropped piece.
    lost: Option<Lost>,
}

#[derive(Clone, Copy, Debug)]
struct Lost {
    bytes: u64,
    origin: Origin,
    channel: u16,
}

/// A message for a client, and its pull.
#[derive(Debug)]
struct Waiting {
    number: u64,
    message: Bytes,
}

impl Active {
    fn matches(&self, origin: Origin, channel: u16) -> bool {
        let is_meant = |source: &Source| {
            source.job.is_none_or(|meant| meant == origin.job) && source.rank.is_none_or(|meant| meant == origin.rank)
        };
        self.channels & channel != 0 && self.sources.iter().any(is_meant)
    }

    pub(super) fn channels(&self) -> u16 {
        self.channels
    }

    pub(super) fn sources(&self) -> &[Source] {
        &self.sources
    }
}

impl Forwards {
    pub(super) fn pulls(&self) -> &[Active] {
        &self.pulls
    }

    /// Returns true while output waits for the client.
    pub(super) fn is_forwarding(&self) -> bool {
        !self.pulls.is_empty() && (self.is_sending || !self.waiting.is_empty())
    }

    /// Adds a pull.
    ///
    /// # Errors
    /// Fails with the status of the answer if the client has too many pulls.
    pub(super) fn begin(&mut self, number: u64, pull: &Pull<'_>, sources: Vec<Source>) -> Result<(), i32> {
        if self.pulls.len() >= PULLS_MAX {
            return Err(status::OUT_OF_RESOURCE);
        }
        let Pull { channels, reference, .. } = *pull;
        self.pulls.push(Active { number, reference, channels, sources, lost: None });
        Ok(())
    }

    /// Removes a pull and its queued messages; returns false if no pull has this number.
    pub(super) fn end(&mut self, number: u64) -> bool {
        let before = self.pulls.len();
        self.pulls.retain(|pull| pull.number != number);
        self.waiting.retain(|waiting| waiting.number != number);
        self.waiting_bytes = self.waiting.iter().map(|waiting| waiting.message.len()).sum();
        self.pulls.len() < before
    }

    /// Queues a piece of output for each matching pull. No process receives its own output.
    pub(super) fn push_output(&mut self, jobs: &Jobs, client: Identity, piece: Output<'_>) {
        let Output { origin, channel, lost: lost_before, bytes } = piece;
        let Some(job) = jobs.get(origin.job) else { return };
        let reader = &jobs[client.seat.job].namespace.name;
        let name = job.namespace.name.as_bytes();
        if reader.as_bytes() == name && jobs.rank(client.seat).rank == origin.rank {
            return;
        }
        let meant: Vec<usize> =
            (0..self.pulls.len()).filter(|&index| self.pulls[index].matches(origin, channel)).collect();
        for index in meant {
            let pull = &self.pulls[index];
            let source = Proc { namespace: name, rank: origin.rank.0 };
            let lost = pull.lost.map_or(0, |lost| lost.bytes) + lost_before;
            let delivery =
                Delivery { source, channel, reference: pull.reference, lost, is_last: bytes.is_empty(), bytes };
            let message = frame::message(frame::TAG_FORWARD, &delivery.encode(client.encoding));
            // The end of a stream is sent only once.
            if bytes.is_empty() || self.has_room_for(&message) {
                self.push(pull.number, message);
                self.pulls[index].lost = None;
                continue;
            }
            self.pulls[index].lost = Some(Lost { bytes: lost + bytes.len() as u64, origin, channel });
            if !std::mem::replace(&mut self.is_known_slow, true) {
                tracing::warn!(
                    "{reader} reads output of ranks more slowly than they write it: some of it is dropped, and the amount is reported"
                );
            }
        }
    }

    /// Returns the next message, if the connection has taken the previous one.
    pub(super) fn take_next(&mut self, jobs: &Jobs, client: Option<Identity>) -> Option<Bytes> {
        if self.is_sending {
            return None;
        }
        if self.waiting.is_empty()
            && let Some(Identity { encoding, .. }) = client
        {
            self.push_losses(jobs, encoding);
        }
        let Waiting { message, .. } = self.waiting.pop_front()?;
        self.waiting_bytes -= message.len();
        Some(message)
    }

    /// All queued messages are sent: reports the bytes dropped since then, without waiting for more output.
    fn push_losses(&mut self, jobs: &Jobs, encoding: Encoding) {
        for index in 0..self.pulls.len() {
            let pull = &mut self.pulls[index];
            let Some(Lost { bytes: lost, origin, channel }) = pull.lost.take() else { continue };
            let source = Proc { namespace: jobs[origin.job].namespace.name.as_bytes(), rank: origin.rank.0 };
            let delivery = Delivery { source, channel, reference: pull.reference, lost, is_last: false, bytes: b"" };
            let message = frame::message(frame::TAG_FORWARD, &delivery.encode(encoding));
            let number = pull.number;
            self.push(number, message);
        }
    }

    fn has_room_for(&self, message: &Bytes) -> bool {
        self.waiting_bytes + message.len() <= WAITING_MAX
    }

    fn push(&mut self, number: u64, message: Bytes) {
        self.waiting_bytes += message.len();
        self.waiting.push_back(Waiting { number, message });
    }
}

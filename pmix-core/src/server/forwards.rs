//! Output of ranks in transit to one client.

use std::collections::VecDeque;

use bytes::Bytes;
use pmi_core::ids::Rank;

use crate::namespace::JobIndex;

/// Maximum number of queued bytes for one client; further bytes are dropped.
const WAITING_MAX: usize = 1024 * 1024;

/// Output in transit to one client.
#[derive(Debug, Default)]
pub(super) struct Forwards {
    pub(super) pulls: Vec<Active>,
    pub(super) waiting: VecDeque<Waiting>,
    pub(super) waiting_bytes: usize,
    /// True while the connection has not taken the last message.
    pub(super) is_sending: bool,
    /// True after the log has reported the slow reader.
    pub(super) is_known_slow: bool,
}

/// Rank that wrote output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) job: JobIndex,
    pub(super) rank: Rank,
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
    pub(super) number: u64,
    /// The client's identifier of the pull.
    pub(super) reference: u64,
    pub(super) channels: u16,
    pub(super) sources: Vec<Source>,
    /// Dropped output without a report, with the rank and the stream of the last dropped piece.
    pub(super) lost: Option<Lost>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub(super) bytes: u64,
    pub(super) origin: Origin,
    pub(super) channel: u16,
}

/// A message for a client, and its pull.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) number: u64,
    pub(super) message: Bytes,
}

impl Active {
    pub(super) fn matches(&self, origin: Origin, channel: u16) -> bool {
        let is_meant = |source: &Source| {
            source.job.is_none_or(|meant| meant == origin.job) && source.rank.is_none_or(|meant| meant == origin.rank)
        };
        self.channels & channel != 0 && self.sources.iter().any(is_meant)
    }

    pub(super) fn channels(&self) -> u16 {
        self.channels
    }

    /// Jobs and ranks; `None` means all of them.
    pub(super) fn sources(&self) -> impl Iterator<Item = (Option<JobIndex>, Option<Rank>)> {
        self.sources.iter().map(|source| (source.job, source.rank))
    }
}

impl Forwards {
    pub(super) fn pulls(&self) -> &[Active] {
        &self.pulls
    }

    pub(super) fn has_room_for(&self, message: &Bytes) -> bool {
        self.waiting_bytes + message.len() <= WAITING_MAX
    }

    pub(super) fn push(&mut self, number: u64, message: Bytes) {
        self.waiting_bytes += message.len();
        self.waiting.push_back(Waiting { number, message });
    }

    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let Waiting { message, .. } = self.waiting.pop_front()?;
        self.waiting_bytes -= message.len();
        Some(message)
    }

    /// Removes a pull and its queued messages; returns false if no pull has this number.
    pub(super) fn end(&mut self, number: u64) -> bool {
        let before = self.pulls.len();
        self.pulls.retain(|pull| pull.number != number);
        self.waiting.retain(|waiting| waiting.number != number);
        self.waiting_bytes = self.waiting.iter().map(|waiting| waiting.message.len()).sum();
        self.pulls.len() < before
    }
}

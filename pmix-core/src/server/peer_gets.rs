//! Data of ranks of this node that other nodes request without a fence (direct modex).
//!
//! ```text
//! rank: GET ──> its server: not here ──Action::Ask──> the server of the wanted rank's node
//!                    │ waits                              │ waits until the rank commits it, or is gone, or the time expires
//! rank <── answer ── kept here <──handle_peer_answer── Action::Reply: all commits of the rank for other nodes
//! ```
//! Data that a fence has left on its nodes is requested node by node: see [`withheld`](super::withheld).

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use pmi_core::ids::Rank;

use super::action::{Action, Ticket};
use super::jobs::Jobs;
use super::launch::Launch;
use super::pending::Pending;
use super::question::DataQuestion;
use super::segments::{data_of, encode_segments, encode_values};
use crate::namespace::{JobIndex, RankData, Seat};
use crate::wire::status;

/// Maximum number of waiting questions of other nodes. Each waiting get sends one, and ranks have few of them.
const WAITING_MAX: usize = 64 * 1024;

/// Bytes up to which a rank's whole data is sent with a requested key. Above it, other nodes receive only the requested key.
const ALONG_MAX: usize = 1 << 20;

/// Bytes of a node's data that are sent at once, keys and values. Above it, other nodes request key by key. Hosts carry longer answers.
const WHOLE_MAX: usize = 32 << 20;

/// Questions of other nodes' servers that wait for a commit.
#[derive(Debug, Default)]
pub(super) struct PeerGets {
    /// Questions by namespace and rank.
    waiting: Pending<(Bytes, Rank), DataQuestion>,
}

impl PeerGets {
    /// Answers the question of another node, now or later.
    pub(super) fn serve(&mut self, launch: &mut Launch, ticket: Ticket, question: DataQuestion) {
        let about = (question.namespace.clone(), question.rank);
        match prospect_of(&launch.jobs, &question) {
            Prospect::Open if self.waiting.len() >= WAITING_MAX => launch.answer_peer(ticket, status::OUT_OF_RESOURCE),
            Prospect::Open => {
                let after = timeout_of(launch, &question);
                self.waiting.insert(ticket, about, question);
                launch.actions.push_back(Action::SetTimer { ticket, after });
            }
            prospect => {
                let answer = answer_of(&launch.jobs, &about, &prospect);
                launch.reply_to_peer(ticket, answer);
            }
        }
    }

    /// Checks the questions about a rank again, after a change that they may wait for.
    pub(super) fn serve_rank(&mut self, launch: &mut Launch, job: JobIndex, rank: Rank) {
        let namespace = Bytes::copy_from_slice(launch.jobs[job].namespace.name.as_bytes());
        self.serve_waiting(launch, &(namespace, rank));
    }

    /// Checks the questions about a new job.
    pub(super) fn serve_job(&mut self, launch: &mut Launch, job: JobIndex) {
        let namespace = Bytes::copy_from_slice(launch.jobs[job].namespace.name.as_bytes());
        let all = (namespace.clone(), Rank(0))..=(namespace, Rank(u32::MAX));
        for about in self.waiting.keys(all) {
            self.serve_waiting(launch, &about);
        }
    }

    fn serve_waiting(&mut self, launch: &mut Launch, about: &(Bytes, Rank)) {
        let is_answerable = |question: &DataQuestion| prospect_of(&launch.jobs, question) != Prospect::Open;
        let answerable = self.waiting.take(about, is_answerable);
        // Nodes with the same question receive the same bytes.
        let mut answers = HashMap::new();
        for (ticket, question) in answerable {
            launch.actions.push_back(Action::CancelTimer { ticket });
            let prospect = prospect_of(&launch.jobs, &question);
            let answer =
                answers.entry(prospect).or_insert_with_key(|prospect| answer_of(&launch.jobs, about, prospect)).clone();
            launch.reply_to_peer(ticket, answer);
        }
    }

    /// The time of a question has expired; returns false if the ticket is of another kind.
    pub(super) fn expire(&mut self, launch: &mut Launch, ticket: Ticket) -> bool {
        let is_waiting = self.waiting.remove(ticket).is_some();
        if is_waiting {
            launch.answer_peer(ticket, status::NOT_FOUND);
        }
        is_waiting
    }
}

/// Outlook of a question about a rank's data.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Prospect {
    /// The rank may still commit the requested data.
    Open,
    /// The rank has committed the data, and little else: the answer is all of its data.
    All,
    /// The rank has committed much data; the answer is only this key.
    Alone(Bytes),
    /// The rank will not commit the data.
    NotFound,
}

fn prospect_of(jobs: &Jobs, question: &DataQuestion) -> Prospect {
    // A spawned job may exist on some nodes earlier than on other nodes.
    let Some(job) = jobs.named(&question.namespace).map(|job| &jobs[job]) else { return Prospect::Open };
    if job.local(question.rank).is_none() {
        return Prospect::NotFound;
    }
    let data = job.data.get(&question.rank);
    match (data.filter(|data| data.has_for_others(question.key.as_deref())), &question.key) {
        (Some(data), Some(key)) if data.is_long() => Prospect::Alone(key.clone()),
        (Some(_), _) => Prospect::All,
        (None, _) if job.is_gone(question.rank) => Prospect::NotFound,
        (None, _) => Prospect::Open,
    }
}

/// The answer to questions about a rank with this prospect.
fn answer_of(jobs: &Jobs, about: &(Bytes, Rank), prospect: &Prospect) -> Bytes {
    let (namespace, rank) = about;
    let data = jobs.named(namespace).and_then(|job| jobs[job].data.get(rank));
    let answer = data.and_then(|data| match prospect {
        Prospect::All => Some(encode_values(data, None)),
        Prospect::Alone(key) => Some(encode_values(data, Some(key))),
        Prospect::NotFound | Prospect::Open => None,
    });
    answer.unwrap_or_else(|| status::NOT_FOUND.to_be_bytes().to_vec()).into()
}

fn timeout_of(launch: &Launch, question: &DataQuestion) -> Duration {
    let longest = launch.settings.rank_timeout;
    match launch.jobs.named(&question.namespace) {
        Some(job) => launch.timeout(job, question.rank, question.timeout),
        None => question.timeout.unwrap_or(longest).min(longest),
    }
}

/// All data that the ranks here have committed of a job for other nodes: a status; after success, a segment as in a fence.
pub(super) fn answer_with_all(jobs: &Jobs, namespace: &[u8]) -> Vec<u8> {
    let Some(job) = jobs.own(namespace) else {
        return status::NOT_FOUND.to_be_bytes().to_vec();
    };
    let seats: Vec<Seat> = jobs[job].ranks.iter().map(|(local, _)| Seat { job, local }).collect();
    let data = seats.iter().filter_map(|&seat| jobs[job].data.get(&jobs.rank(seat).rank));
    if data.map(RankData::remote_bytes).sum::<usize>() > WHOLE_MAX {
        return status::OUT_OF_RESOURCE.to_be_bytes().to_vec();
    }
    encode_segments(&data_of(jobs, &seats))
}

impl RankData {
    /// Returns true if other nodes receive only the keys that they request.
    fn is_long(&self) -> bool {
        // It stops as early as possible, because it runs for each question about the rank.
        let mut bytes = 0;
        self.remote.iter().any(|(key, value)| {
            bytes += key.len() + value.bytes.len();
            bytes > ALONG_MAX
        })
    }

    /// Returns the bytes of all keys and values for ranks of other nodes.
    fn remote_bytes(&self) -> usize {
        self.remote.iter().map(|(key, value)| key.len() + value.bytes.len()).sum()
    }

    /// Returns true if there is a key for ranks of other nodes; `None` means any key.
    fn has_for_others(&self, key: Option<&[u8]>) -> bool {
        key.map_or(!self.remote.is_empty(), |key| self.remote.contains_key(key))
    }
}

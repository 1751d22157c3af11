//! Data of ranks on other nodes, requested without a fence (direct modex).
//!
//! ```text
//! rank: GET ──> its server: not here ──Action::Ask──> the server of the wanted rank's node
//!                    │ waits                              │ parked until the rank commits it, or is gone, or the time expires
//! rank <── answer ── kept here <──handle_peer_answer── Action::Reply: all commits of the rank for other nodes
//! ```
//! Data that a fence has left on its nodes is requested node by node: see [`withheld`](super::withheld).

use std::collections::HashMap;
use std::iter;
use std::ops::Bound;
use std::time::Duration;

use bytes::Bytes;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::segment::Segment;

use super::node_processes::NodeProcesses;
use super::open_questions::{AwaitedValue, OpenQuestion, PeerQuestion};
use super::question::{DataQuestion, Question};
use super::{Action, Server, Ticket};
use crate::namespace::{JobIndex, RankData, Seat, Stored};
use crate::wire::status;

/// Maximum number of waiting questions of other nodes. Each waiting get sends one, and ranks have few of them.
const PARKED_MAX: usize = 64 * 1024;

/// Bytes up to which a rank's whole data is sent with a requested key. Above it, other nodes receive only the requested key.
const ALONG_MAX: usize = 1 << 20;

/// Bytes of a node's data that are sent at once, keys and values. Above it, other nodes request key by key. Hosts carry longer answers.
const WHOLE_MAX: usize = 32 << 20;

impl Server {
    /// Returns the other node of a rank; `None` if the rank is on this node.
    pub(super) fn other_node(&self, job: JobIndex, rank: Rank) -> Option<NodeIndex> {
        let namespace = &self.jobs[job].namespace;
        namespace.job.placement.node_of(rank).filter(|&node| node != namespace.node)
    }

    /// Requests the value of a waiting get from a node, unless that request is already open.
    pub(super) fn ask_node(&mut self, node: NodeIndex, wanted: &AwaitedValue) {
        if !self.wanted.insert(wanted.clone()) {
            return;
        }
        let namespace = self.jobs[wanted.job].namespace.name.clone().into();
        let AwaitedValue { rank, key, timeout, .. } = wanted.clone();
        let question = Question::Data(DataQuestion { namespace, rank, key, timeout });
        self.ask_peer(node, &question, OpenQuestion::Value(wanted.clone()));
    }

    pub(super) fn ask_peer(&mut self, node: NodeIndex, question: &Question, asking: OpenQuestion) -> Ticket {
        self.ask_peer_for(node, question.encode(), asking)
    }

    fn ask_peer_for(&mut self, node: NodeIndex, question: Bytes, asking: OpenQuestion) -> Ticket {
        let ticket = self.new_ticket();
        let asked = PeerQuestion { asking, node, question: question.clone(), fences_ended: self.fences_ended };
        self.asking.insert(ticket, asked);
        self.actions.push_back(Action::Ask { ticket, node, question });
        ticket
    }

    /// The server of an [`Action::Ask`] has answered; `None` if it gives no answer.
    ///
    /// If a fence has ended here meanwhile, values in the answer may be older than the fence's data. The question is then sent again.
    pub fn handle_peer_answer(&mut self, ticket: Ticket, answer: Option<&Bytes>) {
        let asked = self.asking.remove(&ticket);
        let has_values = answer.is_some_and(|answer| answer.starts_with(&status::SUCCESS.to_be_bytes()));
        let is_old = |asked: &&PeerQuestion| asked.asking.brings_data() && asked.fences_ended != self.fences_ended;
        if let Some(asked) = asked.as_ref().filter(|asked| has_values && is_old(asked)).cloned() {
            self.ask_peer_for(asked.node, asked.question, asked.asking);
            return;
        }
        match asked.map(|asked| asked.asking) {
            Some(OpenQuestion::Value(wanted)) => self.on_value(&wanted, answer),
            Some(OpenQuestion::Refresh(refresh)) => self.on_refreshed(refresh, answer),
            Some(OpenQuestion::Withheld { job, node }) => self.on_fetched(job, node, answer.and_then(decode_segment)),
            Some(OpenQuestion::Look { inquiry, job, node }) => {
                let processes = answer.and_then(|answer| NodeProcesses::decode(answer));
                self.on_processes(inquiry, job, node, processes);
            }
            Some(OpenQuestion::Signal { inquiry }) => {
                let answer = answer.and_then(|answer| answer.first_chunk()).copied();
                self.on_signalled(inquiry, answer.map_or(status::COMM_FAILURE, i32::from_be_bytes));
            }
            Some(OpenQuestion::Output { node }) => self.on_output(ticket, node, answer),
            Some(OpenQuestion::Spread) | None => {}
        }
    }

    fn on_value(&mut self, wanted: &AwaitedValue, answer: Option<&Bytes>) {
        self.wanted.remove(wanted);
        if let Some(data) = answer.and_then(decode_answer) {
            let known = self.jobs[wanted.job].data.entry(wanted.rank).or_default();
            known.remote.extend(data);
            self.serve_waits(wanted.job, wanted.rank);
        }
        self.give_up_waits(wanted);
    }

    /// A server of another node requests committed data of a rank of this node. An [`Action::Reply`] with the returned ticket holds the
    /// answer, now or later.
    pub fn handle_question(&mut self, question: &Bytes) -> Ticket {
        let ticket = self.new_ticket();
        match Question::decode(question) {
            Some(Question::Data(question)) => self.on_data_question(ticket, question),
            Some(Question::AllOf { namespace }) => {
                let answer = self.answer_with_all(&namespace);
                self.reply_to_peer(ticket, answer);
            }
            Some(Question::Spread { name, epoch }) => {
                self.reply_to_peer(ticket, status::SUCCESS.to_be_bytes().to_vec());
                self.spread(&name, epoch);
            }
            Some(Question::Wish { name, epoch }) => {
                self.reply_to_peer(ticket, status::SUCCESS.to_be_bytes().to_vec());
                self.on_wish(&name, epoch);
            }
            Some(Question::Processes { namespace }) => self.on_processes_question(ticket, &namespace),
            Some(Question::Signal { namespace, signal, ranks }) => {
                self.on_signal_question(ticket, &namespace, signal, ranks);
            }
            Some(Question::Output { asker, wanted }) => self.on_output_question(ticket, asker, wanted),
            None => self.reply_to_peer(ticket, status::BAD_PARAM.to_be_bytes().to_vec()),
        }
        ticket
    }

    fn on_data_question(&mut self, ticket: Ticket, question: DataQuestion) {
        let about = (question.namespace.clone(), question.rank);
        match self.prospect_of(&question) {
            Prospect::Open if self.parked.len() >= PARKED_MAX => {
                self.reply_to_peer(ticket, status::OUT_OF_RESOURCE.to_be_bytes().to_vec());
            }
            Prospect::Open => {
                let after = self.timeout_of(&question);
                self.parked.insert(ticket, about, question);
                self.actions.push_back(Action::SetTimer { ticket, after });
            }
            prospect => {
                let answer = self.answer_of(&about, &prospect);
                self.reply_to_peer(ticket, answer);
            }
        }
    }

    /// All data that the ranks here have committed of a job for other nodes: a status; after success, a segment as in a fence.
    fn answer_with_all(&self, namespace: &[u8]) -> Vec<u8> {
        let Some(job) = self.job_named(namespace).filter(|&job| !self.jobs[job].is_met()) else {
            return status::NOT_FOUND.to_be_bytes().to_vec();
        };
        let seats: Vec<Seat> = self.jobs[job].ranks.iter().map(|(local, _)| Seat { job, local }).collect();
        let data = seats.iter().filter_map(|&seat| self.jobs[job].data.get(&self.rank(seat).rank));
        if data.map(RankData::remote_bytes).sum::<usize>() > WHOLE_MAX {
            return status::OUT_OF_RESOURCE.to_be_bytes().to_vec();
        }
        let segments = self.data_of(&seats);
        let parts = segments.iter().map(Segment::as_bytes);
        iter::once(&status::SUCCESS.to_be_bytes()[..]).chain(parts).collect::<Vec<_>>().concat()
    }

    /// Checks the questions of other nodes about a rank again, after a change that they may wait for.
    pub(super) fn serve_peers(&mut self, job: JobIndex, rank: Rank) {
        let namespace = Bytes::copy_from_slice(self.jobs[job].namespace.name.as_bytes());
        self.serve_peers_at(&(namespace, rank));
    }

    /// Checks the questions of other nodes about a new job.
    pub(super) fn serve_peers_about(&mut self, job: JobIndex) {
        let namespace = Bytes::copy_from_slice(self.jobs[job].namespace.name.as_bytes());
        let all = (namespace.clone(), Rank(0))..=(namespace, Rank(u32::MAX));
        for about in self.parked.keys(all) {
            self.serve_peers_at(&about);
        }
    }

    fn serve_peers_at(&mut self, about: &(Bytes, Rank)) {
        let mut parked = std::mem::take(&mut self.parked);
        let answerable = parked.take(about, |question| self.prospect_of(question) != Prospect::Open);
        self.parked = parked;
        // Nodes with the same question receive the same bytes.
        let mut answers = HashMap::new();
        for (ticket, question) in answerable {
            self.actions.push_back(Action::CancelTimer { ticket });
            let prospect = self.prospect_of(&question);
            let answer = answers.entry(prospect).or_insert_with_key(|prospect| self.answer_of(about, prospect)).clone();
            self.reply_to_peer(ticket, answer);
        }
    }

    /// The time of a question of another node has expired.
    pub(super) fn end_question(&mut self, ticket: Ticket) {
        if self.parked.remove(ticket).is_some() {
            self.reply_to_peer(ticket, status::NOT_FOUND.to_be_bytes().to_vec());
        }
    }

    pub(super) fn reply_to_peer(&mut self, ticket: Ticket, answer: impl Into<Bytes>) {
        self.actions.push_back(Action::Reply { ticket, answer: answer.into() });
    }

    fn prospect_of(&self, question: &DataQuestion) -> Prospect {
        // A spawned job may exist on some nodes earlier than on other nodes.
        let Some(job) = self.job_named(&question.namespace) else { return Prospect::Open };
        if self.jobs[job].local(question.rank).is_none() {
            return Prospect::NotFound;
        }
        let data = self.jobs[job].data.get(&question.rank);
        match (data.filter(|data| data.has_for_others(question.key.as_deref())), &question.key) {
            (Some(data), Some(key)) if data.is_long() => Prospect::Alone(key.clone()),
            (Some(_), _) => Prospect::All,
            (None, _) if self.is_gone(job, question.rank) => Prospect::NotFound,
            (None, _) => Prospect::Open,
        }
    }

    /// The answer to questions about a rank with this prospect.
    fn answer_of(&self, about: &(Bytes, Rank), prospect: &Prospect) -> Bytes {
        let (namespace, rank) = about;
        let data = self.job_named(namespace).and_then(|job| self.jobs[job].data.get(rank));
        let answer = data.and_then(|data| match prospect {
            Prospect::All => Some(encode_answer(data, None)),
            Prospect::Alone(key) => Some(encode_answer(data, Some(key))),
            Prospect::NotFound | Prospect::Open => None,
        });
        answer.unwrap_or_else(|| status::NOT_FOUND.to_be_bytes().to_vec()).into()
    }

    fn timeout_of(&self, question: &DataQuestion) -> Duration {
        match self.job_named(&question.namespace) {
            Some(job) => self.timeout(job, question.rank, question.timeout),
            None => question.timeout.unwrap_or(self.settings.rank_timeout).min(self.settings.rank_timeout),
        }
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

/// A status; after success, a segment of the rank's keys with their values, each value after the tag of its encoding. It holds all keys,
/// or only one.
fn encode_answer(data: &RankData, alone: Option<&Bytes>) -> Vec<u8> {
    let range = alone.map_or((Bound::Unbounded, Bound::Unbounded), |key| (Bound::Included(key), Bound::Included(key)));
    let pairs = data.remote.range::<Bytes, _>(range);
    let segment: Segment = pairs.map(|(key, value)| (key, value.tagged())).collect();
    [&status::SUCCESS.to_be_bytes(), segment.as_bytes()].concat()
}

/// Returns the pairs of an answer about one rank; `None` if the answer reports none.
pub(super) fn decode_answer(answer: &Bytes) -> Option<Vec<(Bytes, Stored)>> {
    let segment = decode_segment(answer)?;
    let pairs = segment.pairs();
    Some(pairs.filter_map(|(key, value)| Some((Bytes::copy_from_slice(key), Stored::untag(value)?))).collect())
}

/// Returns the segment after a status of success; `None` after any other status.
fn decode_segment(answer: &Bytes) -> Option<Segment> {
    let (code, _) = answer.split_first_chunk()?;
    let is_success = i32::from_be_bytes(*code) == status::SUCCESS;
    Segment::decode(answer.slice(size_of::<i32>()..)).ok().filter(|_| is_success)
}

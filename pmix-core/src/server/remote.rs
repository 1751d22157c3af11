//! Data of ranks on other nodes, asked for without a fence (direct modex).
//!
//! ```text
//! rank: GET ──> its server: not here ──Action::Ask──> the server of the node where the wanted rank sits
//!                    │ waits                              │ parked until the rank commits it, or is gone, or time is over
//! rank <── answer ── kept here <──handle_peer_answer── Action::Reply: all that the rank has committed for other nodes
//! ```
//! The bytes of a question and of its answer are read by such servers only, all of one version.

use std::time::Duration;

use bytes::Bytes;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::segment::Segment;

use super::data::Wanted;
use super::{Action, Server, Ticket};
use crate::namespace::{JobIndex, RankData, Stored};
use crate::wire::status;

/// The most questions of other nodes that wait here. Each waiting get asks one, and ranks have few of them.
const PARKED_MAX: usize = 64 * 1024;

/// A question of another node's server, or to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    namespace: Bytes,
    rank: Rank,
    /// Without one, anything that the rank has committed.
    key: Option<Bytes>,
    /// Time for which the client says that it waits.
    timeout: Option<Duration>,
}

impl Question {
    /// ```text
    /// timeout in ms (0 for none), rank: 4 bytes each; namespace, NUL; key (nothing for none)
    /// ```
    fn encode(&self) -> Bytes {
        let timeout = self.timeout.map_or(0, |timeout| u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX));
        let key = self.key.as_deref().unwrap_or_default();
        [&timeout.to_be_bytes(), &self.rank.0.to_be_bytes(), &self.namespace[..], &[0], key].concat().into()
    }

    fn decode(bytes: &Bytes) -> Option<Self> {
        let (timeout, rest) = bytes.split_first_chunk()?;
        let (rank, rest) = rest.split_first_chunk()?;
        let end = rest.iter().position(|&byte| byte == 0)?;
        let (timeout, key) = (u32::from_be_bytes(*timeout), &rest[end + 1..]);
        Some(Self {
            namespace: bytes.slice_ref(&rest[..end]),
            rank: Rank(u32::from_be_bytes(*rank)),
            key: (!key.is_empty()).then(|| bytes.slice_ref(key)),
            timeout: (timeout > 0).then(|| Duration::from_millis(timeout.into())),
        })
    }
}

impl Server {
    /// The other node on which a rank sits; `None` if it sits here.
    pub(super) fn other_node(&self, job: JobIndex, rank: Rank) -> Option<NodeIndex> {
        let namespace = &self.jobs[job.0].namespace;
        namespace.job.placement.node_of(rank).filter(|&node| node != namespace.node)
    }

    /// Asks a node for what a get waits for, unless it is asked for that already.
    pub(super) fn ask_node(&mut self, node: NodeIndex, wanted: &Wanted) {
        if !self.wanted.insert(wanted.clone()) {
            return;
        }
        let namespace = self.jobs[wanted.job.0].namespace.name.clone().into();
        let Wanted { rank, key, timeout, .. } = wanted.clone();
        let question = Question { namespace, rank, key, timeout }.encode();
        let ticket = self.new_ticket();
        self.asking.insert(ticket, wanted.clone());
        self.actions.push_back(Action::Ask { ticket, node, question });
    }

    /// The server that an [`Action::Ask`] was for has answered; `None` if it gives no answer.
    pub fn handle_peer_answer(&mut self, ticket: Ticket, answer: Option<&Bytes>) {
        let Some(wanted) = self.asking.remove(&ticket) else { return };
        self.wanted.remove(&wanted);
        if let Some(data) = answer.and_then(decode_answer) {
            let known = self.jobs[wanted.job.0].data.entry(wanted.rank).or_default();
            known.remote.extend(data);
            self.serve_waits(wanted.job, wanted.rank);
        }
        self.give_up_waits(&wanted);
    }

    /// A server of another node asks for what a rank of this one has committed. Answered, now or later, by an [`Action::Reply`] with
    /// the ticket that is returned.
    pub fn handle_question(&mut self, question: &Bytes) -> Ticket {
        let ticket = self.new_ticket();
        let Some(question) = Question::decode(question) else {
            self.reply_to_peer(ticket, status::BAD_PARAM.to_be_bytes().to_vec());
            return ticket;
        };
        match self.answer_to(&question) {
            Some(answer) => self.reply_to_peer(ticket, answer),
            None if self.parked.len() >= PARKED_MAX => {
                self.reply_to_peer(ticket, status::OUT_OF_RESOURCE.to_be_bytes().to_vec());
            }
            None => {
                let after = self.timeout_of(&question);
                self.parked.insert(ticket, (question.namespace.clone(), question.rank), question);
                self.actions.push_back(Action::SetTimer { ticket, after });
            }
        }
        ticket
    }

    /// Looks again at the questions of other nodes about a rank, after something has changed that they may wait for.
    pub(super) fn serve_peers(&mut self, job: JobIndex, rank: Rank) {
        let namespace = Bytes::copy_from_slice(self.jobs[job.0].namespace.name.as_bytes());
        self.serve_peers_at(&(namespace, rank));
    }

    /// Looks again at the questions of other nodes about a job that was not known here yet.
    pub(super) fn serve_peers_about(&mut self, job: JobIndex) {
        let namespace = Bytes::copy_from_slice(self.jobs[job.0].namespace.name.as_bytes());
        let all = (namespace.clone(), Rank(0))..=(namespace, Rank(u32::MAX));
        for about in self.parked.keys(all) {
            self.serve_peers_at(&about);
        }
    }

    fn serve_peers_at(&mut self, about: &(Bytes, Rank)) {
        let mut parked = std::mem::take(&mut self.parked);
        let answerable = parked.take(about, |question| self.answer_to(question).is_some());
        self.parked = parked;
        for (ticket, question) in answerable {
            if let Some(answer) = self.answer_to(&question) {
                self.actions.push_back(Action::CancelTimer { ticket });
                self.reply_to_peer(ticket, answer);
            }
        }
    }

    /// The time of a question of another node is over.
    pub(super) fn end_question(&mut self, ticket: Ticket) {
        if self.parked.remove(ticket).is_some() {
            self.reply_to_peer(ticket, status::NOT_FOUND.to_be_bytes().to_vec());
        }
    }

    fn reply_to_peer(&mut self, ticket: Ticket, answer: Vec<u8>) {
        self.actions.push_back(Action::Reply { ticket, answer: answer.into() });
    }

    /// The answer, or nothing while the rank may still commit what is asked for.
    fn answer_to(&self, question: &Question) -> Option<Vec<u8>> {
        let not_found = || Some(status::NOT_FOUND.to_be_bytes().to_vec());
        // A job that was spawned may be known on some nodes before it is on others.
        let job = self.job_named(&question.namespace)?;
        if self.jobs[job.0].local(question.rank).is_none() {
            return not_found();
        }
        let data = self.jobs[job.0].data.get(&question.rank);
        match data.filter(|data| data.has_for_others(question.key.as_deref())) {
            Some(data) => Some(encode_answer(data)),
            None if self.is_gone(job, question.rank) => not_found(),
            None => None,
        }
    }

    fn timeout_of(&self, question: &Question) -> Duration {
        match self.job_named(&question.namespace) {
            Some(job) => self.timeout(job, question.rank, question.timeout),
            None => question.timeout.unwrap_or(self.settings.rank_timeout).min(self.settings.rank_timeout),
        }
    }
}

impl RankData {
    /// Returns true if there is a key for ranks of other nodes; `None` stands for any key.
    fn has_for_others(&self, key: Option<&[u8]>) -> bool {
        key.map_or(!self.remote.is_empty(), |key| self.remote.contains_key(key))
    }
}

/// A status; behind one of success, a segment of the rank's keys with their values, each value behind the tag of its encoding.
fn encode_answer(data: &RankData) -> Vec<u8> {
    let pairs = data.remote.iter().map(|(key, value)| (key, value.tagged()));
    let segment: Segment = pairs.collect();
    [&status::SUCCESS.to_be_bytes(), segment.as_bytes()].concat()
}

/// Returns the pairs of an answer; `None` if it says that there are none.
fn decode_answer(answer: &Bytes) -> Option<Vec<(Bytes, Stored)>> {
    let (code, _) = answer.split_first_chunk()?;
    if i32::from_be_bytes(*code) != status::SUCCESS {
        return None;
    }
    let segment = Segment::decode(answer.slice(size_of::<i32>()..)).ok()?;
    let pairs = segment.pairs();
    Some(pairs.filter_map(|(key, value)| Some((Bytes::copy_from_slice(key), Stored::untag(value)?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_survive_the_way_between_nodes() {
        let question = Question {
            namespace: Bytes::from_static(b"job.secret"),
            rank: Rank(7),
            key: Some(Bytes::from_static(b"card")),
            timeout: Some(Duration::from_secs(3)),
        };
        assert_eq!(Question::decode(&question.encode()), Some(question.clone()));
        let plain = Question { key: None, timeout: None, ..question };
        assert_eq!(Question::decode(&plain.encode()), Some(plain));
        for bad in [&b""[..], b"\0\0\0\0\0\0\0", b"\0\0\0\0\0\0\0\0no end"] {
            assert_eq!(Question::decode(&Bytes::from_static(bad)), None);
        }
    }
}

//! Fresh values of ranks of other nodes: REFRESH_CACHE, and gets with `pmix.get.refresh`, which libpmix before 5 sends instead.
//!
//! The data of a rank of another node arrived here at some time, with a fence or a get. Its node is asked once for the current data.

use std::time::Duration;

use bytes::Bytes;
use pmi_core::ids::Rank;

use super::open_questions::{Get, OpenQuestion, Refresh};
use super::question::{DataQuestion, Question};
use super::remote::decode_answer;
use super::{Address, Server};
use crate::namespace::JobIndex;
use crate::wire::reader::Proc;
use crate::wire::writer::Writer;
use crate::wire::{reply, status};

/// Time that a node waits for a rank without commits: only existing data is requested. Nodes treat 0 as no limit.
const AT_ONCE: Duration = Duration::from_millis(1);

impl Server {
    /// A client requests all current commits of a rank.
    pub(super) fn refresh(&mut self, address: Address, proc: Proc<'_>) {
        let rank = Rank(proc.rank);
        let job = self.job_named(proc.namespace);
        let Some(job) = job.filter(|&job| self.jobs[job].namespace.job.placement.node_of(rank).is_some()) else {
            return self.answer(address, status::NOT_FOUND);
        };
        self.refresh_for(Refresh { address, job, rank, get: None });
    }

    /// Serves a get after a refresh from its rank's node.
    pub(super) fn refresh_and_get(&mut self, address: Address, get: Get) {
        self.refresh_for(Refresh { address, job: get.job, rank: get.rank, get: Some(get) });
    }

    fn refresh_for(&mut self, refresh: Refresh) {
        let Refresh { address, job, rank, .. } = refresh;
        let node = self.other_node(job, rank).filter(|_| !self.jobs[job].is_met());
        let Some(node) = node else { return self.end_refresh(refresh) };
        let questions = self.questions_max(address.identity.seat);
        if !self.rank_mut(address.identity.seat).is_some_and(|state| state.quota.ask(questions)) {
            return self.answer(address, status::OUT_OF_RESOURCE);
        }
        let namespace = self.jobs[job].namespace.name.clone().into();
        let question = DataQuestion { namespace, rank, key: None, timeout: Some(AT_ONCE) };
        self.ask_peer(node, &Question::Data(question), OpenQuestion::Refresh(refresh));
    }

    /// The rank's node has answered; `None` if it gives no answer.
    pub(super) fn on_refreshed(&mut self, refresh: Refresh, answer: Option<&Bytes>) {
        let Refresh { address, job, rank, .. } = refresh;
        if let Some(state) = self.rank_mut(address.identity.seat) {
            state.quota.answered();
        }
        if let Some(data) = answer.and_then(decode_answer) {
            self.jobs[job].data.entry(rank).or_default().remote.extend(data);
            self.serve_waits(job, rank);
        }
        self.end_refresh(refresh);
    }

    fn end_refresh(&mut self, Refresh { address, job, rank, get }: Refresh) {
        match get {
            Some(get) => self.serve_get(address, get),
            None => self.tell_all_of(address, job, rank),
        }
    }

    /// Sends a status, and all pairs of a rank, which replace the pairs that the client has.
    fn tell_all_of(&mut self, address: Address, job: JobIndex, rank: Rank) {
        let mut reply = Writer::new(address.identity.encoding);
        reply.status(status::SUCCESS);
        if let Some(data) = self.jobs[job].data.get(&rank) {
            for (key, value) in self.scope_of(job, rank, data) {
                reply::push_pair(&mut reply, key, value.encoded());
            }
        }
        self.reply(address, &reply.into_bytes());
    }
}

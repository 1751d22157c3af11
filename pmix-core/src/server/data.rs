//! Gets of committed data.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use pmi_core::ids::Rank;

use super::open_questions::{AwaitedValue, Get};
use super::{Action, Address, Server, Ticket};
use crate::job_info::Detail;
use crate::namespace::{JobIndex, RankData, Stored};
use crate::node_facts::TOPOLOGY;
use crate::wire::Encoding;
use crate::wire::reader::Proc;
use crate::wire::value::{Info, Value};
use crate::wire::{reply, status, types};

/// A get that waits for a commit.
#[derive(Clone, Debug)]
pub(super) struct Wait {
    address: Address,
    wanted: AwaitedValue,
}

/// Outcome of a get that waited.
#[derive(Clone, Copy, Debug)]
enum GetOutcome {
    Found,
    NotFound,
}

/// Key of a rank's own number of a group's communicator.
const GROUP_LOCAL_ID: &[u8] = b"pmix.grp.lclid";

/// The rank that spawned a job. libpmix searches for it among the facts about a rank, and requests it when it is missing.
const PARENT: &[u8] = b"pmix.parent";

/// The key that identifies the group.
const GROUP_CONTEXT: &str = "pmix.grp.ctxid";

/// Longest key, in bytes: `PMIX_MAX_KEYLEN` of the standard.
const KEY_MAX: usize = 511;

/// Extra time for the answer of another node.
const PEER_GRACE: Duration = Duration::from_secs(5);

impl Server {
    pub(super) fn get(&mut self, address: Address, proc: Proc<'_>, infos: &[Info<'_>], key: Option<&[u8]>) {
        let Some(job) = self.job_named(proc.namespace) else { return self.answer(address, status::NOT_FOUND) };
        let is_own = job == address.identity.seat.job;
        if proc.rank == types::RANK_WILDCARD {
            return match key {
                _ if !is_own => self.tell_foreign_job(address, job),
                Some(key) if key == TOPOLOGY.as_bytes() => self.tell_topology(address, job),
                // A client already has the facts about its own job; other facts are unknown.
                _ => self.answer(address, status::NOT_FOUND),
            };
        }
        if key.is_some_and(|key| key.len() > KEY_MAX) {
            return self.answer(address, status::BAD_PARAM);
        }
        let rank = Rank(proc.rank);
        if self.jobs[job].namespace.job.placement.node_of(rank).is_none() {
            return self.answer(address, status::NOT_FOUND);
        }
        let says = |what: &[u8]| infos.iter().any(|info| info.key == what && info.value.is_true());
        let key = key.map(Bytes::copy_from_slice);
        let get = Get { job, rank, key, immediate: says(b"pmix.immediate"), timeout: client_timeout(infos) };
        if says(b"pmix.get.refresh") {
            return self.refresh_and_get(address, get);
        }
        self.serve_get(address, get);
    }

    /// Answers a get of a rank's values, at once or when they arrive.
    pub(super) fn serve_get(&mut self, address: Address, get: Get) {
        let Get { job, rank, ref key, immediate, timeout } = get;
        let key = key.as_deref();
        if key == Some(GROUP_LOCAL_ID) {
            return self.tell_group_ids(address, job, rank);
        }
        let is_own = job == address.identity.seat.job;
        let reserved = key.is_some_and(|key| key.starts_with(b"pmix."));
        // Ranks receive the facts about ranks on their node without a request.
        if is_own && reserved && key.is_some_and(|key| self.tell_fact(address, job, rank, key)) {
            return;
        }
        let is_fact = key == Some(PARENT) && self.jobs[job].namespace.parent.is_some();
        // The data of a collecting fence exists for its ranks, without a wait for a commit. An earlier value may be outdated.
        if let Some(node) = self.withholder(job, rank).filter(|_| !is_fact) {
            return self.fetch(node, address, get);
        }
        if self.is_there(job, rank, key) {
            return self.tell_data(address, job, rank);
        }
        if is_fact {
            return self.tell_parent(address, job, rank);
        }
        if reserved && !is_own {
            return self.tell_foreign_job(address, job);
        }
        // Reserved keys are facts, so no rank commits them later. Of other launches, only the data of a meeting is available.
        if immediate || reserved || self.jobs[job].is_met() || self.is_gone(job, rank) {
            return self.answer(address, status::NOT_FOUND);
        }
        let questions = self.questions_max(address.identity.seat);
        if !self.rank_mut(address.identity.seat).is_some_and(|state| state.quota.ask(questions)) {
            return self.answer(address, status::OUT_OF_RESOURCE);
        }
        let wanted = AwaitedValue { job, rank, key: get.key, timeout };
        let node = self.other_node(job, rank);
        let after = match node {
            // The other node limits the wait; this limit is for a node that never answers.
            Some(_) => {
                wanted.timeout.unwrap_or(self.settings.rank_timeout).min(self.settings.rank_timeout) + PEER_GRACE
            }
            None => self.timeout(job, rank, wanted.timeout),
        };
        if let Some(node) = node {
            self.ask_node(node, &wanted);
        }
        let ticket = self.new_ticket();
        self.waits.insert(ticket, (job, rank), Wait { address, wanted });
        self.actions.push_back(Action::SetTimer { ticket, after });
    }

    /// Returns the time that a get may wait for a rank of this node. That is the client's timeout, if any; else a long time for a rank
    /// without any commit, and a short time for a rank with other commits.
    pub(super) fn timeout(&self, job: JobIndex, rank: Rank, wished: Option<Duration>) -> Duration {
        match wished {
            Some(told) => told.min(self.settings.rank_timeout),
            None if self.jobs[job].data.contains_key(&rank) => self.settings.key_timeout,
            None => self.settings.rank_timeout,
        }
    }

    /// A timer of an [`Action::SetTimer`] has expired.
    pub fn handle_timer(&mut self, ticket: Ticket) {
        if let Some(wait) = self.waits.remove(ticket) {
            self.end_waits(vec![(ticket, wait)], GetOutcome::NotFound);
        } else if let Some(address) = self.withheld.take_get(ticket) {
            self.give_up_get(address);
        } else if !self.end_output_question(ticket) {
            self.end_question(ticket);
        }
    }

    /// Checks the gets that wait for a rank again.
    pub(super) fn serve_waits(&mut self, job: JobIndex, rank: Rank) {
        let values = self.jobs[job].data.get(&rank).map(|data| self.scope_of(job, rank, data));
        let Some(values) = values else { return };
        let is_there = |key: Option<&Bytes>| key.map_or(!values.is_empty(), |key| values.contains_key(key));
        let mut waits = std::mem::take(&mut self.waits);
        let served = waits.take(&(job, rank), |wait| is_there(wait.wanted.key.as_ref()));
        self.waits = waits;
        self.end_waits(served, GetOutcome::Found);
    }

    /// The rank commits nothing more.
    pub(super) fn give_up_on(&mut self, job: JobIndex, rank: Rank) {
        self.keep_for_others(job, rank);
        let waits = self.waits.take(&(job, rank), |_| true);
        self.end_waits(waits, GetOutcome::NotFound);
        self.serve_peers(job, rank);
    }

    /// Ends the gets that wait for an unavailable value.
    pub(super) fn give_up_waits(&mut self, wanted: &AwaitedValue) {
        let waits = self.waits.take(&(wanted.job, wanted.rank), |wait| wait.wanted == *wanted);
        self.end_waits(waits, GetOutcome::NotFound);
    }

    fn give_up_get(&mut self, address: Address) {
        if let Some(state) = self.rank_mut(address.identity.seat) {
            state.quota.answered();
        }
        self.answer(address, status::NOT_FOUND);
    }

    fn end_waits(&mut self, waits: Vec<(Ticket, Wait)>, outcome: GetOutcome) {
        // All gets wait for one rank. So their answers differ only by encoding, and by whether they include the facts about its job. Each
        // variant is encoded once.
        let mut replies = HashMap::new();
        for (ticket, Wait { address, wanted }) in waits {
            self.actions.push_back(Action::CancelTimer { ticket });
            if let Some(state) = self.rank_mut(address.identity.seat) {
                state.quota.answered();
            }
            match outcome {
                GetOutcome::Found => {
                    let encoding = address.identity.encoding;
                    let with_facts = self.is_to_be_told(address, wanted.job);
                    let reply = replies
                        .entry((wanted.job, wanted.rank, encoding, with_facts))
                        .or_insert_with(|| self.data_reply(encoding, (wanted.job, wanted.rank), with_facts));
                    self.reply_shared(address, reply);
                }
                GetOutcome::NotFound => self.answer(address, status::NOT_FOUND),
            }
        }
    }

    /// Returns true if a rank has committed a key, for ranks of this node; `None` means any key.
    fn is_there(&self, job: JobIndex, rank: Rank, key: Option<&[u8]>) -> bool {
        let data = self.jobs[job].data.get(&rank);
        let values = data.map(|data| self.scope_of(job, rank, data));
        values.is_some_and(|values| key.map_or(!values.is_empty(), |key| values.contains_key(key)))
    }

    pub(super) fn scope_of<'a>(
        &self,
        job: JobIndex,
        rank: Rank,
        data: &'a RankData,
    ) -> &'a std::collections::BTreeMap<Bytes, Stored> {
        if self.jobs[job].local(rank).is_some() { &data.local } else { &data.remote }
    }

    pub(super) fn is_gone(&self, job: JobIndex, rank: Rank) -> bool {
        let job = &self.jobs[job];
        job.local(rank).is_some_and(|local| job.ranks[local].is_gone())
    }

    /// Sends all committed data of a rank: clients store values that they did not request.
    fn tell_data(&mut self, address: Address, job: JobIndex, rank: Rank) {
        let with_facts = self.is_to_be_told(address, job);
        let reply = self.data_reply(address.identity.encoding, (job, rank), with_facts);
        self.reply_shared(address, &reply);
    }

    /// Returns true if the next answer about a job must include the facts about the job, and records them as sent.
    fn is_to_be_told(&mut self, address: Address, job: JobIndex) -> bool {
        let client = self.clients.get_mut(address.connection);
        job != address.identity.seat.job && client.is_none_or(|client| client.known_jobs.insert(job))
    }

    fn data_reply(&mut self, encoding: Encoding, (job, rank): (JobIndex, Rank), with_facts: bool) -> Bytes {
        let foreign = with_facts.then(|| self.foreign_facts(encoding, job));
        let state = &self.jobs[job];
        let proc = Proc { namespace: state.namespace.name.as_bytes(), rank: rank.0 };
        let mut object = reply::proc_heading(encoding, proc);
        if let Some(data) = state.data.get(&rank) {
            for (key, value) in self.scope_of(job, rank, data) {
                reply::push_pair(&mut object, key, value.encoded());
            }
        }
        let object = object.into_bytes();
        reply::objects(encoding, foreign.iter().map(Vec::as_slice).chain([&object[..]])).into()
    }

    fn tell_foreign_job(&mut self, address: Address, job: JobIndex) {
        let encoding = address.identity.encoding;
        self.is_to_be_told(address, job);
        let facts = self.foreign_facts(encoding, job);
        let reply = reply::objects(encoding, [&facts[..]]);
        self.reply(address, &reply);
    }

    /// The facts about another job than the client's. Without them the client cannot determine the places of that job's ranks.
    fn foreign_facts(&mut self, encoding: Encoding, job: JobIndex) -> Vec<u8> {
        let state = &mut self.jobs[job];
        let facts = state.facts(encoding);
        let all = Proc { namespace: state.namespace.name.as_bytes(), rank: types::RANK_WILDCARD };
        let mut object = reply::proc_heading(encoding, all);
        object.raw(&facts);
        object.into_bytes()
    }

    /// Open MPI 4.1 requests the topology when it first needs it (`opal_hwloc_base_get_topology`), and discovers it itself if it is
    /// missing.
    fn tell_topology(&mut self, address: Address, job: JobIndex) {
        let encoding = address.identity.encoding;
        let namespace = &self.jobs[job].namespace;
        let Some(topology) = &namespace.here.topology else { return self.answer(address, status::NOT_FOUND) };
        let all = Proc { namespace: namespace.name.as_bytes(), rank: types::RANK_WILDCARD };
        let mut object = reply::proc_heading(encoding, all);
        object.kval(TOPOLOGY, &Value::Text(topology));
        let reply = reply::objects(encoding, [&object.into_bytes()[..]]);
        self.reply(address, &reply);
    }

    fn tell_parent(&mut self, address: Address, job: JobIndex, rank: Rank) {
        let encoding = address.identity.encoding;
        let namespace = &self.jobs[job].namespace;
        let mut object = reply::proc_heading(encoding, Proc { namespace: namespace.name.as_bytes(), rank: rank.0 });
        if let Some(parent) = namespace.parent_proc() {
            object.kval("pmix.parent", &Value::Proc(parent));
        }
        let reply = reply::objects(encoding, [&object.into_bytes()[..]]);
        self.reply(address, &reply);
    }

    /// Sends all facts about a rank, if this key is one of them; otherwise returns false.
    fn tell_fact(&mut self, address: Address, job: JobIndex, rank: Rank, key: &[u8]) -> bool {
        let encoding = address.identity.encoding;
        let namespace = &self.jobs[job].namespace;
        let facts = namespace.facts(Detail::ThisNode).of_rank(rank);
        if facts.iter().all(|(known, _)| known.as_bytes() != key) {
            return false;
        }
        let mut object = reply::proc_heading(encoding, Proc { namespace: namespace.name.as_bytes(), rank: rank.0 });
        for (key, value) in &facts {
            object.kval(key, value);
        }
        let reply = reply::objects(encoding, [&object.into_bytes()[..]]);
        self.reply(address, &reply);
        true
    }

    /// Sends a rank's own numbers of the communicators of its groups.
    fn tell_group_ids(&mut self, address: Address, job: JobIndex, rank: Rank) {
        let encoding = address.identity.encoding;
        let state = &self.jobs[job];
        let groups = state.group_ids(rank);
        if groups.is_empty() {
            return self.answer(address, status::NOT_FOUND);
        }
        let mut object =
            reply::proc_heading(encoding, Proc { namespace: state.namespace.name.as_bytes(), rank: rank.0 });
        for &(context, number) in groups {
            reply::push_qualified(&mut object, "pmix.grp.lclid", number, GROUP_CONTEXT, context);
        }
        let reply = reply::objects(encoding, [&object.into_bytes()[..]]);
        self.reply(address, &reply);
    }
}

/// Returns the client's timeout for a get.
fn client_timeout(infos: &[Info<'_>]) -> Option<Duration> {
    let told = infos.iter().find(|info| info.key == b"pmix.timeout")?;
    told.value.number().filter(|&seconds| seconds > 0).map(Duration::from_secs)
}

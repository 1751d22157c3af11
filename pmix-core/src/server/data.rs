//! What ranks commit, and what others get of it.

use std::time::Duration;

use bytes::Bytes;
use pmi_core::ids::Rank;

use super::{Action, Address, Server, Ticket};
use crate::namespace::{JobIndex, RankData, Stored};
use crate::wire::reader::Proc;
use crate::wire::request::Committed;
use crate::wire::value::{Info, Value};
use crate::wire::{reply, status, types};

/// A get that waits for a commit.
#[derive(Clone, Debug)]
pub(super) struct Wait {
    address: Address,
    wanted: Wanted,
}

/// What a get waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) job: JobIndex,
    pub(super) rank: Rank,
    /// Without one, anything that the rank has committed.
    pub(super) key: Option<Bytes>,
    /// How long the client says that it waits.
    pub(super) patience: Option<Duration>,
}

/// The key under which a rank tells its own number of a group's communicator.
const GROUP_LOCAL_ID: &[u8] = b"pmix.grp.lclid";

/// The rank that spawned a job. libpmix looks for it among the facts about a rank, and asks when it is not there.
const PARENT: &[u8] = b"pmix.parent";

/// The key that names the group.
const GROUP_CONTEXT: &str = "pmix.grp.ctxid";

/// By how much another node's answer may be late.
const PEER_GRACE: Duration = Duration::from_secs(5);

impl Server {
    pub(super) fn commit(&mut self, address: Address, scopes: &[Committed<'_>], payload: &Bytes) {
        let identity = address.identity;
        let limit = self.settings.bytes_per_rank;
        let Some(state) = self.rank_mut(identity.seat) else { return };
        let pairs = || scopes.iter().flat_map(|committed| &committed.pairs);
        let bytes: usize = pairs().map(|(key, value)| key.len() + value.len()).sum();
        if state.bytes + bytes > limit {
            return self.answer(address, status::OUT_OF_RESOURCE);
        }
        state.bytes += bytes;
        let rank = state.rank;
        let data = self.jobs[identity.seat.job.0].data.entry(rank).or_default();
        for committed in scopes {
            let (local, remote) = match committed.scope {
                types::SCOPE_LOCAL => (true, false),
                types::SCOPE_REMOTE => (false, true),
                types::SCOPE_GLOBAL => (true, true),
                _ => continue,
            };
            for (key, value) in &committed.pairs {
                let key = payload.slice_ref(key);
                let stored = Stored { encoding: identity.encoding, bytes: payload.slice_ref(value) };
                if remote {
                    data.remote.insert(key.clone(), stored.clone());
                }
                if local {
                    data.local.insert(key, stored);
                }
            }
        }
        self.answer(address, status::SUCCESS);
        self.serve_waits(identity.seat.job, Some(rank));
        self.serve_peers();
    }

    pub(super) fn get(&mut self, address: Address, proc: Proc<'_>, infos: &[Info<'_>], key: Option<&[u8]>) {
        let Some(job) = self.job_named(proc.namespace) else { return self.answer(address, status::NOT_FOUND) };
        let is_own = job == address.identity.seat.job;
        if proc.rank == types::RANK_WILDCARD {
            // A client has the facts about its own job already; what is not among them is not known.
            return if is_own { self.answer(address, status::NOT_FOUND) } else { self.tell_foreign_job(address, job) };
        }
        let rank = Rank(proc.rank);
        if self.jobs[job.0].namespace.job.placement.node_of(rank).is_none() {
            return self.answer(address, status::NOT_FOUND);
        }
        if key == Some(GROUP_LOCAL_ID) {
            return self.tell_group_ids(address, job, rank);
        }
        if self.is_there(job, rank, key) {
            return self.tell_data(address, job, rank);
        }
        if key == Some(PARENT) && self.jobs[job.0].namespace.parent.is_some() {
            return self.tell_parent(address, job, rank);
        }
        let reserved = key.is_some_and(|key| key.starts_with(b"pmix."));
        if reserved && !is_own {
            return self.tell_foreign_job(address, job);
        }
        let immediate = infos.iter().any(|info| info.key == b"pmix.immediate" && info.value.is_true());
        // Nobody commits reserved keys later on: they are facts. Of other launches, no more than a meeting brought is to be had.
        if immediate || reserved || self.jobs[job.0].is_met() || self.is_gone(job, rank) {
            return self.answer(address, status::NOT_FOUND);
        }
        if !self.may_ask(address.identity.seat) {
            return self.answer(address, status::OUT_OF_RESOURCE);
        }
        let wanted = Wanted { job, rank, key: key.map(Bytes::copy_from_slice), patience: told_patience(infos) };
        let node = self.other_node(job, rank);
        let after = match node {
            // The other node knows how long to wait; this is for the case that it never answers.
            Some(_) => wanted.patience.unwrap_or(self.settings.patience_for_rank) + PEER_GRACE,
            None => self.patience(job, rank, wanted.patience),
        };
        if let Some(node) = node {
            self.ask_node(node, &wanted);
        }
        let ticket = self.new_ticket();
        self.waits.insert(ticket, Wait { address, wanted });
        self.actions.push_back(Action::Wake { ticket, after });
    }

    /// How long a get may wait for a rank of this node: as long as the client says, else long for a rank that has said nothing yet,
    /// and shortly for one that has said other things.
    pub(super) fn patience(&self, job: JobIndex, rank: Rank, told: Option<Duration>) -> Duration {
        match told {
            Some(told) => told.min(self.settings.patience_for_rank),
            None if self.jobs[job.0].data.contains_key(&rank) => self.settings.patience_for_key,
            None => self.settings.patience_for_rank,
        }
    }

    /// A time that an [`Action::Wake`] asked for is over.
    pub fn handle_time(&mut self, ticket: Ticket) {
        match self.waits.remove(&ticket) {
            Some(wait) => self.end_wait(&wait, false),
            None => self.end_question(ticket),
        }
    }

    /// Looks again at the gets that wait for a rank, or for any rank of a job.
    pub(super) fn serve_waits(&mut self, job: JobIndex, rank: Option<Rank>) {
        let served = |server: &Self, wait: &Wait| {
            let wanted = &wait.wanted;
            wanted.job == job
                && rank.is_none_or(|rank| rank == wanted.rank)
                && server.is_there(job, wanted.rank, wanted.key.as_deref())
        };
        self.end_waits(served, true);
    }

    /// The rank commits nothing more.
    pub(super) fn give_up_on(&mut self, job: JobIndex, rank: Rank) {
        self.end_waits(|_, wait| wait.wanted.job == job && wait.wanted.rank == rank, false);
        self.serve_peers();
    }

    /// What was asked for is not to be had.
    pub(super) fn give_up_waits(&mut self, wanted: &Wanted) {
        self.end_waits(|_, wait| wait.wanted == *wanted, false);
    }

    fn end_waits(&mut self, over: impl Fn(&Self, &Wait) -> bool, found: bool) {
        let mut tickets: Vec<Ticket> =
            self.waits.iter().filter(|(_, wait)| over(self, wait)).map(|(&ticket, _)| ticket).collect();
        tickets.sort_unstable();
        for ticket in tickets {
            if let Some(wait) = self.waits.remove(&ticket) {
                self.end_wait(&wait, found);
            }
        }
    }

    fn end_wait(&mut self, wait: &Wait, found: bool) {
        if let Some(state) = self.rank_mut(wait.address.identity.seat) {
            state.questions -= 1;
        }
        if found {
            self.tell_data(wait.address, wait.wanted.job, wait.wanted.rank);
        } else {
            self.answer(wait.address, status::NOT_FOUND);
        }
    }

    /// Whether a rank has committed a key, for ranks of this node; no key means anything at all.
    fn is_there(&self, job: JobIndex, rank: Rank, key: Option<&[u8]>) -> bool {
        let data = self.jobs[job.0].data.get(&rank);
        let values = data.map(|data| self.scope_of(job, rank, data));
        values.is_some_and(|values| key.map_or(!values.is_empty(), |key| values.contains_key(key)))
    }

    fn scope_of<'a>(
        &self,
        job: JobIndex,
        rank: Rank,
        data: &'a RankData,
    ) -> &'a std::collections::BTreeMap<Bytes, Stored> {
        if self.jobs[job.0].local(rank).is_some() { &data.local } else { &data.remote }
    }

    pub(super) fn is_gone(&self, job: JobIndex, rank: Rank) -> bool {
        let job = &self.jobs[job.0];
        job.local(rank).is_some_and(|local| job.ranks[local.index()].is_gone())
    }

    /// All that a rank has committed: clients keep what they did not ask for.
    fn tell_data(&mut self, address: Address, job: JobIndex, rank: Rank) {
        let encoding = address.identity.encoding;
        let foreign = (job != address.identity.seat.job).then(|| self.foreign_facts(address, job));
        let state = &self.jobs[job.0];
        let proc = Proc { namespace: state.namespace.name.as_bytes(), rank: rank.0 };
        let mut object = reply::proc_heading(encoding, proc);
        if let Some(data) = state.data.get(&rank) {
            for (key, value) in self.scope_of(job, rank, data) {
                reply::push_pair(&mut object, key, value.encoded());
            }
        }
        let object = object.into_bytes();
        let reply = reply::objects(encoding, foreign.iter().map(Vec::as_slice).chain([&object[..]]));
        self.reply(address, &reply);
    }

    fn tell_foreign_job(&mut self, address: Address, job: JobIndex) {
        let facts = self.foreign_facts(address, job);
        let reply = reply::objects(address.identity.encoding, [&facts[..]]);
        self.reply(address, &reply);
    }

    /// The facts about another job than the client's, without which it cannot place that job's ranks.
    fn foreign_facts(&mut self, address: Address, job: JobIndex) -> Vec<u8> {
        let encoding = address.identity.encoding;
        let state = &mut self.jobs[job.0];
        let facts = state.facts(encoding);
        let all = Proc { namespace: state.namespace.name.as_bytes(), rank: types::RANK_WILDCARD };
        let mut object = reply::proc_heading(encoding, all);
        object.raw(&facts);
        object.into_bytes()
    }

    fn tell_parent(&mut self, address: Address, job: JobIndex, rank: Rank) {
        let encoding = address.identity.encoding;
        let namespace = &self.jobs[job.0].namespace;
        let mut object = reply::proc_heading(encoding, Proc { namespace: namespace.name.as_bytes(), rank: rank.0 });
        if let Some(parent) = namespace.parent_proc() {
            object.kval("pmix.parent", &Value::Proc(parent));
        }
        let reply = reply::objects(encoding, [&object.into_bytes()[..]]);
        self.reply(address, &reply);
    }

    /// A rank's own numbers of the communicators of its groups.
    fn tell_group_ids(&mut self, address: Address, job: JobIndex, rank: Rank) {
        let encoding = address.identity.encoding;
        let state = &self.jobs[job.0];
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

/// How long a client says that it waits for a get.
fn told_patience(infos: &[Info<'_>]) -> Option<Duration> {
    let told = infos.iter().find(|info| info.key == b"pmix.timeout")?;
    told.value.number().filter(|&seconds| seconds > 0).map(Duration::from_secs)
}

//! Committed data: its storage, its delivery to ranks and other nodes, and the need of other nodes for this node's server, which can
//! outlast its ranks.
//!
//! ```text
//! a fence left its data with the nodes ──> UntilTold ──last barrier: see `withheld`──> Over
//! a rank with commits that no fence distributes to all nodes finalizes or ends ────> WhileRanksRun
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pmi_core::fence::{FenceError, FenceId, Merged};
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::segment::Segment;

use super::action::{Action, Need, Ticket};
use super::client::Address;
use super::commits::commit;
use super::facts;
use super::gets::{Gets, send_foreign_job};
use super::launch::Launch;
use super::members::Members;
use super::open_questions::Get;
use super::peer_gets::PeerGets;
use super::segments::absorb;
use super::withheld::WithheldData;
use crate::namespace::JobIndex;
use crate::node_facts::TOPOLOGY;
use crate::wire::reader::Proc;
use crate::wire::request::Committed;
use crate::wire::value::Info;
use crate::wire::{reply, status, types};

/// Longest key, in bytes: `PMIX_MAX_KEYLEN` of the standard.
const KEY_MAX: usize = 511;

/// Requests for committed data, and the data that stayed on its nodes.
#[derive(Debug, Default)]
pub(super) struct Data {
    pub(super) gets: Gets,
    pub(super) peer_gets: PeerGets,
    pub(super) withheld: WithheldData,
    /// True when a rank commits nothing more, and no fence has distributed all its data to all nodes.
    holds_unspread: bool,
    /// The last need reported to the host.
    need: Need,
}

impl Data {
    /// A client requests a value of a rank, or facts about a job.
    pub(super) fn get(
        &mut self,
        launch: &mut Launch,
        address: Address,
        proc: Proc<'_>,
        infos: &[Info<'_>],
        key: Option<&[u8]>,
    ) {
        let Some(job) = launch.jobs.named(proc.namespace) else { return launch.answer(address, status::NOT_FOUND) };
        if proc.rank == types::RANK_WILDCARD {
            return get_of_job(launch, address, job, key);
        }
        if key.is_some_and(|key| key.len() > KEY_MAX) {
            return launch.answer(address, status::BAD_PARAM);
        }
        let rank = Rank(proc.rank);
        if launch.jobs[job].namespace.job.placement.node_of(rank).is_none() {
            return launch.answer(address, status::NOT_FOUND);
        }
        let has = |directive: &[u8]| infos.iter().any(|info| info.key == directive && info.value.is_true());
        let key = key.map(Bytes::copy_from_slice);
        let get = Get { job, rank, key, immediate: has(b"pmix.immediate"), timeout: client_timeout(infos) };
        if has(b"pmix.get.refresh") {
            return self.refresh_and_get(launch, address, get);
        }
        self.gets.serve(launch, &self.withheld, address, get);
    }

    /// A rank commits values.
    pub(super) fn commit(&mut self, launch: &mut Launch, address: Address, scopes: &[Committed<'_>]) {
        let job = address.identity.seat.job;
        if let Some(rank) = commit(launch, address, scopes) {
            self.gets.serve_waits(launch, job, rank);
            self.peer_gets.serve_rank(launch, job, rank);
        }
    }

    /// The rank commits nothing more.
    pub(super) fn give_up_on(&mut self, launch: &mut Launch, job: JobIndex, rank: Rank) {
        self.keep_for_others(launch, job, rank);
        self.gets.give_up(launch, job, rank);
        self.peer_gets.serve_rank(launch, job, rank);
    }

    /// The ranks of a job commit nothing more.
    pub(super) fn give_up_on_job(&mut self, launch: &mut Launch, job: JobIndex) {
        for rank in self.gets.awaited_ranks(job) {
            self.give_up_on(launch, job, rank);
        }
    }

    /// Ends the requests for data of a removed job.
    pub(super) fn remove(&mut self, launch: &mut Launch, job: JobIndex) {
        self.withheld.remove(job);
        self.gets.serve_fetched(launch, &self.withheld, |(of, _)| of == job);
        self.report_need(launch);
    }

    /// Checks the gets that wait for these ranks again.
    pub(super) fn serve_waits(&mut self, launch: &mut Launch, changed: BTreeSet<(JobIndex, Rank)>) {
        for (job, rank) in changed {
            self.gets.serve_waits(launch, job, rank);
        }
    }

    /// A fence of these members left its data on the nodes.
    pub(super) fn withhold(&mut self, launch: &mut Launch, id: &FenceId, merged: &Merged, members: Arc<Members>) {
        self.withheld.add(&launch.jobs, id, merged, members);
        self.report_need(launch);
        self.withheld.begin_early(launch, id);
    }

    /// A node has sent all commits of its ranks, or has no data. Gets that waited for the data are served as if the fence had distributed
    /// it.
    pub(super) fn on_fetched(&mut self, launch: &mut Launch, job: JobIndex, node: NodeIndex, data: Option<Segment>) {
        let bytes = data.as_ref().map_or(0, |data| data.as_bytes().len() as u64);
        self.withheld.count_fetched(job, node, bytes);
        let (_, changed) = absorb(&mut launch.jobs, &Vec::from_iter(data).into());
        self.gets.serve_fetched(launch, &self.withheld, |at| at == (job, node));
        self.serve_waits(launch, changed);
        self.withheld.request_spreads(launch);
    }

    /// Handles the result of a fence for a collective's withheld data; returns false for any other fence.
    pub(super) fn on_fence(
        &mut self,
        launch: &mut Launch,
        job: JobIndex,
        id: &FenceId,
        result: &Result<Merged, Arc<FenceError>>,
    ) -> bool {
        let Some(data) = self.withheld.on_fence(launch, job, id, result) else { return false };
        self.gets.serve_fetched(launch, &self.withheld, |at| data.covered.contains(&at));
        self.serve_waits(launch, data.changed);
        self.report_need(launch);
        true
    }

    /// The time of a question has expired; returns false if the ticket is of another kind.
    pub(super) fn expire(&mut self, launch: &mut Launch, ticket: Ticket) -> bool {
        self.gets.expire(launch, ticket) || self.peer_gets.expire(launch, ticket)
    }

    /// A rank of this node commits nothing more. Commits that no fence has distributed to all nodes are then available only here.
    fn keep_for_others(&mut self, launch: &mut Launch, job: JobIndex, rank: Rank) {
        let state = &launch.jobs[job];
        let has_other_nodes = state.namespace.hosts.len() > 1;
        if has_other_nodes && state.data.get(&rank).is_some_and(|data| !data.unspread.is_empty()) {
            self.holds_unspread = true;
            self.report_need(launch);
        }
    }

    /// Reports to the host how long this server is needed, if that has changed.
    fn report_need(&mut self, launch: &mut Launch) {
        let need = match () {
            () if self.holds_unspread => Need::WhileRanksRun,
            () if self.withheld.is_needed() => Need::UntilTold,
            () => Need::Over,
        };
        if self.need != need {
            self.need = need;
            launch.actions.push_back(Action::Needed(need));
        }
    }
}

/// A client requests facts about a job as a whole.
fn get_of_job(launch: &mut Launch, address: Address, job: JobIndex, key: Option<&[u8]>) {
    if job != address.identity.seat.job {
        return send_foreign_job(launch, address, job);
    }
    let encoding = address.identity.encoding;
    // A client already has the other facts about its own job.
    let topology = key.filter(|key| *key == TOPOLOGY.as_bytes());
    let reply = topology.and_then(|_| facts::topology(&launch.jobs[job].namespace, encoding));
    launch.reply(address, &reply.unwrap_or_else(|| reply::status(encoding, status::NOT_FOUND)));
}

/// Returns the client's timeout for a get.
fn client_timeout(infos: &[Info<'_>]) -> Option<Duration> {
    let timeout = infos.iter().find(|info| info.key == b"pmix.timeout")?;
    timeout.value.number().filter(|&seconds| seconds > 0).map(Duration::from_secs)
}

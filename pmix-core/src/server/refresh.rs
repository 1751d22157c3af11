//! Fresh values of ranks of other nodes: REFRESH_CACHE, and gets with `pmix.get.refresh`, which libpmix before 5 sends instead.
//!
//! The data of a rank of another node arrived here at some time, with a fence or a get. Its node is asked once for the current data.

use std::time::Duration;

use bytes::Bytes;
use pmi_core::ids::Rank;

use super::client::Address;
use super::data::Data;
use super::facts;
use super::launch::Launch;
use super::open_questions::{Get, OpenQuestion, Refresh};
use super::question::{DataQuestion, Question};
use super::segments::decode_values;
use crate::wire::reader::Proc;
use crate::wire::status;

/// Time that a node waits for a rank without commits: only existing data is requested. Nodes treat 0 as no limit.
const AT_ONCE: Duration = Duration::from_millis(1);

impl Data {
    /// A client requests all current commits of a rank.
    pub(super) fn refresh(&mut self, launch: &mut Launch, address: Address, proc: Proc<'_>) {
        let rank = Rank(proc.rank);
        let job = launch.jobs.named(proc.namespace);
        let Some(job) = job.filter(|&job| launch.jobs[job].namespace.job.placement.node_of(rank).is_some()) else {
            return launch.answer(address, status::NOT_FOUND);
        };
        self.begin_refresh(launch, Refresh { address, job, rank, get: None });
    }

    /// Serves a get after a refresh from its rank's node.
    pub(super) fn refresh_and_get(&mut self, launch: &mut Launch, address: Address, get: Get) {
        self.begin_refresh(launch, Refresh { address, job: get.job, rank: get.rank, get: Some(get) });
    }

    fn begin_refresh(&mut self, launch: &mut Launch, refresh: Refresh) {
        let Refresh { address, job, rank, .. } = refresh;
        let state = &launch.jobs[job];
        let node = state.other_node(rank).filter(|_| !state.is_met());
        let Some(node) = node else { return self.end_refresh(launch, refresh) };
        if !launch.charge(address, 1) {
            return;
        }
        let namespace = launch.jobs[job].namespace.name.clone().into();
        let question = DataQuestion { namespace, rank, key: None, timeout: Some(AT_ONCE) };
        launch.ask_peer(node, &Question::Data(question), OpenQuestion::Refresh(refresh));
    }

    /// The rank's node has answered; `None` if it gives no answer.
    pub(super) fn on_refreshed(&mut self, launch: &mut Launch, refresh: Refresh, answer: Option<&Bytes>) {
        let Refresh { address, job, rank, .. } = refresh;
        launch.credit(address.identity.seat, 1);
        if let Some(data) = answer.and_then(decode_values) {
            launch.jobs[job].data.entry(rank).or_default().remote.extend(data);
            self.gets.serve_waits(launch, job, rank);
        }
        self.end_refresh(launch, refresh);
    }

    fn end_refresh(&mut self, launch: &mut Launch, Refresh { address, job, rank, get }: Refresh) {
        if let Some(get) = get {
            return self.gets.serve(launch, &self.withheld, address, get);
        }
        let reply = facts::refreshed_values(&launch.jobs[job], address.identity.encoding, rank);
        launch.reply(address, &reply);
    }
}

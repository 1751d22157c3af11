//! State that all calls share: nodes, allocations, launches and what is kept of them, and what a change of one means for the others.

pub(crate) mod allocating;
pub(crate) mod attending;
mod batches;
pub(crate) mod launching;
mod meeting;
mod naming;
mod queueing;

use pmi_transport::task;
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lattice_session::rendezvous::Rendezvous;
use lattice_session::timeouts::REPORT_AFTER_RESTART;
use lattice_session::unix_time;
use parking_lot::Mutex;
use pmi_transport::connect::AgentChannels;
use pmi_transport::identity::{Caller, Security};
use pmi_transport::listen::Proxy;
use tokio::sync::Notify;

use super::allocations::allocation::Busy;
use super::allocations::{AllocationState, Allocations};
use super::answer_line::AnswerLine;
use super::clock::Clock;
use super::config::Config;
use super::fabric::Fabric;
use super::inventories::Inventories;
use super::launch::AllKept;
use super::launch::event::Activity;
use super::launch::spool::Spools;
use super::launch::summary::{Stage, Summary};
use super::launch::surroundings::{EndListener, LaunchEnd, Surroundings};
use super::launch::{self, LaunchHandle, Request};
use super::launch_quota::{LaunchQuota, LaunchSize};
use super::listed_nodes::ListedNodes;
use super::metrics::{Census, Metrics};
use super::names::{NameTables, UserLocks};
use super::nodes::{NodeState, Registry};
use super::refusal_pace::RefusalPace;
use super::renewal::Renewal;
use super::serials::Serials;
use super::session_calls::SessionCalls;
use super::sets::Sets;
use super::store::{self, Change, Kept, KeptNames, LaunchRecord, Store, StoreError};
use super::unclean_nodes::UncleanNodes;
use super::wire;

/// Number of launches that are over and kept for clients that come late.
const OVER_MAX: usize = 64;
/// The most connections to agents that are kept for the next launch, and a descriptor each.
const AGENTS_KEPT_MAX: usize = 16 << 10;

/// The API server, but for its sockets.
pub(crate) struct Server {
    pub config: Config,
    pub security: Security,
    pub store: Arc<dyn Store>,
    pub channels: AgentChannels,
    pub nodes: Arc<Mutex<Registry>>,
    /// Nodes on which something of a launch that is over may be left.
    pub unclean: Arc<Mutex<UncleanNodes>>,
    /// Held while a change of an allocation is made durable, so that changes follow each other.
    pub allocations: tokio::sync::Mutex<Allocations>,
    /// Fabric credentials, where there is a fabric that needs some.
    pub fabric: Option<Arc<Fabric>>,
    /// Renewal of agents' certificates, where this server has an authority.
    pub renewal: Option<Arc<Renewal>>,
    /// Way of connections that agents pass on.
    pub proxy: Proxy,
    pub names: NameTables,
    /// Held while names of a user are written down.
    names_written: UserLocks,
    pub rendezvous: Rendezvous,
    pub session_calls: SessionCalls,
    /// Pace of the answers to spawns that are refused.
    pub refusal_pace: RefusalPace,
    pub sets: Sets,
    /// What nodes are.
    pub inventories: Arc<Mutex<Inventories>>,
    pub metrics: Arc<Metrics>,
    pub serials: Serials,
    /// The time by which others are judged.
    pub clock: Arc<Clock>,
    /// The place where launches that nobody owns keep what they say.
    pub spools: Arc<Spools>,
    all_kept: AllKept,
    /// Something has changed that the queue of allocations may have waited for.
    queue_due: Notify,
    launches: Mutex<Launches>,
    quota: LaunchQuota,
    pub answer_line: AnswerLine,
    /// It was said that agents have a list of revoked certificates where this server has none.
    pub has_warned_of_list: AtomicBool,
}

/// What a server works with that is opened before.
pub(crate) struct Parts {
    pub store: Arc<dyn Store>,
    pub fabric: Option<Arc<Fabric>>,
    pub renewal: Option<Arc<Renewal>>,
    pub proxy: Proxy,
    /// The nodes as the administrator has described them.
    pub listed: ListedNodes,
}

/// A change that is not made because it could not be written down.
#[derive(Debug, thiserror::Error)]
#[error("nothing can be started or changed at present")]
pub(crate) struct NotWritten(#[source] pub(crate) StoreError);

/// The launches that have a task.
#[derive(Debug, Default)]
struct Launches {
    by_id: HashMap<String, LaunchHandle>,
    /// The allocations of those whose end their allocation has not answered yet, by launch.
    open: HashMap<String, String>,
    /// Launches that are over, in the order in which they ended.
    over: VecDeque<String>,
}

impl Server {
    /// A server with what was kept of the one before.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub(crate) fn new(config: Config, security: Security, parts: Parts) -> Result<Arc<Self>, StoreError> {
        let Parts { store, fabric, renewal, proxy, listed } = parts;
        let Kept { allocations, launches, drains, nodes, mut names, serial, inventories: told } = store.read()?;
        let mut inventories = Inventories::new(listed);
        if let Some(warning) = inventories.take_up(told, today()) {
            tracing::warn!("{warning}");
        }
        let live = allocations.into_iter().filter(|allocation| allocation.state != AllocationState::Released);
        let directory = config.state.parent().map(Path::to_owned).unwrap_or_default();
        let server = Arc::new(Self {
            spools: Spools::new(directory, config.spool),
            all_kept: AllKept::default(),
            quota: LaunchQuota::new(config.launch_shares),
            answer_line: AnswerLine::default(),
            config,
            channels: AgentChannels::new(security.clone(), AGENTS_KEPT_MAX),
            security,
            store,
            nodes: Arc::default(),
            unclean: Arc::default(),
            allocations: Allocations::new(live).into(),
            fabric,
            renewal,
            proxy,
            names: NameTables::default(),
            names_written: UserLocks::default(),
            rendezvous: Rendezvous::default(),
            session_calls: SessionCalls::default(),
            refusal_pace: RefusalPace::default(),
            sets: Sets::default(),
            inventories: Arc::new(Mutex::new(inventories)),
            metrics: Arc::default(),
            serials: Serials::after(serial),
            clock: Arc::default(),
            queue_due: Notify::new(),
            launches: Mutex::default(),
            has_warned_of_list: AtomicBool::default(),
        });
        {
            let mut registry = server.nodes.lock();
            drains.into_iter().for_each(|drain| registry.drain(drain));
            registry.expect(nodes, server.clock.now() + REPORT_AFTER_RESTART);
        }
        for record in launches {
            let names = record.summary.as_ref().and_then(|summary| names.remove(&summary.id));
            server.resume(record, names.unwrap_or_default());
        }
        Ok(server)
    }

    /// Takes up a launch that ran when the server ended.
    fn resume(self: &Arc<Self>, record: LaunchRecord, names: KeptNames) {
        let id = record.summary.as_ref().map(|summary| summary.id.clone()).unwrap_or_default();
        let order = match wire::order::decode(&record) {
            Ok(order) => order,
            Err(error) => {
                tracing::error!(launch = id, %error, "what was kept of the launch cannot be read; it is left alone");
                return;
            }
        };
        tracing::info!(launch = id, "the launch is taken up; its nodes are expected to report");
        self.sets.take_up(&order);
        self.names.begin(&order);
        self.names.take_up(order.terms.uid, &id, &names);
        self.quota.take_up(order.terms.uid, &id, LaunchSize::of(&order, wire::order::encode_bytes(&order).len()));
        let allocation = order.launch.allocation_id.clone().unwrap_or_default();
        let handle = launch::resume(self.surroundings(), order, record);
        self.launches.lock().begin(id, allocation, handle);
    }

    /// The parts of the server that launches work with.
    fn surroundings(self: &Arc<Self>) -> Surroundings {
        Surroundings {
            store: Arc::clone(&self.store),
            channels: self.channels.clone(),
            nodes: Arc::clone(&self.nodes),
            unclean: Arc::clone(&self.unclean),
            metrics: Arc::clone(&self.metrics),
            clock: Arc::clone(&self.clock),
            spools: Arc::clone(&self.spools),
            all_kept: self.all_kept.clone(),
            settings: self.config.launches,
            listener: Arc::clone(self) as Arc<dyn EndListener>,
        }
    }

    /// Goes on with what the server before had begun: launches whose allocation is gone end, and then so does the allocation.
    pub(crate) async fn take_up(self: Arc<Self>) {
        for handle in self.handles() {
            let allocation = handle.summary().allocation_id;
            let state = self.allocations.lock().await.find(&allocation).map(|allocation| allocation.state.clone());
            if state != Some(AllocationState::Running) {
                let reason = "its allocation is gone".to_owned();
                handle.send(Request::Abort { who: Caller::Api.to_string(), reason }).await;
            }
        }
        self.settle_allocations().await;
    }

    /// Makes changes durable.
    ///
    /// # Errors
    /// If they cannot be written; then none of them is.
    pub(crate) async fn write(&self, changes: Vec<Change>) -> Result<(), NotWritten> {
        store::write(&self.store, changes).await.map_err(|error| {
            tracing::error!(error = pmi_transport::error_chain::chain(&error), "state cannot be written");
            NotWritten(error)
        })
    }

    /// A launch that has a task.
    pub(crate) fn find(&self, id: &str) -> Option<LaunchHandle> {
        self.launches.lock().by_id.get(id).cloned()
    }

    /// All launches that have a task.
    pub(crate) fn handles(&self) -> Vec<LaunchHandle> {
        self.launches.lock().by_id.values().cloned().collect()
    }

    /// The launches that are not over.
    pub(crate) fn running(&self) -> Vec<Summary> {
        self.handles().iter().map(LaunchHandle::summary).filter(|summary| !summary.is_over()).collect()
    }

    /// Counts nodes and launches as they are at present.
    pub(crate) fn census(&self) -> Census {
        let mut census = {
            let nodes = self.nodes.lock();
            let [nodes_up, nodes_away, nodes_lost] =
                [NodeState::Up, NodeState::Away, NodeState::Lost].map(|state| nodes.count(state));
            Census { nodes_up, nodes_away, nodes_lost, ..Census::default() }
        };
        for summary in self.running() {
            match summary.stage {
                Stage::At(Activity::Starting) => census.starting += 1,
                Stage::At(Activity::Ending) => census.ending += 1,
                _ => census.active += 1,
            }
        }
        census
    }
}

impl EndListener for Server {
    fn launch_over(self: Arc<Self>, summary: &Summary, end: LaunchEnd) {
        self.metrics.count_ended(end.failure.is_none());
        self.names.withdraw(summary.uid, &summary.id);
        self.rendezvous.withdraw(&summary.id);
        self.session_calls.forget(&summary.id);
        self.quota.withdraw(&summary.id);
        self.sets.end(&summary.id, self.clock.now());
        let oldest = self.launches.lock().end(summary.id.clone());
        let (allocation, launch) = (summary.allocation_id.clone(), summary.id.clone());
        let cause = summary.cause.clone();
        task::spawn(async move {
            if let Some(oldest) = oldest {
                oldest.send(Request::Forget).await;
            }
            self.answer_end(&allocation, &launch, cause, end).await;
            self.launches.lock().open.remove(&launch);
            self.settle_allocations().await;
        });
    }

    fn forget(&self, launch_id: &str) {
        let mut launches = self.launches.lock();
        launches.by_id.remove(launch_id);
        launches.over.retain(|over| over != launch_id);
    }
}

impl Launches {
    /// Notes a launch in an allocation that has a task from now on.
    fn begin(&mut self, id: String, allocation: String, handle: LaunchHandle) {
        self.open.insert(id.clone(), allocation);
        self.by_id.insert(id, handle);
    }

    /// The allocations with launches whose end they have not answered yet, and whether any of these is not over.
    fn busy(&self) -> HashMap<&String, Busy> {
        let mut all = HashMap::new();
        for (launch, allocation) in &self.open {
            let is_over = self.by_id.get(launch).is_none_or(LaunchHandle::is_over);
            let busy = if is_over { Busy::Answering } else { Busy::Running };
            all.entry(allocation).and_modify(|most: &mut Busy| *most = busy.max(*most)).or_insert(busy);
        }
        all
    }

    /// The launches of an allocation whose end it has not answered yet.
    fn open_in(&self, allocation: &str) -> Vec<LaunchHandle> {
        let own = self.open.iter().filter(|(_, of)| *of == allocation);
        own.filter_map(|(launch, _)| self.by_id.get(launch).cloned()).collect()
    }

    /// Notes that a launch is over. Returns the one that is to be forgotten for it, if there are too many.
    fn end(&mut self, id: String) -> Option<LaunchHandle> {
        self.over.push_back(id);
        let excess = self.over.len() > OVER_MAX;
        let oldest = if excess { self.over.pop_front() } else { None };
        oldest.and_then(|id| self.by_id.get(&id).cloned())
    }
}

/// The day, counted from 1970.
fn today() -> u64 {
    unix_time::seconds() / (24 * 60 * 60)
}

/// Does a change to its end, even if whoever asked for it goes away meanwhile: nothing is left half done.
pub(crate) async fn to_its_end<T: Send + 'static>(change: impl Future<Output = T> + Send + 'static) -> T {
    match task::spawn(change).await {
        Ok(done) => done,
        // It is never cancelled; a panic goes on here.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

//! State that all calls share: nodes, allocations and launches. The server applies the effects of a change in one of them to the rest.

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
use super::store::{self, Change, KeptNames, LaunchRecord, Store, StoreError, StoredState};
use super::unclean_nodes::UncleanNodes;
use super::wire;
use crate::launch_id::LaunchId;

/// Number of ended launches that are kept for clients that connect late.
const OVER_MAX: usize = 64;
/// The most connections to agents that are kept for later launches. Each uses a file descriptor.
const AGENTS_KEPT_MAX: usize = 16 << 10;

/// The API server without its sockets.
pub(crate) struct Server {
    pub config: Config,
    pub security: Security,
    pub store: Arc<dyn Store>,
    pub channels: AgentChannels,
    pub nodes: Arc<Mutex<Registry>>,
    /// Nodes that may still hold parts of a launch that is over.
    pub unclean: Arc<Mutex<UncleanNodes>>,
    /// Held while a change of an allocation is made durable, so that changes are applied in order.
    pub allocations: tokio::sync::Mutex<Allocations>,
    /// Fabric credentials, if there is a fabric that requires them.
    pub fabric: Option<Arc<Fabric>>,
    /// Renewal of agents' certificates, if this server has an authority.
    pub renewal: Option<Arc<Renewal>>,
    /// Input of connections that agents forward.
    pub proxy: Proxy,
    pub names: NameTables,
    /// Locks that are held while names of a user are written to the store.
    names_written: UserLocks,
    pub rendezvous: Rendezvous,
    pub session_calls: SessionCalls,
    /// Pace of the answers to refused spawns.
    pub refusal_pace: RefusalPace,
    pub sets: Sets,
    /// Inventories of the nodes.
    pub inventories: Arc<Mutex<Inventories>>,
    pub metrics: Arc<Metrics>,
    pub serials: Serials,
    /// Clock for the deadlines of other processes.
    pub clock: Arc<Clock>,
    /// Storage for the events of launches without an owner.
    pub spools: Arc<Spools>,
    all_kept: AllKept,
    /// Notified after a change that queued allocations may wait for.
    queue_due: Notify,
    launches: Mutex<Launches>,
    quota: LaunchQuota,
    pub answer_line: AnswerLine,
    /// True after the warning that agents have a list of revoked certificates while this server has none.
    pub has_warned_of_list: AtomicBool,
}

/// Parts of a server that are opened before it.
pub(crate) struct Parts {
    pub store: Arc<dyn Store>,
    pub fabric: Option<Arc<Fabric>>,
    pub renewal: Option<Arc<Renewal>>,
    pub proxy: Proxy,
    /// The nodes as the administrator described them.
    pub listed: ListedNodes,
}

/// A change that was not made because it could not be written to the store.
#[derive(Debug, thiserror::Error)]
#[error("nothing can be started or changed at present")]
pub(crate) struct NotWritten(#[source] pub(crate) StoreError);

/// The launches that have a task.
#[derive(Debug, Default)]
struct Launches {
    by_id: HashMap<LaunchId, LaunchHandle>,
    /// Allocation of each launch, until the allocation has processed the end of the launch.
    open: HashMap<LaunchId, String>,
    /// Launches that are over, in the order in which they ended.
    over: VecDeque<LaunchId>,
}

impl Server {
    /// A server with the state that the previous server stored.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub(crate) fn new(config: Config, security: Security, parts: Parts) -> Result<Arc<Self>, StoreError> {
        let Parts { store, fabric, renewal, proxy, listed } = parts;
        let StoredState { allocations, launches, drains, nodes, mut names, serial, inventories: told } =
            store.read()?;
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
            let names = record.summary.as_ref().and_then(|summary| names.remove(&*summary.id));
            server.resume(record, names.unwrap_or_default());
        }
        Ok(server)
    }

    /// Takes over a launch that ran when the previous server ended.
    fn resume(self: &Arc<Self>, record: LaunchRecord, names: KeptNames) {
        let id = LaunchId::from(record.summary.as_ref().map_or("", |summary| &summary.id));
        let order = match wire::order::decode(&record) {
            Ok(order) => order,
            Err(error) => {
                tracing::error!(launch = %id, %error, "what was kept of the launch cannot be read; it is left alone");
                return;
            }
        };
        tracing::info!(launch = %id, "the launch is taken up; its nodes are expected to report");
        self.sets.take_up(&order);
        self.names.begin(&order);
        self.names.take_up(order.terms.uid, &id, &names);
        self.quota.take_up(order.terms.uid, &id, LaunchSize::of(&order, wire::order::encode_bytes(&order).len()));
        let allocation = order.launch.allocation_id.clone().unwrap_or_default();
        let handle = launch::resume(self.surroundings(), order, record);
        self.launches.lock().begin(id, allocation, handle);
    }

    /// The parts of the server that launches use.
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

    /// Continues the work of the previous server. Launches in an allocation that does not run are aborted; then the allocation settles.
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
    /// Fails if they cannot be written; then none of them is made.
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

    /// Returns the present numbers of nodes and launches.
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

    fn forget(&self, launch_id: &LaunchId) {
        let mut launches = self.launches.lock();
        launches.by_id.remove(launch_id);
        launches.over.retain(|over| over != launch_id);
    }
}

impl Launches {
    /// Adds a launch in an allocation after its task has started.
    fn begin(&mut self, id: LaunchId, allocation: String, handle: LaunchHandle) {
        self.open.insert(id.clone(), allocation);
        self.by_id.insert(id, handle);
    }

    /// State of the launches of each allocation that has not processed all ends of its launches.
    fn busy(&self) -> HashMap<&String, Busy> {
        let mut all = HashMap::new();
        for (launch, allocation) in &self.open {
            let is_over = self.by_id.get(launch).is_none_or(LaunchHandle::is_over);
            let busy = if is_over { Busy::Answering } else { Busy::Running };
            all.entry(allocation).and_modify(|most: &mut Busy| *most = busy.max(*most)).or_insert(busy);
        }
        all
    }

    /// The launches of an allocation, without those that ended and were processed.
    fn open_in(&self, allocation: &str) -> Vec<LaunchHandle> {
        let own = self.open.iter().filter(|(_, of)| *of == allocation);
        own.filter_map(|(launch, _)| self.by_id.get(launch).cloned()).collect()
    }

    /// Records that a launch is over. If too many are kept, returns the oldest one, which must be removed.
    fn end(&mut self, id: LaunchId) -> Option<LaunchHandle> {
        self.over.push_back(id);
        let excess = self.over.len() > OVER_MAX;
        let oldest = if excess { self.over.pop_front() } else { None };
        oldest.and_then(|id| self.by_id.get(&id).cloned())
    }
}

/// The current day, counted from 1970.
fn today() -> u64 {
    unix_time::seconds() / (24 * 60 * 60)
}

/// Runs a change to its end, even if its caller disconnects in the meantime, so that no change is left half done.
pub(crate) async fn to_its_end<T: Send + 'static>(change: impl Future<Output = T> + Send + 'static) -> T {
    match task::spawn(change).await {
        Ok(done) => done,
        // The task is never cancelled; a panic continues here.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

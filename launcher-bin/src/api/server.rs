//! What all calls share: nodes, allocations, launches and what is kept of them, and what a change of one means for the others.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use parking_lot::Mutex;
use pmi_transport::hostlist;
use pmi_transport::identity::{Caller, Security};
use pmi_transport::proto::v1::{
    Allocation, AllocationState, LaunchSpec, LaunchState, LaunchSummary, LaunchTasksRequest, LaunchTasksResponse,
    NodeState, RegisterNodeRequest,
};
use pmi_transport::signature;
use prost::Message;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tonic::Status;

use super::allocations::{self, Allocations};
use super::channels::Channels;
use super::config::Config;
use super::fabric::Fabric;
use super::launch::fan_out::FanOut;
use super::launch::spool::Spools;
use super::launch::{self, Ask, LaunchHandle};
use super::leftovers::Leftovers;
use super::meetings::Meetings;
use super::metrics::{Census, Metrics};
use super::names::NameTables;
use super::nodes::{Arrival, RegisterError, Registry};
use super::order::Order;
use super::serials::Serials;
use super::store::{self, Change, Kept, LaunchRecord, Store, StoreError};
use crate::human::allocation_state;

/// How often nodes are looked at.
const TICK: Duration = Duration::from_millis(250);
/// How many launches that are over are kept for clients that come late.
const OVER_MAX: usize = 64;

/// The API server, but for its sockets.
pub(crate) struct Server {
    pub config: Config,
    pub security: Security,
    pub store: Arc<dyn Store>,
    pub channels: Channels,
    pub nodes: Mutex<Registry>,
    /// What may be left on nodes of launches that are over.
    pub leftovers: Mutex<Leftovers>,
    /// Held while a change of an allocation is made durable, so that changes follow each other.
    pub allocations: tokio::sync::Mutex<Allocations>,
    /// Fabric credentials, where there is a fabric that needs some.
    pub fabric: Option<Arc<Fabric>>,
    pub names: NameTables,
    pub meetings: Meetings,
    pub metrics: Arc<Metrics>,
    pub serials: Serials,
    /// Where launches that nobody owns keep what they say.
    pub spools: Arc<Spools>,
    launches: Mutex<Launches>,
}

/// The launches that have a task.
#[derive(Debug, Default)]
struct Launches {
    by_id: HashMap<String, LaunchHandle>,
    /// Those of them that are over, in the order in which they ended.
    over: VecDeque<String>,
}

impl Server {
    /// A server with what was kept of the one before.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub(crate) fn new(
        config: Config,
        security: Security,
        store: Arc<dyn Store>,
        fabric: Option<Arc<Fabric>>,
    ) -> Result<Arc<Self>, StoreError> {
        let Kept { allocations, launches } = store.read()?;
        let live = allocations.into_iter().filter(|allocation| allocation.state() != AllocationState::Released);
        let directory = config.state.parent().map(Path::to_owned).unwrap_or_default();
        let server = Arc::new(Self {
            spools: Spools::new(directory, config.spool),
            config,
            channels: Channels::new(security.clone()),
            security,
            store,
            nodes: Mutex::default(),
            leftovers: Mutex::default(),
            allocations: Allocations::new(live.collect()).into(),
            fabric,
            names: NameTables::default(),
            meetings: Meetings::default(),
            metrics: Arc::default(),
            serials: Serials::from_now(),
            launches: Mutex::default(),
        });
        launches.into_iter().filter(|record| record.complete.is_none()).for_each(|record| server.resume(record));
        Ok(server)
    }

    /// Takes up a launch that ran when the server ended.
    fn resume(self: &Arc<Self>, record: LaunchRecord) {
        let id = record.summary.as_ref().map(|summary| summary.id.clone()).unwrap_or_default();
        let Some(order) = Order::resumed(&record) else {
            tracing::error!(launch = id, "what was kept of the launch cannot be read; it is left alone");
            return;
        };
        tracing::info!(launch = id, "the launch is taken up; its nodes are expected to report");
        let handle = launch::resume(self, order, record);
        self.launches.lock().by_id.insert(id, handle);
    }

    /// Goes on with what the server before had begun: launches whose allocation is gone end, and then so does the allocation.
    pub(crate) async fn take_up(self: Arc<Self>) {
        for handle in self.handles() {
            let allocation = handle.summary().allocation_id;
            let state = self.allocations.lock().await.find(&allocation).map(Allocation::state);
            if state != Some(AllocationState::Running) {
                let reason = "its allocation is gone".to_owned();
                handle.tell(Ask::Abort { who: Caller::Api.to_string(), reason }).await;
            }
        }
        self.finish_releases().await;
    }

    /// Starts what `request` asks for, when every node has accepted it.
    pub(crate) async fn launch(
        self: &Arc<Self>,
        caller: &Caller,
        request: LaunchTasksRequest,
    ) -> Result<LaunchTasksResponse, Status> {
        let allocation = self.allocations.lock().await.running(caller, &request.allocation_id)?.clone();
        let credentials = self.fabric.as_ref().map(|fabric| fabric.ask(&allocation));
        let order = Order::new(request, &allocation, &self.nodes.lock(), &self.config.launches)?;
        let spec = Bytes::from(order.spec.encode_to_vec());
        let serial = self.serials.next();
        let signed = signature::sign(&self.security, serial, &spec)
            .map_err(|error| Status::internal(format!("the launch cannot be signed: {}", crate::chain(&error))))?;
        let fan_out = FanOut {
            launch_id: order.spec.launch_id.clone(),
            allocation_id: allocation.id.clone(),
            nodes: order.nodes.clone(),
            world_size: order.placement.size(),
            spec,
            serial,
            signature: signed.signature,
            signer: signed.signer,
            credentials: None,
            cxi_signature: Bytes::new(),
        };
        let record = LaunchRecord {
            summary: Some(summary(&order)),
            spec: Some(order.spec.clone()),
            detached: order.detached,
            complete: None,
            course: None,
        };
        // If we end now, nodes that run it are known by this.
        self.write(vec![Change::Launch(Box::new(record.clone()))]).await?;
        let told = LaunchSpec { secret: Bytes::new(), ..order.spec.clone() };
        let (handle, accepted) = launch::start(self, order, record, fan_out, credentials);
        self.launches.lock().by_id.insert(told.launch_id.clone(), handle);
        // While it was written down, the allocation may have been released.
        if self.allocations.lock().await.running(caller, &allocation.id).is_err() {
            self.end_launches_of(&allocation.id, "its allocation is gone").await;
        }
        accepted.await.map_err(|_| Status::internal("the launch ended before its nodes had answered"))??;
        Ok(LaunchTasksResponse { task_launch_id: told.launch_id.clone(), spec: Some(told) })
    }

    /// Makes changes durable.
    pub(crate) async fn write(&self, changes: Vec<Change>) -> Result<(), Status> {
        store::write(&self.store, changes).await.map_err(|error| {
            let error = crate::chain(&error);
            tracing::error!(error, "state cannot be written");
            Status::unavailable(format!("nothing can be started or changed at present: {error}"))
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

    /// A launch's task has ended.
    pub(crate) fn forget(&self, id: &str) {
        let mut launches = self.launches.lock();
        launches.by_id.remove(id);
        launches.over.retain(|over| over != id);
    }

    /// A launch is over, and failed for `reason` if there is one.
    pub(crate) fn launch_over(self: &Arc<Self>, spec: &LaunchSpec, reason: Option<String>, node_lost: bool) {
        self.metrics.count_ended(reason.is_none());
        self.names.withdraw(spec.uid, &spec.launch_id);
        self.meetings.withdraw(&spec.launch_id);
        let oldest = {
            let mut launches = self.launches.lock();
            launches.over.push_back(spec.launch_id.clone());
            let excess = launches.over.len() > OVER_MAX;
            let oldest = if excess { launches.over.pop_front() } else { None };
            oldest.and_then(|id| launches.by_id.get(&id).cloned())
        };
        let (server, allocation) = (Arc::clone(self), spec.allocation_id.clone());
        tokio::spawn(async move {
            if let Some(oldest) = oldest {
                oldest.tell(Ask::Forget).await;
            }
            if let Some(reason) = reason {
                server.launch_failed(&allocation, &reason, node_lost).await;
            }
            server.finish_releases().await;
        });
    }

    /// Does to an allocation what its policy says of a launch that failed.
    async fn launch_failed(&self, id: &str, reason: &str, node_lost: bool) {
        let next = {
            let mut all = self.allocations.lock().await;
            let next = all.find(id).and_then(|allocation| allocations::after_failure(allocation, node_lost, reason));
            let Some(next) = next else { return };
            tracing::info!(allocation = id, state = allocation_state(next.state()), reason, "an allocation changes");
            self.put(&mut all, next.clone()).await;
            next
        };
        self.end_launches_of(id, &next.reason).await;
        self.begin_allocations().await;
    }

    /// Stores an allocation that changed for reasons of our own. The change stands even if it cannot be written: what it follows
    /// from has happened.
    async fn put(&self, all: &mut Allocations, next: Allocation) {
        // Written down to the log already.
        let _ = self.write(vec![Change::Allocation(next.clone())]).await;
        all.put(next.clone());
        if let Some(fabric) = &self.fabric {
            fabric.follow(&next);
        }
    }

    /// Pending allocations whose nodes are up run from now on.
    pub(crate) async fn begin_allocations(&self) {
        let mut all = self.allocations.lock().await;
        let begun: Vec<Allocation> = {
            let registry = self.nodes.lock();
            all.iter().filter_map(|allocation| allocations::begun(allocation, &registry)).collect()
        };
        for next in begun {
            self.put(&mut all, next).await;
        }
    }

    /// Releases an allocation: its launches end first.
    pub(crate) async fn release(self: &Arc<Self>, caller: &Caller, id: &str) -> Result<Allocation, Status> {
        let next = {
            let mut all = self.allocations.lock().await;
            let allocation = all.of(caller, id)?.clone();
            let next = match allocation.state() {
                AllocationState::Releasing => allocation,
                _ => allocations::moved(&allocation, AllocationState::Releasing),
            };
            self.write(vec![Change::Allocation(next.clone())]).await?;
            all.put(next.clone());
            next
        };
        self.end_launches_of(id, "its allocation is released").await;
        self.finish_releases().await;
        let all = self.allocations.lock().await;
        Ok(all.find(id).cloned().unwrap_or_else(|| allocations::moved(&next, AllocationState::Released)))
    }

    /// Goes on with what the server before had begun, which may have been killed before it told a node, or after the last one
    /// had answered.
    async fn resume_releases(&self) {
        let ended = |allocation: &&Allocation| {
            matches!(allocation.state(), AllocationState::Releasing | AllocationState::Failed)
        };
        let ended: Vec<String> =
            self.allocations.lock().await.iter().filter(ended).map(|allocation| allocation.id.clone()).collect();
        for id in ended {
            self.end_launches_of(&id, "its allocation is gone").await;
        }
        self.finish_releases().await;
    }

    /// Allocations that are being released are released when no launch is left in them, and nothing of one on their nodes.
    async fn finish_releases(&self) {
        let busy: BTreeSet<String> = self.running().into_iter().map(|summary| summary.allocation_id).collect();
        let mut all = self.allocations.lock().await;
        let releasing = |allocation: &&Allocation| allocation.state() == AllocationState::Releasing;
        let idle = all.iter().filter(releasing).filter(|allocation| !busy.contains(&allocation.id));
        let next: Vec<Allocation> = {
            let leftovers = self.leftovers.lock();
            let next = |allocation: &Allocation| match &leftovers.among(allocations::nodes(allocation))[..] {
                [] => allocations::moved(allocation, AllocationState::Released),
                nodes => Allocation {
                    reason: format!("waits until nothing of a launch is left on {}", hostlist::fold(nodes)),
                    ..allocation.clone()
                },
            };
            idle.map(|allocation| (allocation, next(allocation)))
                .filter(|(before, next)| *before != next)
                .map(|(_, next)| next)
                .collect()
        };
        for next in next {
            self.put(&mut all, next).await;
        }
    }

    async fn end_launches_of(&self, allocation: &str, reason: &str) {
        for handle in self.handles() {
            if handle.summary().allocation_id == allocation {
                let who = Caller::Api.to_string();
                handle.tell(Ask::Abort { who, reason: reason.to_owned() }).await;
            }
        }
    }

    /// The launches that are not over.
    pub(crate) fn running(&self) -> Vec<LaunchSummary> {
        let over =
            |summary: &LaunchSummary| matches!(summary.state(), LaunchState::Succeeded | LaunchState::LaunchFailed);
        self.handles().iter().map(LaunchHandle::summary).filter(|summary| !over(summary)).collect()
    }

    /// An agent is there. Returns the launches that it must end.
    pub(crate) async fn register(&self, told: RegisterNodeRequest) -> Result<Vec<String>, RegisterError> {
        let node = told.node_id.clone();
        let claimed: BTreeSet<String> = told.launches.iter().cloned().collect();
        let arrival = self.nodes.lock().register(told, Instant::now())?;
        if arrival == Arrival::Anew {
            self.channels.forget(&node);
        }
        let mut unknown = Vec::new();
        for id in &claimed {
            if !self.find(id).is_some_and(|handle| handle.runs_on(&node)) {
                unknown.push(id.clone());
            }
        }
        {
            let mut leftovers = self.leftovers.lock();
            leftovers.forget(&node);
            unknown.iter().for_each(|launch| leftovers.leave(&node, launch));
        }
        self.finish_releases().await;
        match arrival {
            Arrival::Anew => self.lose(&node, &claimed, "its agent was started anew", |_| true).await,
            // A launch of the last server's that should run there and does not: the agent has been started anew since.
            Arrival::First => self.lose(&node, &claimed, "its agent was started anew", LaunchHandle::is_resumed).await,
            Arrival::Again => {}
        }
        self.begin_allocations().await;
        if let Some(fabric) = &self.fabric {
            fabric.node_is_there();
        }
        Ok(unknown)
    }

    /// An agent says which launches are at work on its node.
    pub(crate) fn hear_of_work(self: &Arc<Self>, node: &str, launches: &[String]) {
        if self.leftovers.lock().heard(node, launches) {
            let server = Arc::clone(self);
            tokio::spawn(async move { server.finish_releases().await });
        }
    }

    /// Tells launches on a node that it is lost: those of a kind, but for those in `spared`.
    async fn lose(&self, node: &str, spared: &BTreeSet<String>, reason: &str, of_kind: fn(&LaunchHandle) -> bool) {
        for handle in self.handles() {
            if of_kind(&handle) && handle.runs_on(node) && !spared.contains(&handle.summary().id) {
                handle.tell(Ask::NodeLost { node: node.to_owned(), reason: reason.to_owned() }).await;
            }
        }
    }

    /// Watches the nodes, for ever.
    pub(crate) async fn watch_nodes(self: Arc<Self>) {
        self.resume_releases().await;
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let lost = self.nodes.lock().expire(Instant::now());
            for node in lost {
                tracing::warn!(node, "a node is lost: no heartbeat came for too long");
                self.channels.forget(&node);
                let freed = self.leftovers.lock().forget(&node);
                self.lose(&node, &BTreeSet::new(), "no heartbeat came for too long", |_| true).await;
                if freed {
                    self.finish_releases().await;
                }
            }
        }
    }

    /// How many launches run on a node.
    pub(crate) fn launches_on(&self, node: &str) -> u32 {
        self.handles().iter().filter(|handle| handle.runs_on(node)).count() as u32
    }

    /// What there is at present.
    pub(crate) fn census(&self) -> Census {
        let mut census = Census::default();
        for node in self.nodes.lock().list(Instant::now(), |_| 0) {
            match node.state() {
                NodeState::Up => census.nodes_up += 1,
                NodeState::Lost | NodeState::Unspecified => census.nodes_lost += 1,
            }
        }
        for summary in self.running() {
            match summary.state() {
                LaunchState::Starting => census.starting += 1,
                LaunchState::Ending => census.ending += 1,
                _ => census.active += 1,
            }
        }
        census
    }
}

fn summary(order: &Order) -> LaunchSummary {
    let spec = &order.spec;
    let started_at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    LaunchSummary {
        id: spec.launch_id.clone(),
        allocation_id: spec.allocation_id.clone(),
        uid: spec.uid,
        state: LaunchState::Starting.into(),
        nodes: spec.nodes.clone(),
        ranks: order.placement.size(),
        command: command(spec),
        started_at,
        ..LaunchSummary::default()
    }
}

/// The first program with its arguments, as far as it is readable in a list.
fn command(spec: &LaunchSpec) -> String {
    const LENGTH_MAX: usize = 200;
    let Some(app) = spec.apps.first() else { return String::new() };
    let words = std::iter::once(&app.program).chain(&app.args).map(|word| String::from_utf8_lossy(word));
    let mut text = words.collect::<Vec<_>>().join(" ");
    if spec.apps.len() > 1 {
        text += " : ...";
    }
    if text.chars().count() > LENGTH_MAX {
        text = text.chars().take(LENGTH_MAX).chain("...".chars()).collect();
    }
    text
}

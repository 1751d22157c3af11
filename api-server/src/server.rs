//! State that all calls share: nodes, allocations, launches and what is kept of them, and what a change of one means for the others.

mod allocating;
mod attending;
mod meeting;

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lattice_session::{unix_time, wire};
use parking_lot::Mutex;
use pmi_transport::connect::AgentChannels;
use pmi_transport::identity::{Caller, Security};
use pmi_transport::proto::v1::{
    Allocation, AllocationState, LaunchSpec, LaunchTasksRequest, LaunchTasksResponse, NodeState,
};
use pmi_transport::signature;
use prost::Message;
use tonic::Status;

use super::allocations::{Allocations, LaunchFailure};
use super::clock::Clock;
use super::config::Config;
use super::fabric::Fabric;
use super::launch::event::Activity;
use super::launch::fan_out::FanOut;
use super::launch::spool::Spools;
use super::launch::summary::{Stage, Summary};
use super::launch::{self, LaunchHandle, Request};
use super::metrics::{Census, Metrics};
use super::names::NameTables;
use super::nodes::{NODES_MAX, Registry};
use super::order::{Order, OrderError};
use super::rendezvous::Rendezvous;
use super::serials::Serials;
use super::store::{self, Change, Kept, LaunchRecord, Store, StoreError};
use super::unclean_nodes::UncleanNodes;

/// Number of launches that are over and kept for clients that come late.
const OVER_MAX: usize = 64;

/// The API server, but for its sockets.
pub(crate) struct Server {
    pub config: Config,
    pub security: Security,
    pub store: Arc<dyn Store>,
    pub channels: AgentChannels,
    pub nodes: Mutex<Registry>,
    /// Nodes on which something of a launch that is over may be left.
    pub unclean: Mutex<UncleanNodes>,
    /// Held while a change of an allocation is made durable, so that changes follow each other.
    pub allocations: tokio::sync::Mutex<Allocations>,
    /// Fabric credentials, where there is a fabric that needs some.
    pub fabric: Option<Arc<Fabric>>,
    pub names: NameTables,
    pub rendezvous: Rendezvous,
    pub metrics: Arc<Metrics>,
    pub serials: Serials,
    /// The time by which others are judged.
    pub clock: Arc<Clock>,
    /// Where launches that nobody owns keep what they say.
    pub spools: Arc<Spools>,
    launches: Mutex<Launches>,
}

/// The launches that have a task.
#[derive(Debug, Default)]
struct Launches {
    by_id: HashMap<String, LaunchHandle>,
    /// Launches that are over, in the order in which they ended.
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
        let Kept { allocations, launches, drains } = store.read()?;
        let live = allocations.into_iter().filter(|allocation| allocation.state() != AllocationState::Released);
        let directory = config.state.parent().map(Path::to_owned).unwrap_or_default();
        let server = Arc::new(Self {
            spools: Spools::new(directory, config.spool),
            config,
            channels: AgentChannels::new(security.clone(), NODES_MAX),
            security,
            store,
            nodes: Mutex::default(),
            unclean: Mutex::default(),
            allocations: Allocations::new(live.collect()).into(),
            fabric,
            names: NameTables::default(),
            rendezvous: Rendezvous::default(),
            metrics: Arc::default(),
            serials: Serials::from_now(),
            clock: Arc::default(),
            launches: Mutex::default(),
        });
        drains.into_iter().for_each(|drain| server.nodes.lock().drain(drain));
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
                handle.send(Request::Abort { who: Caller::Api.to_string(), reason }).await;
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
        let (order, notes) = self.order(request, &allocation)?;
        let spec = Bytes::from(order.spec.encode_to_vec());
        let serial = self.serials.next();
        let signed = signature::sign(&self.security, serial, &spec).map_err(|error| {
            Status::internal(format!("the launch cannot be signed: {}", pmi_transport::error_chain::chain(&error)))
        })?;
        let fan_out = FanOut {
            launch_id: order.spec.launch_id.clone(),
            allocation_id: allocation.id.clone(),
            nodes: order.nodes.clone(),
            world_size: order.launch.job.size(),
            spec,
            serial,
            signature: signed.signature,
            signer: signed.signer,
            credentials: None,
            cxi_signature: Bytes::new(),
        };
        let record = LaunchRecord {
            summary: Some(crate::wire::summary::encode(&summary(&order))),
            spec: Some(order.spec.clone()),
            detached: order.detached,
            complete: None,
            checkpoint: None,
            last_event: 0,
        };
        // If we end now, nodes that run it are known by this.
        self.write(vec![Change::Launch(Box::new(record.clone()))]).await?;
        let told = told(&order);
        let (handle, accepted) = launch::start(self, order, record, fan_out, credentials);
        self.launches.lock().by_id.insert(told.launch_id.clone(), handle);
        // While it was written down, the allocation may have been released.
        if self.allocations.lock().await.running(caller, &allocation.id).is_err() {
            self.end_launches_of(&allocation.id, "its allocation is gone").await;
        }
        accepted.await.map_err(|_| Status::internal("the launch ended before its nodes had answered"))??;
        let lease_ms = self.config.lease.as_millis() as u64;
        Ok(LaunchTasksResponse { task_launch_id: told.launch_id.clone(), spec: Some(told), notes, lease_ms })
    }

    /// Returns the launch that `request` would start now; nothing comes of it, not even fabric credentials.
    pub(crate) async fn plan(
        &self,
        caller: &Caller,
        request: LaunchTasksRequest,
    ) -> Result<LaunchTasksResponse, Status> {
        let allocation = self.allocations.lock().await.running(caller, &request.allocation_id)?.clone();
        let (order, notes) = self.order(request, &allocation)?;
        Ok(LaunchTasksResponse { task_launch_id: String::new(), spec: Some(told(&order)), notes, lease_ms: 0 })
    }

    /// Makes an order of `request` on the nodes as they are now, with notes for whoever asks.
    fn order(&self, request: LaunchTasksRequest, allocation: &Allocation) -> Result<(Order, Vec<String>), OrderError> {
        let request = wire::request::decode(request)?;
        let registry = self.nodes.lock();
        let order = Order::new(request, allocation, &registry, &self.config.launches)?;
        let notes = Vec::from_iter(order.crowding(&registry));
        Ok((order, notes))
    }

    /// Makes changes durable.
    pub(crate) async fn write(&self, changes: Vec<Change>) -> Result<(), Status> {
        store::write(&self.store, changes).await.map_err(|error| {
            let error = pmi_transport::error_chain::chain(&error);
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

    /// A launch is over, well or not.
    pub(crate) fn launch_over(self: &Arc<Self>, summary: &Summary, failure: Option<LaunchFailure>) {
        self.metrics.count_ended(failure.is_none());
        self.names.withdraw(summary.uid, &summary.id);
        self.rendezvous.withdraw(&summary.id);
        let oldest = {
            let mut launches = self.launches.lock();
            launches.over.push_back(summary.id.clone());
            let excess = launches.over.len() > OVER_MAX;
            let oldest = if excess { launches.over.pop_front() } else { None };
            oldest.and_then(|id| launches.by_id.get(&id).cloned())
        };
        let (server, allocation) = (Arc::clone(self), summary.allocation_id.clone());
        tokio::spawn(async move {
            if let Some(oldest) = oldest {
                oldest.send(Request::Forget).await;
            }
            if let Some(failure) = failure {
                server.launch_failed(&allocation, &failure).await;
            }
            server.finish_releases().await;
        });
    }

    /// The launches that are not over.
    pub(crate) fn running(&self) -> Vec<Summary> {
        self.handles().iter().map(LaunchHandle::summary).filter(|summary| !summary.is_over()).collect()
    }

    /// Counts nodes and launches as they are at present.
    pub(crate) fn census(&self) -> Census {
        let mut census = Census::default();
        for node in self.nodes.lock().list(self.clock.now(), |_| 0) {
            match node.state() {
                NodeState::Up => census.nodes_up += 1,
                NodeState::Lost => census.nodes_lost += 1,
                NodeState::Unspecified => {}
            }
        }
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

/// Does a change to its end, even if whoever asked for it goes away meanwhile: nothing is left half done.
pub(crate) async fn to_its_end<T: Send + 'static>(change: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(change).await {
        Ok(done) => done,
        // It is never cancelled; a panic goes on here.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// An order as its user is told of it: the secret is for nodes and ranks.
fn told(order: &Order) -> LaunchSpec {
    LaunchSpec { secret: Bytes::new(), ..order.spec.clone() }
}

fn summary(order: &Order) -> Summary {
    let spec = &order.spec;
    Summary {
        id: spec.launch_id.clone(),
        allocation_id: spec.allocation_id.clone(),
        uid: spec.uid,
        stage: Stage::At(Activity::Starting),
        nodes: spec.nodes.clone(),
        ranks: order.launch.job.size(),
        command: command(spec),
        started_at: unix_time::seconds(),
        duration: Duration::ZERO,
        cause: String::new(),
        client_stopped_at: 0,
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

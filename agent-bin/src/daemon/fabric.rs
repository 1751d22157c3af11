//! The CXI services of this node. They are made before the ranks of a launch start, and ended after the last rank. When a VNI is retired, all
//! its services end. Services belong to root: a session receives their numbers and cannot change them. A daemon that is not root does the work
//! in processes of its fork server ([`crate::nics`]).
//!
//! ```text
//!             first launch of the VNI            launch ends
//! (unknown) ──────────────────────────> launches ────────────> no launches ──retire──> (unknown)
//!     └── strays of launches that ended without an agent are ended ──┘
//! ```
//! Calls to NICs block, so they run on threads or in separate processes. Only launches of the same VNI wait for each other.

use std::collections::BTreeMap;
use std::sync::Arc;

use cxi_fabric::Vni;
use cxi_fabric::environment::Provider;
use cxi_fabric::node::{CxiBackend, NicService, NodeBackend, NodeConfigError, NodeFabricConfig};
use lattice_session::cxi;
use lattice_session::fabric::{Claims, NodeFabric};
use lattice_session::nics::{NicsAnswer, NicsTask};
use lattice_session::session_process::door;
use lattice_session::timeouts;
use lattice_session::wire::WireError;
use lattice_session::wire::order::StartOrder;
use lattice_session::wire::signed_credentials::SignedCredentials;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use super::forks::{Forks, NotStarted};
use crate::nics::{self, errand, words};

/// The fabric of this node.
pub(super) struct Fabric {
    kind: NodeBackend,
    /// `None` if this node makes no services.
    worker: Option<Worker>,
    provider: Provider,
    vnis: Mutex<BTreeMap<Vni, Arc<tokio::sync::Mutex<Users>>>>,
}

/// Where the work on services runs.
enum Worker {
    /// Threads of this process.
    Here(Arc<dyn CxiBackend>),
    /// Processes of the fork server.
    ForkServer(Forks),
}

/// Use of a VNI on this node.
#[derive(Debug, Default)]
struct Users {
    /// True after the services of earlier agents have been ended.
    is_swept: bool,
    /// The services of each launch, including services that are being ended.
    launches: BTreeMap<String, Vec<NicService>>,
}

/// Error of a launch that gets no services here.
#[derive(Debug, thiserror::Error)]
pub(super) enum FabricError {
    #[error("the fabric credentials cannot be understood: {0}")]
    Wire(#[from] WireError),
    #[error("{0}")]
    Trouble(String),
    #[error("what makes CXI services is gone")]
    Gone,
    #[error("no process makes CXI services: {0}")]
    NotStarted(#[from] NotStarted),
}

/// Services of a launch; dropping it releases them.
pub(super) struct Claimed {
    fabric: Arc<Fabric>,
    launch_id: String,
    /// `None` after the release.
    uses: Option<FabricUse>,
}

/// Use of the fabric by a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FabricUse {
    pub(super) vni: Vni,
    /// The services that were made for the launch.
    pub(super) services: Vec<NicService>,
}

/// Request of a launch for services.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) launch_id: String,
    pub(super) uid: u32,
    pub(super) ranks: u32,
    pub(super) claims: Claims,
    /// The launch and its credentials, as the API server signed them.
    pub(super) order: StartOrder,
    pub(super) credentials: SignedCredentials,
}

impl Fabric {
    /// Creates the fabric. `fork_server` does the work of root for a daemon that is not root.
    ///
    /// # Errors
    /// Fails if the fabric settings are not usable.
    pub(super) fn new(config: &NodeFabricConfig, fork_server: Option<Forks>) -> Result<Arc<Self>, NodeConfigError> {
        let worker = config.backend()?.map(|backend| fork_server.map_or(Worker::Here(backend), Worker::ForkServer));
        Ok(Arc::new(Self { kind: config.backend, worker, provider: config.provider, vnis: Mutex::default() }))
    }

    /// Fabric settings for a session without credentials.
    pub(super) fn bare(&self) -> NodeFabric {
        // The cxi provider needs credentials.
        NodeFabric { provider: Some(self.provider).filter(|provider| *provider == Provider::Verbs), claims: None }
    }

    /// Makes a launch's services; returns the fabric settings of its session, and the claim.
    ///
    /// # Errors
    /// Fails if a NIC refuses a service. The services made until then are ended.
    pub(super) async fn claim(self: &Arc<Self>, wish: Wish) -> Result<(NodeFabric, Claimed), FabricError> {
        // The task continues if the caller is gone, so that new services are recorded and released.
        let claiming = tokio::spawn(Arc::clone(self).claim_all(wish));
        claiming.await.map_err(|_| FabricError::Gone)?
    }

    async fn claim_all(self: Arc<Self>, wish: Wish) -> Result<(NodeFabric, Claimed), FabricError> {
        let Wish { launch_id, uid, ranks, claims, order, credentials } = wish;
        let vni = claims.credentials.vni;
        let mut users = self.users(vni).await;
        let services = match (&self.worker, claims.credentials.svc_id) {
            // Another program made these services, and ends them.
            _ if !claims.services.is_empty() => claims.services.clone(),
            (None, _) => Vec::new(),
            (Some(worker), 0) => {
                let first = !std::mem::replace(&mut users.is_swept, true);
                let spared = users.launches.values().flatten().cloned().collect();
                let task = NicsTask::Claim { credentials, ranks, spared: first.then_some(spared) };
                let made = self.carry_out(worker, uid, StartOrder { nics: Some(task), ..order }).await;
                let made = made.inspect_err(|_| users.is_swept = !first)?;
                made.warnings.iter().for_each(|warning| tracing::warn!(launch = launch_id, "{warning}"));
                users.launches.insert(launch_id.clone(), made.services.clone());
                made.services
            }
            (Some(worker), svc_id) => {
                let found = self.carry_out(worker, 0, StartOrder::of_task(NicsTask::Find(svc_id))).await?;
                found.services
            }
        };
        // Recorded even without services, because the ranks use the VNI.
        let made = users.launches.entry(launch_id.clone()).or_default().clone();
        tracing::info!(launch = launch_id, %vni, services = %words(&services), "the launch may use the fabric");
        let told = NodeFabric { provider: Some(self.provider), claims: Some(Claims { services, ..claims }) };
        let uses = Some(FabricUse { vni, services: made });
        Ok((told, Claimed { fabric: Arc::clone(&self), launch_id, uses }))
    }

    /// Takes over the services that an earlier agent made for a launch that continues.
    pub(super) async fn take_over(self: &Arc<Self>, launch_id: &str, uses: FabricUse) -> Claimed {
        let launch_id = launch_id.to_owned();
        self.users(uses.vni).await.launches.insert(launch_id.clone(), uses.services.clone());
        Claimed { fabric: Arc::clone(self), launch_id, uses: Some(uses) }
    }

    /// Ends the services of a launch.
    async fn release(&self, vni: Vni, launch_id: &str) {
        let services = self.users(vni).await.launches.get(launch_id).cloned().unwrap_or_default();
        if let (Some(worker), false) = (&self.worker, services.is_empty()) {
            let shown = words(&services);
            match self.carry_out(worker, 0, StartOrder::of_task(NicsTask::Release(services))).await {
                Ok(_) => tracing::info!(launch = launch_id, %vni, services = shown, "its CXI services are ended"),
                Err(FabricError::Trouble(left)) => {
                    tracing::warn!(launch = launch_id, %vni, left, "CXI services are left until the VNI is retired");
                }
                Err(error) => tracing::error!(launch = launch_id, %vni, "{error}"),
            }
        }
        self.users(vni).await.launches.remove(launch_id);
    }

    /// Ends all remaining services of a VNI. The error names a launch that still uses it, or the services that cannot be ended.
    pub(super) async fn retire(&self, vni: Vni) -> Result<(), String> {
        let users = self.users(vni).await;
        if let Some(launch) = users.launches.keys().next() {
            return Err(format!("launch {launch} still uses it"));
        }
        if let Some(worker) = &self.worker {
            let sweep = NicsTask::Sweep { vni, spared: Vec::new(), within: timeouts::RETIRE };
            let swept = self.carry_out(worker, 0, StartOrder::of_task(sweep)).await;
            swept.map_err(|error| error.to_string())?;
        }
        tracing::info!(%vni, "nothing is left of the VNI here");
        self.vnis.lock().remove(&vni);
        Ok(())
    }

    /// Lists this node's NICs and the services on them.
    pub(super) async fn list(&self) -> cxi::CxiSurvey {
        let (kind, known) = (self.kind, self.known().await);
        let Some(worker) = &self.worker else { return cxi::CxiSurvey::without_services(kind, None) };
        let mut survey = match self.carry_out(worker, 0, StartOrder::of_task(NicsTask::Survey)).await {
            Ok(NicsAnswer { survey, .. }) => survey,
            Err(error) => return cxi::CxiSurvey::without_services(kind, Some(error.to_string())),
        };
        for nic in &mut survey.nics {
            for service in &mut nic.services {
                let of = NicService { nic: nic.name.clone(), svc_id: service.svc_id };
                service.owner = known.get(&of).cloned();
            }
        }
        survey
    }

    /// Runs an order for a launch of this user.
    async fn carry_out(&self, worker: &Worker, uid: u32, order: StartOrder) -> Result<NicsAnswer, FabricError> {
        let answer = match worker {
            Worker::Here(backend) => {
                let (kind, backend) = (self.kind, Arc::clone(backend));
                let task = order.nics.ok_or(FabricError::Gone)?;
                blocking(move || nics::carry_out(kind, &*backend, uid, task)).await?
            }
            Worker::ForkServer(forks) => {
                let forked = forks.start(&order).await?;
                let process = forked.process.as_ref().ok_or(FabricError::Gone)?;
                let socket = door::connect(&process.door).map_err(|_| FabricError::Gone)?;
                blocking(move || errand::read_answer(socket)).await?.map_err(|_| FabricError::Gone)?
            }
        };
        match answer.trouble {
            Some(trouble) => Err(FabricError::Trouble(trouble)),
            None => Ok(answer),
        }
    }

    /// The services that were made here, each with its launch.
    async fn known(&self) -> BTreeMap<NicService, String> {
        let vnis: Vec<_> = self.vnis.lock().values().cloned().collect();
        let mut known = BTreeMap::new();
        for users in vnis {
            for (launch, services) in &users.lock().await.launches {
                known.extend(services.iter().map(|service| (service.clone(), launch.clone())));
            }
        }
        known
    }

    /// Locks the users of a VNI, for one call at a time.
    async fn users(&self, vni: Vni) -> OwnedMutexGuard<Users> {
        loop {
            let users = Arc::clone(self.vnis.lock().entry(vni).or_default());
            let locked = users.lock_owned().await;
            // The VNI may have been retired and its entry removed during the wait. Later calls then use a new entry.
            let known = self.vnis.lock().get(&vni).map(Arc::as_ptr);
            if known == Some(Arc::as_ptr(OwnedMutexGuard::mutex(&locked))) {
                return locked;
            }
        }
    }
}

impl Claimed {
    /// Fabric use of the launch, for the next agent.
    pub(super) fn uses(&self) -> Option<&FabricUse> {
        self.uses.as_ref()
    }

    /// Releases the services; returns when they have ended, or when they stay busy.
    pub(super) async fn release(mut self) {
        if let Some(FabricUse { vni, .. }) = self.uses.take() {
            self.fabric.release(vni, &self.launch_id).await;
        }
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if let (Some(FabricUse { vni, .. }), Ok(runtime)) = (self.uses.take(), tokio::runtime::Handle::try_current()) {
            let (fabric, launch_id) = (Arc::clone(&self.fabric), std::mem::take(&mut self.launch_id));
            runtime.spawn(async move { fabric.release(vni, &launch_id).await });
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, FabricError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| FabricError::Gone)
}

#[cfg(test)]
mod tests;

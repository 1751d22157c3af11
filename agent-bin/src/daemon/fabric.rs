//! The CXI services of this node: made for a launch before its ranks start, ended after the last of them, and all gone when a
//! VNI is retired. Done here because services are root's; sessions are told of them and can do nothing to them.
//!
//! ```text
//!             first launch of the VNI            launch ends
//! (unknown) ──────────────────────────> launches ────────────> no launches ──retire──> (unknown)
//!     └── strays of launches that ended without an agent are ended ──┘
//! ```
//! Calls to NICs block, so they are made on threads of their own. Launches of one VNI wait for each other, others do not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cxi_fabric::Vni;
use cxi_fabric::clock::SystemClock;
use cxi_fabric::environment::Provider;
use cxi_fabric::node::{self, Claim, CxiBackend, NicService, NodeBackend, NodeConfigError, NodeFabricConfig, Stuck};
use lattice_session::timeouts;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use lattice_session::cxi;
use lattice_session::fabric::{Claims, NodeFabric};
use lattice_session::wire::WireError;

/// Time limit for a service to be destroyed after the end of its launch; beyond it, it is tried again when its VNI is retired.
const RELEASE_WITHIN: Duration = Duration::from_secs(10);

/// The fabric of this node.
pub(super) struct Fabric {
    kind: NodeBackend,
    backend: Option<Arc<dyn CxiBackend>>,
    provider: Provider,
    vnis: Mutex<BTreeMap<Vni, Arc<tokio::sync::Mutex<Users>>>>,
}

/// Use of a VNI on this node.
#[derive(Debug, Default)]
struct Users {
    /// True once the services that an earlier agent left have been destroyed.
    is_swept: bool,
    /// The services of each launch, those included that are being ended.
    launches: BTreeMap<String, Vec<NicService>>,
}

/// Error of a launch that gets no services here.
#[derive(Debug, thiserror::Error)]
pub(super) enum FabricError {
    #[error("the fabric credentials cannot be understood: {0}")]
    Wire(#[from] WireError),
    #[error(transparent)]
    Claim(#[from] node::ClaimError),
    #[error("cannot end what is left of VNI {vni}: {reason}")]
    Strays { vni: Vni, reason: String },
    #[error("the thread that makes CXI services is gone")]
    Thread,
}

/// Services of a launch. Dropping it gives them back as well.
pub(super) struct Claimed {
    fabric: Arc<Fabric>,
    launch_id: String,
    /// `None` once they are given back.
    uses: Option<FabricUse>,
}

/// Use of the fabric by a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FabricUse {
    pub(super) vni: Vni,
    /// The services that were made for it.
    pub(super) services: Vec<NicService>,
}

/// Request of a launch for services.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) launch_id: String,
    pub(super) uid: u32,
    pub(super) ranks: u32,
    pub(super) claims: Claims,
}

impl Fabric {
    pub(super) fn new(config: &NodeFabricConfig) -> Result<Arc<Self>, NodeConfigError> {
        let backend = config.backend()?;
        Ok(Arc::new(Self { kind: config.backend, backend, provider: config.provider, vnis: Mutex::default() }))
    }

    /// Fabric settings for a session without credentials.
    pub(super) fn bare(&self) -> NodeFabric {
        // Without credentials, cxi is no use to anybody.
        NodeFabric { provider: Some(self.provider).filter(|provider| *provider == Provider::Verbs), claims: None }
    }

    /// Makes a launch's services; returns what its session is told of them.
    ///
    /// # Errors
    /// If a NIC refuses; then nothing is left of them.
    pub(super) async fn claim(self: &Arc<Self>, wish: Wish) -> Result<(NodeFabric, Claimed), FabricError> {
        // Goes on when whoever asked has gone, so that what is made is known, and given back.
        let claiming = tokio::spawn(Arc::clone(self).claim_all(wish));
        claiming.await.map_err(|_| FabricError::Thread)?
    }

    async fn claim_all(self: Arc<Self>, wish: Wish) -> Result<(NodeFabric, Claimed), FabricError> {
        let Wish { launch_id, uid, ranks, claims } = wish;
        let vni = claims.credentials.vni;
        let mut users = self.users(vni).await;
        let services = match (&self.backend, claims.credentials.svc_id) {
            // Somebody else made them, and ends them.
            _ if !claims.services.is_empty() => claims.services.clone(),
            (None, _) => Vec::new(),
            (Some(backend), 0) => {
                let first = !std::mem::replace(&mut users.is_swept, true);
                let vnis = std::iter::once(vni).chain(claims.credentials.job_vni).collect();
                let spared: Vec<NicService> = users.launches.values().flatten().cloned().collect();
                let claim = Claim { uid, ranks: ranks.max(1), vnis, traffic_classes: claims.traffic_classes };
                let backend = Arc::clone(backend);
                let made = blocking(move || {
                    if first {
                        sweep(&*backend, vni, &spared, timeouts::CLAIM)
                            .map_err(|reason| FabricError::Strays { vni, reason })?;
                    }
                    Ok(node::claim(&*backend, &SystemClock, &claim, Instant::now() + timeouts::CLAIM)?)
                });
                let made = made.await.and_then(|made| made).inspect_err(|_| users.is_swept = !first)?;
                made.warnings.iter().for_each(|warning| tracing::warn!(launch = launch_id, "{warning}"));
                users.launches.insert(launch_id.clone(), made.services.clone());
                made.services
            }
            (Some(backend), svc_id) => {
                let backend = Arc::clone(backend);
                blocking(move || node::given(&*backend, svc_id)).await??
            }
        };
        // Also where there are no services, its ranks use the VNI.
        let made = users.launches.entry(launch_id.clone()).or_default().clone();
        tracing::info!(launch = launch_id, %vni, services = %words(&services), "the launch may use the fabric");
        let told = NodeFabric { provider: Some(self.provider), claims: Some(Claims { services, ..claims }) };
        let uses = Some(FabricUse { vni, services: made });
        Ok((told, Claimed { fabric: Arc::clone(&self), launch_id, uses }))
    }

    /// Takes over what the agent before this one made for a launch that goes on.
    pub(super) async fn take_over(self: &Arc<Self>, launch_id: &str, uses: FabricUse) -> Claimed {
        let launch_id = launch_id.to_owned();
        self.users(uses.vni).await.launches.insert(launch_id.clone(), uses.services.clone());
        Claimed { fabric: Arc::clone(self), launch_id, uses: Some(uses) }
    }

    /// Ends what a launch has.
    async fn release(&self, vni: Vni, launch_id: &str) {
        let services = self.users(vni).await.launches.get(launch_id).cloned().unwrap_or_default();
        if let (Some(backend), false) = (self.backend.clone(), services.is_empty()) {
            let shown = words(&services);
            let stuck =
                blocking(move || node::release(&*backend, &SystemClock, &services, Instant::now() + RELEASE_WITHIN));
            match stuck.await {
                Ok(stuck) if stuck.is_empty() => {
                    tracing::info!(launch = launch_id, %vni, services = shown, "its CXI services are ended");
                }
                Ok(stuck) => {
                    let left = stuck.iter().map(Stuck::to_string).collect::<Vec<_>>().join("; ");
                    tracing::warn!(launch = launch_id, %vni, left, "CXI services are left until the VNI is retired");
                }
                Err(error) => tracing::error!(launch = launch_id, %vni, "{error}"),
            }
        }
        self.users(vni).await.launches.remove(launch_id);
    }

    /// Ends what is left of a VNI, and says in words what cannot be ended.
    pub(super) async fn retire(&self, vni: Vni) -> Result<(), String> {
        let users = self.users(vni).await;
        if let Some(launch) = users.launches.keys().next() {
            return Err(format!("launch {launch} still uses it"));
        }
        if let Some(backend) = self.backend.clone() {
            let swept = blocking(move || sweep(&*backend, vni, &[], timeouts::RETIRE)).await;
            swept.map_err(|error| error.to_string())??;
        }
        tracing::info!(%vni, "nothing is left of the VNI here");
        self.vnis.lock().remove(&vni);
        Ok(())
    }

    /// Lists this node's NICs and the services on them.
    pub(super) async fn list(&self) -> cxi::CxiSurvey {
        let (kind, known) = (self.kind, self.known().await);
        let Some(backend) = self.backend.clone() else { return cxi::CxiSurvey::without_services(kind, None) };
        let owner = move |service: &NicService, _: &node::FoundService| known.get(service).cloned();
        let surveyed = blocking(move || cxi::survey(kind, &*backend, owner)).await;
        surveyed.unwrap_or_else(|error| cxi::CxiSurvey::without_services(kind, Some(error.to_string())))
    }

    /// The services that were made here, with their launches.
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

    /// The users of a VNI, for one call at a time.
    async fn users(&self, vni: Vni) -> OwnedMutexGuard<Users> {
        loop {
            let users = Arc::clone(self.vnis.lock().entry(vni).or_default());
            let locked = users.lock_owned().await;
            // While we waited the VNI may have been retired, and what we waited for forgotten: others use another one by now.
            let known = self.vnis.lock().get(&vni).map(Arc::as_ptr);
            if known == Some(Arc::as_ptr(OwnedMutexGuard::mutex(&locked))) {
                return locked;
            }
        }
    }
}

impl Claimed {
    /// What the launch uses, for the agent after this one.
    pub(super) fn uses(&self) -> Option<&FabricUse> {
        self.uses.as_ref()
    }

    /// Gives the services back; returns when they are, or when they stay busy.
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

/// Ends all services that name a VNI but for those that are `spared`, and says in words what is left.
fn sweep(backend: &dyn CxiBackend, vni: Vni, spared: &[NicService], within: Duration) -> Result<(), String> {
    let mut strays = node::holders(backend, vni).map_err(|error| error.to_string())?;
    strays.retain(|stray| !spared.contains(stray));
    if !strays.is_empty() {
        tracing::warn!(%vni, services = words(&strays), "CXI services that nobody uses are ended");
    }
    let stuck = node::release(backend, &SystemClock, &strays, Instant::now() + within);
    match &stuck[..] {
        [] => Ok(()),
        stuck => Err(stuck.iter().map(Stuck::to_string).collect::<Vec<_>>().join("; ")),
    }
}

/// Such as `cxi0:11,cxi1:21`.
fn words(services: &[NicService]) -> String {
    let word = |service: &NicService| format!("{}:{}", service.nic, service.svc_id);
    services.iter().map(word).collect::<Vec<_>>().join(",")
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, FabricError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| FabricError::Thread)
}

#[cfg(test)]
mod tests;

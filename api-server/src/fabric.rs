//! Fabric credentials of allocations. They are requested when an allocation begins to run, are available when its launches start, and are
//! returned after its end in every case.
//!
//! ```text
//! allocation runs ──ask──> manager ──> credentials ──> every launch of the allocation ──> agents
//!            ended ──release──> (tending) deleted at the manager, confirmed by every node ──> the VNI may be used again
//! ```
//! The crate `cxi-fabric` contains the ledger and its journal. Work that contacts the manager or writes the journal blocks a thread of its
//! own. A launch with available credentials does not wait.

mod retiring;
pub(crate) mod tending;

use pmi_transport::task;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cxi_fabric::clock::SystemClock;
use cxi_fabric::config::{ConfigError, FabricConfig};
use cxi_fabric::grants::GrantError;
use cxi_fabric::ledger::Need;
use cxi_fabric::node::TrafficClasses;
use cxi_fabric::{ClusterName, Credentials, Grants};
use lattice_session::timeouts;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::allocations::{Allocation, AllocationState};
use super::store::{FabricJournal, StoreError};

pub(crate) use self::tending::{give_back, tend};

/// The fabric of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FabricSettings {
    /// Name of the cluster at the manager: the first part of the names of its services.
    pub cluster: ClusterName,
    pub manager: FabricConfig,
    /// Time that a launch waits for credentials.
    pub timeout: Duration,
}

/// The credentials of all allocations.
pub(crate) struct Fabric {
    pub settings: FabricSettings,
    pub grants: Arc<Grants>,
    /// Pending requests to the manager, by allocation.
    flights: Mutex<HashMap<String, Flight>>,
    /// Notified when credentials may have to be returned.
    due: Notify,
}

/// An answer for many waiting tasks; `None` until it arrives.
type Flight = watch::Receiver<Option<Result<Credentials, Arc<GrantError>>>>;

/// Reason why the fabric is not available.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FabricError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("the journal of fabric credentials cannot be read")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Journal(#[from] GrantError),
}

/// Reason why a launch has no credentials. No node was asked to start the launch.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum NoCredentials {
    #[error("no fabric credentials for allocation {allocation}: {error}")]
    Refused { allocation: String, error: Arc<GrantError> },
    #[error("no fabric credentials for allocation {allocation} within {}.{:03} s", limit.as_secs(), limit.subsec_millis())]
    Late { allocation: String, limit: Duration },
    #[error("allocation {allocation} ended while the launch was prepared")]
    Ended { allocation: String },
    #[error("the launch's fabric credentials cannot be signed: {reason}")]
    Unsigned { reason: String },
}

impl NoCredentials {
    /// Returns true if credentials may be available later.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Refused { .. } | Self::Late { .. } => true,
            Self::Ended { .. } | Self::Unsigned { .. } => false,
        }
    }
}

/// Requested credentials.
pub(crate) struct CredentialRequest {
    fabric: Arc<Fabric>,
    need: Need,
    flight: Flight,
    /// An earlier task made the request; its deadline may be earlier than that of this task.
    is_anothers: bool,
}

impl Fabric {
    /// Continues where the previous server ended.
    ///
    /// # Errors
    /// Fails if the configuration is invalid, or if the journal cannot be read and written.
    pub(crate) fn open(settings: FabricSettings, journal: FabricJournal) -> Result<Arc<Self>, FabricError> {
        let manager = settings.manager.manager()?;
        let entries = journal.entries()?;
        let (range, clock) = (settings.manager.vnis, Arc::new(SystemClock));
        let grants = Grants::recover(&settings.cluster, manager, range, clock, entries, Box::new(journal))?;
        let (grants, flights, due) = (Arc::new(grants), Mutex::default(), Notify::new());
        Ok(Arc::new(Self { settings, grants, flights, due }))
    }

    /// Requests the credentials of an allocation, unless they are available or already requested. Returns at once.
    pub(crate) fn ask(self: &Arc<Self>, allocation: &Allocation) -> CredentialRequest {
        let Allocation { id, nodes, uid, .. } = allocation;
        self.ask_for(Need { allocation: id.clone(), nodes: nodes.clone(), uid: *uid })
    }

    fn ask_for(self: &Arc<Self>, need: Need) -> CredentialRequest {
        let asked =
            |need, flight, is_anothers| CredentialRequest { fabric: Arc::clone(self), need, flight, is_anothers };
        if let Some(credentials) = self.grants.ready(&need.allocation) {
            return asked(need, watch::channel(Some(Ok(credentials))).1, false);
        }
        let mut flights = self.flights.lock();
        let under_way = |flight: &&Flight| flight.has_changed().is_ok();
        if let Some(flight) = flights.get(&need.allocation).filter(under_way) {
            return asked(need, flight.clone(), true);
        }
        let (tell, flight) = watch::channel(None);
        flights.insert(need.allocation.clone(), flight.clone());
        let (fabric, wanted) = (Arc::clone(self), need.clone());
        task::spawn(async move {
            let answer = fabric.acquire(wanted).await;
            // The requesting task may have ended.
            let _ = tell.send(Some(answer));
        });
        asked(need, flight, false)
    }

    async fn acquire(&self, need: Need) -> Result<Credentials, Arc<GrantError>> {
        let allocation = need.allocation.clone();
        tracing::info!(allocation, "the fabric manager is asked for credentials");
        let begun = Instant::now();
        let deadline = begun + self.settings.timeout;
        let answer = self.blocking(move |grants| grants.acquire(&need, deadline)).await;
        self.flights.lock().remove(&allocation);
        // Credentials without an allocation must be returned.
        self.due.notify_one();
        let took_ms = begun.elapsed().as_millis() as u64;
        match &answer {
            Ok(credentials) => {
                let key = credentials.auth_key.as_ref().map(|key| key.fingerprint().to_string()).unwrap_or_default();
                tracing::info!(allocation, vni = %credentials.vni, key, took_ms, "fabric credentials are at hand");
            }
            Err(error) => tracing::warn!(allocation, took_ms, %error, "there are no fabric credentials"),
        }
        answer.map_err(Arc::new)
    }

    /// Returns the credentials of an allocation that has ended and has no launch left.
    pub(crate) fn release(self: &Arc<Self>, allocation: &str) {
        let (fabric, allocation) = (Arc::clone(self), allocation.to_owned());
        task::spawn(async move {
            let name = allocation.clone();
            match fabric.blocking(move |grants| grants.release(&name)).await {
                Ok(()) => tracing::info!(allocation, "fabric credentials are to be given back"),
                // The release is tried again with all other due work.
                Err(error) => tracing::warn!(allocation, %error, "fabric credentials are not given back yet"),
            }
            fabric.due.notify_one();
        });
    }

    /// Records that a node has registered.
    pub(crate) fn node_is_there(&self) {
        self.due.notify_one();
    }

    /// Follows a change of an allocation. For a running allocation the credentials are requested, so that they are available for its
    /// launches.
    pub(crate) fn follow(self: &Arc<Self>, allocation: &Allocation) -> Option<CredentialRequest> {
        match allocation.state {
            AllocationState::Running => return Some(self.ask(allocation)),
            AllocationState::Released => self.release(&allocation.id),
            // Launches of a failed allocation may not have ended yet: see `tend`.
            AllocationState::Failed { .. } => self.due.notify_one(),
            // An allocation that is queued again gets other nodes.
            AllocationState::Pending { .. } if allocation.is_queued() => self.release(&allocation.id),
            AllocationState::Pending { .. } | AllocationState::Releasing { .. } => {}
        }
        None
    }

    /// Runs blocking work without blocking the other tasks of this thread.
    pub(crate) async fn blocking<T: Send + 'static>(&self, work: impl FnOnce(&Grants) -> T + Send + 'static) -> T {
        let grants = Arc::clone(&self.grants);
        match tokio::task::spawn_blocking(move || work(&grants)).await {
            Ok(result) => result,
            // The task is never cancelled; a panic continues here.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

impl CredentialRequest {
    async fn answer(&mut self) -> Result<Credentials, Arc<GrantError>> {
        let answer = self.flight.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone());
        // Without an answer the task that asked the manager has panicked; the next launch asks again.
        answer.unwrap_or_else(|| Err(Arc::new(GrantError::StillWaiting(self.need.allocation.clone()))))
    }

    /// The traffic classes that services of launches allow.
    pub(crate) fn traffic_classes(&self) -> TrafficClasses {
        self.fabric.settings.manager.traffic_classes
    }

    /// Waits until the manager has answered, within [`timeouts::CREDENTIALS_AHEAD`].
    pub(crate) async fn settle(mut self) {
        // A refusal is in the log. A launch that needs missing credentials requests them again.
        let _ = timeout(timeouts::CREDENTIALS_AHEAD, self.answer()).await;
    }

    /// Waits for the credentials, at most for `limit` and for twice the timeout of the manager.
    ///
    /// # Errors
    /// Fails if the manager refuses them, or if the time has passed.
    pub(crate) async fn wait(mut self, limit: Duration) -> Result<Credentials, NoCredentials> {
        let limit = limit.min(2 * self.fabric.settings.timeout);
        let allocation = self.need.allocation.clone();
        let answer = async {
            match self.answer().await {
                Err(_) if self.is_anothers => self.fabric.ask_for(self.need.clone()).answer().await,
                answer => answer,
            }
        };
        match timeout(limit, answer).await {
            Ok(Ok(credentials)) => Ok(credentials),
            Ok(Err(error)) => Err(NoCredentials::Refused { allocation, error }),
            Err(_) => Err(NoCredentials::Late { allocation, limit }),
        }
    }
}

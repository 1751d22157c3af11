//! The server's part in the start of launches. An order is written to the store before any node receives it, and every node must accept it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lattice_session::request::LaunchRequest;
use lattice_session::{timeouts, unix_time};
use pmi_transport::identity::{Caller, RevocationList};
use pmi_transport::signature::{self, Serial, SignError};
use tokio::time::sleep;

use super::{NotWritten, Server};
use crate::allocations::{Allocation, AllocationError, AllocationState};
use crate::fabric::{CredentialRequest, NoCredentials};
use crate::launch::event::Activity;
use crate::launch::fan_out::{CredentialsToCome, FanOut, NotStarted};
use crate::launch::summary::{Stage, Summary};
use crate::launch::{self, LaunchHandle, Request};
use crate::launch_quota::{LaunchSize, QuotaExceeded};
use crate::nodes::Unready;
use crate::order::{Allocated, Nodes, Order, OrderError};
use crate::start_policy::PolicyError;
use crate::store::{Change, LaunchRecord};
use crate::wire;

/// Pause before a launch is tried again because an agent is being replaced, or has not registered with this server yet.
const AGENT_RESTART_PAUSE: Duration = Duration::from_millis(250);

/// Reason why a launch is not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    #[error(transparent)]
    Order(#[from] OrderError),
    #[error("the launch cannot be signed")]
    Unsigned(#[from] SignError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
    #[error(transparent)]
    NotWritten(#[from] NotWritten),
    #[error(transparent)]
    NotStarted(#[from] NotStarted),
    #[error("the launch ended before its nodes had answered")]
    Gone,
}

impl LaunchError {
    /// Returns true if the same launch may be started later, or on other nodes.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Order(OrderError::Unready { .. } | OrderError::Random(_)) | Self::Quota(_) | Self::NotWritten(_) => {
                true
            }
            Self::NotStarted(error) => error.may_pass(),
            Self::Allocation(_) | Self::Order(_) | Self::Unsigned(_) | Self::Policy(_) | Self::Gone => false,
        }
    }

    /// Returns true if the agent of a node was being replaced, or has not registered since this server was started.
    fn is_of_restart(&self) -> bool {
        match self {
            Self::NotStarted(NotStarted::Refused(refusal)) => refusal.is_of_restart(),
            Self::Order(OrderError::Unready { why, .. }) => *why == Unready::Unknown,
            _ => false,
        }
    }

    /// The node that could not be reached, or was busy.
    pub(super) fn node_to_avoid(&self) -> Option<&str> {
        match self {
            Self::NotStarted(NotStarted::Refused(refusal)) if refusal.may_pass() => Some(&refusal.node),
            _ => None,
        }
    }
}

/// A launch as reported to its user.
pub(crate) struct Planned {
    pub order: Order,
    /// Notes for the caller.
    pub notes: Vec<String>,
    /// Lines about planned nodes that are not ready.
    pub absent: Vec<String>,
}

impl Server {
    /// Starts the launch that `request` describes in an allocation. Returns when every node has accepted it. Retries for up to
    /// [`timeouts::AGENT_RESTART`] while an agent is being replaced, or has not registered with this server yet. `certificate` is the
    /// caller's, in DER; empty if none was required.
    ///
    /// # Errors
    /// See the variants of [`LaunchError`].
    pub(crate) async fn launch(
        self: &Arc<Self>,
        caller: &Caller,
        certificate: Bytes,
        allocation_id: &str,
        request: LaunchRequest,
    ) -> Result<Planned, LaunchError> {
        let deadline = self.clock.now() + timeouts::AGENT_RESTART;
        loop {
            let allocation = self.allocations.lock().await.running(caller, allocation_id)?.clone();
            let begun = match self.order_allowed(caller, request.clone(), &allocation) {
                Ok(planned) => self.begin_launch(caller, certificate.clone(), &allocation, planned).await,
                Err(refused) => Err(refused),
            };
            match begun {
                Err(error) if error.is_of_restart() && self.clock.now() < deadline => {
                    tracing::info!(%error, "a launch is started once more");
                    sleep(AGENT_RESTART_PAUSE).await;
                }
                begun => return begun,
            }
        }
    }

    /// Starts an ordered launch in this allocation. Returns when every node has accepted it.
    ///
    /// # Errors
    /// See the variants of [`LaunchError`].
    pub(super) async fn begin_launch(
        self: &Arc<Self>,
        caller: &Caller,
        certificate: Bytes,
        allocation: &Allocation,
        mut planned: Planned,
    ) -> Result<Planned, LaunchError> {
        let now = self.clock.now();
        self.quota.narrow_output(&mut planned.order);
        planned.order.terms.set = self.sets.found(&planned.order, now);
        self.names.begin(&planned.order);
        let begun = self.begin_founded(caller, allocation, &planned, certificate).await;
        if begun.is_err() {
            let id = planned.order.id();
            self.sets.end(&id, now);
            self.names.withdraw(planned.order.terms.uid, &id);
        }
        begun.map(|()| planned)
    }

    /// Starts a launch after its set id was assigned.
    async fn begin_founded(
        self: &Arc<Self>,
        caller: &Caller,
        allocation: &Allocation,
        planned: &Planned,
        certificate: Bytes,
    ) -> Result<(), LaunchError> {
        let asked = self.fabric.as_ref().map(|fabric| fabric.ask(allocation));
        let order = &planned.order;
        let fan_out = self.fan_out(order, allocation)?;
        let credentials = asked.map(|asked| self.credentials_to_come(asked, &fan_out, order));
        let record = LaunchRecord::begun(order, &summary(order), certificate);
        let id = &order.id();
        self.quota.admit(caller, order.terms.uid, id, LaunchSize::of(order, fan_out.spec.len()))?;
        // If this server ends now, the next one finds the nodes of the launch by this record, and never reuses its number.
        let changes = vec![Change::Launch(Box::new(record.clone())), Change::Serial(fan_out.serial)];
        let written = self.write(changes).await;
        written.inspect_err(|_| self.quota.withdraw(id))?;
        let begun = {
            // The allocation may have been released during the write. From here on a release waits for the launch to end.
            let all = self.allocations.lock().await;
            all.running(caller, &allocation.id).map(|_| {
                let begun = launch::start(self.surroundings(), order.clone(), record, fan_out, credentials);
                self.launches.lock().begin(id.clone(), allocation.id.clone(), begun.0.clone());
                begun
            })
        };
        let (handle, accepted) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                self.quota.withdraw(id);
                // If the record remains, the next server ends the launch, because its allocation is gone.
                let _ = self.write(vec![Change::Forgotten(id.clone())]).await;
                return Err(error.into());
            }
        };
        // The certificate of the caller may have been revoked in the meantime.
        end_if_revoked(&handle, &self.security.revocations()).await;
        Ok(accepted.await.map_err(|_| LaunchError::Gone)??)
    }

    /// Returns the launch that `request` would start now. Starts nothing, and requests no fabric credentials.
    ///
    /// # Errors
    /// Fails if the allocation does not run, or if the launch is impossible as requested.
    pub(crate) async fn plan(
        &self,
        caller: &Caller,
        allocation_id: &str,
        request: LaunchRequest,
    ) -> Result<Planned, LaunchError> {
        let allocation = self.allocations.lock().await.running(caller, allocation_id)?.clone();
        self.order_allowed(caller, request, &allocation)
    }

    /// Creates an order for the request of `caller`, if the policy permits it.
    fn order_allowed(
        &self,
        caller: &Caller,
        request: LaunchRequest,
        allocation: &Allocation,
    ) -> Result<Planned, LaunchError> {
        let planned = self.order(request, allocation)?;
        self.config.policy.check_launch(caller, planned.order.launch.apps.iter())?;
        Ok(planned)
    }

    /// Creates an order for `request` on the nodes as they are now. The policy must already permit the request.
    pub(super) fn order(&self, request: LaunchRequest, allocation: &Allocation) -> Result<Planned, LaunchError> {
        let registry = self.nodes.lock();
        self.order_on(request, allocation.into(), Nodes { registry: &registry, inventories: None })
    }

    fn order_on(&self, request: LaunchRequest, allocated: Allocated, nodes: Nodes<'_>) -> Result<Planned, LaunchError> {
        let order = Order::on(request, allocated, nodes, &self.config.launches)?;
        let (notes, absent) = (Vec::from_iter(order.crowding(nodes)), nodes.absent(&order.launch.hosts));
        Ok(Planned { order, notes, absent })
    }

    /// Returns the launch that `request` would start if all known nodes were ready. Starts nothing. Without an allocation id the plan uses
    /// all known nodes.
    ///
    /// # Errors
    /// Fails if the allocation does not run, or if the launch is impossible as requested.
    pub(crate) async fn plan_absent(
        &self,
        caller: &Caller,
        allocation_id: &str,
        request: LaunchRequest,
    ) -> Result<Planned, LaunchError> {
        let allocated = match (allocation_id, caller) {
            ("", Caller::User(uid)) => self.all_nodes(*uid),
            ("", Caller::Admin(uid)) => self.all_nodes(uid.unwrap_or_default()),
            _ => self.allocations.lock().await.running(caller, allocation_id)?.into(),
        };
        let planned = {
            let (registry, inventories) = (self.nodes.lock(), self.inventories.lock());
            self.order_on(request, allocated, Nodes { registry: &registry, inventories: Some(&inventories) })?
        };
        self.config.policy.check_launch(caller, planned.order.launch.apps.iter())?;
        Ok(planned)
    }

    /// All known nodes, for the plans of a user.
    fn all_nodes(&self, uid: u32) -> Allocated {
        let (registry, inventories) = (self.nodes.lock(), self.inventories.lock());
        let registered = registry.all_known().into_iter().map(String::as_str);
        let nodes: BTreeSet<&str> = registered.chain(inventories.known_nodes()).collect();
        let mut nodes: Vec<String> = nodes.into_iter().map(str::to_owned).collect();
        nodes.sort_unstable_by(|one, other| hostlist::natural_order(one, other));
        Allocated { allocation: None, uid, nodes }
    }

    /// The signed request for all nodes of an order, still without fabric credentials.
    fn fan_out(&self, order: &Order, allocation: &Allocation) -> Result<FanOut, SignError> {
        let spec = wire::order::encode_bytes(order);
        let serial = self.serials.next();
        let signed = signature::sign(&self.security, serial, &spec)?;
        Ok(FanOut {
            launch_id: order.id(),
            allocation_id: allocation.id.clone(),
            nodes: order.recipients(),
            world_size: order.launch.job.size(),
            spec,
            serial,
            signature: signed.signature,
            signer: signed.signer,
            credentials: None,
            relays_reports: false,
        })
    }

    /// Waits for the requested fabric credentials of a launch, within the time limit of the launch.
    fn credentials_to_come(
        self: &Arc<Self>,
        asked: CredentialRequest,
        fan_out: &FanOut,
        order: &Order,
    ) -> CredentialsToCome {
        let server = Arc::clone(self);
        let limit = order.launch.settings.timeouts.time_limit.unwrap_or(Duration::MAX);
        let (launch, allocation) = (fan_out.launch_id.clone(), fan_out.allocation_id.clone());
        let serial: Serial = fan_out.serial;
        Box::pin(async move {
            let is_running = |allocation: &Allocation| allocation.state == AllocationState::Running;
            if !server.allocations.lock().await.find(&allocation).is_some_and(is_running) {
                return Err(NoCredentials::Ended { allocation });
            }
            let classes = asked.traffic_classes();
            let credentials = asked.wait(limit).await?;
            let vni = credentials.vni;
            let signed = wire::credentials::sign(&credentials, classes, &launch, serial, &server.security)
                .map_err(|error| NoCredentials::Unsigned { reason: pmi_transport::error_chain::chain(&error) })?;
            tracing::info!(%vni, "the launch has fabric credentials; its nodes are asked");
            Ok(signed)
        })
    }
}

/// Ends a launch if this list revokes the certificate by which it was started.
pub(super) async fn end_if_revoked(launch: &LaunchHandle, list: &RevocationList) {
    let summary = launch.summary();
    if !summary.is_over() && launch.is_of_revoked(list) {
        let reason = format!("the certificate of user {} by which it was started was revoked", summary.uid);
        launch.send(Request::Abort { who: Caller::Api.to_string(), reason }).await;
    }
}

/// Summary of an order, for a launch that begins now.
fn summary(order: &Order) -> Summary {
    let Order { launch, terms, .. } = order;
    let now = unix_time::since_epoch();
    Summary {
        id: order.id(),
        allocation_id: launch.allocation_id.clone().unwrap_or_default(),
        uid: terms.uid,
        stage: Stage::At(Activity::Starting),
        nodes: hostlist::fold(&launch.hosts),
        ranks: launch.job.size(),
        command: order.launch.command(),
        started_at: now.as_secs(),
        started_nanos: now.subsec_nanos(),
        duration: Duration::ZERO,
        cause: String::new(),
        client_stopped_at: 0,
        set: terms.set,
    }
}

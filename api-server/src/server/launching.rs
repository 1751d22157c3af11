//! The server's part in the start of launches: an order is written down before a node is asked, and every node must accept it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lattice_session::{unix_time, wire};
use pmi_transport::identity::Caller;
use pmi_transport::proto::v1::{
    Allocation, AllocationState, LaunchSpec, LaunchState, LaunchSummary, LaunchTasksRequest, LaunchTasksResponse,
};
use pmi_transport::signature::{self, Serial};
use prost::Message;
use tonic::Status;

use super::Server;
use crate::fabric::{Asked, NoCredentials};
use crate::launch;
use crate::launch::fan_out::{CredentialsToCome, FanOut, SignedCredentials};
use crate::order::{Order, OrderError};
use crate::store::{Change, LaunchRecord};

impl Server {
    /// Starts what `request` asks for, when every node has accepted it.
    pub(crate) async fn launch(
        self: &Arc<Self>,
        caller: &Caller,
        request: LaunchTasksRequest,
    ) -> Result<LaunchTasksResponse, Status> {
        let allocation = self.allocations.lock().await.running(caller, &request.allocation_id)?.clone();
        let asked = self.fabric.as_ref().map(|fabric| fabric.ask(&allocation));
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
        };
        let record = LaunchRecord {
            summary: Some(summary(&order)),
            spec: Some(order.spec.clone()),
            detached: order.detached,
            complete: None,
            checkpoint: None,
            last_event: 0,
        };
        // If we end now, nodes that run it are known by this.
        self.write(vec![Change::Launch(Box::new(record.clone()))]).await?;
        let told = told(&order);
        let credentials = asked.map(|asked| self.credentials_to_come(asked, &order, serial));
        let (handle, accepted) = launch::start(self.surroundings(), order, record, fan_out, credentials);
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

    /// The fabric credentials of a launch, for which the manager has been asked, within the time that the launch has.
    fn credentials_to_come(self: &Arc<Self>, asked: Asked, order: &Order, serial: Serial) -> CredentialsToCome {
        let server = Arc::clone(self);
        let limit = order.launch.settings.patience.timeout.unwrap_or(Duration::MAX);
        let (launch, allocation) = (order.spec.launch_id.clone(), order.spec.allocation_id.clone());
        Box::pin(async move {
            let is_running = |allocation: &Allocation| allocation.state() == AllocationState::Running;
            if !server.allocations.lock().await.find(&allocation).is_some_and(is_running) {
                return Err(NoCredentials::Ended { allocation });
            }
            let classes = asked.traffic_classes();
            let credentials = wire::fabric::encode(&asked.wait(limit).await?, classes);
            let text = wire::fabric::signed_text(&launch, &credentials);
            let signed = signature::sign(&server.security, serial, text.expose())
                .map_err(|error| NoCredentials::Unsigned { reason: pmi_transport::error_chain::chain(&error) })?;
            tracing::info!(vni = credentials.vni, "the launch has fabric credentials; its nodes are asked");
            Ok(SignedCredentials { credentials, signature: signed.signature })
        })
    }
}

/// An order as its user is told of it: the secret is for nodes and ranks.
fn told(order: &Order) -> LaunchSpec {
    LaunchSpec { secret: Bytes::new(), ..order.spec.clone() }
}

fn summary(order: &Order) -> LaunchSummary {
    let spec = &order.spec;
    LaunchSummary {
        id: spec.launch_id.clone(),
        allocation_id: spec.allocation_id.clone(),
        uid: spec.uid,
        state: LaunchState::Starting.into(),
        nodes: spec.nodes.clone(),
        ranks: order.launch.job.size(),
        command: command(spec),
        started_at: unix_time::seconds(),
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

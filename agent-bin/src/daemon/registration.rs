//! Registration with the API server. The agent registers, sends heartbeats with its launches, and registers again if the API server has
//! forgotten it or if its address or CPUs have changed. Each accepted registration or heartbeat starts a new lease.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lattice_session::timeouts;
use lattice_session::wire::order::encode_last_serial;
use pmi_transport::address::Address;
use pmi_transport::connect;
use pmi_transport::error_chain::chain;
use pmi_transport::identity::{IdentityError, RevocationList};
use pmi_transport::proto::v1 as proto;
use pmi_transport::signature::Serial;
use proto::node_service_client::NodeServiceClient;
use rank_spawner::{CpuSet, allowed_cpus};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tonic::Status;

use super::ending::Ending;
use super::in_time::in_time;
use super::launches::LaunchOrder;
use super::lease::{Lease, Renewals};
use super::node_info::Resources;
use super::renewal::Granted;
use super::{Node, inventory, node_info, relay, vouching};

/// Pauses between attempts to register: the first and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Limits of the interval between heartbeats, whatever the API server requests.
const BEAT_MIN: Duration = Duration::from_millis(50);
const BEAT_MAX: Duration = Duration::from_secs(60);

/// Registers, and registers again whenever the API server requires it. Never ends.
///
/// Sends the granted leases to `renewals`, and the granted validity to `certificates`. Notifies `gone` when the API server has ended.
pub(super) async fn keep_registered(
    node: Arc<Node>,
    renewals: Renewals,
    certificates: watch::Sender<Granted>,
    gone: Arc<Notify>,
) {
    let mut pause = PAUSE_FIRST;
    loop {
        // Read before the registration sends them.
        let cpus = allowed_cpus().ok();
        match register(&node, &renewals).await {
            Ok(accepted) => {
                certificates.send_replace(accepted.certificate);
                pause = PAUSE_FIRST;
                // Runs until the next registration, which starts it again.
                let mut telling = JoinSet::new();
                telling.spawn(inventory::tell(Arc::clone(&node)));
                beat(&node, accepted, cpus, &renewals, &gone).await;
            }
            Err(status) => {
                if pause == PAUSE_MAX {
                    tracing::warn!(api = %node.config.api, "cannot register: {}", status.message());
                }
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

/// Terms of a registration.
#[derive(Clone, Copy)]
struct Accepted {
    interval: Duration,
    /// Length of the lease; `None` if the API server grants none.
    lease: Option<Duration>,
    /// Validity of the certificates that the API server issues.
    certificate: Granted,
    /// The fork server can distinguish new launches from old ones.
    is_vouched: bool,
}

async fn register(node: &Node, renewals: &Renewals) -> Result<Accepted, Status> {
    let mut client = NodeServiceClient::new(node.pulse.clone());
    let challenge = vouching::challenge(node, vouching::AT_FIRST).await;
    let address = node.address.find().await;
    let asked = Instant::now();
    let request = proto::RegisterNodeRequest { challenge: challenge.clone(), ..registration(node, &address) };
    let response = in_time(timeouts::REGISTER_ANSWER, client.register_node(request)).await?;
    // Launches wait for the last serial, which is registered only after the fork server has it.
    let last = Serial(response.last_serial);
    let answer = response.serial_signature.map(|signature| encode_last_serial(last, signature));
    let is_vouched = vouching::bring(node, &challenge, answer, vouching::AT_FIRST).await;
    tracing::info!(node = node.config.node_id, %address, "registered");
    if is_vouched {
        node.launches.serials.register(last);
    }
    for id in response.unknown_launches {
        if let Some(launch) = node.launches.get(&id) {
            tracing::warn!(launch = id, "the API server does not have this launch any more");
            launch.order(LaunchOrder::End(Ending::GiveUp));
            launch.order(LaunchOrder::Forget);
        }
    }
    let accepted = Accepted {
        interval: Duration::from_millis(response.heartbeat_ms).clamp(BEAT_MIN, BEAT_MAX),
        lease: (response.lease_ms > 0).then(|| Duration::from_millis(response.lease_ms)),
        certificate: (response.certificate_s > 0).then(|| Duration::from_secs(response.certificate_s)),
        is_vouched,
    };
    renewals.send_replace(accepted.lease.map(|length| Lease::from(asked, length)));
    Ok(accepted)
}

fn registration(node: &Node, address: &Address) -> proto::RegisterNodeRequest {
    let Resources { cores, memory_bytes, network_addresses } = node_info::resources();
    proto::RegisterNodeRequest {
        node_id: node.config.node_id.clone(),
        grpc_address: address.to_string(),
        network_addresses,
        cores,
        memory_bytes,
        capabilities: ["pmi1", "pmi2", "pmix"].map(str::to_owned).to_vec(),
        version: node.config.version.to_owned(),
        incarnation: node.incarnation,
        launches: node.launches.ids(),
        challenge: Bytes::new(),
    }
}

/// Sends heartbeats until this node must register again.
async fn beat(node: &Node, accepted: Accepted, cpus: Option<CpuSet>, renewals: &Renewals, gone: &Notify) {
    let mut client = NodeServiceClient::new(node.pulse.clone());
    let mut refused = None;
    let mut vouched = accepted.is_vouched.then(Instant::now);
    loop {
        sleep(accepted.interval).await;
        if node.address.is_gone() {
            tracing::warn!(address = %node.address.get(), "this node does not have the address any more that it registered");
            return;
        }
        if allowed_cpus().ok() != cpus {
            tracing::info!("this node may use other CPUs than those that it registered with");
            return;
        }
        node.agents.forget_unused(relay::AGENT_UNUSED_MAX);
        let is_due = vouched.is_none_or(|last| last.elapsed() >= vouching::EVERY);
        let challenge = if is_due { vouching::challenge(node, vouching::LATER).await } else { Bytes::new() };
        let asked = Instant::now();
        let beat = proto::HeartbeatRequest {
            node_id: node.config.node_id.clone(),
            incarnation: node.incarnation,
            launches: node.launches.ids(),
            // A list that was refused is not requested again.
            revoked_digest: refused.clone().or_else(|| Some(node.security.revocations().digest().clone())),
            challenge: challenge.clone(),
        };
        match in_time(timeouts::HEARTBEAT_ANSWER, client.heartbeat(beat)).await {
            Ok(proto::HeartbeatResponse { register: true, .. }) => return,
            Ok(proto::HeartbeatResponse { register: false, last_serial, revoked, serial_signature }) => {
                if is_due {
                    let answer = serial_signature.map(|signature| encode_last_serial(Serial(last_serial), signature));
                    let is_vouched = vouching::bring(node, &challenge, answer, vouching::LATER).await;
                    if is_vouched && vouched.is_none() {
                        node.launches.serials.register(Serial(last_serial));
                    }
                    vouched = is_vouched.then_some(asked);
                }
                if !revoked.is_empty() {
                    refused = take_revocations(node, revoked);
                }
                node.launches.serials.hear(Serial(last_serial), Instant::now());
                renewals.send_replace(accepted.lease.map(|length| Lease::from(asked, length)));
            }
            // Launches continue while the lease lasts. When the API server is back, its answer shows if the node is still registered.
            Err(status) => {
                tracing::debug!("no answer to a heartbeat: {}", status.message());
                if connect::is_refused(&status) {
                    gone.notify_one();
                }
            }
        }
    }
}

/// Accepts the API server's list of revoked certificates. Returns the digest of a list that can never be accepted.
fn take_revocations(node: &Node, list: Bytes) -> Option<Bytes> {
    let digest = RevocationList::digest_of(&list);
    match node.security.take_revocations(list) {
        Ok(()) => {
            tracing::info!("the list of revoked certificates was taken from the API server");
            None
        }
        Err(error) => {
            tracing::warn!(error = chain(&error), "the API server's list of revoked certificates is not taken");
            let is_refused = !matches!(error, IdentityError::Read { .. } | IdentityError::Write { .. });
            is_refused.then_some(digest)
        }
    }
}

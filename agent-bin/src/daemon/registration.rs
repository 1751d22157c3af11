//! Being known to the API server: the agent registers, says that it lives, and registers again when it was forgotten.

use std::sync::Arc;
use std::time::Duration;

use pmi_transport::proto::v1 as proto;
use pmi_transport::signature::Serial;
use proto::node_command::What;
use proto::node_service_client::NodeServiceClient;
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;

use super::launches::LaunchOrder;
use super::{Node, facts};

/// How long the API server may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// From one failed attempt to register to the next: at first, and at most.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The pace of heartbeats that is kept whatever the API server says.
const BEAT_MIN: Duration = Duration::from_millis(50);
const BEAT_MAX: Duration = Duration::from_secs(60);

/// Registers, and does so again whenever the API server asks for it. Never ends.
pub(super) async fn keep_registered(node: Arc<Node>) {
    let mut pause = PAUSE_FIRST;
    loop {
        match register(&node).await {
            Ok(interval) => {
                pause = PAUSE_FIRST;
                beat(&node, interval).await;
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

async fn register(node: &Node) -> Result<Duration, Status> {
    let mut client = NodeServiceClient::new(node.pulse.clone());
    let response = in_time(client.register_node(facts::registration(node))).await?;
    tracing::info!(node = node.config.node_id, "registered");
    node.launches.serials.register(Serial(response.last_serial));
    for id in response.unknown_launches {
        if let Some(launch) = node.launches.get(&id) {
            tracing::warn!(launch = id, "nobody knows this launch any more");
            launch.order(LaunchOrder::End(What::GiveUp(proto::Nothing {})));
            launch.order(LaunchOrder::Forget);
        }
    }
    Ok(Duration::from_millis(response.heartbeat_ms).clamp(BEAT_MIN, BEAT_MAX))
}

/// Says that this node lives, until it must register again.
async fn beat(node: &Node, interval: Duration) {
    let mut client = NodeServiceClient::new(node.pulse.clone());
    let beat = proto::HeartbeatRequest { node_id: node.config.node_id.clone(), incarnation: node.incarnation };
    loop {
        sleep(interval).await;
        match in_time(client.heartbeat(beat.clone())).await {
            Ok(proto::HeartbeatResponse { register: true, .. }) => return,
            Ok(proto::HeartbeatResponse { register: false, last_serial }) => {
                node.launches.serials.hear(Serial(last_serial), Instant::now());
            }
            // The launches go on; whether the node still counts is told when the API server is back.
            Err(status) => tracing::debug!("no answer to a heartbeat: {}", status.message()),
        }
    }
}

async fn in_time<T>(call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, Status> {
    match timeout(PATIENCE, call).await {
        Ok(result) => result.map(tonic::Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded(format!("no answer within {PATIENCE:?}"))),
    }
}

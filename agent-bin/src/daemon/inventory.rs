//! What this node is, told to the API server after each registration: the kind by its signature, and as a whole if nobody has told that kind yet.

use std::sync::Arc;

use bytes::Bytes;
use lattice_inventory::Inventory;
use lattice_session::timeouts;
use pmi_transport::proto::v1 as proto;
use proto::inventory_service_client::InventoryServiceClient;
use tonic::{Code, Status};

use super::Node;
use super::in_time::in_time;

/// Tells what this node is. Nothing depends on it: what fails is told, and tried again after the next registration.
pub(super) async fn tell(node: Arc<Node>) {
    match tell_once(&node).await {
        Ok(()) => {}
        // An API server that does not want to know.
        Err(status) if status.code() == Code::Unimplemented => {}
        Err(status) => tracing::warn!("cannot tell what this node is: {}", status.message()),
    }
}

async fn tell_once(node: &Arc<Node>) -> Result<(), Status> {
    let this_node = Arc::clone(&node.this_node);
    // It may still be read.
    let inventory = tokio::task::spawn_blocking(move || this_node.inventory().clone());
    let inventory = inventory.await.map_err(|error| Status::internal(error.to_string()))?;
    let place = node.api.place();
    let mut client = InventoryServiceClient::new(place.channel());
    let request = request(&node.config.node_id, &inventory);
    let answer = in_time(timeouts::REGISTER_ANSWER, client.tell_inventory(request.clone())).await?;
    if answer.want_template {
        let whole = proto::TellInventoryRequest { template: inventory.template.encode().into(), ..request };
        in_time(timeouts::REGISTER_ANSWER, client.tell_inventory(whole)).await?;
    }
    Ok(())
}

fn request(node: &str, inventory: &Inventory) -> proto::TellInventoryRequest {
    let trouble = inventory.trouble.iter().map(|trouble| format!("{}: {}", trouble.source, trouble.reason));
    proto::TellInventoryRequest {
        node_id: node.to_owned(),
        signature: inventory.template.signature().0.to_vec().into(),
        devices: serde_json::to_vec(&inventory.devices).unwrap_or_default().into(),
        trouble: trouble.collect(),
        template: Bytes::new(),
    }
}

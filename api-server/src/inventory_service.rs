//! The calls about what nodes are.

use std::sync::Arc;

use parking_lot::Mutex;
use pmi_transport::proto::v1::inventory_service_server::InventoryService;
use pmi_transport::proto::v1::{
    ListInventoriesRequest, ListInventoriesResponse, NodeKind, NodeTrouble, TellInventoryRequest, TellInventoryResponse,
};
use tonic::{Request, Response, Status};

use super::inventories::{Answer, Inventories, KindOfNodes, Telling, trouble_between};
use super::node_service::check_speaker;
use super::server::Server;

/// Answers agents that tell what their nodes are, and those who want to know.
pub(crate) struct Describing {
    server: Arc<Server>,
    inventories: Mutex<Inventories>,
}

impl Describing {
    pub(crate) fn new(server: &Arc<Server>) -> Self {
        Self { server: Arc::clone(server), inventories: Mutex::default() }
    }
}

#[tonic::async_trait]
impl InventoryService for Describing {
    async fn tell_inventory(
        &self,
        request: Request<TellInventoryRequest>,
    ) -> Result<Response<TellInventoryResponse>, Status> {
        check_speaker(&request, &request.get_ref().node_id)?;
        let TellInventoryRequest { node_id, signature, devices, trouble, template } = request.into_inner();
        // The registration has checked the name, and how many nodes there are.
        if self.server.nodes.lock().up(&node_id).is_none() {
            return Err(Status::failed_precondition(format!("{node_id} is not registered; register it first")));
        }
        let telling = Telling { signature, devices, trouble, template };
        let answer = self.inventories.lock().tell(&node_id, telling, self.server.clock.now());
        let answer = answer.map_err(|error| {
            tracing::warn!(node = node_id, "what it tells of itself is refused: {error}");
            Status::invalid_argument(error.to_string())
        })?;
        Ok(Response::new(TellInventoryResponse { want_template: answer == Answer::WantTemplate }))
    }

    async fn list_inventories(
        &self,
        _: Request<ListInventoriesRequest>,
    ) -> Result<Response<ListInventoriesResponse>, Status> {
        let (kinds, mut trouble, devices) = {
            let inventories = self.inventories.lock();
            let told = |(nodes, text): (String, &str)| NodeTrouble { nodes, text: text.to_owned() };
            let trouble: Vec<NodeTrouble> = inventories.trouble().into_iter().map(told).collect();
            (inventories.kinds(), trouble, inventories.devices())
        };
        let between = tokio::task::spawn_blocking(move || trouble_between(&devices)).await;
        let between = between.map_err(|error| Status::internal(error.to_string()))?;
        trouble.extend(between.into_iter().map(|text| NodeTrouble { nodes: String::new(), text }));
        let kind = |KindOfNodes { signature, nodes, template }| NodeKind {
            signature: signature.0.to_vec().into(),
            nodes,
            template: template.unwrap_or_default().into(),
        };
        Ok(Response::new(ListInventoriesResponse { kinds: kinds.into_iter().map(kind).collect(), trouble }))
    }
}

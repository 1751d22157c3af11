//! The calls about the inventories of nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use lattice_inventory::{Keeping, Root, ThisNode};
use parking_lot::Mutex;
use pmi_transport::proto::v1 as proto;
use pmi_transport::proto::v1::inventory_service_server::InventoryService;
use pmi_transport::proto::v1::{
    ListInventoriesRequest, ListInventoriesResponse, NodeKind, NodeTrouble, TellInventoryRequest,
    TellInventoryResponse, UsableCpus,
};
use tonic::{Request, Response, Status};

use super::inventories::{Answer, Inventories, KindOfNodes, MessageEffects, Origin, ReceivedReport, trouble_between};
use super::node_service::check_speaker;
use super::server::Server;

/// Answers agents that report the inventories of their nodes, and clients that list inventories.
pub(crate) struct Describing {
    server: Arc<Server>,
    /// This machine, as the assumed kind of nodes without a known inventory.
    head: Arc<ThisNode>,
}

impl Describing {
    pub(crate) fn new(server: &Arc<Server>) -> Self {
        let head = ThisNode::below(Root::default(), vec![Keeping::of_machine()]);
        Self { server: Arc::clone(server), head: Arc::new(head) }
    }
}

#[tonic::async_trait]
impl InventoryService for Describing {
    async fn tell_inventory(
        &self,
        request: Request<TellInventoryRequest>,
    ) -> Result<Response<TellInventoryResponse>, Status> {
        check_speaker(&request, &request.get_ref().node_id)?;
        let TellInventoryRequest { node_id, signature, devices, trouble, template, usable_cpus } = request.into_inner();
        // The registration has checked the name, and the number of nodes.
        if self.server.nodes.lock().up(&node_id).is_none() {
            return Err(Status::failed_precondition(format!("{node_id} is not registered; register it first")));
        }
        let telling = ReceivedReport { signature, devices, trouble, template, usable_cpus };
        let heard = self.server.inventories.lock().tell(&node_id, telling, self.server.clock.now());
        let MessageEffects { answer, news } = heard.map_err(|error| {
            tracing::warn!(node = node_id, "its inventory is refused: {error}");
            Status::invalid_argument(error.to_string())
        })?;
        news.iter().for_each(|line| tracing::warn!("{line}"));
        let tell_again_in_ms = match answer {
            // At least 1, because 0 means that no time is set.
            Answer::AskedElsewhere(left) => u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1),
            Answer::Enough | Answer::WantTemplate => 0,
        };
        Ok(Response::new(TellInventoryResponse { want_template: answer == Answer::WantTemplate, tell_again_in_ms }))
    }

    async fn list_inventories(
        &self,
        _: Request<ListInventoriesRequest>,
    ) -> Result<Response<ListInventoriesResponse>, Status> {
        let registered: BTreeSet<String> = self.server.nodes.lock().all_known().into_iter().cloned().collect();
        let (inventories, head) = (Arc::clone(&self.server.inventories), Arc::clone(&self.head));
        let listing = tokio::task::spawn_blocking(move || list(&inventories, &registered, &head));
        listing.await.map(Response::new).map_err(|error| Status::internal(error.to_string()))
    }
}

/// Lists all known inventories, which takes time if there are many nodes.
fn list(inventories: &Mutex<Inventories>, registered: &BTreeSet<String>, head: &ThisNode) -> ListInventoriesResponse {
    let head = &head.inventory().template;
    let (kinds, trouble, devices, limited) = {
        let inventories = inventories.lock();
        (inventories.kinds(registered, head), inventories.trouble(), inventories.devices(), inventories.limited())
    };
    let between = trouble_between(&devices).into_iter().map(|text| (String::new(), text));
    let trouble = trouble.into_iter().chain(between).map(|(nodes, text)| NodeTrouble { nodes, text });
    let usable = limited.into_iter().map(|(nodes, cpus)| UsableCpus { nodes, cpus: cpus.to_string() });
    ListInventoriesResponse {
        kinds: kinds.into_iter().map(encode).collect(),
        trouble: trouble.collect(),
        usable: usable.collect(),
    }
}

fn encode(kind: KindOfNodes) -> NodeKind {
    let KindOfNodes { signature, nodes, template, name, origin } = kind;
    let origin = match origin {
        Origin::Told => proto::Origin::Told,
        Origin::Listed => proto::Origin::Listed,
        Origin::Assumed => proto::Origin::Assumed,
    };
    NodeKind {
        signature: signature.0.to_vec().into(),
        nodes,
        template: template.unwrap_or_default().into(),
        name: name.unwrap_or_default(),
        origin: origin.into(),
    }
}

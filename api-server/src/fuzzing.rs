//! Entry points of fuzz targets, as plain functions. They accept any bytes, and panic when a guarantee is violated.
//!
//! [`launch_request`] covers the requests of users, [`node_reports`] the reports of the nodes of one launch, and [`node_inventory`] the
//! inventory of a node.

mod reports;

use std::collections::BTreeSet;
use std::sync::LazyLock;

use lattice_inventory::{Template, picture};
use lattice_session::wire;
use pmi_core::ids::NodeIndex;
use pmi_transport::proto::v1::{LaunchTasksRequest, RegisterNodeRequest, TellInventoryRequest};
use prost::Message;
use tokio::time::Instant;

use crate::allocations::Allocation;
use crate::inventories::{Inventories, ReceivedReport, trouble_between};
use crate::launch::settings::LaunchSettings;
use crate::nodes::Registry;
use crate::order::Order;
use crate::wire::order::encode;
use crate::wire::registry::decode_registration;

pub use self::reports::node_reports;

/// Nodes of the allocation under test; each has this many cores.
const NODES: [&str; 4] = ["node0", "node1", "node2", "node3"];
const CORES: u32 = 4;
/// Owner of the allocation.
const UID: u32 = 1000;

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
    let mut registry = Registry::default();
    for node in NODES {
        let grpc_address = format!("{node}:50052");
        let told = RegisterNodeRequest { node_id: node.to_owned(), grpc_address, cores: CORES, ..Default::default() };
        registry.register(decode_registration(told), Instant::now()).expect("a node of that name");
    }
    registry
});

/// A user's request is refused, or becomes a launch that all of its nodes accept, on nodes of the allocation and as its owner.
pub fn launch_request(data: &[u8]) {
    let Ok(request) = LaunchTasksRequest::decode(data) else { return };
    let Ok(request) = wire::request::decode(request) else { return };
    let allocation = Allocation::running("alloc", UID, NODES.map(str::to_owned).into());
    let Ok(order) = Order::new(request, &allocation, &REGISTRY, &LaunchSettings::default()) else { return };
    let spec = encode(&order);
    assert_eq!((spec.uid, spec.allocation_id.as_str()), (UID, "alloc"));
    let hosts = &order.launch.hosts;
    assert!(!hosts.is_empty() && hosts.len() <= NODES.len());
    for (index, node) in (0..).zip(hosts) {
        assert!(NODES.contains(&node.as_str()), "{node}");
        let session = wire::spec::decode(spec.clone(), NodeIndex(index)).expect("a node takes its launch");
        assert_eq!(session.hosts[index as usize], *node);
        assert_eq!(session.job.size(), order.launch.job.size());
    }
}

/// The inventory of a node is refused, or listed. A listed inventory can be read and displayed.
pub fn node_inventory(data: &[u8]) {
    let Ok(told) = TellInventoryRequest::decode(data) else { return };
    let TellInventoryRequest { node_id: _, signature, devices, trouble, template, usable_cpus } = told;
    // The signature detects damage to a template, so that damaged input would be refused early.
    let signature = match serde_json::from_slice::<Template>(&template) {
        Ok(template) if template.cpus.len() < 1024 => template.signature().0.to_vec().into(),
        _ => signature,
    };
    let mut inventories = Inventories::default();
    let telling = ReceivedReport { signature, devices, trouble, template, usable_cpus };
    if inventories.tell("node0", telling, Instant::now()).is_err() {
        return;
    }
    let kinds = inventories.kinds(&BTreeSet::new(), &Template::default());
    assert_eq!(kinds.iter().map(|kind| kind.nodes.as_str()).collect::<Vec<_>>(), ["node0"]);
    if let Some(encoded) = &kinds[0].template {
        let template: Template = serde_json::from_slice(encoded).expect("what is listed can be read");
        assert_eq!(template.signature(), kinds[0].signature);
        let limited = inventories.limited().pop().map(|(_, cpus)| cpus);
        let usable = limited.as_ref().unwrap_or(&template.cpus);
        let view = picture::View { template: &template, usable, cores: picture::Cores::Plain };
        picture::lines(view);
        picture::svg(view, "node0");
    }
    trouble_between(&inventories.devices());
    inventories.trouble();
}

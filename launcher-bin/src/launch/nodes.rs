//! Nodes of a launch on a cluster, as far as this command decides on them. Some flags depend on properties of the nodes: ranks by objects,
//! programs with nodes of their own, and a number of nodes that depends on the available nodes. They are replaced by slots of nodes. Nodes
//! with prepared files must also stay the same.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::time::Duration;

use lattice_cluster_client::{ApiServer, Cluster, LaunchAction, Templates, answered};
use lattice_console::runtime;
use lattice_dialects::per_object::PerObject;
use lattice_session::request::PlacementRequest;
use tokio::time::{Instant, sleep};

use super::LaunchError;
use crate::prepared::{ObjectsError, placed_by_objects};
use crate::request::{Action, LaunchCommand, NodeGroup, NodeWish, OpenHosts, placed_in_groups};

/// Time limit and pause for repeated queries of nodes that have not reported their inventory. Nodes report it after their registration, in
/// a separate call.
const TELLING: Duration = Duration::from_secs(3);
const TELLING_PAUSE: Duration = Duration::from_millis(50);

/// Pins the nodes that the launch would get now; returns them.
///
/// # Errors
/// Fails if the launch cannot be placed.
pub(super) fn keep(
    command: &mut LaunchCommand,
    server: &ApiServer,
    allocation: &str,
) -> Result<Vec<String>, LaunchError> {
    let hosts: Result<_, LaunchError> = runtime::block_on(async {
        let cluster = server.connect()?;
        give_slots(command, &cluster, allocation).await?;
        Ok(cluster.start_launch(&command.request, allocation.to_owned(), LaunchAction::PlanNow).await?.placed?.hosts)
    })?;
    let hosts: Vec<String> = hosts?;
    command.request.placement.pin(hosts.clone());
    Ok(hosts)
}

/// Replaces each node name of the request by the registered name. Hosts that are not nodes stay unchanged, and are refused with the launch.
///
/// # Errors
/// Fails if the API server cannot be reached.
async fn call_by_registered_names(
    command: &mut LaunchCommand,
    cluster: &Cluster,
    allocation: &str,
) -> Result<(), LaunchError> {
    if command.hosts_mut().next().is_none() {
        return Ok(());
    }
    let allocated = match allocation {
        "" => cluster.node_facts().await.map(|facts| facts.into_iter().map(|node| node.name).collect()),
        allocation => cluster.allocated_nodes(allocation).await.map(|allocated| allocated.names),
    };
    // The launch itself is refused then, with the reason.
    let nodes: Vec<String> = answered(allocated)?.unwrap_or_default();
    let known: HashSet<&String> = nodes.iter().collect();
    let mut names = HashMap::new();
    for host in command.hosts_mut().filter(|host| !known.contains(&**host)) {
        if !names.contains_key(host) {
            let name = answered(cluster.node_called(host, &nodes).await)?.flatten();
            names.insert(host.clone(), name);
        }
        if let Some(Some(name)) = names.get(host) {
            host.clone_from(name);
        }
    }
    Ok(())
}

/// Replaces such flags by slots of nodes, so that the request itself has the places of the ranks. A command without such flags, or with
/// flags already replaced, stays unchanged. An empty allocation stands for all known nodes, for a plan. Call this before every request to
/// the API server.
/// # Errors
/// Fails if the nodes take too few ranks, or cannot be queried.
pub(super) async fn give_slots(
    command: &mut LaunchCommand,
    cluster: &Cluster,
    allocation: &str,
) -> Result<(), LaunchError> {
    call_by_registered_names(command, cluster, allocation).await?;
    let open = Open {
        per_object: command.per_object.take(),
        hosts: command.open_hosts.take(),
        wish: command.node_wish.take(),
        groups: std::mem::take(&mut command.node_groups),
    };
    if open.is_nothing() {
        return Ok(());
    }
    let mut templates = match command.action {
        Action::Plan => cluster.known_templates().await?,
        Action::Start if open.needs_templates() => cluster.told_templates().await?,
        Action::Start => Templates::default(),
    };
    let allocated = match allocation {
        "" => templates.nodes(),
        allocation => cluster.allocated_nodes(allocation).await?.names,
    };
    let (size, placement) = (command.request.programs.size(), &mut command.request.placement);
    let until = Instant::now() + TELLING;
    loop {
        match open.settled(placement, size, &allocated, &templates) {
            Err(LaunchError::Objects(ObjectsError::Unknown { .. }))
                if command.action == Action::Start && Instant::now() < until =>
            {
                sleep(TELLING_PAUSE).await;
                templates = cluster.told_templates().await?;
            }
            settled => {
                *placement = settled?;
                return Ok(());
            }
        }
    }
}

/// Flags that cannot be resolved before the nodes are known.
struct Open {
    per_object: Option<PerObject>,
    hosts: Option<OpenHosts>,
    wish: Option<NodeWish>,
    groups: Vec<NodeGroup>,
}

impl Open {
    fn is_nothing(&self) -> bool {
        self.per_object.is_none() && self.hosts.is_none() && self.wish.is_none() && self.groups.is_empty()
    }

    fn needs_templates(&self) -> bool {
        self.per_object.is_some() || self.hosts.is_some() || self.groups.iter().any(NodeGroup::is_open)
    }

    /// Placement of `size` ranks on these nodes.
    fn settled(
        &self,
        placement: &PlacementRequest,
        size: Option<u32>,
        allocated: &[String],
        templates: &Templates,
    ) -> Result<PlacementRequest, LaunchError> {
        let mut placement = placement.clone();
        let room = |node: &str| {
            let per_object = self.per_object.unwrap_or(PerObject::SLOTS);
            room_on(node, per_object, allocated, templates).map_err(LaunchError::from)
        };
        if let Some(hosts) = &self.hosts {
            hosts.clone().settle(&mut placement, room)?;
        }
        if let Some(wish) = &self.wish {
            wish.clone().settle(&mut placement, size, allocated);
        }
        match self.per_object {
            Some(per_object) => placed_by_objects(&mut placement, size, per_object, allocated, templates)?,
            None if self.groups.is_empty() => {}
            None => placed_in_groups(&mut placement, &self.groups, allocated, room)?,
        }
        Ok(placement)
    }
}

/// Number of ranks that a node takes. A name outside of the allocation has one slot. The placement of the ranks refuses it by its name.
fn room_on(
    node: &str,
    per_object: PerObject,
    allocated: &[String],
    templates: &Templates,
) -> Result<Option<NonZeroU32>, ObjectsError> {
    match templates.of(node) {
        Some((_, known)) => Ok(per_object.room(&known.cores())),
        None if allocated.iter().any(|known| known == node) => {
            Err(ObjectsError::Unknown { node: node.to_owned(), object: per_object.object.noun() })
        }
        None => Ok(Some(NonZeroU32::MIN)),
    }
}

//! Nodes of a launch on a cluster, as far as they are decided on here: slots of the nodes for flags that speak of what these are (ranks by
//! objects, programs with nodes of their own, a number of nodes that depends on how many there are), and nodes that have to stay the same because something is made ready on them.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::LaunchError;
use crate::cluster::{ApiServer, Cluster, Templates, Wanted};
use crate::prepared::{ObjectsError, placed_by_objects};
use crate::request::{Action, LaunchCommand, placed_in_groups};
use crate::runtime;

/// Time for which nodes are asked for again that have not told what they are: they do so behind their registration, in a call of its own.
const TELLING: Duration = Duration::from_secs(3);
const TELLING_PAUSE: Duration = Duration::from_millis(50);

/// Has a launch keep the nodes that it would have now; returns them.
///
/// # Errors
/// Fails if it cannot be placed.
pub(super) fn keep(
    command: &mut LaunchCommand,
    server: &ApiServer,
    allocation: &str,
) -> Result<Vec<String>, LaunchError> {
    let hosts: Result<_, LaunchError> = runtime::block_on(async {
        let cluster = server.connect()?;
        give_slots(command, &cluster, allocation).await?;
        Ok(cluster.start_launch(&command.request, allocation.to_owned(), Wanted::PlanNow).await?.placed?.hosts)
    })?;
    let hosts: Vec<String> = hosts?;
    command.request.placement.pin(hosts.clone());
    Ok(hosts)
}

/// Has each node that the request names called by the name that it has registered under. Hosts that are no nodes stay as they are, and are
/// refused with the launch.
async fn call_by_registered_names(command: &mut LaunchCommand, cluster: &Cluster, allocation: &str) {
    if command.hosts_mut().next().is_none() {
        return;
    }
    let allocated = match allocation {
        "" => cluster.node_facts().await.map(|facts| facts.into_iter().map(|node| node.name).collect()),
        allocation => cluster.allocated_nodes(allocation).await.map(|allocated| allocated.names),
    };
    // The launch itself is refused then, with the reason.
    let nodes: Vec<String> = allocated.unwrap_or_default();
    let known: HashSet<&String> = nodes.iter().collect();
    let mut names = HashMap::new();
    for host in command.hosts_mut().filter(|host| !known.contains(&**host)) {
        if !names.contains_key(host) {
            names.insert(host.clone(), cluster.node_called(host, &nodes).await.ok().flatten());
        }
        if let Some(Some(name)) = names.get(host) {
            host.clone_from(name);
        }
    }
}

/// Puts slots of the nodes in the place of such flags, so that the request says by itself where the ranks go; a command that has none of them,
/// or not any more, stays as it is. An empty allocation is all nodes that are known, for a plan. Every request to the API server comes behind this.
///
/// # Errors
/// Fails if the nodes take too few ranks, or cannot be asked for.
pub(super) async fn give_slots(
    command: &mut LaunchCommand,
    cluster: &Cluster,
    allocation: &str,
) -> Result<(), LaunchError> {
    call_by_registered_names(command, cluster, allocation).await;
    let (per_object, groups) = (command.per_object.take(), std::mem::take(&mut command.node_groups));
    let wish = command.node_wish.take();
    if per_object.is_none() && groups.is_empty() && wish.is_none() {
        return Ok(());
    }
    let mut templates = match (command.action, per_object) {
        (Action::Plan, _) => cluster.known_templates().await?,
        (Action::Start, Some(_)) => cluster.told_templates().await?,
        (Action::Start, None) => Templates::default(),
    };
    let allocated = match allocation {
        "" => templates.nodes(),
        allocation => cluster.allocated_nodes(allocation).await?.names,
    };
    let (size, placement) = (command.request.programs.size(), &mut command.request.placement);
    if let Some(wish) = wish {
        wish.settle(placement, size, &allocated);
    }
    match per_object {
        Some(per_object) => {
            let until = Instant::now() + TELLING;
            while let Err(error) = placed_by_objects(placement, size, per_object, &allocated, &templates) {
                let is_telling = command.action == Action::Start && matches!(error, ObjectsError::Unknown { .. });
                if !is_telling || Instant::now() >= until {
                    return Err(error.into());
                }
                sleep(TELLING_PAUSE).await;
                templates = cluster.told_templates().await?;
            }
        }
        None if groups.is_empty() => {}
        None => placed_in_groups(placement, &groups, &allocated)?,
    }
    Ok(())
}

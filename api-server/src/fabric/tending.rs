//! Return of credentials while the server runs. Due work is done at the manager, and nodes are asked until nothing is left on them. At
//! intervals the manager's list is compared with the journal. Failed work is tried again at growing intervals.

use pmi_transport::task;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cxi_fabric::grants::Awaited;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::Fabric;
use super::retiring::retire;
use crate::allocations::{Allocation, AllocationState};
use crate::launch::fan_out::Recipient;
use crate::server::Server;

/// Time that the manager may take for all due work.
const SETTLE_WITHIN: Duration = Duration::from_secs(10);
/// Number of nodes that are asked at once.
pub(crate) const AT_ONCE: usize = 64;
/// Pauses between attempts while work is left: the first one, and the longest one.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// Interval at which the manager's list is read, from the start of the server on.
const REAP_EVERY: Duration = Duration::from_secs(300);

/// Tends the fabric of a cluster indefinitely.
pub(crate) async fn tend(server: Arc<Server>, fabric: Arc<Fabric>) {
    fetch_keys(&server, &fabric).await;
    let mut pause = PAUSE_FIRST;
    let mut reap_at = Instant::now();
    loop {
        release_ended(&server, &fabric).await;
        for problem in give_back(&server, &fabric).await {
            tracing::warn!(problem, "fabric credentials are not given back yet");
        }
        if Instant::now() >= reap_at {
            reap_at = Instant::now() + REAP_EVERY;
            reap(&fabric).await;
        }
        let is_idle = fabric.grants.views().iter().all(|view| matches!(view.state, "held" | "creating"));
        let until = if is_idle { reap_at } else { reap_at.min(Instant::now() + pause) };
        tokio::select! {
            () = fabric.due.notified() => pause = PAUSE_FIRST,
            () = sleep(until.duration_since(Instant::now())) => pause = (pause * 2).min(PAUSE_MAX),
        }
    }
}

/// Fetches the keys of running allocations before a launch needs them: after a restart the server holds none.
async fn fetch_keys(server: &Server, fabric: &Arc<Fabric>) {
    let all = server.allocations.lock().await;
    let running = |allocation: &&Allocation| allocation.state == AllocationState::Running;
    all.iter().filter(running).for_each(|allocation| drop(fabric.ask(allocation)));
}

/// Releases the credentials of allocations that have ended, including allocations that ended before a crash, or failed.
async fn release_ended(server: &Server, fabric: &Arc<Fabric>) {
    // The views are read first. Otherwise an allocation that begins in between would be missing among the live ones.
    let views = fabric.grants.views();
    let live = live(server).await;
    let current = views.into_iter().filter(|view| matches!(view.state, "held" | "creating"));
    let ended: BTreeSet<String> = current.map(|view| view.allocation).filter(|id| !live.contains(id)).collect();
    if ended.is_empty() {
        return;
    }
    let released = fabric.blocking(move |grants| ended.iter().try_for_each(|id| grants.release(id))).await;
    if let Err(error) = released {
        tracing::warn!(%error, "fabric credentials of allocations that have ended are not given back yet");
    }
}

/// The allocations that may have credentials.
async fn live(server: &Server) -> BTreeSet<String> {
    let all = server.allocations.lock().await;
    let is_live = |allocation: &&Allocation| !matches!(allocation.state, AllocationState::Failed { .. });
    let mut live: BTreeSet<String> = all.iter().filter(is_live).map(|allocation| allocation.id.clone()).collect();
    drop(all);
    live.extend(server.running().into_iter().map(|summary| summary.allocation_id));
    live
}

/// Does the due work at the manager and at the nodes; returns the failures.
pub(crate) async fn give_back(server: &Server, fabric: &Arc<Fabric>) -> Vec<String> {
    let deadline = std::time::Instant::now() + SETTLE_WITHIN;
    // Nodes do not wait for a manager that does not answer.
    let (errors, mut problems) =
        tokio::join!(fabric.blocking(move |grants| grants.settle(deadline)), confirm_all(server, fabric));
    problems.extend(errors.iter().map(ToString::to_string));
    // Some managers delete only after the nodes have confirmed.
    let errors = fabric.blocking(move |grants| grants.settle(deadline)).await;
    problems
        .extend(errors.iter().map(ToString::to_string).filter(|error| !problems.contains(error)).collect::<Vec<_>>());
    problems
}

async fn confirm_all(server: &Server, fabric: &Arc<Fabric>) -> Vec<String> {
    let mut problems = Vec::new();
    for awaited in fabric.grants.awaited() {
        problems.extend(confirm(server, fabric, awaited).await);
    }
    problems
}

/// Asks the nodes that have not confirmed; returns the reasons of nodes that still have not.
async fn confirm(server: &Server, fabric: &Arc<Fabric>, awaited: Awaited) -> Vec<String> {
    let Awaited { name, vni, nodes } = awaited;
    let (mut asked, mut clear, mut problems) = (JoinSet::new(), Vec::new(), Vec::new());
    let mut waiting = nodes.into_iter();
    loop {
        while asked.len() < AT_ONCE
            && let Some(node) = waiting.next()
        {
            let address = server.nodes.lock().up(&node).map(|facts| facts.grpc_address.clone());
            match address {
                Some(address) => {
                    let (channels, node) = (server.channels.clone(), Recipient { name: node, address });
                    asked.spawn(task::boxed(async move {
                        let answer = retire(&channels, &node, vni.into()).await;
                        (node.name, answer)
                    }));
                }
                None => problems.push(format!("VNI {vni} of {name}: node {node} is not up")),
            }
        }
        match asked.join_next().await {
            Some(Ok((node, Ok(())))) => clear.push(node),
            Some(Ok((node, Err(why)))) => problems.push(format!("VNI {vni} of {name}: node {node}: {why}")),
            // The task neither panics nor is cancelled.
            Some(Err(_)) => {}
            None => break,
        }
    }
    if !clear.is_empty() {
        tracing::info!(%vni, service = %name, nodes = clear.join(","), "nodes confirm that nothing of the VNI is left");
        let confirmed = fabric.blocking(move |grants| grants.confirmed(&name, clear.iter().map(String::as_str)));
        problems.extend(confirmed.await.err().map(|error| error.to_string()));
    }
    problems
}

/// Deletes services that only the manager lists.
async fn reap(fabric: &Arc<Fabric>) {
    let deadline = std::time::Instant::now() + SETTLE_WITHIN;
    match fabric.blocking(move |grants| grants.reap(deadline)).await {
        Ok(reaped) => {
            for name in reaped.names {
                tracing::warn!(service = name, "a fabric service that no journal knows is deleted");
            }
            for error in reaped.errors {
                tracing::warn!(%error, "a fabric service that no journal knows is not deleted yet");
            }
        }
        Err(error) => tracing::warn!(%error, "the fabric manager's list cannot be looked at"),
    }
}

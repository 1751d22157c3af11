//! Sends the inventory of this node to the API server after each registration and each change. The API server requests the template if it has
//! none for the signature of this kind of node. Includes the CPUs that this process leaves its sessions, if not all.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lattice_inventory::{Inventory, ThisNode};
use lattice_session::timeouts;
use pmi_transport::proto::v1 as proto;
use proto::inventory_service_client::InventoryServiceClient;
use rank_spawner::usable_here;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tonic::{Code, Status};

use super::Node;
use super::in_time::in_time;

/// Pauses after failures: the first and the longest. Each is twice as long as the one before.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Interval between checks for a change of this node, however many changes the kernel reports.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Sends the inventory, and sends it again after each change. No launch depends on it.
pub(super) async fn tell(node: Arc<Node>) {
    loop {
        tell_until_known(&node).await;
        let known = Arc::clone(&node.this_node.lock());
        let changed = change(&known).await;
        tracing::info!("this node has changed");
        *node.this_node.lock() = changed;
    }
}

/// Waits until this node differs from `known`; returns its new state.
async fn change(known: &Arc<ThisNode>) -> Arc<ThisNode> {
    loop {
        sleep(LOOK_EVERY).await;
        if known.may_have_changed() {
            let known = Arc::clone(known);
            // Reads the whole inventory.
            if let Ok(Some(changed)) = spawn_blocking(move || known.changed()).await {
                return Arc::new(changed);
            }
        }
    }
}

/// Sends the inventory until the API server has it, with the node's kind.
async fn tell_until_known(node: &Arc<Node>) {
    let mut pause = PAUSE_FIRST;
    loop {
        let told = tell_once(node).await;
        // An API server without this call is no reason for a warning.
        if let Some(status) = told.as_ref().err().filter(|status| status.code() != Code::Unimplemented) {
            tracing::warn!("cannot read the inventory of this node: {}", status.message());
        }
        let Some(next) = again(&told, &mut pause) else { return };
        sleep(next).await;
    }
}

/// Time until the next attempt; `None` if a further attempt is useless.
fn again(told: &Result<Option<Duration>, Status>, pause: &mut Duration) -> Option<Duration> {
    match told {
        // The API server has requested the template from another node.
        Ok(again) => *again,
        Err(status) => match status.code() {
            // The API server does not have this call, rejects the request, or requires a registration first. The next registration sends the
            // inventory again.
            Code::Unimplemented | Code::InvalidArgument | Code::FailedPrecondition => None,
            _ => {
                let next = *pause;
                *pause = (next * 2).min(PAUSE_MAX);
                Some(next)
            }
        },
    }
}

/// Sends the inventory once, with the template if the API server requests it. Returns the time after which the API server wants it again.
async fn tell_once(node: &Arc<Node>) -> Result<Option<Duration>, Status> {
    let this_node = Arc::clone(&node.this_node.lock());
    // The inventory may not have been read yet.
    let inventory = spawn_blocking(move || (this_node.inventory().clone(), usable_cpus(&this_node)));
    let (inventory, usable_cpus) = inventory.await.map_err(|error| Status::internal(error.to_string()))?;
    let place = node.api.place();
    let mut client = InventoryServiceClient::new(place.channel());
    let request = request(&node.config.node_id, &inventory, usable_cpus);
    let answer = in_time(timeouts::REGISTER_ANSWER, client.tell_inventory(request.clone())).await?;
    if answer.want_template {
        let whole = proto::TellInventoryRequest { template: inventory.template.encode().into(), ..request };
        in_time(timeouts::REGISTER_ANSWER, client.tell_inventory(whole)).await?;
    }
    Ok(Some(Duration::from_millis(answer.tell_again_in_ms.into())).filter(|again| !again.is_zero()))
}

/// CPUs that sessions of this process may use, as a list; empty for all CPUs that are online, or if the CPUs are unknown. Sessions determine
/// them in the same way when they bind their ranks.
fn usable_cpus(node: &ThisNode) -> String {
    let all = &node.inventory().template.cpus;
    match usable_here(node).map(|usable| usable.cpus()) {
        Ok(cpus) if cpus != *all => cpus.to_string(),
        Ok(_) | Err(_) => String::new(),
    }
}

fn request(node: &str, inventory: &Inventory, usable_cpus: String) -> proto::TellInventoryRequest {
    let trouble = inventory.trouble.iter().map(|trouble| format!("{}: {}", trouble.source, trouble.reason));
    proto::TellInventoryRequest {
        node_id: node.to_owned(),
        signature: inventory.template.signature().0.to_vec().into(),
        devices: serde_json::to_vec(&inventory.devices).unwrap_or_default().into(),
        trouble: trouble.collect(),
        template: Bytes::new(),
        usable_cpus,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use lattice_inventory::{Keeping, Root};
    use tokio::time::{Instant, timeout};

    use super::*;

    fn write(directory: &Path, file: &str, text: &str) {
        let path = directory.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_device_that_is_lost_is_seen_at_the_next_look_and_nothing_is_read_for_others() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        write(path, "sys/devices/system/cpu/online", "0");
        write(path, "proc/self/status", "Cpus_allowed_list:\t0\nMems_allowed_list:\t0");
        write(path, "sys/bus/pci/devices/0000:00:03.0/class", "0x020000");
        write(path, "sys/kernel/uevent_seqnum", "7");
        let known = Arc::new(ThisNode::below(Root::at(path), vec![Keeping::at(path.join("kept"))]));
        assert_eq!(known.inventory().template.pci.len(), 1);
        assert!(timeout(10 * LOOK_EVERY, change(&known)).await.is_err(), "nothing has changed");
        fs::remove_dir_all(path.join("sys/bus/pci/devices/0000:00:03.0")).unwrap();
        assert!(timeout(10 * LOOK_EVERY, change(&known)).await.is_err(), "nothing tells of a change");
        write(path, "sys/kernel/uevent_seqnum", "8");
        let asked = Instant::now();
        let changed = timeout(10 * LOOK_EVERY, change(&known)).await.expect("it is seen");
        assert_eq!((changed.inventory().template.pci.len(), asked.elapsed()), (0, LOOK_EVERY));
    }

    #[test]
    fn a_node_tells_again_until_its_kind_is_known() {
        let mut pause = PAUSE_FIRST;
        let elsewhere = Duration::from_millis(1500);
        assert_eq!(again(&Ok(Some(elsewhere)), &mut pause), Some(elsewhere));
        assert_eq!(again(&Ok(None), &mut pause), None);
        for code in [Code::Unimplemented, Code::InvalidArgument, Code::FailedPrecondition] {
            assert_eq!(again(&Err(Status::new(code, "")), &mut pause), None, "{code}");
        }
        let failed = Err(Status::unavailable("the connection broke"));
        let pauses: Vec<u64> = (0..8).filter_map(|_| Some(again(&failed, &mut pause)?.as_secs())).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    }
}

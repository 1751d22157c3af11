//! Services are made and ended with launches, on NICs that are directories.

use std::fs;

use cxi_fabric::Credentials;
use cxi_fabric::node::{PaperNics, TrafficClasses};
use tempfile::TempDir;

use super::*;

/// A node with two NICs.
struct World {
    directory: TempDir,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for nic in ["cxi0", "cxi1"] {
            fs::create_dir(directory.path().join(nic)).unwrap();
        }
        Self { directory }
    }

    /// An agent on this node, without state of an earlier one.
    fn agent(&self) -> Arc<Fabric> {
        let path = Some(self.directory.path().to_owned());
        let config = NodeFabricConfig { backend: NodeBackend::Paper, path, ..Default::default() };
        Fabric::new(&config, None).unwrap()
    }

    fn services(&self) -> usize {
        let nics = PaperNics::new(self.directory.path());
        ["cxi0", "cxi1"].map(|nic| nics.list(nic).unwrap().len()).iter().sum()
    }
}

fn wish(launch_id: &str, svc_id: u32) -> Wish {
    let credentials = Credentials { vni: vni(), job_vni: None, auth_key: None, svc_id, lifetime: None };
    let claims = Claims { credentials, services: Vec::new(), traffic_classes: TrafficClasses::default() };
    let message = lattice_session::wire::fabric::encode(&claims.credentials, claims.traffic_classes);
    let credentials = SignedCredentials::new(message, Default::default());
    let order = StartOrder::of_task(NicsTask::Survey);
    Wish { launch_id: launch_id.to_owned(), uid: 1000, ranks: 2, claims, order, credentials }
}

fn nics(told: &NodeFabric) -> Vec<(&str, u32)> {
    let services = &told.claims.as_ref().unwrap().services;
    services.iter().map(|service| (service.nic.as_str(), service.svc_id)).collect()
}

fn vni() -> Vni {
    Vni::new(1024).unwrap()
}

#[tokio::test]
async fn each_launch_has_services_of_its_own_and_gives_them_back() {
    let world = World::new();
    let agent = world.agent();
    let (first, one) = agent.claim(wish("a", 0)).await.unwrap();
    let (second, two) = agent.claim(wish("b", 0)).await.unwrap();
    assert_eq!((nics(&first), first.provider), (vec![("cxi0", 11), ("cxi1", 21)], Some(Provider::Cxi)));
    assert_eq!(nics(&second), [("cxi0", 12), ("cxi1", 22)]);
    let listed = agent.list().await;
    assert_eq!((listed.nics.len(), listed.nics[0].services[1].owner.as_deref()), (2, Some("b")));
    one.release().await;
    assert_eq!(world.services(), 2);
    assert_eq!(agent.retire(vni()).await.unwrap_err(), "launch b still uses it");
    two.release().await;
    agent.retire(vni()).await.unwrap();
    assert_eq!(world.services(), 0);
    assert!(agent.vnis.lock().is_empty());
}

#[tokio::test]
async fn what_a_killed_agent_left_is_ended_by_the_next_launch_or_with_the_vni() {
    let world = World::new();
    for by_launch in [true, false] {
        let (_, claimed) = world.agent().claim(wish("a", 0)).await.unwrap();
        std::mem::forget(claimed);
        assert_eq!(world.services(), 2);
        let agent = world.agent();
        if by_launch {
            let (_, claimed) = agent.claim(wish("b", 0)).await.unwrap();
            assert_eq!(world.services(), 2, "the old ones are gone");
            claimed.release().await;
        } else {
            agent.retire(vni()).await.unwrap();
        }
        assert_eq!(world.services(), 0);
    }
}

#[tokio::test]
async fn a_launch_that_outlives_its_agent_keeps_its_services() {
    let world = World::new();
    let (_, claimed) = world.agent().claim(wish("a", 0)).await.unwrap();
    let uses = claimed.uses().cloned().unwrap();
    std::mem::forget(claimed);
    let agent = world.agent();
    let claimed = agent.take_over("a", uses).await;
    let (_, other) = agent.claim(wish("b", 0)).await.unwrap();
    assert_eq!(world.services(), 4, "those of the first launch are no strays");
    assert_eq!(agent.retire(vni()).await.unwrap_err(), "launch a still uses it");
    claimed.release().await;
    assert_eq!(world.services(), 2);
    other.release().await;
    agent.retire(vni()).await.unwrap();
}

#[tokio::test]
async fn a_busy_service_keeps_its_vni_from_being_retired() {
    let world = World::new();
    let (_, claimed) = world.agent().claim(wish("a", 0)).await.unwrap();
    std::mem::forget(claimed);
    let busy = world.directory.path().join("cxi1/busy");
    fs::write(&busy, "").unwrap();
    let agent = world.agent();
    let left = agent.retire(vni()).await.unwrap_err();
    assert!(left.contains("service 21 of cxi1 is left") && left.contains("a process still uses it"), "{left}");
    assert_eq!(world.services(), 1);
    fs::remove_file(busy).unwrap();
    agent.retire(vni()).await.unwrap();
    assert_eq!(world.services(), 0);
}

/// Retiring a VNI removes its entry. A call that waited for the entry must not continue with it.
#[tokio::test]
async fn a_launch_that_waited_while_its_vni_was_retired_is_known() {
    let world = World::new();
    let agent = world.agent();
    let held = agent.users(vni()).await;
    // Each waiting call holds one reference. The test and the fabric hold the other two.
    let waiting = || Arc::strong_count(OwnedMutexGuard::mutex(&held)) - 2;
    let (to_retire, to_claim) = (Arc::clone(&agent), Arc::clone(&agent));
    let retiring = tokio::spawn(async move { to_retire.retire(vni()).await });
    while waiting() < 1 {
        tokio::task::yield_now().await;
    }
    let claiming = tokio::spawn(async move { to_claim.claim(wish("b", 0)).await });
    while waiting() < 2 {
        tokio::task::yield_now().await;
    }
    drop(held);
    retiring.await.unwrap().unwrap();
    let (_, claimed) = claiming.await.unwrap().unwrap();
    assert_eq!(agent.retire(vni()).await.unwrap_err(), "launch b still uses it");
    claimed.release().await;
    agent.retire(vni()).await.unwrap();
}

#[tokio::test]
async fn services_of_others_are_used_and_left_alone() {
    let world = World::new();
    let agent = world.agent();
    let (told, claimed) = agent.claim(wish("a", 7)).await.unwrap();
    assert_eq!(nics(&told), [("cxi0", 7), ("cxi1", 7)]);
    assert!(agent.retire(vni()).await.is_err(), "its ranks use the VNI");
    drop(claimed);
    while agent.retire(vni()).await.is_err() {
        tokio::task::yield_now().await;
    }
    let bare = Fabric::new(&NodeFabricConfig::default(), None).unwrap();
    assert_eq!(bare.bare(), NodeFabric::default());
    assert!(nics(&bare.claim(wish("a", 0)).await.unwrap().0).is_empty());
}

#[tokio::test]
async fn a_refusal_leaves_nothing() {
    let world = World::new();
    // A directory in place of a draft file makes the second NIC fail.
    fs::create_dir(world.directory.path().join("cxi1/draft")).unwrap();
    let refusal = world.agent().claim(wish("a", 0)).await.map(|_| ()).unwrap_err().to_string();
    assert!(refusal.contains("cannot make a CXI service: cxi1"), "{refusal}");
    assert_eq!(world.services(), 0);
}

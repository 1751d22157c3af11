//! Inventories that nodes have reported, across a restart of the server.

use std::collections::BTreeSet;
use std::sync::Arc;

use lattice_inventory::Template;
use tokio::time::{Duration, Instant, sleep};

use super::world::{server_on, soon};
use crate::inventories::{Answer, ReceivedReport};
use crate::launch::settings::LaunchSettings;
use crate::start_policy::StartPolicy;
use crate::store::{RedbStore, Store};

#[tokio::test]
async fn a_server_that_was_started_anew_knows_the_nodes_that_are_not_back() {
    let store: Arc<dyn Store> = Arc::new(RedbStore::in_memory().unwrap());
    let kind = Template { cpus: "0-3".parse().unwrap(), ..Template::default() };
    let telling = ReceivedReport {
        signature: kind.signature().0.to_vec().into(),
        devices: "{}".into(),
        template: kind.encode().into(),
        ..ReceivedReport::default()
    };
    let (server, _) = server_on(&store, &StartPolicy::default(), LaunchSettings::default());
    server.inventories.lock().tell("node7", telling.clone(), Instant::now()).unwrap();
    server.keep_inventories();
    soon(async {
        while store.read().unwrap().inventories.nodes.is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    drop(server);

    let (server, _) = server_on(&store, &StartPolicy::default(), LaunchSettings::default());
    let mut inventories = server.inventories.lock();
    let kinds = inventories.kinds(&BTreeSet::new(), &Template::default());
    assert_eq!((kinds.len(), kinds[0].nodes.as_str(), kinds[0].signature), (1, "node7", kind.signature()));
    assert_eq!(kinds[0].template, Some(kind.encode()));
    let another = inventories.tell("node8", ReceivedReport { template: "".into(), ..telling }, Instant::now()).unwrap();
    assert_eq!(another.answer, Answer::Enough, "the kind is known");
}

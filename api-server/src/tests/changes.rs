//! Changes that are completed although their callers disconnect, and the visibility of the results.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pmi_transport::identity::Caller;
use pmi_transport::proto::v1::*;
use tokio::sync::{Mutex, Notify};
use tonic::Code;

use super::world::{USER, World, order, soon};
use crate::allocations;
use crate::store::{Change, EndedLaunch, RedbStore, Store, StoreError, StoredState};
use crate::wire::allocation::encode;

/// A store that signals each write before it begins, and waits as long as a test holds the lock.
struct SlowStore {
    store: RedbStore,
    writes: Notify,
    held_up: Mutex<()>,
}

impl SlowStore {
    fn new() -> Arc<Self> {
        let store = RedbStore::in_memory().unwrap();
        Arc::new(Self { store, writes: Notify::new(), held_up: Mutex::default() })
    }
}

impl Store for SlowStore {
    fn write(&self, changes: &[Change]) -> Result<(), StoreError> {
        self.writes.notify_one();
        drop(self.held_up.blocking_lock());
        self.store.write(changes)
    }

    fn read(&self) -> Result<StoredState, StoreError> {
        self.store.read()
    }

    fn allocations(&self) -> Result<Vec<allocations::Allocation>, StoreError> {
        self.store.allocations()
    }

    fn allocation(&self, id: &str) -> Result<Option<allocations::Allocation>, StoreError> {
        self.store.allocation(id)
    }

    fn script(&self, allocation: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.script(allocation)
    }

    fn ended(&self) -> Result<Vec<LaunchSummary>, StoreError> {
        self.store.ended()
    }

    fn ended_launch(&self, id: &str) -> Result<Option<EndedLaunch>, StoreError> {
        self.store.ended_launch(id)
    }
}

/// Makes a call, and cancels it while its change is being written.
async fn give_up<T: Send + 'static>(
    world: &World,
    store: &SlowStore,
    call: impl Future<Output = Result<T, tonic::Status>> + Send + 'static,
) {
    let held_up = store.held_up.lock().await;
    let call = tokio::spawn(call);
    soon(store.writes.notified()).await;
    call.abort();
    assert!(call.await.is_err_and(|error| error.is_cancelled()));
    // Makes further calls, so that the server has noticed the cancellation.
    for _ in 0..3 {
        soon(world.nodes(0).list_nodes(ListNodesRequest {})).await.unwrap();
    }
    drop(held_up);
}

#[tokio::test]
async fn an_allocation_whose_creator_gave_up_is_there_for_all_to_see() {
    let store = SlowStore::new();
    let world = World::on(Arc::<SlowStore>::clone(&store), 1).await;
    let request = CreateAllocationRequest { num_nodes: 1, ..Default::default() };
    let mut client = world.allocations(&USER);
    let asked = request.clone();
    give_up(&world, &store, async move { client.create_allocation(asked).await }).await;
    // This call waits for the change before it.
    let refused = soon(world.allocations(&USER).create_allocation(request)).await.unwrap_err();
    assert!(refused.message().starts_with("1 node was asked for, and 0 are up and free\ntry: --wait"), "{refused}");
    let kept: Vec<Allocation> = store.read().unwrap().allocations.iter().map(encode).collect();
    let list = ListAllocationsRequest::default();
    let known = soon(world.allocations(&USER).list_allocations(list)).await.unwrap().into_inner().allocations;
    assert_eq!((known.len(), known), (1, kept));
}

#[tokio::test]
async fn a_launch_whose_client_gave_up_is_begun() {
    let store = SlowStore::new();
    let world = World::on(Arc::<SlowStore>::clone(&store), 1).await;
    let allocation = world.allocate(RequeuePolicy::Never).await;
    soon(store.writes.notified()).await;
    let (mut client, asked) = (world.allocations(&USER), order(&allocation));
    give_up(&world, &store, async move { client.launch_tasks(asked).await }).await;
    let begun = async {
        loop {
            let list = ListLaunchesRequest::default();
            let launches = world.launches().list_launches(list).await.unwrap().into_inner().launches;
            if launches.iter().any(|launch| launch.state() == LaunchState::Active) {
                return;
            }
        }
    };
    soon(begun).await;
    assert_eq!(world.agents[0].seen.lock().launched.len(), 1);
}

/// No other allocation may get its nodes while it begins.
#[tokio::test]
async fn a_launch_whose_allocation_is_released_while_it_is_written_down_is_not_begun() {
    let store = SlowStore::new();
    let world = World::on(Arc::<SlowStore>::clone(&store), 1).await;
    let allocation = world.allocate(RequeuePolicy::Never).await;
    soon(store.writes.notified()).await;
    let held_up = store.held_up.lock().await;
    let (mut client, asked) = (world.allocations(&USER), order(&allocation));
    let launching = tokio::spawn(async move { client.launch_tasks(asked).await });
    soon(store.writes.notified()).await;
    let mut client = world.allocations(&USER);
    let releasing =
        tokio::spawn(async move { client.release_allocation(ReleaseAllocationRequest { id: allocation }).await });
    soon(store.writes.notified()).await;
    drop(held_up);
    assert_eq!(soon(releasing).await.unwrap().unwrap().into_inner().state(), AllocationState::Released);
    let refused = soon(launching).await.unwrap().unwrap_err();
    assert!([Code::FailedPrecondition, Code::NotFound].contains(&refused.code()), "{}", refused.message());
    assert!(world.agents[0].seen.lock().launched.is_empty());
    assert!(store.read().unwrap().launches.is_empty(), "it is forgotten");
}

#[tokio::test]
async fn users_see_what_is_theirs_and_administrators_everything() {
    let world = World::new(2).await;
    let mine = CreateAllocationRequest { nodes: "node0".to_owned(), ..Default::default() };
    let id = soon(world.allocations(&USER).create_allocation(mine)).await.unwrap().into_inner().id;
    let launch = world.launch_in(&order(&id)).await;
    launch.reports[0].run(0, 0, RankPhase::Finalized).await;
    launch.reports[0].finish().await;
    world.attach(&launch.id, 0).await.complete().await;
    let gone = CreateAllocationRequest { nodes: "node1".to_owned(), ..Default::default() };
    let gone = soon(world.allocations(&USER).create_allocation(gone)).await.unwrap().into_inner().id;
    soon(world.allocations(&USER).release_allocation(ReleaseAllocationRequest { id: gone })).await.unwrap();

    let seen = async |caller: Caller, all: bool| {
        let allocations = world.allocations(&caller).list_allocations(ListAllocationsRequest { all }).await.unwrap();
        let mut client = launch_service_client::LaunchServiceClient::new(world.channel(&caller));
        let launches = client.list_launches(ListLaunchesRequest { all }).await.unwrap();
        (allocations.into_inner().allocations.len(), launches.into_inner().launches.len())
    };
    assert_eq!(soon(seen(USER, false)).await, (1, 0));
    assert_eq!(soon(seen(USER, true)).await, (2, 1));
    assert_eq!(soon(seen(Caller::User(7), true)).await, (0, 0));
    assert_eq!(soon(seen(Caller::Admin(None), true)).await, (2, 1));
    let request = GetAllocationRequest { id };
    let refused = soon(world.allocations(&Caller::User(7)).get_allocation(request)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
}

/// A store on a disk that may be full.
struct FullStore {
    store: RedbStore,
    full: AtomicBool,
}

impl Store for FullStore {
    fn write(&self, changes: &[Change]) -> Result<(), StoreError> {
        match self.full.load(Ordering::Relaxed) {
            true => Err(StoreError::File(std::io::ErrorKind::StorageFull.into())),
            false => self.store.write(changes),
        }
    }

    fn read(&self) -> Result<StoredState, StoreError> {
        self.store.read()
    }

    fn allocations(&self) -> Result<Vec<allocations::Allocation>, StoreError> {
        self.store.allocations()
    }

    fn allocation(&self, id: &str) -> Result<Option<allocations::Allocation>, StoreError> {
        self.store.allocation(id)
    }

    fn script(&self, allocation: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.script(allocation)
    }

    fn ended(&self) -> Result<Vec<LaunchSummary>, StoreError> {
        self.store.ended()
    }

    fn ended_launch(&self, id: &str) -> Result<Option<EndedLaunch>, StoreError> {
        self.store.ended_launch(id)
    }
}

#[tokio::test]
async fn an_end_that_cannot_be_written_down_is_when_it_can() {
    let store = Arc::new(FullStore { store: RedbStore::in_memory().unwrap(), full: AtomicBool::new(false) });
    let mut world = World::on(Arc::<FullStore>::clone(&store), 1).await;
    let mut launch = world.launch(1).await;
    let mut client = world.attach(&launch.id, 0).await;
    store.full.store(true, Ordering::Relaxed);
    launch.reports[0].run(0, 0, RankPhase::Finalized).await;
    launch.reports[0].finish().await;
    assert!(client.complete().await.success, "its user need not wait for the disk");
    // The client has received everything, and the launch is still known.
    let running = soon(world.launches().list_launches(ListLaunchesRequest { all: false })).await.unwrap().into_inner();
    assert!(running.launches.is_empty());
    store.full.store(false, Ordering::Relaxed);
    // The node's stream ends when the end of the launch is written.
    while launch.reports[0].command().await.is_some() {}
    assert!(store.ended_launch(&launch.id).unwrap().unwrap().complete.unwrap().success);
    world.restart().await;
    let status = soon(world.launches().get_launch(GetLaunchRequest { id: launch.id, stacks: false }))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(status.summary.unwrap().state(), LaunchState::Succeeded);
}

#[tokio::test]
async fn a_node_keeps_what_it_reported_until_that_is_written_down() {
    let store = Arc::new(FullStore { store: RedbStore::in_memory().unwrap(), full: AtomicBool::new(false) });
    let world = World::on(Arc::<FullStore>::clone(&store), 1).await;
    let mut launch = world.launch(1).await;
    let mut client = world.attach(&launch.id, 0).await;
    store.full.store(true, Ordering::Relaxed);
    launch.reports[0].run(0, 0, RankPhase::Finalized).await;
    launch.reports[0].finish().await;
    assert!(client.complete().await.success);
    assert!(world.register(0, 1, &[&launch.id]).await.is_empty(), "who takes the launch up asks for its report again");
    store.full.store(false, Ordering::Relaxed);
    while launch.reports[0].command().await.is_some() {}
    assert_eq!(world.register(0, 1, &[&launch.id]).await, [&*launch.id]);
}

//! Users that call from nodes without a certificate, as reported by the nodes' agents. They can use their own objects there, and nothing
//! else.

use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};

use pmi_transport::address::Address;
use pmi_transport::connect::{self, Channel};
use pmi_transport::identity::{Caller, Security};
use pmi_transport::listen::LocalSocket;
use pmi_transport::proto::v1::allocation_service_client::AllocationServiceClient;
use pmi_transport::proto::v1::launch_service_client::LaunchServiceClient;
use pmi_transport::proto::v1::node_service_client::NodeServiceClient;
use pmi_transport::proto::v1::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::world::{USER, World, order, soon};

fn of(node: &str, uid: u32) -> ProxiedBytes {
    ProxiedBytes { what: Some(proxied_bytes::What::Of(ProxyFor { node_id: node.to_owned(), uid })) }
}

/// Forwards a connection, as an agent does.
async fn relay(mut api: NodeServiceClient<Channel>, first: ProxiedBytes, user: UnixStream) {
    let (sender, receiver) = mpsc::channel(4);
    sender.send(first).await.unwrap();
    let mut answers = api.proxy_user(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    let (mut reader, mut writer) = user.into_split();
    tokio::spawn(async move {
        let mut piece = [0; 1000];
        while let Ok(read @ 1..) = reader.read(&mut piece).await {
            let data = proxied_bytes::What::Data(piece[..read].to_vec().into());
            if sender.send(ProxiedBytes { what: Some(data) }).await.is_err() {
                break;
            }
        }
    });
    while let Ok(Some(ProxiedBytes { what: Some(proxied_bytes::What::Data(bytes)) })) = answers.message().await {
        if writer.write_all(&bytes).await.is_err() {
            break;
        }
    }
}

/// Connection of a user on a node to the server, if the agent of the node reports this uid.
pub(super) fn on_node(world: &World, node: usize, uid: u32) -> Channel {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("lattice-proxying-{}-{number}.sock", process::id()));
    let (socket, api) = (LocalSocket::bind(&path).unwrap(), world.nodes(node));
    tokio::spawn(async move {
        while let Ok(user) = socket.accept().await {
            tokio::spawn(relay(api.clone(), of(&format!("node{node}"), uid), user));
        }
    });
    connect::channel(&Address::Unix(path), &Caller::Api, &Security::Insecure { name: Caller::Api }).unwrap()
}

/// An allocation of one node for a user.
async fn allocate(world: &World, node: &str, uid: u32) -> String {
    let request = CreateAllocationRequest { nodes: node.to_owned(), uid: Some(uid), ..Default::default() };
    soon(world.allocations(&Caller::Admin(None)).create_allocation(request)).await.unwrap().into_inner().id
}

fn code<T>(answer: Result<T, Status>) -> Code {
    answer.map_or_else(|status| status.code(), |_| Code::Ok)
}

#[tokio::test]
async fn a_user_on_a_node_reaches_what_is_of_its_allocation() {
    let world = World::new(2).await;
    let (here, elsewhere) = (allocate(&world, "node0", 1000).await, allocate(&world, "node1", 1000).await);
    let other = world.launch_in(&order(&elsewhere)).await;
    let channel = on_node(&world, 0, 1000);
    let mut allocations = AllocationServiceClient::new(channel.clone());
    let mut launches = LaunchServiceClient::new(channel);

    let own = soon(allocations.launch_tasks(order(&here))).await.unwrap().into_inner().task_launch_id;
    let listed = soon(launches.list_launches(ListLaunchesRequest { all: true })).await.unwrap().into_inner().launches;
    assert_eq!(listed.iter().map(|launch| &launch.id).collect::<Vec<_>>(), [&own]);
    let all = ListAllocationsRequest { all: true };
    let listed = soon(allocations.list_allocations(all)).await.unwrap().into_inner().allocations;
    assert_eq!(listed.into_iter().map(|allocation| allocation.id).collect::<Vec<_>>(), [here]);
    let signal = |id: &str| SignalLaunchRequest { id: id.to_owned(), signal: 10, ranks: Vec::new() };
    assert_eq!(code(soon(launches.signal_launch(signal(&own))).await), Code::Ok);

    // Objects of the same user on other nodes.
    let abort = AbortLaunchRequest { id: other.id.clone(), reason: String::new() };
    assert_eq!(code(soon(launches.abort_launch(abort)).await), Code::PermissionDenied);
    assert_eq!(code(soon(launches.signal_launch(signal(&other.id))).await), Code::PermissionDenied);
    assert_eq!(code(soon(allocations.launch_tasks(order(&elsewhere))).await), Code::PermissionDenied);
    let release = ReleaseAllocationRequest { id: elsewhere.clone() };
    assert_eq!(code(soon(allocations.release_allocation(release)).await), Code::PermissionDenied);
    let more =
        soon(allocations.create_allocation(CreateAllocationRequest { num_nodes: 1, ..Default::default() })).await;
    assert!(more.unwrap_err().message().contains("no job queued, from within another one by the socket of its node"));
    assert_eq!(code(soon(world.allocations(&USER).launch_tasks(order(&elsewhere))).await), Code::Ok, "it is untouched");
}

/// A stolen node reports users that have no allocation there.
#[tokio::test]
async fn a_node_that_lies_about_its_users_gains_nothing() {
    let world = World::new(2).await;
    let theirs = allocate(&world, "node1", 1001).await;
    allocate(&world, "node0", 1000).await;
    for uid in [1001, 7, 0] {
        let mut allocations = AllocationServiceClient::new(on_node(&world, 0, uid));
        let refused = soon(allocations.launch_tasks(order(&theirs))).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
        let words = format!("node0 belongs to no running allocation of user {uid}");
        assert!(refused.message().contains(&words), "{refused}");
    }
    let another = soon(world.nodes(0).proxy_user(tokio_stream::once(of("node1", 1001)))).await.unwrap_err();
    assert_eq!(another.message(), "the agent of node0 cannot speak for node node1");
    let nobody = ProxiedBytes { what: Some(proxied_bytes::What::Data("PRI * HTTP/2.0".into())) };
    assert_eq!(code(soon(world.nodes(0).proxy_user(tokio_stream::once(nobody))).await), Code::InvalidArgument);
}

#[tokio::test]
async fn an_allocation_that_has_ended_is_no_way_in() {
    let world = World::new(1).await;
    let allocation = allocate(&world, "node0", 1000).await;
    let mut early = AllocationServiceClient::new(on_node(&world, 0, 1000));
    let plan = LaunchTasksRequest { plan_only: true, ..order(&allocation) };
    assert_eq!(code(soon(early.launch_tasks(plan)).await), Code::Ok);
    let release = ReleaseAllocationRequest { id: allocation.clone() };
    soon(world.allocations(&USER).release_allocation(release)).await.unwrap();
    assert_eq!(code(soon(early.launch_tasks(order(&allocation))).await), Code::NotFound);
    let mut late = AllocationServiceClient::new(on_node(&world, 0, 1000));
    assert_eq!(code(soon(late.launch_tasks(order(&allocation))).await), Code::Unauthenticated);
    // The next allocation of the node belongs to another user.
    let next = allocate(&world, "node0", 1001).await;
    assert_ne!(code(soon(early.launch_tasks(order(&next))).await), Code::Ok);
    let mut theirs = AllocationServiceClient::new(on_node(&world, 0, 1001));
    assert_eq!(code(soon(theirs.launch_tasks(order(&next))).await), Code::Ok);
}

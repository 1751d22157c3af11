//! Requests that become orders, and requests that cannot.

use lattice_session::timeouts::LOST_AFTER;
use lattice_session::wire;
use pmi_transport::proto::v1::{
    App, AppSpec, Job, LaunchSpec, LaunchTasksRequest, Patience, PlacementRequest, StdinTarget, stdin_target,
};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::*;
use crate::nodes::tests::{drain, expire, registration};
use crate::nodes::{NodeFacts, Registration};
use crate::store::LaunchRecord;
use crate::wire::order::{decode, encode};

fn registry() -> Registry {
    let mut registry = Registry::default();
    for node in ["node0", "node1", "node2"] {
        let registration = registration(node);
        let facts = NodeFacts { cores: NonZeroU32::new(2), ..registration.facts };
        registry.register(Registration { facts, ..registration }, Instant::now()).unwrap();
    }
    registry
}

fn ordered(request: LaunchTasksRequest, settings: &LaunchSettings) -> Result<Order, OrderError> {
    let allocation = Allocation::running("a", 7, (0..4).map(|node| format!("node{node}")).collect());
    Order::new(wire::request::decode(request)?, &allocation, &registry(), settings)
}

fn plain(ranks: u32) -> LaunchTasksRequest {
    LaunchTasksRequest { num_tasks: ranks, entrypoint: "./app".to_owned(), ..Default::default() }
}

/// An order of this number of ranks on the same number of nodes.
pub(crate) fn order(ranks: u32) -> Order {
    ordered(plain(ranks), &LaunchSettings::default()).unwrap()
}

#[test]
fn output_windows_are_shared_out_among_the_nodes_within_bounds() {
    let window = |nodes: usize| {
        let addresses = vec!["127.0.0.1:1".to_owned(); nodes];
        terms(addresses, 7, &LaunchSettings::default()).unwrap().output_window
    };
    assert_eq!([1, 64, 65, 128].map(window), [1 << 20, 1 << 20, (64 << 20) / 65, 1 << 19]);
    assert_eq!([1024, 65_536].map(window), [64 << 10, 64 << 10]);
}

#[test]
fn fan_outs_that_are_not_set_are_left_to_the_agents() {
    let fan_outs = |barrier_fan_out, data_fan_out| {
        let settings = LaunchSettings { barrier_fan_out, data_fan_out, ..LaunchSettings::default() };
        let order = ordered(plain(1), &settings).unwrap();
        (order.terms.barrier_fan_out.map(NonZeroU32::get), order.terms.data_fan_out.map(NonZeroU32::get))
    };
    assert_eq!(fan_outs(0, 0), (None, None));
    assert_eq!(fan_outs(8, 2), (Some(8), Some(2)));
}

#[test]
fn the_advice_about_a_node_fits_its_state() {
    let check = |change: fn(&mut Registry), expected: &str| {
        let mut registry = registry();
        change(&mut registry);
        let error = Nodes { registry: &registry, inventories: None }.address("node0").unwrap_err();
        assert_eq!(Status::from(error).message(), expected);
    };
    check(|registry| registry.drain(drain("node0", "new memory")), "node node0 is drained: new memory; leave it out");
    check(
        |registry| drop(expire(registry, Instant::now() + 2 * LOST_AFTER)),
        "node node0 is lost; leave it out, or have its agent started",
    );
}

#[tokio::test]
async fn what_users_cannot_decide_is_decided() {
    let settings = LaunchSettings { fence_timeout: Some(std::time::Duration::from_secs(60)), ..Default::default() };
    let spec = encode(&ordered(plain(3), &settings).unwrap());
    assert_eq!((spec.uid, spec.nodes.as_str(), spec.secret.len()), (7, "node[0-2]", 16));
    assert_eq!(spec.launch_id.len(), 10);
    assert_eq!(spec.job.unwrap().id, format!("kvs_{}_0", spec.launch_id));
    assert_eq!(spec.patience.unwrap().fence_ms, Some(60_000));
    assert_eq!(spec.output_window, 1 << 20);
}

#[tokio::test]
async fn a_node_that_is_down_is_left_out_where_others_can_take_its_place() {
    let nodes = |request| ordered(request, &LaunchSettings::default()).map(|order| hostlist::fold(&order.launch.hosts));
    let on = |only: &str| PlacementRequest { only: only.to_owned(), ..Default::default() };
    let one = LaunchTasksRequest { placement: Some(on("node[3,0]")), ..plain(1) };
    assert_eq!(nodes(plain(3)).unwrap(), "node[0-2]");
    assert!(matches!(nodes(plain(4)), Err(OrderError::Unready { node, .. }) if node == "node3"));
    assert!(matches!(nodes(one), Err(OrderError::Unready { node, .. }) if node == "node3"));
}

#[tokio::test]
async fn ranks_that_shall_not_share_cpus_are_refused_where_they_would() {
    let refusal = |ranks, nodes, cpus_per_rank| {
        let except = "node3".to_owned();
        let placement = Some(PlacementRequest { nodes, except, cpus_per_rank, ..Default::default() });
        let request = LaunchTasksRequest { placement, ..plain(ranks) };
        ordered(request, &LaunchSettings::default()).err().map(|error| error.to_string())
    };
    assert_eq!(refusal(10, 1, 0), None);
    assert_eq!(refusal(6, 3, 1), None);
    let fit = "use more nodes, or let them share with --overcommit (-O)";
    let refused = refusal(8, 3, 1).unwrap();
    assert!(refused.starts_with("node0 has 2 CPUs for 3 ranks, each with 1; start fewer"), "{refused}");
    assert!(refusal(6, 3, 2).unwrap().starts_with("node0 has 2 CPUs for 2 ranks, each with 2;"));
    assert!(refused.ends_with(fit), "{refused}");
}

#[tokio::test]
async fn more_ranks_than_cores_are_noted() {
    let check = |ranks, nodes, expected: Option<&str>| {
        let placement = Some(PlacementRequest { nodes, except: "node3".to_owned(), ..Default::default() });
        let request = LaunchTasksRequest { placement, ..plain(ranks) };
        let order = ordered(request, &LaunchSettings::default()).unwrap();
        assert_eq!(order.crowding(Nodes { registry: &registry(), inventories: None }).as_deref(), expected);
    };
    check(6, 3, None);
    check(10, 1, Some("10 ranks on 2 cores of node0"));
    check(8, 3, Some("more ranks than cores on node[0-1]: 3 ranks on 2 cores of node0, for one"));
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_before_a_node_is_asked() {
    let check = |request: LaunchTasksRequest, code: Code, expected: &str| {
        let status = Status::from(ordered(request, &LaunchSettings::default()).unwrap_err());
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(expected), "{status}");
    };
    check(plain(4), Code::FailedPrecondition, "node node3 has not registered; leave it out, or have");
    check(LaunchTasksRequest { pmi_mode: "pmi3".into(), ..plain(1) }, Code::InvalidArgument, "pmi_mode is \"pmi3\"");
    check(LaunchTasksRequest { entrypoint: String::new(), ..plain(1) }, Code::InvalidArgument, "program");
    let spec = LaunchSpec { apps: vec![AppSpec::default()], ..Default::default() };
    check(
        LaunchTasksRequest { spec: Some(spec), ..plain(1) },
        Code::InvalidArgument,
        "the number of programs is 1; possible is 0 as in the job",
    );
    let stdin = Some(StdinTarget { target: Some(stdin_target::Target::Rank(3)) });
    let job = Some(Job { apps: vec![App { ranks: 3, appnum: 0 }], ..Default::default() });
    let app = AppSpec { program: "./app".into(), directory: "/".into(), ..Default::default() };
    let spec = LaunchSpec { apps: vec![app], job, stdin, ..Default::default() };
    check(
        LaunchTasksRequest { spec: Some(spec), ..LaunchTasksRequest::default() },
        Code::InvalidArgument,
        "there is no rank 3 to read standard input; the job has ranks 0 to 2",
    );
    check(
        LaunchTasksRequest {
            placement: Some(PlacementRequest { except: "node3".to_owned(), ..Default::default() }),
            ..plain(3 * 16_384 + 1)
        },
        Code::InvalidArgument,
        "16385 ranks on one node were asked for; a node takes at most 16384\ntry: more nodes, or fewer ranks",
    );
}

#[tokio::test]
async fn the_shorter_fence_timeout_counts() {
    let check = |asked: Option<u64>, configured: Option<u64>, expected: Option<u64>| {
        let spec = LaunchSpec {
            apps: vec![AppSpec { program: "./app".into(), directory: "/".into(), ..Default::default() }],
            job: Some(Job { apps: vec![App::default()], ..Default::default() }),
            patience: Some(Patience { fence_ms: asked, ..Default::default() }),
            ..Default::default()
        };
        let fence_timeout = configured.map(std::time::Duration::from_millis);
        let settings = LaunchSettings { fence_timeout, ..Default::default() };
        let order = ordered(LaunchTasksRequest { spec: Some(spec), ..Default::default() }, &settings).unwrap();
        assert_eq!(encode(&order).patience.unwrap().fence_ms, expected);
    };
    check(None, None, None);
    check(Some(5), None, Some(5));
    check(None, Some(7), Some(7));
    check(Some(5), Some(7), Some(5));
    check(Some(9), Some(7), Some(7));
}

#[tokio::test]
async fn what_is_written_down_of_an_order_is_the_order() {
    let order = ordered(plain(3), &LaunchSettings::default()).unwrap();
    let record = LaunchRecord { detached: true, spec: Some(encode(&order)), ..LaunchRecord::default() };
    let resumed = decode(&record).unwrap();
    assert_eq!(resumed.ownership, Ownership::Detached);
    assert_eq!(resumed.launch, order.launch);
    assert_eq!(resumed.terms, order.terms);
    assert!(decode(&LaunchRecord::default()).is_err());
}

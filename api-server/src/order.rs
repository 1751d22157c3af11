//! A launch request becomes an order: placed on nodes that are ready, with an id, a user, a secret and windows.
//!
//! The request was checked where it was decoded ([`lattice_session::wire::request`]), who may use the allocation where the call
//! came in. Which ranks go where is left to [`crate::placement`].

use std::io;
use std::num::NonZeroU32;

use lattice_session::placed::{ClusterTerms, PlacedLaunch};
use lattice_session::random;
use lattice_session::request::{Assignment, LaunchRequest, Ownership, PlaceError};
use lattice_session::spec::LaunchSecret;
use lattice_session::wire::{self, WireError};
use pmi_core::job::Placement;
use pmi_transport::proto::v1::{Allocation, Block, LaunchSpec};
use tonic::{Code, Status};

use super::allocations;
use super::config::LaunchSettings;
use super::launch::fan_out::Recipient;
use super::nodes::{Registry, Unready};
use super::placement::{self, PlacementError};
use super::store::LaunchRecord;

/// Output of one launch that may be on its way or wait here, in bytes, shared out among its nodes, each of which gets at least and
/// at most so much.
const OUTPUT_OF_LAUNCH: u32 = 64 << 20;
const OUTPUT_OF_NODE: std::ops::RangeInclusive<u32> = (64 << 10)..=(1 << 20);
/// Input that may be on its way, in bytes.
const STDIN_WINDOW: u32 = 256 << 10;
/// Most ranks of one node: its session refuses more.
const NODE_RANKS_MAX: u32 = lattice_session::limits::NODE_RANKS_MAX as u32;

/// A launch that can be started.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// The launch itself.
    pub launch: PlacedLaunch,
    /// The message of it that all nodes are sent.
    pub spec: LaunchSpec,
    /// The nodes, in node order.
    pub nodes: Vec<Recipient>,
    pub detached: bool,
}

/// Why a launch cannot be started as it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OrderError {
    #[error(transparent)]
    Placement(#[from] PlacementError),
    #[error("the launch cannot be understood: {0}")]
    Request(#[from] WireError),
    #[error("the launch cannot be understood: {0}")]
    Place(#[from] PlaceError),
    #[error("node {node} {why}; {}", remedy(why))]
    Unready { node: String, why: Unready },
    #[error("no random number can be had for the launch")]
    Random(#[source] io::Error),
}

/// Advice about a node on which nothing can begin.
fn remedy(why: &Unready) -> &'static str {
    match why {
        Unready::Drained { .. } => "leave it out",
        Unready::Unknown | Unready::Lost => "leave it out, or have its agent started",
    }
}

impl From<OrderError> for Status {
    fn from(error: OrderError) -> Self {
        let code = match &error {
            OrderError::Unready { .. } => Code::FailedPrecondition,
            OrderError::Random(_) => Code::Internal,
            _ => Code::InvalidArgument,
        };
        Self::new(code, pmi_transport::error_chain::chain(&error))
    }
}

impl Order {
    /// Places `request` in `allocation`, on the nodes as they are now.
    pub(crate) fn new(
        mut request: LaunchRequest,
        allocation: &Allocation,
        registry: &Registry,
        settings: &LaunchSettings,
    ) -> Result<Self, OrderError> {
        let detached = request.ownership == Ownership::Detached;
        let fence = &mut request.settings.timeouts.fence;
        *fence = [*fence, settings.fence_timeout].into_iter().flatten().min();
        let assignment = place(&request, &allocations::nodes(allocation), registry)?;
        let nodes = assignment.hosts.iter().map(|node| recipient(node, registry)).collect::<Result<Vec<_>, _>>()?;
        let launch_id = random::id().map_err(OrderError::Random)?;
        let launch = request.place(launch_id, Some(allocation.id.clone()), assignment)?;
        let spec = wire::placed::encode(&launch, &terms(&nodes, allocation, settings)?);
        Ok(Self { launch, spec, nodes, detached })
    }

    /// The launch that a record describes; `None` for a record that makes no sense.
    pub(crate) fn resumed(record: &LaunchRecord) -> Option<Self> {
        let spec = record.spec.clone()?;
        let launch = wire::placed::decode(spec.clone()).ok()?;
        let addresses = wire::placed::addresses(&spec.addresses, launch.hosts.len()).ok()?;
        let pairs = launch.hosts.iter().cloned().zip(addresses);
        let nodes = pairs.map(|(name, address)| Recipient { name, address }).collect();
        Some(Self { launch, spec, nodes, detached: record.detached })
    }

    /// A note on nodes that get more ranks than they have cores, if any do.
    pub(crate) fn crowding(&self, registry: &Registry) -> Option<String> {
        let ranks = ranks_per_node(&self.launch.job.placement, self.nodes.len());
        // A node that does not know its cores says 0.
        let cores = |node: &str| registry.up(node).map_or(0, |told| told.cores);
        let crowded = self.nodes.iter().zip(ranks).map(|(node, ranks)| (&node.name, ranks, cores(&node.name)));
        let crowded: Vec<_> = crowded.filter(|&(_, ranks, cores)| cores > 0 && ranks > cores).collect();
        let &(first, ranks, cores) = crowded.first()?;
        let such = format!("{ranks} ranks on {cores} cores of {first}");
        let nodes: Vec<&String> = crowded.iter().map(|&(node, ..)| node).collect();
        Some(match nodes.as_slice() {
            [_] => such,
            all => format!("more ranks than cores on {}: {such}, for one", hostlist::fold(all)),
        })
    }
}

/// Places ranks on nodes of the allocation that are ready, as long as those are as many as the launch gets when all are: fewer,
/// or others than it names, would be another launch than was asked for.
fn place(request: &LaunchRequest, nodes: &[String], registry: &Registry) -> Result<Assignment, PlacementError> {
    let is_ready = |node: &&String| registry.ready(node).is_ok();
    let assign = |nodes: &[String]| placement::place(&request.placement, &request.programs, nodes);
    let all = assign(nodes)?;
    if all.hosts.iter().all(|node| is_ready(&node)) {
        return fitting(all);
    }
    let ready: Vec<String> = nodes.iter().filter(is_ready).cloned().collect();
    let instead = assign(&ready).ok().filter(|instead| instead.hosts.len() == all.hosts.len());
    fitting(instead.unwrap_or(all))
}

/// Refuses more ranks on a node than its session serves.
fn fitting(assignment: Assignment) -> Result<Assignment, PlacementError> {
    if assignment.placement.size() <= NODE_RANKS_MAX {
        return Ok(assignment);
    }
    match ranks_per_node(&assignment.placement, assignment.hosts.len()).into_iter().max() {
        Some(ranks) if ranks > NODE_RANKS_MAX => Err(PlacementError::NodeOverfull { ranks, most: NODE_RANKS_MAX }),
        _ => Ok(assignment),
    }
}

/// Number of ranks of each of `nodes` nodes.
fn ranks_per_node(placement: &Placement, nodes: usize) -> Vec<u32> {
    let mut ranks = vec![0_u32; nodes];
    for block in placement.blocks() {
        let nodes = ranks.iter_mut().skip(block.first_node.index()).take(block.nodes as usize);
        nodes.for_each(|ranks| *ranks += block.ranks_per_node);
    }
    ranks
}

fn recipient(node: &str, registry: &Registry) -> Result<Recipient, OrderError> {
    match registry.ready(node) {
        Ok(told) => Ok(Recipient { name: node.to_owned(), address: told.grpc_address.clone() }),
        Err(why) => Err(OrderError::Unready { node: node.to_owned(), why }),
    }
}

/// Terms of a launch that are not for users to say.
fn terms(nodes: &[Recipient], allocation: &Allocation, settings: &LaunchSettings) -> Result<ClusterTerms, OrderError> {
    let window = OUTPUT_OF_LAUNCH / nodes.len().max(1) as u32;
    Ok(ClusterTerms {
        uid: allocation.uid,
        addresses: nodes.iter().map(|node| node.address.clone()).collect(),
        secret: LaunchSecret::random().map_err(OrderError::Random)?,
        barrier_fan_out: NonZeroU32::new(settings.barrier_fan_out),
        data_fan_out: NonZeroU32::new(settings.data_fan_out),
        output_window: window.clamp(*OUTPUT_OF_NODE.start(), *OUTPUT_OF_NODE.end()),
        stdin_window: STDIN_WINDOW,
    })
}

/// A placement as messages carry it.
pub(crate) fn blocks(placement: &Placement) -> Vec<Block> {
    let block = |block: &pmi_core::job::Block| Block {
        first_node: block.first_node.0,
        nodes: block.nodes,
        ranks_per_node: block.ranks_per_node,
    };
    placement.blocks().iter().map(block).collect()
}

#[cfg(test)]
mod tests {
    use pmi_transport::proto::v1::{
        AllocationState, App, AppSpec, Job, LaunchTasksRequest, Patience, PlacementRequest, RegisterNodeRequest,
        StdinTarget, stdin_target,
    };
    use tokio::time::Instant;

    use super::*;

    fn registry() -> Registry {
        let mut registry = Registry::default();
        for node in ["node0", "node1", "node2"] {
            let grpc_address = "127.0.0.1:50052".to_owned();
            let told = RegisterNodeRequest { node_id: node.to_owned(), grpc_address, cores: 2, ..Default::default() };
            registry.register(told, Instant::now()).unwrap();
        }
        registry
    }

    fn ordered(request: LaunchTasksRequest, settings: &LaunchSettings) -> Result<Order, OrderError> {
        let state = AllocationState::Running.into();
        let nodes = "node[0-3]".to_owned();
        let allocation = Allocation { id: "a".to_owned(), state, uid: 7, nodes, ..Default::default() };
        Order::new(wire::request::decode(request)?, &allocation, &registry(), settings)
    }

    fn plain(ranks: u32) -> LaunchTasksRequest {
        LaunchTasksRequest { num_tasks: ranks, entrypoint: "./app".to_owned(), ..Default::default() }
    }

    #[tokio::test]
    async fn what_users_cannot_decide_is_decided() {
        let settings = LaunchSettings { fence_timeout: Some(std::time::Duration::from_secs(60)), ..Default::default() };
        let spec = ordered(plain(3), &settings).unwrap().spec;
        assert_eq!((spec.uid, spec.nodes.as_str(), spec.secret.len()), (7, "node[0-2]", 16));
        assert_eq!(spec.launch_id.len(), 10);
        assert_eq!(spec.job.unwrap().id, format!("kvs_{}_0", spec.launch_id));
        assert_eq!(spec.patience.unwrap().fence_ms, Some(60_000));
        assert_eq!(spec.output_window, 1 << 20);
    }

    #[tokio::test]
    async fn a_node_that_is_down_is_left_out_where_others_can_take_its_place() {
        let nodes = |request| ordered(request, &LaunchSettings::default()).map(|order| order.spec.nodes);
        let on = |only: &str| PlacementRequest { only: only.to_owned(), ..Default::default() };
        let one = LaunchTasksRequest { placement: Some(on("node[3,0]")), ..plain(1) };
        assert_eq!(nodes(plain(3)).unwrap(), "node[0-2]");
        assert!(matches!(nodes(plain(4)), Err(OrderError::Unready { node, .. }) if node == "node3"));
        assert!(matches!(nodes(one), Err(OrderError::Unready { node, .. }) if node == "node3"));
    }

    #[tokio::test]
    async fn more_ranks_than_cores_are_noted() {
        let check = |ranks, nodes, expected: Option<&str>| {
            let placement = Some(PlacementRequest { nodes, except: "node3".to_owned(), ..Default::default() });
            let request = LaunchTasksRequest { placement, ..plain(ranks) };
            let order = ordered(request, &LaunchSettings::default()).unwrap();
            assert_eq!(order.crowding(&registry()).as_deref(), expected);
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
        check(
            LaunchTasksRequest { pmi_mode: "pmi3".into(), ..plain(1) },
            Code::InvalidArgument,
            "pmi_mode is \"pmi3\"",
        );
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
            "16385 ranks on one node were asked for; a node takes at most 16384; use more nodes",
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
            assert_eq!(order.spec.patience.unwrap().fence_ms, expected);
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
        let record = LaunchRecord { spec: Some(order.spec.clone()), detached: true, ..Default::default() };
        let resumed = Order::resumed(&record).unwrap();
        assert!(resumed.detached);
        assert_eq!(
            format!("{:?} {:?}", resumed.launch, resumed.nodes),
            format!("{:?} {:?}", order.launch, order.nodes)
        );
        assert!(Order::resumed(&LaunchRecord::default()).is_none());
    }
}

//! A launch as a user asks for it becomes the launch that all nodes are told of: checked, placed, with an id, a user and a secret.

use std::io;

use bytes::Bytes;
use lattice_session::random;
use lattice_session::spec::Patience;
use lattice_session::wire::{self, WireError};
use pmi_core::ids::NodeIndex;
use pmi_core::job::Placement;
use pmi_transport::proto::v1::{
    Allocation, App, AppSpec, Block, Job, LaunchSpec, LaunchTasksRequest, PlacementRequest, PmiFamily, Variable,
};
use tonic::{Code, Status};

use super::allocations;
use super::config::LaunchSettings;
use super::launch::fan_out::Recipient;
use super::nodes::{Registry, Unready};
use super::placement::{Placed, PlacementError, Wish};
use super::store::LaunchRecord;

/// The output of one launch that may be on its way or wait here, shared out among its nodes, each of which gets at least and at
/// most this much.
const OUTPUT_OF_LAUNCH: u32 = 64 << 20;
const OUTPUT_OF_NODE: std::ops::RangeInclusive<u32> = (64 << 10)..=(1 << 20);
/// The input that may be on its way.
const STDIN_WINDOW: u32 = 256 << 10;
/// The most programs of a launch.
const PROGRAMS_MAX: usize = 4096;
/// Where programs of a request without an environment are looked for.
const PLAIN_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A launch that can be started.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// What all nodes are told.
    pub spec: LaunchSpec,
    /// The nodes, in node order.
    pub nodes: Vec<Recipient>,
    pub placement: Placement,
    pub detached: bool,
}

/// A launch that cannot be started as it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OrderError {
    #[error(transparent)]
    Placement(#[from] PlacementError),
    #[error("the launch cannot be understood: {0}")]
    Spec(#[from] WireError),
    #[error(
        "{given} programs are described, and {counted} are in the job; a launch has as many of both, and at most {PROGRAMS_MAX}"
    )]
    Programs { given: usize, counted: usize },
    #[error("{ranks} ranks were asked for, and {counted} are in the job; leave num_tasks at 0, or make them the same")]
    TwoCounts { ranks: u32, counted: u64 },
    #[error("pmi_mode {mode:?} is unknown; there are auto, pmi1, pmi2, pmix and none")]
    PmiMode { mode: String },
    #[error("node {node} {why}; {}", remedy(why))]
    Unready { node: String, why: Unready },
    #[error("no random number can be had for the launch")]
    Random(#[source] io::Error),
}

/// What to do about a node on which nothing can begin.
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
    /// What `request` means in `allocation`, on the nodes as they are now.
    pub(crate) fn new(
        request: LaunchTasksRequest,
        allocation: &Allocation,
        registry: &Registry,
        settings: &LaunchSettings,
    ) -> Result<Self, OrderError> {
        let wish = Wish::read(&placement_request(&request))?;
        // Who sends the plain fields alone cannot know that a launch is to be followed.
        let detached = request.detached || request.spec.is_none();
        let ranks = request.num_tasks;
        let spec = match request.spec.clone() {
            Some(spec) => spec,
            None => plain_spec(request)?,
        };
        let given = rank_counts(&spec, ranks)?;
        let placed = place(&wish, &given, &allocations::nodes(allocation), registry)?;
        let nodes = placed.nodes.iter().map(|node| recipient(node, registry)).collect::<Result<Vec<_>, _>>()?;
        let spec = decided(spec, &placed, &nodes, allocation, settings)?;
        // Everything that a node would refuse is refused here, before any is asked.
        wire::spec::decode(spec.clone(), NodeIndex(0))?;
        Ok(Self { spec, nodes, placement: placed.placement, detached })
    }

    /// The launch that a record describes; `None` for a record that makes no sense.
    pub(crate) fn resumed(record: &LaunchRecord) -> Option<Self> {
        let spec = record.spec.clone()?;
        let names = wire::spec::nodes(&spec.nodes).ok()?;
        let addresses = wire::spec::addresses(&spec.addresses, names.len()).ok()?;
        let job = wire::job::decode(spec.job.clone()?, names.len()).ok()?;
        let pairs = names.into_iter().zip(addresses);
        let nodes = pairs.map(|(name, address)| Recipient { name, address }).collect();
        Some(Self { spec, nodes, placement: job.placement, detached: record.detached })
    }

    /// Which nodes get more ranks than they have cores, in words, if any do.
    pub(crate) fn crowding(&self, registry: &Registry) -> Option<String> {
        let mut ranks = vec![0_u32; self.nodes.len()];
        for block in self.placement.blocks() {
            let nodes = ranks.iter_mut().skip(block.first_node.index()).take(block.nodes as usize);
            nodes.for_each(|ranks| *ranks += block.ranks_per_node);
        }
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
fn place(wish: &Wish, given: &[u32], nodes: &[String], registry: &Registry) -> Result<Placed, PlacementError> {
    let is_ready = |node: &&String| registry.ready(node).is_ok();
    let placed = wish.place(given, nodes)?;
    if placed.nodes.iter().all(|node| is_ready(&node)) {
        return Ok(placed);
    }
    let ready: Vec<String> = nodes.iter().filter(is_ready).cloned().collect();
    let instead = wish.place(given, &ready).ok().filter(|instead| instead.nodes.len() == placed.nodes.len());
    Ok(instead.unwrap_or(placed))
}

fn placement_request(request: &LaunchTasksRequest) -> PlacementRequest {
    let mut placement = request.placement.clone().unwrap_or_default();
    if placement.tasks_per_node == 0 {
        placement.tasks_per_node = request.tasks_per_node;
    }
    placement
}

/// A spec for a request in the design document's shape.
fn plain_spec(request: LaunchTasksRequest) -> Result<LaunchSpec, OrderError> {
    let family = match request.pmi_mode.as_str() {
        // The design document's pmi2 is all that is not pmix: most of what speaks over that socket speaks PMI-1.
        "" | "auto" | "pmi2" => PmiFamily::Auto,
        "pmi1" => PmiFamily::Pmi1,
        "pmix" => PmiFamily::PmixOnly,
        "none" => PmiFamily::None,
        _ => return Err(OrderError::PmiMode { mode: request.pmi_mode }),
    };
    let variable = |name: String, value: String| Variable { name: name.into(), value: value.into() };
    let app = AppSpec {
        program: request.entrypoint.into(),
        args: request.args.into_iter().map(Bytes::from).collect(),
        directory: Bytes::from_static(b"/"),
        set: request.env.into_iter().map(|(name, value)| variable(name, value)).collect(),
        remove: Vec::new(),
    };
    Ok(LaunchSpec {
        job: Some(Job { apps: vec![App { ranks: request.num_tasks, appnum: 0 }], ..Job::default() }),
        apps: vec![app],
        environment: vec![variable("PATH".to_owned(), PLAIN_PATH.to_owned())],
        pmi_family: family.into(),
        ..LaunchSpec::default()
    })
}

/// How many ranks each program was given; 0 where none were.
fn rank_counts(spec: &LaunchSpec, asked: u32) -> Result<Vec<u32>, OrderError> {
    let mut ranks: Vec<u32> = spec.job.iter().flat_map(|job| &job.apps).map(|app| app.ranks).collect();
    if ranks.len() != spec.apps.len() || ranks.len() > PROGRAMS_MAX {
        return Err(OrderError::Programs { given: spec.apps.len(), counted: ranks.len() });
    }
    if let ([ranks @ 0], true) = (ranks.as_mut_slice(), asked > 0) {
        *ranks = asked;
    }
    match ranks.iter().map(|&ranks| u64::from(ranks)).sum() {
        counted if asked > 0 && counted != u64::from(asked) => Err(OrderError::TwoCounts { ranks: asked, counted }),
        _ => Ok(ranks),
    }
}

fn recipient(node: &str, registry: &Registry) -> Result<Recipient, OrderError> {
    match registry.ready(node) {
        Ok(told) => Ok(Recipient { name: node.to_owned(), address: told.grpc_address.clone() }),
        Err(why) => Err(OrderError::Unready { node: node.to_owned(), why }),
    }
}

/// The spec with everything that is not for users to say.
fn decided(
    spec: LaunchSpec,
    placed: &Placed,
    nodes: &[Recipient],
    allocation: &Allocation,
    settings: &LaunchSettings,
) -> Result<LaunchSpec, OrderError> {
    let launch_id = random::id().map_err(OrderError::Random)?;
    let secret = random::bytes::<{ wire::spec::SECRET_LEN }>().map_err(OrderError::Random)?;
    let asked = spec.job.unwrap_or_default();
    let appnums = (0..).zip(&placed.ranks);
    let job = Job {
        id: format!("kvs_{launch_id}_0"),
        blocks: blocks(&placed.placement),
        apps: appnums.map(|(appnum, &ranks)| App { ranks, appnum }).collect(),
        spawner: None,
        ..asked
    };
    let mut patience = spec.patience.unwrap_or_else(|| wire::spec::encode_patience(&Patience::default()));
    if let Some(limit) = settings.fence_timeout {
        let limit = limit.as_millis() as u64;
        patience.fence_ms = Some(patience.fence_ms.map_or(limit, |asked| asked.min(limit)));
    }
    let addresses: Vec<&str> = nodes.iter().map(|node| node.address.as_str()).collect();
    let window = OUTPUT_OF_LAUNCH / nodes.len().max(1) as u32;
    Ok(LaunchSpec {
        launch_id,
        allocation_id: allocation.id.clone(),
        uid: allocation.uid,
        nodes: hostlist::fold(&placed.nodes),
        addresses: hostlist::fold(&addresses),
        job: Some(job),
        patience: Some(patience),
        secret: Bytes::copy_from_slice(&secret),
        barrier_fan_out: settings.barrier_fan_out,
        data_fan_out: settings.data_fan_out,
        output_window: window.clamp(*OUTPUT_OF_NODE.start(), *OUTPUT_OF_NODE.end()),
        stdin_window: STDIN_WINDOW,
        ..spec
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
    use pmi_transport::proto::v1::{AllocationState, RegisterNodeRequest};
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
        Order::new(request, &allocation, &registry(), settings)
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
        check(LaunchTasksRequest { pmi_mode: "pmi3".into(), ..plain(1) }, Code::InvalidArgument, "pmi_mode \"pmi3\"");
        check(LaunchTasksRequest { entrypoint: String::new(), ..plain(1) }, Code::InvalidArgument, "program");
        let spec = LaunchSpec { apps: vec![AppSpec::default()], ..Default::default() };
        check(
            LaunchTasksRequest { spec: Some(spec), ..plain(1) },
            Code::InvalidArgument,
            "1 programs are described, and 0",
        );
    }
}

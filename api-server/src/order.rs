//! Turns a launch request into an order: placed on nodes that are ready, with an id, a user, a secret and windows.
//!
//! The decoder ([`lattice_session::wire::request`]) checks the request, and the call checks the right to use the allocation.
//! [`crate::placement`] assigns ranks to nodes.

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU32;

use lattice_session::placed::{ClusterTerms, PlacedLaunch};
use lattice_session::random;
use lattice_session::request::{Assignment, LaunchRequest, Overcommit, Ownership, PlaceError, PlacementRequest};
use lattice_session::spec::LaunchSecret;
use lattice_session::wire::WireError;
use pmi_core::job::Placement;
use pmi_transport::session_link::LinkKey;

use super::allocations::Allocation;
use super::inventories::{Inventories, Origin};
use super::launch::fan_out::Recipient;
use super::launch::settings::LaunchSettings;
use super::nodes::{Registry, Unready};
use super::placement::{self, PlacementError, ranks_per_node};
use crate::launch_id::LaunchId;

/// Output of one launch that may be in transit or wait in this server, in bytes. The nodes share it, each within [`OUTPUT_OF_NODE`].
const OUTPUT_OF_LAUNCH: u32 = 64 << 20;
pub(crate) const OUTPUT_OF_NODE: std::ops::RangeInclusive<u32> = (64 << 10)..=(1 << 20);
/// Input that may be in transit, in bytes.
const STDIN_WINDOW: u32 = 256 << 10;
/// Most ranks of one node: its session refuses more.
const NODE_RANKS_MAX: u32 = lattice_session::limits::NODE_RANKS_MAX as u32;

/// A launch that can be started.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// The launch itself.
    pub launch: PlacedLaunch,
    /// Terms that its user cannot choose.
    pub terms: ClusterTerms,
    pub ownership: Ownership,
}

/// Nodes for a launch.
#[derive(Clone, Debug)]
pub(crate) struct Allocated {
    /// Id of their allocation; `None` for a plan without one.
    pub allocation: Option<String>,
    /// User of the launch.
    pub uid: u32,
    pub nodes: Vec<String>,
}

/// Known facts about nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nodes<'a> {
    pub registry: &'a Registry,
    /// For a plan that may include nodes which are not ready; `None` if such nodes are refused.
    pub inventories: Option<&'a Inventories>,
}

/// Reason why a launch cannot be started as requested.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OrderError {
    #[error(transparent)]
    Placement(#[from] PlacementError),
    #[error("the launch cannot be understood: {0}")]
    Request(#[from] WireError),
    #[error(transparent)]
    Overcommit(#[from] Overcommit),
    #[error("{error}{}", other_reader(.0), error = .0)]
    Place(#[from] PlaceError),
    #[error("node {node} {why}; {}", remedy(why))]
    Unready { node: String, why: Unready },
    #[error("no random number can be had for the launch")]
    Random(#[source] io::Error),
}

/// Advice about a node that is not ready.
fn remedy(why: &Unready) -> &'static str {
    match why {
        Unready::Drained { .. } => "leave it out",
        Unready::Unknown | Unready::Away | Unready::Lost => "leave it out, or have its agent started",
    }
}

/// Advice about a rank that cannot read standard input.
fn other_reader(error: &PlaceError) -> String {
    match error {
        PlaceError::NoSuchRank { rank, last } => {
            let enough = u64::from(rank.0) + 1;
            format!(
                "\ntry: --stdin {last}, or --stdin all; -n {enough} starts ranks enough; a file of that name is ./{rank}"
            )
        }
        _ => String::new(),
    }
}

impl Order {
    /// The id of the launch.
    pub(crate) fn id(&self) -> LaunchId {
        self.launch.launch_id.as_str().into()
    }

    /// Places `request` in `allocation`, on the nodes as they are now.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn new(
        request: LaunchRequest,
        allocation: &Allocation,
        registry: &Registry,
        settings: &LaunchSettings,
    ) -> Result<Self, OrderError> {
        Self::on(request, allocation.into(), Nodes { registry, inventories: None }, settings)
    }

    /// Places `request` on these nodes.
    pub(crate) fn on(
        mut request: LaunchRequest,
        allocated: Allocated,
        nodes: Nodes<'_>,
        settings: &LaunchSettings,
    ) -> Result<Self, OrderError> {
        let ownership = request.ownership;
        let fence = &mut request.settings.timeouts.fence;
        *fence = [*fence, settings.fence_timeout].into_iter().flatten().min();
        let assignment = place(&request, &allocated.nodes, nodes).map_err(|error| match error {
            PlacementError::UnknownNode { node, allocated: known } if allocated.allocation.is_none() => {
                PlacementError::NobodysNode { node, known }
            }
            error => error,
        })?;
        check_cpus(&request, &assignment, nodes)?;
        let addresses = assignment.hosts.iter().map(|node| nodes.address(node)).collect::<Result<_, _>>()?;
        let launch_id = random::id().map_err(OrderError::Random)?;
        let slots = |placement: &PlacementRequest, Assignment { hosts, placement: ranks, .. }: &Assignment| {
            let ranks = ranks_per_node(ranks, hosts.len());
            placement.slots(hosts.iter().map(String::as_str).zip(ranks), |node| nodes.cores(node))
        };
        let launch = request.place(launch_id, allocated.allocation, assignment, slots)?;
        Ok(Self { launch, terms: terms(addresses, allocated.uid, settings)?, ownership })
    }

    /// The names and addresses of the nodes, in node order.
    pub(crate) fn recipients(&self) -> Vec<Recipient> {
        let pairs = self.launch.hosts.iter().zip(&self.terms.addresses);
        pairs.map(|(name, address)| Recipient { name: name.clone(), address: address.clone() }).collect()
    }

    /// A note on nodes that get more ranks than they have cores, if any do.
    pub(crate) fn crowding(&self, nodes: Nodes<'_>) -> Option<String> {
        let known = known_cores(&self.launch.hosts, &self.launch.job.placement, nodes);
        let crowded: Vec<_> = known.filter(|&(_, ranks, cores)| ranks > cores).collect();
        let &(first, ranks, cores) = crowded.first()?;
        let such = format!("{ranks} ranks on {cores} cores of {first}");
        let nodes: Vec<&String> = crowded.iter().map(|&(node, ..)| node).collect();
        Some(match nodes.as_slice() {
            [_] => such,
            all => format!("more ranks than cores on {}: {such}, for one", hostlist::fold(all)),
        })
    }
}

impl From<&Allocation> for Allocated {
    fn from(allocation: &Allocation) -> Self {
        Self { allocation: Some(allocation.id.clone()), uid: allocation.uid, nodes: allocation.nodes.clone() }
    }
}

impl Nodes<'_> {
    /// Number of CPUs that ranks may use on a node; `None` if it is not known.
    fn cores(self, node: &str) -> Option<u32> {
        match self.registry.up(node) {
            Some(facts) => facts.cores.map(NonZeroU32::get),
            None => self.inventories?.usable_cpus(node).map(|cpus| cpus as u32),
        }
    }

    /// The address of a node. For a node in a plan that is not ready it is the name, because no connection is made.
    fn address(self, node: &str) -> Result<String, OrderError> {
        match (self.registry.ready(node), self.inventories) {
            (Ok(facts), _) => Ok(facts.grpc_address.clone()),
            (Err(_), Some(_)) => Ok(node.to_owned()),
            (Err(why), None) => Err(OrderError::Unready { node: node.to_owned(), why }),
        }
    }

    /// Lines about the nodes that are not ready, with the known facts about them; empty if such nodes are refused.
    pub(crate) fn absent(self, hosts: &[String]) -> Vec<String> {
        let Some(inventories) = self.inventories else { return Vec::new() };
        let mut lines: BTreeMap<String, Vec<&String>> = BTreeMap::new();
        for node in hosts {
            let Err(why) = self.registry.ready(node) else { continue };
            let known = match inventories.of(node) {
                Some((_, Origin::Told)) => "planned with its last inventory",
                Some((_, Origin::Listed | Origin::Assumed)) => "planned as it is listed",
                None => "nothing is known of what it is",
            };
            lines.entry(format!("{why}; {known}, and a launch would be refused now")).or_default().push(node);
        }
        lines.into_iter().map(|(line, nodes)| format!("{} {line}", hostlist::fold(&nodes))).collect()
    }
}

/// Nodes with a known number of cores, with their ranks and that number.
fn known_cores<'a>(
    hosts: &'a [String],
    placement: &Placement,
    nodes: Nodes<'a>,
) -> impl Iterator<Item = (&'a String, u32, u32)> {
    let ranks = ranks_per_node(placement, hosts.len());
    hosts.iter().zip(ranks).filter_map(move |(node, ranks)| Some((node, ranks, nodes.cores(node)?)))
}

/// Refuses more ranks on a node than it has CPUs, if the ranks must not share CPUs.
fn check_cpus(request: &LaunchRequest, assignment: &Assignment, nodes: Nodes<'_>) -> Result<(), Overcommit> {
    known_cores(&assignment.hosts, &assignment.placement, nodes)
        .try_for_each(|(node, ranks, cores)| request.placement.check_cpus(node, ranks, cores))
}

/// Places ranks on the ready nodes of the allocation, if the launch gets as many nodes there as on the whole allocation. Otherwise it
/// places them on the whole allocation: fewer nodes, or other nodes than named, would be a different launch.
fn place(request: &LaunchRequest, allocated: &[String], nodes: Nodes<'_>) -> Result<Assignment, PlacementError> {
    let is_ready = |node: &&String| nodes.registry.ready(node).is_ok();
    let cpus_per_rank = request.placement.cpus_per_rank.map_or(1, NonZeroU32::get);
    let room = |node: &str| nodes.cores(node).map(|cpus| cpus / cpus_per_rank);
    let assign = |names: &[String]| placement::place(&request.placement, &request.programs, names, room);
    let all = assign(allocated)?;
    if all.hosts.iter().all(|node| is_ready(&node)) {
        return fitting(all);
    }
    let ready: Vec<String> = allocated.iter().filter(is_ready).cloned().collect();
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

/// Terms of a launch that users cannot choose.
fn terms(addresses: Vec<String>, uid: u32, settings: &LaunchSettings) -> Result<ClusterTerms, OrderError> {
    let window = OUTPUT_OF_LAUNCH / addresses.len().max(1) as u32;
    Ok(ClusterTerms {
        uid,
        addresses,
        secret: LaunchSecret::random().map_err(OrderError::Random)?,
        link_key: Some(LinkKey::from_bytes(random::bytes().map_err(OrderError::Random)?)),
        set: None,
        barrier_fan_out: NonZeroU32::new(settings.barrier_fan_out),
        data_fan_out: NonZeroU32::new(settings.data_fan_out),
        output_window: window.clamp(*OUTPUT_OF_NODE.start(), *OUTPUT_OF_NODE.end()),
        stdin_window: STDIN_WINDOW,
    })
}

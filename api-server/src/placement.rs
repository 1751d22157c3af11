//! Places the ranks of a launch request on nodes of an allocation. Pure: no node is contacted, and no state is kept.
//!
//! ```text
//! PlacementRequest, Programs ─┐
//!                             ├─ place ──> Assignment { hosts, ranks per program, placement }
//! nodes of the allocation ────┘
//! ```
//!
//! [`crate::order`] decides which nodes are ready.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;

use lattice_session::count::counted;
pub(crate) use lattice_session::limits::RANKS_MAX;
use lattice_session::request::{
    Assignment, Candidates, Distribution, HostSlots, Numbering, PlacementRequest, Programs, even_shares,
};
use pmi_core::ids::NodeIndex;
use pmi_core::job::{Block, Placement};

/// Most blocks of one placement, so that it fits into one message. Only uneven rounds need many blocks.
const BLOCKS_MAX: usize = 1 << 16;

/// Reason why a launch cannot be placed as requested.
#[derive(Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum PlacementError {
    #[error(
        "node {node} is not in the allocation, which has {allocated}\n\
         try: one of those; or lattice alloc create -w {node}, and its id as --alloc ID"
    )]
    UnknownNode { node: String, allocated: String },
    /// For a plan without an allocation.
    #[error("nothing is known of node {node}: it has not registered, and is in no list; known are {known}")]
    NobodysNode { node: String, known: String },
    #[error(
        "no node is left: of {allocated}, every node is excluded or has no slots\n\
         try: fewer nodes in --exclude, and a number of slots from 1 on"
    )]
    NoNodes { allocated: String },
    #[error(
        "there is no node {relative} to begin with; counted from 0, there are: {nodes}\n\
         try: --relative with a smaller number, or -w with the names of nodes"
    )]
    AllPassedOver { relative: u32, nodes: String },
    #[error(
        "{asked} nodes were asked for, and {available} can be used: {nodes}\n\
         try: -N {available}; or lattice alloc create -N {asked}, and its id as --alloc ID"
    )]
    TooFewNodes { asked: u32, available: usize, nodes: String },
    #[error(
        "{ranks} ranks do not fit: {} with at most {} each {} {room}\n\
         try: -n {room}, or fewer; --tasks-per-node={}, which allows more on a node",
        counted(*nodes, "node"),
        counted(*per_node, "rank"),
        if *nodes == 1 { "holds" } else { "hold" },
        ranks.div_ceil(u64::from(*nodes)),
    )]
    NodesTooSmall { ranks: u64, nodes: u32, per_node: u32, room: u64 },
    #[error(
        "{ranks} ranks do not fit: the nodes have {}\n\
         try: -n {slots}, or fewer; --overcommit (mpirun's --oversubscribe), which lets them share",
        counted(*slots, "slot")
    )]
    TooFewSlots { ranks: u64, slots: u64 },
    #[error("{ranks} ranks were asked for; a launch has at most {RANKS_MAX}\ntry: -n {RANKS_MAX}, or fewer")]
    TooManyRanks { ranks: u64 },
    #[error("{ranks} ranks on one node were asked for; a node takes at most {most}\ntry: more nodes, or fewer ranks")]
    NodeOverfull { ranks: u32, most: u32 },
    #[error(
        "the placement is too irregular to be written down: more than {BLOCKS_MAX} blocks\ntry: --distribution=block"
    )]
    TooIrregular,
}

/// Places programs on `allocated` nodes; `room` is the number of ranks that find CPUs on a node, where it is known. Ranks share no CPUs as
/// long as there are enough, unless a hostfile places them.
///
/// A single program without a number of ranks gets: all slots of the hostfile; else `tasks_per_node` on all nodes; else one rank for each
/// requested node; else one rank.
///
/// # Errors
/// See the variants of [`PlacementError`].
pub(crate) fn place(
    request: &PlacementRequest,
    programs: &Programs,
    allocated: &[String],
    room: impl Fn(&str) -> Option<u32>,
) -> Result<Assignment, PlacementError> {
    let candidates = candidates(request, allocated)?;
    let ranks = rank_counts(request, programs, &candidates)?;
    let size: u32 = ranks.iter().sum();
    let mut nodes = participants(request, candidates, size)?;
    let rooms: Option<Vec<u32>> = nodes.iter().map(|node| room(&node.node)).collect();
    let rooms = rooms.filter(|_| !matches!(request.candidates, Candidates::Hostfile(_)));
    if let Some(rooms) = &rooms {
        keep_to_cpus(&mut nodes, size, rooms);
    }
    let placement = match (&request.candidates, request.distribution) {
        (Candidates::Hostfile(hosts), None) => listed(hosts, size, &nodes)?,
        (Candidates::Hostfile(_), Some(Distribution::Block)) => Placement::block(&filled(size, &nodes)),
        (_, Some(Distribution::Cyclic)) => dealt(size, NonZeroU32::MIN, &nodes)?,
        (_, Some(Distribution::Plane(ranks))) => dealt(size, ranks, &nodes)?,
        (Candidates::All | Candidates::Listed(_), _) => Placement::block(&shares(size, &nodes, rooms.as_deref())),
    };
    let placement = match request.numbering {
        None => placement,
        Some(Numbering::NodeByNode) => Placement::block(&ranks_per_node(&placement, nodes.len())),
        Some(Numbering::InTurn) => in_turn(size, &ranks_per_node(&placement, nodes.len()), &nodes)?,
    };
    Ok(Assignment { hosts: nodes.into_iter().map(|node| node.node).collect(), ranks, placement })
}

/// A node, and the number of ranks that it may get.
#[derive(Clone, Debug)]
struct Capacity {
    node: String,
    ranks: u32,
}

/// Nodes to choose from, in order.
fn candidates(request: &PlacementRequest, allocated: &[String]) -> Result<Vec<Capacity>, PlacementError> {
    check_known(request, allocated)?;
    let bound = request.tasks_per_node.map_or(u32::MAX, NonZeroU32::get);
    let bounded = |node: &String| Capacity { node: node.clone(), ranks: bound };
    let mut nodes: Vec<Capacity> = match &request.candidates {
        Candidates::All => unique(allocated).map(bounded).collect(),
        Candidates::Listed(nodes) => unique(nodes).map(bounded).collect(),
        Candidates::Hostfile(hosts) => of_hostfile(hosts, bound),
    };
    let excluded: HashSet<&str> = request.except.iter().map(String::as_str).collect();
    nodes.retain(|node| !excluded.contains(node.node.as_str()));
    if nodes.is_empty() {
        return Err(PlacementError::NoNodes { allocated: hostlist::fold(allocated) });
    }
    if request.relative as usize >= nodes.len() {
        return Err(PlacementError::AllPassedOver {
            relative: request.relative,
            nodes: hostlist::fold(&names(&nodes)),
        });
    }
    nodes.drain(..request.relative as usize);
    if let Some(asked) = request.nodes.map(NonZeroU32::get) {
        let available = nodes.len();
        if asked as usize > available {
            return Err(PlacementError::TooFewNodes { asked, available, nodes: hostlist::fold(&names(&nodes)) });
        }
        nodes.truncate(asked as usize);
    }
    Ok(nodes)
}

fn names(nodes: &[Capacity]) -> Vec<&str> {
    nodes.iter().map(|node| node.node.as_str()).collect()
}

/// Refuses named nodes that are not in the allocation.
fn check_known(request: &PlacementRequest, allocated: &[String]) -> Result<(), PlacementError> {
    let known: HashSet<&str> = allocated.iter().map(String::as_str).collect();
    let (listed, hosts): (&[String], &[HostSlots]) = match &request.candidates {
        Candidates::All => (&[], &[]),
        Candidates::Listed(nodes) => (nodes, &[]),
        Candidates::Hostfile(hosts) => (&[], hosts),
    };
    let mut named = listed.iter().chain(&request.except).chain(hosts.iter().map(|host| &host.node));
    match named.find(|node| !known.contains(node.as_str())) {
        Some(node) => Err(PlacementError::UnknownNode { node: node.clone(), allocated: hostlist::fold(allocated) }),
        None => Ok(()),
    }
}

/// Nodes of a hostfile in the order of their first lines, each with the slots of all its lines.
fn of_hostfile(hosts: &[HostSlots], bound: u32) -> Vec<Capacity> {
    let mut slots: HashMap<&str, u32> = HashMap::new();
    for host in hosts {
        let slots = slots.entry(&host.node).or_default();
        *slots = slots.saturating_add(host.slots.get());
    }
    let capacity = |node: &String| Capacity { node: node.clone(), ranks: slots[node.as_str()].min(bound) };
    unique(hosts.iter().map(|host| &host.node)).map(capacity).collect()
}

/// Number of ranks of each program.
fn rank_counts(
    request: &PlacementRequest,
    programs: &Programs,
    nodes: &[Capacity],
) -> Result<Vec<u32>, PlacementError> {
    let ranks = programs.size().map_or_else(|| ranks_of_an_only_program(request, nodes), u64::from);
    match u32::try_from(ranks) {
        Ok(only) if only <= RANKS_MAX => {
            // Capacities are above 0: a hostfile's lines have slots, and bounds are at least 1.
            Ok(programs.rank_counts(NonZeroU32::new(only).unwrap_or(NonZeroU32::MIN)))
        }
        _ => Err(PlacementError::TooManyRanks { ranks }),
    }
}

fn ranks_of_an_only_program(request: &PlacementRequest, nodes: &[Capacity]) -> u64 {
    match (&request.candidates, request.tasks_per_node) {
        (Candidates::Hostfile(_), _) | (_, Some(_)) => nodes.iter().map(|node| u64::from(node.ranks)).sum(),
        _ => request.nodes.map_or(1, |nodes| u64::from(nodes.get())),
    }
}

/// The participating nodes. Unless the request names a number of nodes, nodes that would get no rank are left out.
fn participants(
    request: &PlacementRequest,
    mut nodes: Vec<Capacity>,
    size: u32,
) -> Result<Vec<Capacity>, PlacementError> {
    let room: u64 = nodes.iter().map(|node| u64::from(node.ranks)).sum();
    let is_hostfile = matches!(request.candidates, Candidates::Hostfile(_));
    if u64::from(size) > room {
        return Err(match request.tasks_per_node {
            Some(per_node) if !is_hostfile => PlacementError::NodesTooSmall {
                ranks: size.into(),
                nodes: nodes.len() as u32,
                per_node: per_node.get(),
                room,
            },
            _ => PlacementError::TooFewSlots { ranks: size.into(), slots: room },
        });
    }
    if request.nodes.is_some() {
        return Ok(nodes);
    }
    let needed = match (&request.candidates, request.distribution) {
        (Candidates::Hostfile(hosts), None) => {
            let ranks = ranks_per_node(&listed(hosts, size, &nodes)?, nodes.len());
            // Lines are filled in order, and nodes have the order of their first lines, so that nodes with ranks come first.
            ranks.iter().take_while(|&&ranks| ranks > 0).count()
        }
        (Candidates::Hostfile(_), Some(Distribution::Block)) => {
            filled(size, &nodes).iter().filter(|&&ranks| ranks > 0).count()
        }
        (_, Some(Distribution::Plane(ranks))) => reached(size, ranks, &nodes),
        _ => size as usize,
    };
    nodes.truncate(needed);
    Ok(nodes)
}

/// Number of nodes that get ranks in the first round of [`dealt`]. Later nodes get no ranks in any round.
fn reached(size: u32, at_once: NonZeroU32, nodes: &[Capacity]) -> usize {
    let mut left = size;
    let gets_ranks = |node: &&Capacity| {
        let gets = left > 0;
        left -= node.ranks.min(at_once.get()).min(left);
        gets
    };
    nodes.iter().take_while(gets_ranks).count()
}

/// Ranks in the order of the lines of a hostfile, slot after slot.
fn listed(hosts: &[HostSlots], size: u32, nodes: &[Capacity]) -> Result<Placement, PlacementError> {
    let mut left = size;
    let mut used = vec![0_u32; nodes.len()];
    let indices: HashMap<&str, usize> = (0..).zip(nodes).map(|(index, node)| (node.node.as_str(), index)).collect();
    let mut placement = Placement::default();
    for host in hosts {
        let Some(&index) = indices.get(host.node.as_str()) else { continue };
        let ranks = host.slots.get().min(left).min(nodes[index].ranks - used[index]);
        placement.push(Block { first_node: NodeIndex(index as u32), nodes: 1, ranks_per_node: ranks });
        used[index] += ranks;
        left -= ranks;
        if placement.blocks().len() > BLOCKS_MAX {
            return Err(PlacementError::TooIrregular);
        }
    }
    Ok(placement)
}

/// Bounds each node by the number of ranks that find CPUs on it, if all ranks fit within these bounds.
fn keep_to_cpus(nodes: &mut [Capacity], size: u32, rooms: &[u32]) {
    let bounds: Vec<u32> = nodes.iter().zip(rooms).map(|(node, &room)| node.ranks.min(room)).collect();
    if bounds.iter().copied().map(u64::from).sum::<u64>() >= u64::from(size) {
        nodes.iter_mut().zip(bounds).for_each(|(node, bound)| node.ranks = bound);
    }
}

/// Shares that are even within the room of the nodes. Ranks that must share CPUs do so evenly on all nodes, unless nodes are bounded.
fn shares(size: u32, nodes: &[Capacity], rooms: Option<&[u32]>) -> Vec<u32> {
    let total: u64 = nodes.iter().map(|node| u64::from(node.ranks)).sum();
    let of_rooms = rooms.map(|rooms| rooms.iter().copied().map(u64::from).sum::<u64>()).filter(|&sum| sum > 0);
    let is_unbounded = nodes.iter().all(|node| node.ranks == u32::MAX);
    match (rooms, of_rooms) {
        (Some(rooms), Some(sum)) if is_unbounded => {
            // Each node gets its whole room this many times, and then a share of the rest.
            let times = (u64::from(size) / sum) as u32;
            let again = shares_within(size - times * sum as u32, rooms);
            rooms.iter().zip(again).map(|(room, again)| times * room + again).collect()
        }
        _ if total >= u64::from(size) => shares_within(size, &nodes.iter().map(|node| node.ranks).collect::<Vec<_>>()),
        _ => even_shares(size, nodes.len()),
    }
}

/// Shares that are as even as the room of each node allows. The nodes together must have room for all ranks.
fn shares_within(size: u32, rooms: &[u32]) -> Vec<u32> {
    let mut shares = vec![0; rooms.len()];
    let mut left = size;
    while left > 0 {
        let open: Vec<usize> = (0..rooms.len()).filter(|&node| shares[node] < rooms[node]).collect();
        if open.is_empty() {
            break;
        }
        for (&node, share) in open.iter().zip(even_shares(left, open.len())) {
            let more = share.min(rooms[node] - shares[node]);
            shares[node] += more;
            left -= more;
        }
    }
    shares
}

fn unique<'a>(nodes: impl IntoIterator<Item = &'a String>) -> impl Iterator<Item = &'a String> {
    let mut seen = HashSet::new();
    nodes.into_iter().filter(move |node| seen.insert(node.as_str()))
}

/// Shares that fill each node before the next one gets a rank.
fn filled(size: u32, nodes: &[Capacity]) -> Vec<u32> {
    let mut left = size;
    let fill = |node: &Capacity| {
        let ranks = node.ranks.min(left);
        left -= ranks;
        ranks
    };
    nodes.iter().map(fill).collect()
}

/// Number of ranks of each of `nodes` nodes.
pub(crate) fn ranks_per_node(placement: &Placement, nodes: usize) -> Vec<u32> {
    let mut ranks = vec![0_u32; nodes];
    for block in placement.blocks() {
        let nodes = ranks.iter_mut().skip(block.first_node.index()).take(block.nodes as usize);
        nodes.for_each(|ranks| *ranks += block.ranks_per_node);
    }
    ranks
}

/// Deals one rank at a time to each node, up to its count.
fn in_turn(size: u32, counts: &[u32], nodes: &[Capacity]) -> Result<Placement, PlacementError> {
    let counted = nodes.iter().zip(counts).map(|(node, &ranks)| Capacity { ranks, ..node.clone() });
    dealt(size, NonZeroU32::MIN, &counted.collect::<Vec<_>>())
}

/// Deals rounds of this many ranks to each node, as far as it has room.
fn dealt(size: u32, at_once: NonZeroU32, nodes: &[Capacity]) -> Result<Placement, PlacementError> {
    let mut left = size;
    let mut placement = Placement::default();
    let mut dealt: u32 = 0;
    while left > 0 {
        if nodes.iter().all(|node| node.ranks <= dealt) {
            return Err(PlacementError::TooFewSlots { ranks: size.into(), slots: (size - left).into() });
        }
        for (index, node) in (0..).zip(nodes) {
            let ranks = node.ranks.saturating_sub(dealt).min(at_once.get()).min(left);
            if ranks > 0 {
                placement.push(Block { first_node: NodeIndex(index), nodes: 1, ranks_per_node: ranks });
                left -= ranks;
            }
        }
        dealt = dealt.saturating_add(at_once.get());
        if placement.blocks().len() > BLOCKS_MAX {
            return Err(PlacementError::TooIrregular);
        }
    }
    Ok(placement)
}

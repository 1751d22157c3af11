//! Where the ranks of a launch go: from what was asked for and the nodes there are, the nodes that take part and the ranks
//! that each of them gets. Pure: no node is asked, nothing is remembered.
//!
//! ```text
//! PlacementRequest ─Wish::read─> Wish ─place(ranks, nodes of the allocation)─> Placed { nodes, ranks per program, placement }
//! ```

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;

use hostlist::HostlistError;
use pmi_core::ids::NodeIndex;
use pmi_core::job::{Block, Placement};
use pmi_transport::proto::v1::{Distribution, PlacementRequest};

use super::nodes::NODES_MAX;

/// The most ranks of one launch: what is kept of each is a few dozen bytes here and on every node.
pub(crate) const RANKS_MAX: u32 = 1 << 20;
/// The most blocks of one placement, so that it fits into one message; only uneven rounds need many.
const BLOCKS_MAX: usize = 1 << 16;

/// What was asked for, with its lists spelled out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    /// How many nodes take part, with ranks or without; `None` for as many as are needed.
    pub nodes: Option<NonZeroU32>,
    /// The most ranks of a node.
    pub tasks_per_node: Option<NonZeroU32>,
    /// The nodes to choose from, in this order; empty for all.
    pub only: Vec<String>,
    /// Nodes that are not to be used.
    pub except: Vec<String>,
    /// In which order ranks are dealt out.
    pub distribution: Distribution,
    /// Nodes and how many ranks each has room for, in this order; a node may come again. Empty for no such bounds.
    pub hosts: Vec<(String, u32)>,
}

/// Where the ranks go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// The nodes that take part, in node order.
    pub nodes: Vec<String>,
    /// How many ranks each program has.
    pub ranks: Vec<u32>,
    /// Which rank sits on which of `nodes`.
    pub placement: Placement,
}

/// A launch that cannot be placed as it was asked for.
#[derive(Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum PlacementError {
    /// A list of nodes cannot be read.
    #[error("the list of nodes {list:?} cannot be read: {source}")]
    Hostlist {
        list: String,
        #[source]
        source: HostlistError,
    },
    #[error("a node list and a hostfile both say which nodes to use; give one of them")]
    OnlyAndHosts,
    #[error("an explicit distribution goes by the lines of a hostfile; give one, or leave the distribution out")]
    ExplicitWithoutHosts,
    #[error("distribution {number} is unknown; there are 0 (block), 1 (cyclic) and 2 (explicit)")]
    Distribution { number: i32 },
    #[error("node {node} is not in the allocation, which has {allocated}")]
    UnknownNode { node: String, allocated: String },
    #[error("no node is left: of {allocated}, every node is excluded or has no slots")]
    NoNodes { allocated: String },
    #[error("{asked} nodes were asked for, and {available} can be used: {nodes}")]
    TooFewNodes { asked: u32, available: usize, nodes: String },
    #[error(
        "{ranks} ranks do not fit: {nodes} nodes with at most {per_node} ranks each hold {room}; ask for fewer ranks, or allow more on a node"
    )]
    NodesTooSmall { ranks: u64, nodes: usize, per_node: u32, room: u64 },
    #[error("{ranks} ranks do not fit: the hostfile's nodes have {slots} slots; ask for fewer ranks, or add slots")]
    TooFewSlots { ranks: u64, slots: u64 },
    #[error("{ranks} ranks were asked for; a launch has at most {RANKS_MAX}")]
    TooManyRanks { ranks: u64 },
    #[error(
        "the placement is too irregular to be written down: more than {BLOCKS_MAX} blocks; use a block distribution"
    )]
    TooIrregular,
    #[error("the launch has no program")]
    NoProgram,
}

impl Wish {
    /// Reads a request; what it says of nodes is looked up by [`Wish::place`].
    pub(crate) fn read(request: &PlacementRequest) -> Result<Self, PlacementError> {
        let number = request.distribution;
        let wish = Self {
            nodes: NonZeroU32::new(request.nodes),
            tasks_per_node: NonZeroU32::new(request.tasks_per_node),
            only: expanded(&request.only)?,
            except: expanded(&request.except)?,
            distribution: Distribution::try_from(number).map_err(|_| PlacementError::Distribution { number })?,
            hosts: request.hosts.iter().map(|host| (host.node.clone(), host.slots)).collect(),
        };
        match wish.distribution {
            _ if !wish.only.is_empty() && !wish.hosts.is_empty() => Err(PlacementError::OnlyAndHosts),
            Distribution::Explicit if wish.hosts.is_empty() => Err(PlacementError::ExplicitWithoutHosts),
            _ => Ok(wish),
        }
    }

    /// Places programs with `ranks` ranks each, where 0 stands for a number that was not given, on `allocated` nodes.
    ///
    /// A number that was not given is, for a launch of one program: all slots of the hostfile; else `tasks_per_node` on all
    /// nodes; else one for each of the nodes that were asked for; else 1. With several programs it is 1 each.
    pub(crate) fn place(&self, ranks: &[u32], allocated: &[String]) -> Result<Placed, PlacementError> {
        let seats = self.seats(allocated)?;
        let ranks = self.rank_counts(ranks, &seats)?;
        let size: u32 = ranks.iter().sum();
        let rooms = self.rooms(seats, size)?;
        let placement = match self.distribution {
            Distribution::Block if self.hosts.is_empty() => Placement::block(&even_shares(size, rooms.len())),
            Distribution::Block => Placement::block(&filled(size, &rooms)),
            Distribution::Cyclic => dealt(size, &rooms)?,
            Distribution::Explicit => self.listed(size, &rooms)?,
        };
        let nodes: Vec<String> = rooms.into_iter().map(|room| room.node).collect();
        Ok(Placed { nodes, ranks, placement })
    }

    /// The nodes to choose from, and how many ranks each may get.
    fn seats(&self, allocated: &[String]) -> Result<Vec<Room>, PlacementError> {
        let known: HashSet<&str> = allocated.iter().map(String::as_str).collect();
        let named = self.only.iter().chain(&self.except).chain(self.hosts.iter().map(|(node, _)| node));
        if let Some(node) = named.into_iter().find(|node| !known.contains(node.as_str())) {
            return Err(PlacementError::UnknownNode { node: node.clone(), allocated: hostlist::fold(allocated) });
        }
        let bound = self.tasks_per_node.map_or(u32::MAX, NonZeroU32::get);
        let mut rooms: Vec<Room> = if self.hosts.is_empty() {
            let nodes = if self.only.is_empty() { allocated } else { &self.only };
            unique(nodes).map(|node| Room { node: node.clone(), ranks: bound }).collect()
        } else {
            self.seats_of_hosts(bound)
        };
        let excluded: HashSet<&str> = self.except.iter().map(String::as_str).collect();
        rooms.retain(|room| room.ranks > 0 && !excluded.contains(room.node.as_str()));
        if rooms.is_empty() {
            return Err(PlacementError::NoNodes { allocated: hostlist::fold(allocated) });
        }
        if let Some(asked) = self.nodes {
            let available = rooms.len();
            if asked.get() as usize > available {
                let nodes: Vec<&str> = rooms.iter().map(|room| room.node.as_str()).collect();
                let nodes = hostlist::fold(&nodes);
                return Err(PlacementError::TooFewNodes { asked: asked.get(), available, nodes });
            }
            rooms.truncate(asked.get() as usize);
        }
        Ok(rooms)
    }

    /// The hostfile's nodes in the order in which they come first, each with all its slots.
    fn seats_of_hosts(&self, bound: u32) -> Vec<Room> {
        let mut slots: HashMap<&str, u32> = HashMap::new();
        for (node, more) in &self.hosts {
            let slots = slots.entry(node).or_default();
            *slots = slots.saturating_add(*more);
        }
        let room = |node: &String| Room { node: node.clone(), ranks: slots[node.as_str()].min(bound) };
        unique(self.hosts.iter().map(|(node, _)| node)).map(room).collect()
    }

    fn rank_counts(&self, given: &[u32], seats: &[Room]) -> Result<Vec<u32>, PlacementError> {
        let ranks: Vec<u64> = match given {
            [] => return Err(PlacementError::NoProgram),
            [0] => vec![self.ranks_of_an_only_program(seats)],
            _ => given.iter().map(|&ranks| u64::from(ranks.max(1))).collect(),
        };
        let total = ranks.iter().fold(0, |total: u64, &ranks| total.saturating_add(ranks));
        if total > u64::from(RANKS_MAX) {
            return Err(PlacementError::TooManyRanks { ranks: total });
        }
        // Each is at most the total.
        Ok(ranks.into_iter().map(|ranks| ranks as u32).collect())
    }

    fn ranks_of_an_only_program(&self, seats: &[Room]) -> u64 {
        if !self.hosts.is_empty() || self.tasks_per_node.is_some() {
            return seats.iter().map(|room| u64::from(room.ranks)).sum();
        }
        self.nodes.map_or(1, |nodes| u64::from(nodes.get()))
    }

    /// The nodes that take part: without a wish for more, none that would stay without a rank.
    fn rooms(&self, mut seats: Vec<Room>, size: u32) -> Result<Vec<Room>, PlacementError> {
        let room: u64 = seats.iter().map(|room| u64::from(room.ranks)).sum();
        if u64::from(size) > room {
            return Err(match self.tasks_per_node {
                Some(per_node) if self.hosts.is_empty() => PlacementError::NodesTooSmall {
                    ranks: size.into(),
                    nodes: seats.len(),
                    per_node: per_node.get(),
                    room,
                },
                _ => PlacementError::TooFewSlots { ranks: size.into(), slots: room },
            });
        }
        if self.nodes.is_some() {
            return Ok(seats);
        }
        let needed = match self.distribution {
            Distribution::Block if !self.hosts.is_empty() => {
                filled(size, &seats).iter().filter(|&&ranks| ranks > 0).count()
            }
            Distribution::Explicit => seats.len(),
            _ => size as usize,
        };
        seats.truncate(needed);
        Ok(seats)
    }

    /// Ranks as the hostfile lists them, slot after slot.
    fn listed(&self, size: u32, rooms: &[Room]) -> Result<Placement, PlacementError> {
        let mut left = size;
        let mut used = vec![0_u32; rooms.len()];
        let indices: HashMap<&str, usize> = (0..).zip(rooms).map(|(index, room)| (room.node.as_str(), index)).collect();
        let mut placement = Placement::default();
        for (node, slots) in &self.hosts {
            let Some(&index) = indices.get(node.as_str()) else { continue };
            let ranks = (*slots).min(left).min(rooms[index].ranks - used[index]);
            placement.push(Block { first_node: NodeIndex(index as u32), nodes: 1, ranks_per_node: ranks });
            used[index] += ranks;
            left -= ranks;
            if placement.blocks().len() > BLOCKS_MAX {
                return Err(PlacementError::TooIrregular);
            }
        }
        Ok(placement)
    }
}

/// A node, and how many ranks it may get.
#[derive(Clone, Debug)]
struct Room {
    node: String,
    ranks: u32,
}

fn expanded(list: &str) -> Result<Vec<String>, PlacementError> {
    if list.is_empty() {
        return Ok(Vec::new());
    }
    hostlist::expand_at_most(list, NODES_MAX)
        .map_err(|source| PlacementError::Hostlist { list: list.to_owned(), source })
}

fn unique<'a>(nodes: impl IntoIterator<Item = &'a String>) -> impl Iterator<Item = &'a String> {
    let mut seen = HashSet::new();
    nodes.into_iter().filter(move |node| seen.insert(node.as_str()))
}

/// `size` ranks on `nodes` nodes, as even as can be, more on the first ones: 10 on 3 are 4 + 3 + 3.
fn even_shares(size: u32, nodes: usize) -> Vec<u32> {
    let nodes = nodes as u32;
    (0..nodes).map(|node| size / nodes + u32::from(node < size % nodes)).collect()
}

/// Each node full before the next one gets a rank.
fn filled(size: u32, rooms: &[Room]) -> Vec<u32> {
    let mut left = size;
    let fill = |room: &Room| {
        let ranks = room.ranks.min(left);
        left -= ranks;
        ranks
    };
    rooms.iter().map(fill).collect()
}

/// One rank for each node that has room, again and again.
fn dealt(size: u32, rooms: &[Room]) -> Result<Placement, PlacementError> {
    let mut left = size;
    let mut placement = Placement::default();
    let mut round = 0;
    while left > 0 {
        for (node, room) in (0..).zip(rooms) {
            if room.ranks > round && left > 0 {
                push_one(&mut placement, node);
                left -= 1;
            }
        }
        round += 1;
        if placement.blocks().len() > BLOCKS_MAX {
            return Err(PlacementError::TooIrregular);
        }
    }
    Ok(placement)
}

fn push_one(placement: &mut Placement, node: u32) {
    placement.push(Block { first_node: NodeIndex(node), nodes: 1, ranks_per_node: 1 });
}

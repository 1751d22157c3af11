//! Separate nodes for the programs of a launch. The number of ranks of each program follows from the flags alone. The nodes of a group follow
//! from the nodes of the launch.
//!
//! ```text
//! -N 1 ./master : -N 2 -n 5 ./worker     on node[0-3]:  node0 1 slot, node1 3 slots, node2 2 slots
//! ```

use std::collections::HashSet;
use std::num::NonZeroU32;

use hostlist::HostlistError;
use lattice_dialects::hostfile::{self, Hosts};
use lattice_session::count::{count_is, counted};
use lattice_session::request::{Candidates, HostSlots, PlacementRequest, even_shares};

use crate::args::{LaunchArgs, NodeGroupArgs, PlacementArgs};

/// Nodes of one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeGroup {
    nodes: Nodes,
    /// Number of its ranks.
    ranks: NonZeroU32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Nodes {
    /// Number of nodes that no other program has.
    Next(NonZeroU32),
    /// Nodes that share the ranks.
    Named(Vec<String>),
    /// Nodes that are filled one after another.
    Slots(Hosts),
}

/// Refusal of the nodes of a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeGroupError {
    /// A flag places the ranks of all programs, but some programs have separate nodes.
    #[error(
        "{flag} places the ranks of all programs, and a program after `:` has nodes of its own; leave one of the two out"
    )]
    WholeLaunch {
        /// The flag.
        flag: &'static str,
    },
    /// The node list of the program cannot be used.
    #[error("--nodelist of program {program}: {source}\ntry: a list such as node[0-3,7]")]
    NodeList {
        /// Number of the program, counted from 1.
        program: usize,
        /// Fault of the list.
        source: HostlistError,
    },
    /// The node list of the program has fewer nodes than requested.
    #[error("program {program} is to have {}, and {listed} are named for it\ntry: -N {listed} for it, or further nodes", counted(u64::from(*nodes), "node"))]
    ShortList {
        /// Number of the program, counted from 1.
        program: usize,
        /// Requested number of nodes.
        nodes: u32,
        /// Number of nodes that are named.
        listed: usize,
    },
    /// The nodes of the program have too few slots for its ranks.
    #[error(
        "the {ranks} ranks of program {program} do not fit: its nodes take {room}\ntry: fewer ranks, or more nodes"
    )]
    NoRoom {
        /// Number of the program, counted from 1.
        program: usize,
        /// Number of its ranks.
        ranks: u32,
        /// Number of ranks for which there is room.
        room: u64,
    },
    /// The launch has too few nodes.
    #[error(
        "program {program} is to have {} of its own, and of {available} {} left for it\n\
         try: -N {} for program {program}, fewer nodes for another one, or an allocation of more: lattice alloc create -N NODES",
        counted(u64::from(*nodes), "node"),
        count_is(*left),
        (*left).max(1)
    )]
    TooFewNodes {
        /// Number of the program, counted from 1.
        program: usize,
        /// Requested number of nodes.
        nodes: u32,
        /// Nodes that may be used.
        available: String,
        /// Number of these nodes that no other program has.
        left: usize,
    },
}

/// Nodes of each program, if any program after a `:` has separate nodes; otherwise none. `ranks` has the requested numbers of ranks.
pub(super) fn node_groups(args: &LaunchArgs, ranks: &[Option<NonZeroU32>]) -> Result<Vec<NodeGroup>, NodeGroupError> {
    if !args.more.iter().any(|next| next.nodes.is_given()) {
        return Ok(Vec::new());
    }
    if let Some(flag) = flag_of_all(&args.placement) {
        return Err(NodeGroupError::WholeLaunch { flag });
    }
    let first = args.placement.of_first_program();
    let all = std::iter::once(&first).chain(args.more.iter().map(|next| &next.nodes));
    (1..).zip(all.zip(ranks)).map(|(program, (nodes, ranks))| group(nodes, *ranks, program)).collect()
}

/// A flag of the launch that places the ranks of all programs.
fn flag_of_all(args: &PlacementArgs) -> Option<&'static str> {
    let flags = [
        ("--hostfile", args.hostfile.is_some()),
        ("--rankfile", args.rankfile.is_some()),
        ("--distribution", args.distribution.is_some_and(|distribution| distribution.nodes.is_some())),
        ("--tasks-per OBJECT", args.per_object().is_some()),
        ("--multi-prog", args.multi_prog),
    ];
    flags.into_iter().find(|&(_, given)| given).map(|(flag, _)| flag)
}

fn group(args: &NodeGroupArgs, ranks: Option<NonZeroU32>, program: usize) -> Result<NodeGroup, NodeGroupError> {
    if let Some(hosts) = &args.host {
        // Without a number of ranks, a name without a number has one slot.
        let named = hostfile::slots_of(&hosts.one_by_name());
        let ranks = ranks.or_else(|| NonZeroU32::new(u32::try_from(named).ok()?)).unwrap_or(NonZeroU32::MAX);
        let room = if hosts.is_counted() { named } else { u64::MAX };
        return checked(Nodes::Slots(hosts.clone()), ranks, room, program);
    }
    let wrong = |source| NodeGroupError::NodeList { program, source };
    let named = args.nodelist.as_deref().map(hostlist::expand).transpose().map_err(wrong)?;
    let per_node = args.tasks_per_node.and_then(NonZeroU32::new);
    let asked = args.nodes.and_then(NonZeroU32::new);
    let count = match (asked, &named, ranks.zip(per_node)) {
        (Some(asked), ..) => asked.get(),
        (None, Some(named), _) => named.len() as u32,
        (None, None, Some((ranks, per_node))) => ranks.get().div_ceil(per_node.get()),
        (None, None, None) => 1,
    };
    let ranks = ranks.or_else(|| NonZeroU32::new(count.saturating_mul(per_node.map_or(1, NonZeroU32::get))));
    let ranks = ranks.unwrap_or(NonZeroU32::MIN);
    let nodes = match named {
        Some(named) if named.len() < count as usize => {
            return Err(NodeGroupError::ShortList { program, nodes: count, listed: named.len() });
        }
        Some(named) => Nodes::Named(named.into_iter().take(count as usize).collect()),
        None => Nodes::Next(NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN)),
    };
    let room = per_node.map_or(u64::MAX, |per_node| u64::from(per_node.get()) * u64::from(count));
    checked(nodes, ranks, room, program)
}

fn checked(nodes: Nodes, ranks: NonZeroU32, room: u64, program: usize) -> Result<NodeGroup, NodeGroupError> {
    if u64::from(ranks.get()) > room {
        return Err(NodeGroupError::NoRoom { program, ranks: ranks.get(), room });
    }
    Ok(NodeGroup { nodes, ranks })
}

impl NodeGroup {
    /// Number of ranks of the program.
    pub(super) fn ranks(&self) -> NonZeroU32 {
        self.ranks
    }

    /// Names of the nodes, if the flags contain them.
    fn named(&self) -> Vec<&String> {
        match &self.nodes {
            Nodes::Next(_) => Vec::new(),
            Nodes::Named(nodes) => nodes.iter().collect(),
            Nodes::Slots(Hosts(hosts)) => hosts.iter().map(|host| &host.name).collect(),
        }
    }

    /// Names of the nodes, for renaming.
    pub(super) fn named_mut(&mut self) -> Vec<&mut String> {
        match &mut self.nodes {
            Nodes::Next(_) => Vec::new(),
            Nodes::Named(nodes) => nodes.iter_mut().collect(),
            Nodes::Slots(Hosts(hosts)) => hosts.iter_mut().map(|host| &mut host.name).collect(),
        }
    }

    /// True if slots of the nodes are known only when the ranks get their places.
    pub(crate) fn is_open(&self) -> bool {
        matches!(&self.nodes, Nodes::Slots(hosts) if !hosts.is_counted())
    }

    /// Slots for the ranks. `room` returns the number of ranks that a node takes.
    fn slots<E: From<NodeGroupError>>(
        &self,
        program: usize,
        free: &mut Free<'_>,
        room: impl Fn(&str) -> Result<Option<NonZeroU32>, E>,
    ) -> Result<Vec<HostSlots>, E> {
        let ranks = self.ranks.get();
        Ok(match &self.nodes {
            Nodes::Next(count) => shared(ranks, free.take(*count, program)?),
            Nodes::Named(nodes) => shared(ranks, &nodes.iter().collect::<Vec<_>>()),
            Nodes::Slots(hosts) => {
                let hosts = hosts.counted(room)?;
                let room = hostfile::slots_of(&hosts);
                if u64::from(ranks) > room {
                    return Err(NodeGroupError::NoRoom { program, ranks, room }.into());
                }
                filled(ranks, &hosts)
            }
        })
    }
}

/// Nodes that no program names, in order.
struct Free<'a> {
    nodes: Vec<&'a String>,
    /// Number of these nodes that are already assigned to programs.
    given: usize,
}

impl<'a> Free<'a> {
    fn take(&mut self, count: NonZeroU32, program: usize) -> Result<&[&'a String], NodeGroupError> {
        let first = self.given;
        let left = self.nodes.len() - first;
        if left < count.get() as usize {
            let available = hostlist::fold(&self.nodes);
            return Err(NodeGroupError::TooFewNodes { program, nodes: count.get(), available, left });
        }
        self.given += count.get() as usize;
        Ok(&self.nodes[first..self.given])
    }
}

fn shared(ranks: u32, nodes: &[&String]) -> Vec<HostSlots> {
    let shares = even_shares(ranks, nodes.len());
    nodes.iter().zip(shares).filter_map(|(node, share)| slots(node, share)).collect()
}

fn filled(ranks: u32, hosts: &[HostSlots]) -> Vec<HostSlots> {
    let mut left = ranks;
    let fill = |host: &HostSlots| {
        let share = host.slots.get().min(left);
        left -= share;
        slots(&host.node, share)
    };
    hosts.iter().filter_map(fill).collect()
}

fn slots(node: &str, ranks: u32) -> Option<HostSlots> {
    Some(HostSlots { node: node.to_owned(), slots: NonZeroU32::new(ranks)? })
}

/// Assigns to each program slots on its nodes. `room` returns the number of ranks that a node takes.
///
/// # Errors
/// Fails if there are too few nodes for programs that name none, if the named nodes have too few slots, or if `room` fails.
pub(crate) fn placed_in_groups<E: From<NodeGroupError>>(
    request: &mut PlacementRequest,
    groups: &[NodeGroup],
    allocated: &[String],
    room: impl Fn(&str) -> Result<Option<NonZeroU32>, E>,
) -> Result<(), E> {
    let named: HashSet<&String> = groups.iter().flat_map(NodeGroup::named).chain(&request.except).collect();
    let nodes = allocated.iter().skip(request.relative as usize).filter(|node| !named.contains(node)).collect();
    let mut free = Free { nodes, given: 0 };
    let slots = (1..).zip(groups).map(|(program, group)| group.slots(program, &mut free, &room));
    let slots: Vec<HostSlots> = slots.collect::<Result<Vec<_>, _>>()?.concat();
    request.candidates = Candidates::Hostfile(slots);
    // These fields have already selected the nodes of the first program.
    (request.nodes, request.tasks_per_node, request.relative) = (None, None, 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::args::Command;

    /// Slots for the programs of a line on `node[0-3]`, or the refusal.
    fn slots(line: &str) -> Result<String, String> {
        let words = format!("lattice launch {line}");
        let cli = crate::args::parse(words.split(' ').map(OsString::from)).map_err(|error| error.to_string())?;
        let Command::Launch(args) = cli.command else { panic!("a launch") };
        let all = std::iter::once(&args.first).chain(args.more.iter().map(|next| &next.program));
        let ranks: Vec<_> = all.map(|program| program.ranks.and_then(NonZeroU32::new)).collect();
        let groups = node_groups(&args, &ranks).map_err(|error| error.to_string())?;
        let except = args.placement.exclude.iter().cloned().collect();
        let mut request = PlacementRequest { relative: args.placement.relative, except, ..PlacementRequest::default() };
        let allocated = hostlist::expand("node[0-3]").unwrap();
        let room = |_: &str| Ok::<_, NodeGroupError>(NonZeroU32::new(2));
        placed_in_groups(&mut request, &groups, &allocated, room).map_err(|error| error.to_string())?;
        let Candidates::Hostfile(hosts) = request.candidates else { panic!("slots") };
        let counts: Vec<_> = groups.iter().map(|group| group.ranks().to_string()).collect();
        let hosts: Vec<_> = hosts.iter().map(|host| format!("{}:{}", host.node, host.slots)).collect();
        Ok(format!("{} on {}", counts.join("+"), hosts.join(" ")))
    }

    #[test]
    fn programs_have_nodes_of_their_own() {
        for (line, expected) in [
            ("-N 1 ./a : -N 2 -n 5 ./b", "1+5 on node0:1 node1:3 node2:2"),
            ("-N 2 -n 2 ./a : -n 1 -N 1 ./b", "2+1 on node0:1 node1:1 node2:1"),
            ("./a : -N 2 --tasks-per-node 4 ./b", "1+8 on node0:1 node1:4 node2:4"),
            ("-n 3 --tasks-per-node 2 ./a : -N 1 ./b", "3+1 on node0:2 node1:1 node2:1"),
            ("-n 2 ./a : -w node0 -n 3 ./b", "2+3 on node1:2 node0:3"),
            ("-w node3 ./a : -w node[0-1] ./b : -n 2 ./c", "1+2+2 on node3:1 node0:1 node1:1 node2:2"),
            ("-H node1:2 ./a : -H node1,node0:4 -n 3 ./b", "2+3 on node1:2 node1:2 node0:1"),
            ("./a : -H node1,node0 ./b : -H node2 -n 2 ./c", "1+2+2 on node3:1 node1:2 node2:2"),
            ("-x node1 ./a : -N 2 ./b", "1+2 on node0:1 node2:1 node3:1"),
            ("-r 1 ./a : -N 2 ./b", "1+2 on node1:1 node2:1 node3:1"),
            ("-N 3 -n 1 ./a : -N 1 ./b", "1+1 on node0:1 node3:1"),
        ] {
            assert_eq!(slots(line), Ok(expected.to_owned()), "{line}");
        }
    }

    #[test]
    fn nodes_that_programs_cannot_have_are_refused() {
        for (line, expected) in [
            (
                "-N 3 ./a : -N 2 ./b",
                "program 2 is to have 2 nodes of its own, and of node[0-3] 1 is left for it\n\
                try: -N 1 for program 2, fewer nodes for another one, or an allocation of more: lattice alloc create -N NODES",
            ),
            ("./a : -w node1 -N 2 ./b", "program 2 is to have 2 nodes, and 1 are named for it"),
            ("./a : --tasks-per-node 2 -N 1 -n 3 ./b", "the 3 ranks of program 2 do not fit: its nodes take 2"),
            ("./a : -H node1 -n 3 ./b", "the 3 ranks of program 2 do not fit: its nodes take 2"),
            ("./a : -H node1:1 -n 2 ./b", "the 2 ranks of program 2 do not fit: its nodes take 1"),
            ("-m cyclic ./a : -N 1 ./b", "--distribution places the ranks of all programs"),
            ("--tasks-per 1:core ./a : -N 1 ./b", "--tasks-per OBJECT places the ranks of all programs"),
            ("./a : -w node1 -H node2 ./b", "cannot be used with"),
            ("./a : -w node[ ./b", "node["),
        ] {
            let refusal = slots(line).unwrap_err();
            assert!(refusal.contains(expected), "{line}: {refusal}");
        }
    }
}

//! Memory binding: NUMA nodes that provide the memory of ranks, as text, as a plan for a node, and in the kernel's format
//! (`set_mempolicy(2)`).

use std::ffi::{c_int, c_ulong};
use std::fmt;
use std::str::FromStr;

use lattice_inventory::{CpuSet, NodeSet, NumaNode, Template};
use nix::libc;

use crate::binding::map_entry;

/// Memory binding of the ranks of a launch on each of its nodes.
///
/// As text, which [`FromStr`] reads and [`Display`](fmt::Display) writes: `none`, or one of `local`, `rank` and `map:0,1+2`. The suffix
/// `:prefer` allows memory of other NUMA nodes when these have none left.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum MemBind {
    /// The kernel selects the NUMA nodes.
    #[default]
    None,
    /// Memory comes from these NUMA nodes.
    To {
        /// NUMA nodes of each rank.
        nodes: MemoryNodes,
        /// Behaviour when these NUMA nodes have no memory left.
        strictness: Strictness,
    },
}

/// NUMA nodes of each rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemoryNodes {
    /// NUMA nodes of the CPUs that the rank is bound to; for an unbound rank, of the CPU that it runs on.
    Local,
    /// The n-th local rank uses the n-th NUMA node.
    Rank,
    /// The n-th local rank uses the n-th set.
    Map(Vec<NodeSet>),
}

/// Behaviour when the NUMA nodes of a rank have no memory left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Strictness {
    /// The allocation fails.
    #[default]
    Bound,
    /// The rank gets memory of other NUMA nodes.
    Preferred,
}

/// Error for a text that is not a [`MemBind`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{text:?} binds memory to nothing; none, local, rank and map:<NUMA nodes of each rank> are possible, the last three with :prefer"
)]
pub struct MemBindParseError {
    /// The text.
    pub text: String,
}

/// Error for a memory binding that is not possible.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemBindError {
    /// The kernel has no NUMA support, or reports no NUMA nodes.
    #[error(
        "memory of ranks is to come from chosen NUMA nodes, and the kernel of this node has none; leave --mem-bind away, or see what \
         lattice nodes --topology knows of it"
    )]
    NoNuma,
    /// The NUMA node does not exist.
    #[error(
        "local rank {local_rank} is to have memory of NUMA node {node}, but ranks here may use memory of NUMA nodes {there}; \
         name one of those, or have --mem-bind=local choose"
    )]
    NoSuchNode {
        /// The first local rank that the entry is for.
        local_rank: usize,
        /// The NUMA node in the entry.
        node: u16,
        /// NUMA nodes with memory that ranks may use.
        there: NodeSet,
    },
}

/// Memory policy of one rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemoryPolicy {
    /// Memory of the NUMA node of the present CPU, as long as it has some.
    Local,
    /// Memory of these NUMA nodes only.
    Bound(NodeSet),
    /// Memory of the lowest of these NUMA nodes, as long as it has some.
    Preferred(NodeSet),
}

impl MemBind {
    /// Policies of the ranks of a node, by local rank. `usable` has the NUMA nodes with memory that ranks may use
    /// ([`lattice_inventory::ThisNode::memory_nodes`]); `cpus` has the CPUs of bound ranks. A rank next to no usable NUMA node gets the
    /// kernel's default.
    ///
    /// # Errors
    /// See the variants of [`MemBindError`].
    pub fn plan(
        &self,
        node: &Template,
        usable: &NodeSet,
        cpus: &[Option<CpuSet>],
    ) -> Result<Vec<Option<MemoryPolicy>>, MemBindError> {
        let Self::To { nodes, strictness } = self else { return Ok(vec![None; cpus.len()]) };
        let numa: Vec<&NumaNode> = node.numa.iter().filter(|numa| usable.contains(numa.id)).collect();
        if numa.is_empty() {
            return Err(MemBindError::NoNuma);
        }
        let there: NodeSet = numa.iter().map(|numa| numa.id).collect();
        let next_to = |cpus: &CpuSet| -> NodeSet {
            numa.iter().filter(|numa| !numa.cpus.is_disjoint(cpus)).map(|numa| numa.id).collect()
        };
        let all: Vec<NodeSet> = match nodes {
            MemoryNodes::Local => {
                let local = cpus.iter().map(|cpus| cpus.as_ref().map(next_to).unwrap_or_default());
                return Ok(local.map(|nodes| Some(strictness.policy(nodes))).collect());
            }
            MemoryNodes::Rank => numa.iter().map(|numa| [numa.id].into_iter().collect()).collect(),
            MemoryNodes::Map(sets) => sets.clone(),
        };
        let of_rank = |(local_rank, nodes): (usize, &NodeSet)| match nodes.without(&there).first() {
            Some(node) => Err(MemBindError::NoSuchNode { local_rank, node, there: there.clone() }),
            None => Ok(Some(strictness.policy(nodes.clone()))),
        };
        // An entry that no rank uses may name any NUMA node. Ranks after the last entry start again at the first.
        all.iter().cycle().take(cpus.len()).enumerate().map(of_rank).collect()
    }
}

impl Strictness {
    fn policy(self, nodes: NodeSet) -> MemoryPolicy {
        match self {
            _ if nodes.is_empty() => MemoryPolicy::Local,
            Self::Bound => MemoryPolicy::Bound(nodes),
            Self::Preferred => MemoryPolicy::Preferred(nodes),
        }
    }
}

impl MemoryPolicy {
    /// Arguments of the kernel's call: mode and bit mask.
    pub(crate) fn to_kernel(&self) -> (c_int, Vec<c_ulong>) {
        match self {
            Self::Local => (libc::MPOL_LOCAL, Vec::new()),
            Self::Bound(nodes) => (libc::MPOL_BIND, nodes.to_mask()),
            Self::Preferred(nodes) => (libc::MPOL_PREFERRED, nodes.to_mask()),
        }
    }
}

impl FromStr for MemBind {
    type Err = MemBindParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || MemBindParseError { text: text.to_owned() };
        if text == "none" {
            return Ok(Self::None);
        }
        let (word, strictness) = match text.strip_suffix(":prefer") {
            Some(word) => (word, Strictness::Preferred),
            None => (text, Strictness::Bound),
        };
        let entries = |map: &str| map.split(',').map(map_entry).collect::<Result<_, _>>().map_err(|_| wrong());
        let nodes = match word.split_once(':') {
            None if word == "local" => MemoryNodes::Local,
            None if word == "rank" => MemoryNodes::Rank,
            Some(("map", map)) => MemoryNodes::Map(entries(map)?),
            _ => return Err(wrong()),
        };
        Ok(Self::To { nodes, strictness })
    }
}

impl fmt::Display for MemBind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::To { nodes, strictness } = self else { return f.write_str("none") };
        match nodes {
            MemoryNodes::Local => f.write_str("local")?,
            MemoryNodes::Rank => f.write_str("rank")?,
            MemoryNodes::Map(sets) => {
                let entries: Vec<String> = sets.iter().map(|set| set.to_string().replace(',', "+")).collect();
                write!(f, "map:{}", entries.join(","))?;
            }
        }
        f.write_str(if *strictness == Strictness::Preferred { ":prefer" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two NUMA nodes of two CPUs each, and one with memory and no CPU.
    fn node() -> Template {
        let numa = |(id, cpus): (u16, &str)| NumaNode {
            id,
            cpus: cpus.parse().unwrap(),
            memory_gib: 1,
            ..NumaNode::default()
        };
        Template {
            cpus: "0-3".parse().unwrap(),
            numa: [(0, "0-1"), (1, "2-3"), (4, "")].into_iter().map(numa).collect(),
            ..Template::default()
        }
    }

    fn cpus(sets: &[&str]) -> Vec<Option<CpuSet>> {
        sets.iter().map(|set| Some(set.parse::<CpuSet>().unwrap()).filter(|set| !set.is_empty())).collect()
    }

    #[test]
    fn each_rank_has_memory_of_its_nodes() {
        let check = |bind: &str, ranks: &[&str], expected: &[&str]| {
            let planned =
                bind.parse::<MemBind>().unwrap().plan(&node(), &"0-4".parse().unwrap(), &cpus(ranks)).unwrap();
            let words = planned.into_iter().map(|policy| match policy {
                None => "none".to_owned(),
                Some(MemoryPolicy::Local) => "local".to_owned(),
                Some(MemoryPolicy::Bound(nodes)) => format!("bind {nodes}"),
                Some(MemoryPolicy::Preferred(nodes)) => format!("prefer {nodes}"),
            });
            assert_eq!(words.collect::<Vec<_>>(), expected, "{bind}");
        };
        check("none", &["0", ""], &["none", "none"]);
        check("local", &["0", "3", "1-2", ""], &["bind 0", "bind 1", "bind 0-1", "local"]);
        check("local:prefer", &["3", ""], &["prefer 1", "local"]);
        check("rank", &["", "", "", ""], &["bind 0", "bind 1", "bind 4", "bind 0"]);
        check("map:4,0+1", &["", "", ""], &["bind 4", "bind 0-1", "bind 4"]);
        check("map:1,9:prefer", &[""], &["prefer 1"]);
    }

    /// The kernel rejects NUMA nodes without memory, and NUMA nodes outside the process's control group.
    #[test]
    fn memory_comes_from_usable_nodes_alone() {
        let plan = |bind: &str| {
            let usable: NodeSet = "0,4".parse().unwrap();
            bind.parse::<MemBind>()
                .unwrap()
                .plan(&node(), &usable, &cpus(&["0", "3"]))
                .map_err(|error| error.to_string())
        };
        let bound = |node: &str| Some(MemoryPolicy::Bound(node.parse().unwrap()));
        assert_eq!(plan("local"), Ok(vec![bound("0"), Some(MemoryPolicy::Local)]));
        assert_eq!(plan("rank"), Ok(vec![bound("0"), bound("4")]));
        let refused = "local rank 0 is to have memory of NUMA node 1, but ranks here may use memory of NUMA nodes 0,4; name one of those, \
                       or have --mem-bind=local choose";
        assert_eq!(plan("map:1"), Err(refused.to_owned()));
    }

    #[test]
    fn what_a_node_does_not_have_is_named() {
        let refuse = |bind: &str, node: &Template| {
            bind.parse::<MemBind>()
                .unwrap()
                .plan(node, &"0-4".parse().unwrap(), &cpus(&["0", "1"]))
                .unwrap_err()
                .to_string()
        };
        let absent = "local rank 1 is to have memory of NUMA node 2, but ranks here may use memory of NUMA nodes 0-1,4; name one of those, \
                      or have --mem-bind=local choose";
        assert_eq!(refuse("map:0,1+2", &node()), absent);
        for bind in ["local", "rank", "map:0"] {
            assert!(refuse(bind, &Template::default()).contains("the kernel of this node has none"), "{bind}");
        }
        assert_eq!(MemBind::None.plan(&Template::default(), &NodeSet::default(), &cpus(&["0"])), Ok(vec![None]));
    }

    #[test]
    fn bindings_are_read_and_written_alike() {
        for text in ["none", "local", "rank:prefer", "map:0,1+3,4-5", "map:3:prefer"] {
            assert_eq!(text.parse::<MemBind>().unwrap().to_string(), text);
        }
        for text in ["", "none:prefer", "prefer", "map", "map:", "map:,1", "map:x", "local:0", "rank:prefer:prefer"] {
            assert!(text.parse::<MemBind>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn the_kernel_gets_a_mode_and_a_mask() {
        let nodes: NodeSet = "0,65".parse().unwrap();
        assert_eq!(MemoryPolicy::Bound(nodes.clone()).to_kernel(), (libc::MPOL_BIND, vec![1, 2]));
        assert_eq!(MemoryPolicy::Preferred(nodes).to_kernel().0, libc::MPOL_PREFERRED);
        assert_eq!(MemoryPolicy::Local.to_kernel(), (libc::MPOL_LOCAL, vec![]));
    }
}

//! Nodes of a launch with a number that depends on the size of its allocation: `-N MIN-MAX`, `-N all`, and `--include`, which adds further
//! nodes. Without an allocation, the request remains one for the least number.

use std::collections::HashSet;
use std::num::NonZeroU32;

use lattice_session::request::{Candidates, PlacementRequest};

use crate::args::{NodeCount, PlacementArgs};

/// Request for nodes that depends on the allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeWish {
    /// Maximum number of nodes. It is limited by the allocation and by the number of ranks.
    most: u32,
    /// True if further nodes are added to the listed nodes.
    adds: bool,
    /// True if nodes without a rank take part.
    without_ranks: bool,
}

impl NodeWish {
    /// Part of the flags that depends on the allocation; `None` if there is none.
    pub(super) fn of(args: &PlacementArgs, placement: &PlacementRequest) -> Option<Self> {
        let NodeCount { least, most, without_ranks } = args.nodes?;
        let adds = args.include.is_some() && matches!(placement.candidates, Candidates::Listed(_));
        (adds || most > least).then_some(Self { most, adds, without_ranks })
    }

    /// Adds the number of nodes, and further nodes, to a request for `size` ranks (if known) on nodes of `allocated`. A request that cannot be
    /// met remains a request that is refused.
    pub(crate) fn settle(self, request: &mut PlacementRequest, size: Option<u32>, allocated: &[String]) {
        let usable = |nodes: &[String]| {
            let kept = nodes.iter().filter(|node| !request.except.contains(node)).collect::<HashSet<_>>().len();
            u32::try_from(kept).unwrap_or(u32::MAX).saturating_sub(request.relative)
        };
        let least = request.nodes.map_or(1, NonZeroU32::get);
        let available = match &request.candidates {
            Candidates::Listed(nodes) if !self.adds => usable(nodes),
            Candidates::All | Candidates::Listed(_) => usable(allocated),
            Candidates::Hostfile(hosts) => usable(&hosts.iter().map(|host| host.node.clone()).collect::<Vec<_>>()),
        };
        let size = size.filter(|_| !self.without_ranks).unwrap_or(u32::MAX);
        let count = self.most.min(available).min(size).max(least);
        request.nodes = NonZeroU32::new(count);
        if let Candidates::Listed(named) = &request.candidates
            && self.adds
            && named.iter().all(|node| allocated.contains(node))
        {
            let mut others = (count as usize).saturating_sub(named.iter().collect::<HashSet<_>>().len());
            let is_chosen = |node: &&String| {
                let is_named = named.contains(node);
                let is_other = !is_named && others > 0 && !request.except.contains(node);
                others -= usize::from(is_other);
                is_named || is_other
            };
            let chosen: Vec<String> = allocated.iter().filter(is_chosen).cloned().collect();
            // All named nodes take part.
            request.nodes = request.nodes.max(NonZeroU32::new(named.len() as u32));
            request.candidates = Candidates::Listed(chosen);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::prepared::tests::commanded;

    /// Checks number and names of the nodes for a line, in an allocation of node0 to node3.
    #[track_caller]
    fn check(line: &str, expected: (u32, &[&str])) {
        let allocated: Vec<String> = (0..4).map(|number| format!("node{number}")).collect();
        let mut command = commanded(line).unwrap();
        let (size, wish) = (command.request.programs.size(), command.node_wish.take().expect("it depends on them"));
        let placement = &mut command.request.placement;
        wish.settle(placement, size, &allocated);
        let nodes = match &placement.candidates {
            super::Candidates::Listed(nodes) => nodes.iter().map(String::as_str).collect(),
            _ => Vec::new(),
        };
        assert_eq!((placement.nodes.unwrap().get(), nodes.as_slice()), expected, "{line}");
    }

    #[test]
    fn a_range_of_nodes_is_as_many_as_there_are_and_the_ranks_need() {
        check("-N 1-2 -n 4 true", (2, &[]));
        check("-N 1-9 -n 8 true", (4, &[]));
        check("-N 1-9 true", (4, &[]));
        check("-N 1-3 -n 2 true", (2, &[]));
        check("-N 2-3 -n 1 true", (2, &[]));
        check("-N 5-6 -n 8 true", (5, &[]));
        check("-N 1-4 -x node1,node2 -n 8 true", (2, &[]));
        check("-N 1-4 -r 3 -n 8 true", (1, &[]));
        check("-N 1-3 -w node3,node1 -n 8 true", (2, &["node3", "node1"]));
        check("-N all -n 1 true", (4, &[]));
        check("-N all -x node1 -n 1 true", (3, &[]));
    }

    #[test]
    fn others_are_added_to_nodes_that_are_included() {
        check("--include node2 -N 2 -n 4 true", (2, &["node0", "node2"]));
        check("--include node3,node1 -N 3 true", (3, &["node0", "node1", "node3"]));
        check("--include node3 -N 2-3 -x node0 -n 9 true", (3, &["node1", "node2", "node3"]));
        check("--include node3,node1 -N 1 true", (2, &["node1", "node3"]));
        check("--include node9 -N 2 true", (2, &["node9"]));
    }

    #[test]
    fn a_number_and_a_list_alone_are_as_they_are() {
        for line in ["-N 2 true", "-w node1 true", "-N 3-3 true"] {
            assert_eq!(commanded(line).unwrap().node_wish, None, "{line}");
        }
    }
}

//! Places of ranks on the machine: the attribute `lattice.topo`, and attributes of version 1.3 of PMI-2.
//!
//! ```text
//! lattice.topo     node:0:2,numa:1:0,l3:3:0      of the requesting rank; known levels from the outermost on:
//!                                                number of the node, NUMA domain or cache, position among the job's ranks there
//! ```

use std::collections::HashMap;
use std::fmt::Write;

use crate::ids::{NodeIndex, Rank};
use crate::job::Job;
use crate::wire::VALUE_MAX_ANNOUNCED;

/// Parts of a node to which a rank is bound, by their logical numbers. `None` if the part is unknown, or the rank uses several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankDomains {
    /// NUMA domain of its CPUs.
    pub numa: Option<u32>,
    /// L3 cache that its CPUs share.
    pub l3: Option<u32>,
}

/// Places of the ranks of a node.
#[derive(Debug)]
pub(super) struct Places {
    /// Number of this node among the nodes with ranks of the job.
    node: usize,
    /// Number of nodes with ranks of the job.
    nodes: usize,
    /// Value of `lattice.topo`, by local rank.
    of_ranks: Vec<String>,
}

impl Places {
    pub(super) fn new(job: &Job, node: NodeIndex, ranks: usize) -> Self {
        let nodes = job.placement.nodes_with_ranks();
        let number = nodes.iter().position(|&with_ranks| with_ranks == node).unwrap_or_default();
        let mut places = Self { node: number, nodes: nodes.len(), of_ranks: Vec::new() };
        places.tell(&vec![RankDomains::default(); ranks]);
        places
    }

    /// Sets the domains of all ranks, by local rank.
    pub(super) fn tell(&mut self, domains: &[RankDomains]) {
        let (mut in_numa, mut in_l3) = (Occupants::default(), Occupants::default());
        self.of_ranks = (0..)
            .zip(domains)
            .map(|(local, rank): (u32, _)| {
                let inner = [("numa", in_numa.enter(rank.numa)), ("l3", in_l3.enter(rank.l3))];
                let mut text = format!("node:{}:{local}", self.node);
                for (level, place) in inner {
                    // A client finds a level by its position in the list.
                    let Some((number, position)) = place else { break };
                    let _ = write!(text, ",{level}:{number}:{position}");
                }
                text
            })
            .collect();
    }

    /// Value of `lattice.topo`.
    pub(super) fn of(&self, local: usize) -> Option<&str> {
        self.of_ranks.get(local).map(String::as_str)
    }

    /// Value of a job attribute of PMI-2.
    pub(super) fn job_attribute(&self, name: &str) -> Option<&'static str> {
        let one_node = self.nodes < 2;
        match name {
            "physTopology" => Some(if one_node { "complete" } else { "hierarchical" }),
            "physTopologyLevels" if !one_node => Some("complete,complete"),
            _ => None,
        }
    }
}

/// Initial node attributes. A list that is too long for clients is omitted.
pub(super) fn node_attributes(ranks: &[Rank]) -> impl Iterator<Item = (&'static str, String)> {
    let list = ranks.iter().map(Rank::to_string).collect::<Vec<_>>().join(",");
    let list = (list.len() < VALUE_MAX_ANNOUNCED).then_some(("localRanks", list));
    [("localRanksCount", ranks.len().to_string())].into_iter().chain(list)
}

/// Number of ranks so far in each domain of a kind.
#[derive(Default)]
struct Occupants(HashMap<u32, u32>);

impl Occupants {
    /// Adds a rank; returns its domain and its position there.
    fn enter(&mut self, domain: Option<u32>) -> Option<(u32, u32)> {
        let number = domain?;
        let ranks = self.0.entry(number).or_default();
        *ranks += 1;
        Some((number, *ranks - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::JobId;
    use crate::job::Placement;

    fn places(counts: &[u32], node: u32) -> Places {
        let placement = Placement::block(counts);
        let ranks = placement.ranks_on(NodeIndex(node)).len();
        let job = Job { placement, ..Job::on_one_node(JobId::new("j").unwrap(), 0) };
        Places::new(&job, NodeIndex(node), ranks)
    }

    #[test]
    fn a_rank_is_told_its_levels_as_far_as_they_are_known() {
        // A node without ranks has no number.
        let mut places = places(&[2, 0, 4], 2);
        let all = |places: &Places| (0..4).map(|local| places.of(local).unwrap().to_owned()).collect::<Vec<_>>();
        assert_eq!(all(&places), ["node:1:0", "node:1:1", "node:1:2", "node:1:3"]);
        let domains = |numa, l3| RankDomains { numa, l3 };
        places.tell(&[
            domains(Some(1), Some(3)),
            domains(Some(0), None),
            domains(None, Some(3)),
            domains(Some(1), Some(3)),
        ]);
        let expected = ["node:1:0,numa:1:0,l3:3:0", "node:1:1,numa:0:0", "node:1:2", "node:1:3,numa:1:1,l3:3:2"];
        assert_eq!(all(&places), expected);
        assert_eq!(places.of(4), None);
    }

    #[test]
    fn several_nodes_are_a_hierarchy() {
        let check = |counts: &[u32], kind, levels| {
            let places = places(counts, 0);
            assert_eq!(
                (places.job_attribute("physTopology"), places.job_attribute("physTopologyLevels")),
                (kind, levels)
            );
        };
        check(&[4], Some("complete"), None);
        check(&[4, 0, 1], Some("hierarchical"), Some("complete,complete"));
    }

    #[test]
    fn a_list_of_ranks_that_clients_cannot_take_is_left_out() {
        let names = |ranks: u32| node_attributes(&(0..ranks).map(Rank).collect::<Vec<_>>()).collect::<Vec<_>>();
        assert_eq!(names(2), [("localRanksCount", "2".to_owned()), ("localRanks", "0,1".to_owned())]);
        assert_eq!(names(1000), [("localRanksCount", "1000".to_owned())]);
    }
}

//! CPUs of ranks on the nodes of a cluster, by the templates of these. The nodes plan for themselves in the same way, within the CPUs that
//! control groups leave them.

use std::collections::HashMap;

use lattice_inventory::UsableCores;
use rank_spawner::{BindError, CpuBind, CpuSet, plan};

use super::PreparedLaunch;
use crate::cluster::Templates;

/// A node cannot bind its ranks as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{node}: {source}")]
pub struct NodeBindError {
    /// Name of the node.
    pub node: String,
    /// Reason.
    pub source: BindError,
}

impl PreparedLaunch {
    /// Plans the CPUs of all ranks whose nodes are known.
    ///
    /// # Errors
    /// Names the first node that cannot bind its ranks; those of other nodes are planned nevertheless.
    pub(crate) fn bind(&mut self, nodes: &Templates) -> Result<(), NodeBindError> {
        let bind = &self.placed.settings.cpu_bind;
        let mut ranks_of = vec![Vec::new(); self.placed.hosts.len()];
        self.ranks.iter().for_each(|row| ranks_of[row.place.node.index()].push(row.place.rank.0));
        let (mut plans, mut refused) = (HashMap::new(), None);
        let mut of_nodes = Vec::with_capacity(ranks_of.len());
        for (index, (node, here)) in self.placed.hosts.iter().zip(ranks_of).enumerate() {
            let (known, ranks) = (nodes.of(node), here.len() as u32);
            // Nodes of a kind have the same plan for as many ranks, unless each rank of the launch has its own.
            let of_node = matches!(bind, CpuBind::RankCoreMap(_)).then_some(index);
            of_nodes.push(known.map(|(number, _)| (number, ranks, of_node)));
            let Some((number, template)) = known else { continue };
            let planned = plans
                .entry((number, ranks, of_node))
                .or_insert_with(|| plan(&UsableCores::of(template, &template.cpus), &bind.of_ranks(here), ranks));
            if let Err(source) = planned {
                refused.get_or_insert_with(|| NodeBindError { node: node.clone(), source: source.clone() });
            }
        }
        for row in &mut self.ranks {
            let planned: Option<&Vec<Option<CpuSet>>> =
                of_nodes[row.place.node.index()].and_then(|key| plans.get(&key)?.as_ref().ok());
            if let Some(cpus) = planned.and_then(|cpus| cpus.get(row.place.local_rank.index())) {
                (row.is_free, row.cpus) = (cpus.is_none(), cpus.clone());
            }
        }
        self.draw(|node| Some(nodes.of(node)?.1));
        refused.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use lattice_inventory::{Group, Template};
    use lattice_session::placed::PlacedLaunch;
    use lattice_session::request::Assignment;
    use pmi_core::job::Placement;

    use super::*;
    use crate::prepared::tests::commanded;

    /// A node of cores with so many hardware threads, numbered core by core.
    fn node(cores: u16, threads: u16) -> Template {
        let core = |core: u16| Group { cpus: (core * threads..(core + 1) * threads).collect(), id: None };
        Template { cpus: (0..cores * threads).collect(), cores: (0..cores).map(core).collect(), ..Template::default() }
    }

    /// Two nodes of four cores, one of two cores with two threads, and one that has told nothing.
    fn nodes() -> Templates {
        let mut nodes = Templates::default();
        nodes.add(vec!["a0".to_owned(), "a1".to_owned()], node(4, 1));
        nodes.add(vec!["b0".to_owned()], node(2, 2));
        nodes
    }

    /// A launch with so many ranks on each of these nodes.
    fn placed(flags: &str, counts: &[(&str, u32)]) -> PreparedLaunch {
        let ranks: Vec<u32> = counts.iter().map(|(_, ranks)| *ranks).collect();
        let command = commanded(&format!("-n {} {flags} true", ranks.iter().sum::<u32>())).unwrap();
        let assignment = Assignment {
            hosts: counts.iter().map(|(node, _)| (*node).to_owned()).collect(),
            ranks: vec![ranks.iter().sum()],
            placement: Placement::block(&ranks),
        };
        let placed: PlacedLaunch = command.request.place("id".to_owned(), None, assignment, |_, _| 0).unwrap();
        PreparedLaunch::on_cluster(placed, command.output)
    }

    #[test]
    fn ranks_have_the_cpus_of_their_kind_of_node() {
        let check = |flags: &str, expected: &[&str]| {
            let mut launch = placed(flags, &[("a0", 2), ("b0", 2), ("x", 1), ("a1", 1)]);
            launch.bind(&nodes()).unwrap();
            let seen: Vec<String> =
                launch.ranks.iter().map(|row| row.cpus.as_ref().map_or("-".to_owned(), CpuSet::to_string)).collect();
            assert_eq!(seen, expected, "{flags}");
        };
        check("", &["-", "-", "-", "-", "-", "-"]);
        check("--cpu-bind cores", &["0", "1", "0-1", "2-3", "-", "0"]);
        check("--cpu-bind threads", &["0", "1", "0", "1", "-", "0"]);
        check("-c 2", &["0-1", "2-3", "0-1", "2-3", "-", "0-1"]);
    }

    #[test]
    fn the_first_nodes_are_drawn_with_the_ranks_that_are_bound() {
        let mut launch = placed("-c 1", &[("a0", 2), ("b0", 3), ("x", 1)]);
        launch.bind(&nodes()).unwrap_err();
        let mut launch = placed("--cpu-bind cores", &[("a0", 2), ("b0", 3), ("x", 1), ("a1", 1)]);
        launch.bind(&nodes()).unwrap();
        assert_eq!(
            launch.pictures,
            [
                "a0  4 cores, 4 threads",
                " CPUs 0-3  cores 0-3  [0 1 · ·]",
                "b0  2 cores, 4 threads",
                " CPUs 0-3  cores 0,2  [2,4 3]",
                "a1  4 cores, 4 threads",
                " CPUs 0-3  cores 0-3  [6 · · ·]",
            ]
        );
        let mut launch = placed("", &[("a0", 2)]);
        launch.bind(&nodes()).unwrap();
        assert!(launch.pictures.is_empty(), "nobody is bound");
    }

    #[test]
    fn ranks_of_a_rankfile_have_their_own_cores_on_each_node() {
        let mut launch = placed("", &[("a0", 1), ("b0", 2), ("a1", 1)]);
        launch.placed.settings.cpu_bind = "rank-core-map:3,1,0,2".parse().unwrap();
        launch.bind(&nodes()).unwrap();
        let seen: Vec<String> = launch.ranks.iter().map(|row| row.cpus.as_ref().unwrap().to_string()).collect();
        assert_eq!(seen, ["3", "2-3", "0-1", "2"]);
    }

    #[test]
    fn the_node_that_has_too_few_is_named() {
        let mut launch = placed("-c 3", &[("a0", 1), ("b0", 2)]);
        let refused = launch.bind(&nodes()).unwrap_err().to_string();
        assert!(refused.starts_with("b0: 2 local ranks shall be bound to cores:cpus=3"), "{refused}");
        assert_eq!(launch.ranks[0].cpus, "0-2".parse().ok());
    }
}

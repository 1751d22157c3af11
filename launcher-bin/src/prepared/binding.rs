//! CPUs of ranks on the nodes of a cluster, planned from the templates of the nodes and the CPUs that the agents leave to ranks. The nodes
//! plan in the same way.

use std::collections::HashMap;

use lattice_cluster_client::{KnownNode, Templates};
use lattice_console::environment::{self, Environment};
use lattice_inventory::{NodeSet, Template};
use lattice_render::PreparedLaunch;
use lattice_session::gpus::GpuError;
use lattice_session::settings::LaunchSettings;
use rank_spawner::{BindError, CpuBind, CpuSet, MemBindError, plan};

use super::pictures;

/// A node cannot bind its ranks as requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{node}: {source}")]
pub struct NodeBindError {
    /// Name of the node.
    pub node: String,
    /// Reason.
    pub source: BindingError,
}

/// Reason for a failed binding of ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindingError {
    /// Error for the CPUs.
    #[error(transparent)]
    Cpus(#[from] BindError),
    /// Error for the NUMA nodes of memory.
    #[error(transparent)]
    Memory(#[from] MemBindError),
    /// Error for the GPUs.
    #[error(transparent)]
    Gpus(#[from] GpuError),
}

/// CPUs of these ranks on a node. Fails if the node lacks the requested CPUs, memory or GPUs.
fn planned(node: &KnownNode, settings: &LaunchSettings, ranks: Vec<u32>) -> Result<Vec<Option<CpuSet>>, BindingError> {
    let count = ranks.len() as u32;
    let cpus = plan(&node.cores(), &settings.cpu_bind.of_ranks(ranks), count)?;
    let template = &node.template;
    let with_memory = template.numa.iter().filter(|numa| numa.memory_gib > 0).map(|numa| numa.id).collect();
    check_devices::<BindingError>(settings, template, &with_memory, &cpus, &settings.environment)?;
    Ok(cpus)
}

/// Refuses memory and GPUs that a node does not have, for ranks with these CPUs. Ranks start with the variables in `environment`.
pub(super) fn check_devices<E: From<MemBindError> + From<GpuError>>(
    settings: &LaunchSettings,
    node: &Template,
    with_memory: &NodeSet,
    cpus: &[Option<CpuSet>],
    environment: &Environment,
) -> Result<(), E> {
    settings.mem_bind.plan(node, with_memory, cpus)?;
    let outer = |name: &str| Some(environment::value(environment, name)?.to_string_lossy().into_owned());
    settings.gpu_bind.variables(node, cpus, outer)?;
    Ok(())
}

/// Plans the CPUs of all ranks on known nodes.
///
/// # Errors
/// Returns the first node that cannot bind its ranks. Ranks of other nodes are planned nevertheless.
pub(crate) fn bind(launch: &mut PreparedLaunch, nodes: &Templates) -> Result<(), NodeBindError> {
    let settings = &launch.placed.settings;
    let mut ranks_of = vec![Vec::new(); launch.placed.hosts.len()];
    launch.ranks.iter().for_each(|row| ranks_of[row.place.node.index()].push(row.place.rank.0));
    let (mut plans, mut refused) = (HashMap::new(), None);
    let mut of_nodes = Vec::with_capacity(ranks_of.len());
    for (index, (node, here)) in launch.placed.hosts.iter().zip(ranks_of).enumerate() {
        let (known, ranks) = (nodes.of(node), here.len() as u32);
        // Nodes of one kind have the same plan for the same number of ranks, unless each rank of the launch has its own map.
        let of_node = matches!(settings.cpu_bind, CpuBind::RankCoreMap(_)).then_some(index);
        of_nodes.push(known.map(|(number, _)| (number, ranks, of_node)));
        let Some((number, known)) = known else { continue };
        let planned = plans.entry((number, ranks, of_node)).or_insert_with(|| planned(known, settings, here));
        if let Err(source) = planned {
            refused.get_or_insert_with(|| NodeBindError { node: node.clone(), source: source.clone() });
        }
    }
    for row in &mut launch.ranks {
        let planned: Option<&Vec<Option<CpuSet>>> =
            of_nodes[row.place.node.index()].and_then(|key| plans.get(&key)?.as_ref().ok());
        if let Some(cpus) = planned.and_then(|cpus| cpus.get(row.place.local_rank.index())) {
            (row.is_free, row.cpus) = (cpus.is_none(), cpus.clone());
        }
    }
    pictures::draw(launch, |node| Some(nodes.of(node)?.1.clone()));
    refused.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use lattice_inventory::{Group, NumaNode};
    use lattice_session::placed::PlacedLaunch;
    use lattice_session::request::Assignment;
    use pmi_core::job::Placement;
    use pmi_transport::proto::v1 as proto;

    use super::*;
    use crate::prepared::tests::commanded;
    use lattice_cluster_client::Limits;

    /// A node with `cores` cores of `threads` hardware threads each, numbered core by core.
    fn node(cores: u16, threads: u16) -> Template {
        let core = |core: u16| Group { cpus: (core * threads..(core + 1) * threads).collect(), id: None };
        Template { cpus: (0..cores * threads).collect(), cores: (0..cores).map(core).collect(), ..Template::default() }
    }

    /// Two nodes with four cores, one node with two cores of two threads, and one node without a template.
    fn nodes() -> Templates {
        let mut nodes = Templates::default();
        nodes.add(vec!["a0".to_owned(), "a1".to_owned()], node(4, 1), &Limits::default());
        nodes.add(vec!["b0".to_owned()], node(2, 2), &Limits::default());
        nodes
    }

    /// A launch with these numbers of ranks on these nodes.
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
            bind(&mut launch, &nodes()).unwrap();
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
    fn memory_and_gpus_that_a_node_does_not_have_are_refused_as_there() {
        let refusal = |flags: &str| bind(&mut placed(flags, &[("a0", 1)]), &nodes()).unwrap_err().to_string();
        assert!(
            refusal("--gpus-per-task 1").starts_with("a0: ranks are to be bound to GPUs, and this node knows of none")
        );
        assert!(refusal("--mem-bind map_mem:7").starts_with("a0: memory of ranks is to come from chosen NUMA nodes"));
        bind(&mut placed("--gpus-per-task 1", &[("x", 1)]), &nodes()).expect("nobody knows");
    }

    #[test]
    fn the_first_nodes_are_drawn_with_the_ranks_that_are_bound() {
        let mut launch = placed("-c 1", &[("a0", 2), ("b0", 3), ("x", 1)]);
        bind(&mut launch, &nodes()).unwrap_err();
        let mut launch = placed("--cpu-bind cores", &[("a0", 2), ("b0", 3), ("x", 1), ("a1", 1)]);
        bind(&mut launch, &nodes()).unwrap();
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
        bind(&mut launch, &nodes()).unwrap();
        assert!(launch.pictures.is_empty(), "nobody is bound");
    }

    #[test]
    fn ranks_of_a_rankfile_have_their_own_cores_on_each_node() {
        let mut launch = placed("", &[("a0", 1), ("b0", 2), ("a1", 1)]);
        launch.placed.settings.cpu_bind = "rank-core-map:3,1,0,2".parse().unwrap();
        bind(&mut launch, &nodes()).unwrap();
        let seen: Vec<String> = launch.ranks.iter().map(|row| row.cpus.as_ref().unwrap().to_string()).collect();
        assert_eq!(seen, ["3", "2-3", "0-1", "2"]);
    }

    /// Two sockets with two NUMA nodes of four cores each. The second threads of all cores follow all first threads. Ranks may use half of the
    /// first NUMA node, the second thread of a core of the second one, and the third one.
    fn limited() -> Templates {
        let cores = |cpus: Range<u16>| cpus.clone().chain(cpus.start + 16..cpus.end + 16).collect::<CpuSet>();
        let group = |id: u16, cpus: Range<u16>| Group { cpus: cores(cpus), id: Some(id.into()) };
        let numa = |id: u16| NumaNode { id, cpus: cores(4 * id..4 * (id + 1)), memory_gib: 1, ..NumaNode::default() };
        let template = Template {
            cpus: (0..32).collect(),
            packages: vec![group(0, 0..8), group(1, 8..16)],
            cores: (0..16).map(|core| group(core, core..core + 1)).collect(),
            numa: (0..4).map(numa).collect(),
            ..Template::default()
        };
        let cpus = "2-3,18-19,21,8-11,24-27".to_owned();
        let limits = Limits::of(&[proto::UsableCpus { nodes: "half".to_owned(), cpus }]);
        let mut nodes = Templates::default();
        nodes.add(vec!["whole".to_owned(), "half".to_owned()], template, &limits);
        nodes
    }

    #[test]
    fn ranks_are_planned_on_the_cpus_that_their_node_leaves_them() {
        let check = |flags: &str, ranks: u32, expected: &[&str]| {
            let mut launch = placed(flags, &[("half", ranks), ("whole", 1)]);
            bind(&mut launch, &limited()).unwrap();
            let cpus = launch.ranks.iter().map(|row| row.cpus.as_ref().map_or("-".to_owned(), CpuSet::to_string));
            assert_eq!(cpus.take(ranks as usize).collect::<Vec<_>>(), expected, "{flags}");
        };
        check("--cpu-bind cores", 4, &["2,18", "3,19", "21", "8,24"]);
        check("--cpu-bind threads", 6, &["2", "18", "3", "19", "21", "8"]);
        check("--cpu-bind numa", 4, &["2-3,18-19", "21", "8-11,24-27", "2-3,18-19"]);
        check("--cpu-bind sockets", 2, &["2-3,18-19,21", "8-11,24-27"]);
        // Whole cores, in their order.
        check("-c 2", 4, &["2,18", "3,19", "8,21,24", "9,25"]);
        check("-c 4", 2, &["2-3,18-19", "8-9,21,24-25"]);
        check("--threads-per-core 1", 4, &["2", "3", "21", "8"]);
        let refused = |flags: &str, ranks: u32| {
            bind(&mut placed(flags, &[("whole", ranks), ("half", ranks)]), &limited()).unwrap_err().to_string()
        };
        let few = refused("-c 4", 4);
        assert!(few.starts_with("half: 4 local ranks are to be bound to cores:cpus=4, but CPUs 2-3,8-11,"), "{few}");
        assert!(refused("--cpu-bind map:0", 1).contains("CPU 0, but this launch may use CPUs 2-3,8-11,"));
    }

    #[test]
    fn a_node_is_drawn_with_the_cores_that_ranks_may_not_use() {
        let mut launch = placed("--cpu-bind cores", &[("half", 3)]);
        bind(&mut launch, &limited()).unwrap();
        assert_eq!(
            launch.pictures,
            [
                "half  2 packages, 4 NUMA nodes, 16 cores, 32 threads, 4 GiB",
                " package 0 ┬ NUMA 0  1 GiB  cores 0-3  [× × 0 1]",
                "           └ NUMA 1  1 GiB  cores 4-7  [× 2 × ×]",
                " package 1 ┬ NUMA 2  1 GiB  cores 8-11  [· · · ·]",
                "           └ NUMA 3  1 GiB  cores 12-15  [× × × ×]",
                " ranks may use CPUs 2-3,8-11,18-19,21,24-27 only; × marks cores without one",
            ]
        );
    }

    #[test]
    fn the_node_that_has_too_few_is_named() {
        let mut launch = placed("-c 3", &[("a0", 1), ("b0", 2)]);
        let refused = bind(&mut launch, &nodes()).unwrap_err().to_string();
        assert!(refused.starts_with("b0: 2 local ranks are to be bound to cores:cpus=3"), "{refused}");
        assert_eq!(launch.ranks[0].cpus, "0-2".parse().ok());
    }
}

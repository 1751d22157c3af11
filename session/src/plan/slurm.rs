//! Slurm variables with the same value for all ranks of a node, as srun of Slurm 22.05 sets them.

use pmi_core::ids::Rank;
use pmi_core::job::Placement;
use rank_spawner::usable_cpus;

use crate::spec::SessionSpec;

/// Names and values.
pub(super) type SlurmVariables = [(&'static str, String); 16];

/// Returns the variables that programs for Slurm read, and that have the same value for all ranks of a node. `SLURM_JOB_NODELIST` and
/// `SLURM_TASKS_PER_NODE` are left out: with both of them, `mpiexec` of MPICH starts its proxies by `srun`. `SLURM_JOBID` and `SLURM_STEPID`
/// are left out because `mpirun` of Open MPI and PRRTE then do the same.
pub(super) fn slurm_variables(spec: &SessionSpec, here: &[Rank], nodes: &str) -> SlurmVariables {
    let (size, hosts) = (spec.job.size().to_string(), spec.hosts.len().to_string());
    let here = here.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let directory = spec.apps.first().map(|app| app.directory.display().to_string()).unwrap_or_default();
    [
        ("SLURM_NODEID", spec.node.to_string()),
        ("SLURM_NTASKS", size.clone()),
        ("SLURM_NPROCS", size.clone()),
        ("SLURM_STEP_NUM_TASKS", size),
        ("SLURM_NNODES", hosts.clone()),
        ("SLURM_JOB_NUM_NODES", hosts.clone()),
        ("SLURM_STEP_NUM_NODES", hosts),
        ("SLURM_STEP_TASKS_PER_NODE", tasks_per_node(&spec.job.placement)),
        ("SLURM_NODELIST", nodes.to_owned()),
        ("SLURM_JOB_ID", spec.launch_id.clone()),
        ("SLURM_STEP_ID", "0".to_owned()),
        ("SLURM_STEP_NODELIST", nodes.to_owned()),
        ("SLURM_GTIDS", here),
        ("SLURM_CPUS_ON_NODE", usable_cpus().to_string()),
        ("SLURMD_NODENAME", spec.host(spec.node).to_owned()),
        ("SLURM_SUBMIT_DIR", directory),
    ]
}

/// Returns the number of ranks of each node. Equal neighbours are combined: `2(x3),1`.
fn tasks_per_node(placement: &Placement) -> String {
    // The change from each node to the next one.
    let mut changes = vec![0_i64; placement.nodes() as usize + 1];
    for block in placement.blocks() {
        let first = block.first_node.index();
        changes[first] += i64::from(block.ranks_per_node);
        changes[first + block.nodes as usize] -= i64::from(block.ranks_per_node);
    }
    changes.pop();
    let mut runs: Vec<(i64, usize)> = Vec::new();
    let mut ranks = 0;
    for change in changes {
        ranks += change;
        match runs.last_mut().filter(|(of_last, _)| *of_last == ranks) {
            Some((_, nodes)) => *nodes += 1,
            None => runs.push((ranks, 1)),
        }
    }
    let word = |&(ranks, nodes): &(i64, usize)| match nodes {
        1 => ranks.to_string(),
        nodes => format!("{ranks}(x{nodes})"),
    };
    runs.iter().map(word).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use pmi_core::ids::NodeIndex;
    use pmi_core::job::Block;

    use super::*;

    #[test]
    fn tasks_of_nodes_are_counted_as_slurm_writes_them() {
        let check = |placement: Placement, expected: &str| assert_eq!(tasks_per_node(&placement), expected);
        check(Placement::block(&[3]), "3");
        check(Placement::block(&[2, 2]), "2(x2)");
        check(Placement::block(&[4, 2, 1]), "4,2,1");
        check(Placement::block(&[1, 0, 0, 1]), "1,0(x2),1");
        let mut cyclic = Placement::default();
        for nodes in [3, 3, 1] {
            cyclic.push(Block { first_node: NodeIndex(0), nodes, ranks_per_node: 1 });
        }
        check(cyclic, "3,2(x2)");
    }
}

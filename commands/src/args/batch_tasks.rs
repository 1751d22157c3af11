//! Default numbers of tasks for lines of `srun` in a batch script.

use std::num::NonZeroU32;

use clap::Args;
use lattice_console::values::positive;

/// Numbers of tasks for `srun` in a script, which receives them in the same variables as under `sbatch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub struct TaskArgs {
    /// Number of tasks for each line of srun in the script that sets none.
    #[arg(short = 'n', long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub ntasks: Option<NonZeroU32>,
    /// Number of tasks on each node; with --ntasks, it determines the number of nodes if no option does.
    #[arg(long, visible_alias = "tasks-per-node", value_name = "K", value_parser = positive, allow_negative_numbers = true)]
    pub ntasks_per_node: Option<NonZeroU32>,
    /// Number of CPUs for each task.
    #[arg(short = 'c', long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub cpus_per_task: Option<NonZeroU32>,
}

impl TaskArgs {
    /// These numbers, completed by those of `below`.
    pub(super) fn over(self, below: Self) -> Self {
        Self {
            ntasks: self.ntasks.or(below.ntasks),
            ntasks_per_node: self.ntasks_per_node.or(below.ntasks_per_node),
            cpus_per_task: self.cpus_per_task.or(below.cpus_per_task),
        }
    }

    /// True if the number of tasks is set, and the number for each node is not.
    pub(crate) fn needs_cores(self) -> bool {
        self.ntasks.is_some() && self.ntasks_per_node.is_none()
    }

    /// Number of nodes that the tasks need, from the number for each node, or from the `cores` of a node. `None` if the number of tasks, or both
    /// of these, are missing.
    pub(crate) fn nodes(self, cores: Option<u32>) -> Option<u32> {
        let per_node = match self.ntasks_per_node {
            Some(tasks) => tasks.get(),
            None => (cores? / self.cpus_per_task.map_or(1, NonZeroU32::get)).max(1),
        };
        Some(self.ntasks?.get().div_ceil(per_node))
    }

    /// The variables of the script, with their values.
    pub(crate) fn variables(self) -> impl Iterator<Item = (&'static str, NonZeroU32)> {
        let numbers = [
            ("SLURM_NTASKS", self.ntasks),
            ("SLURM_NTASKS_PER_NODE", self.ntasks_per_node),
            ("SLURM_CPUS_PER_TASK", self.cpus_per_task),
            ("SRUN_CPUS_PER_TASK", self.cpus_per_task),
        ];
        numbers.into_iter().filter_map(|(name, number)| Some((name, number?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_get_as_many_nodes_as_they_need() {
        let tasks = |ntasks, per_node, cpus| TaskArgs {
            ntasks: NonZeroU32::new(ntasks),
            ntasks_per_node: NonZeroU32::new(per_node),
            cpus_per_task: NonZeroU32::new(cpus),
        };
        for (tasks, cores, nodes) in [
            (tasks(5, 0, 0), Some(2), Some(3)),
            (tasks(5, 0, 0), Some(8), Some(1)),
            (tasks(5, 0, 0), None, None),
            (tasks(5, 4, 0), Some(2), Some(2)),
            (tasks(5, 0, 4), Some(8), Some(3)),
            (tasks(2, 0, 16), Some(8), Some(2)),
            (tasks(0, 4, 0), Some(8), None),
        ] {
            assert_eq!(tasks.nodes(cores), nodes, "{tasks:?} {cores:?}");
        }
    }
}

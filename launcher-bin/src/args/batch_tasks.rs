//! Tasks that a batch script starts by `srun` where a line of it does not say how many.

use std::num::NonZeroU32;

use clap::Args;

/// What `sbatch` tells the `srun` of a script, by the variables that this one reads, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub struct TaskArgs {
    /// Tasks of a line of srun in the script that does not say how many.
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true)]
    pub ntasks: Option<NonZeroU32>,
    /// So many of them on each node; with --ntasks, it says how many nodes there are where nothing else does.
    #[arg(long, alias = "tasks-per-node", value_name = "K", allow_negative_numbers = true)]
    pub ntasks_per_node: Option<NonZeroU32>,
    /// CPUs of each of them.
    #[arg(short = 'c', long, value_name = "N", allow_negative_numbers = true)]
    pub cpus_per_task: Option<NonZeroU32>,
}

impl TaskArgs {
    /// These numbers, and where they say nothing, those of `below`.
    pub(super) fn over(self, below: Self) -> Self {
        Self {
            ntasks: self.ntasks.or(below.ntasks),
            ntasks_per_node: self.ntasks_per_node.or(below.ntasks_per_node),
            cpus_per_task: self.cpus_per_task.or(below.cpus_per_task),
        }
    }

    /// The nodes that so many tasks need, if it is said how many a node has.
    pub(crate) fn nodes(self) -> Option<u32> {
        Some(self.ntasks?.get().div_ceil(self.ntasks_per_node?.get()))
    }

    /// The variables of the script, with their values.
    pub(crate) fn variables(self) -> impl Iterator<Item = (&'static str, NonZeroU32)> {
        let numbers = [
            ("SLURM_NTASKS", self.ntasks),
            ("SLURM_NTASKS_PER_NODE", self.ntasks_per_node),
            ("SRUN_CPUS_PER_TASK", self.cpus_per_task),
        ];
        numbers.into_iter().filter_map(|(name, number)| Some((name, number?)))
    }
}

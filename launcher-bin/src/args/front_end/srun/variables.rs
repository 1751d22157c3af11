//! Variables of `srun` (srun(1), "INPUT ENVIRONMENT VARIABLES"). Those that describe an allocation are left out: its nodes are known.

use std::ffi::OsString;

use super::super::line::Line;
use super::super::{Refusal, variables};
use super::FLAGS;

/// Each variable with the flag that it stands for, and that of `lattice launch` by which a line is seen to have it.
const VARIABLES: &[(&str, &str, &str)] = &[
    ("SRUN_CPUS_PER_TASK", "cpus-per-task", "--cpus-per-task"),
    ("SLURM_CPU_BIND", "cpu-bind", "--cpu-bind"),
    ("SLURM_MEM_BIND", "mem-bind", "--mem-bind"),
    ("SLURM_HINT", "hint", "--hint"),
    ("SLURM_DISTRIBUTION", "distribution", "--distribution"),
    ("SLURM_NTASKS_PER_NODE", "ntasks-per-node", "--tasks-per-node"),
    ("SLURM_OVERCOMMIT", "overcommit", "--overcommit"),
    ("SLURM_GPUS_PER_TASK", "gpus-per-task", "--gpus-per-task"),
    ("SLURM_GPU_BIND", "gpu-bind", "--gpu-bind"),
    ("SRUN_EXPORT_ENV", "export", "--export"),
    ("SLURM_EXPORT_ENV", "export", "--export"),
    ("SLURM_LABELIO", "label", "--label"),
    ("SLURM_STDOUTMODE", "output", "--output"),
    ("SLURM_STDERRMODE", "error", "--error"),
    ("SLURM_STDINMODE", "input", "--stdin"),
    ("SLURM_OPEN_MODE", "open-mode", "--append"),
    ("SLURM_KILL_BAD_EXIT", "kill-on-bad-exit", "--kill-on-bad-exit"),
    ("SLURM_NO_KILL", "no-kill", "--no-kill"),
    ("SLURM_WAIT", "wait", "--wait"),
    ("SLURM_TIMELIMIT", "time", "--time"),
    ("SLURM_BCAST", "bcast", "--bcast"),
    ("SLURM_COMPRESS", "compress", "--compress"),
    ("SLURM_TASK_PROLOG", "task-prolog", "--task-prolog"),
    ("SLURM_TASK_EPILOG", "task-epilog", "--task-epilog"),
];

/// Adds the flags that variables stand for, and the number of tasks of a single program.
pub(super) fn heed(line: &mut Line, variable: impl Fn(&str) -> Option<OsString>) -> Result<(), Refusal> {
    let set = |name: &str| variables::set(&variable, name);
    let mut tasks = ["SLURM_NTASKS", "SLURM_NPROCS"].iter().filter_map(|name| Some((*name, set(name)?)));
    if let (Some((name, number)), [program], false) = (tasks.next(), line.programs(), line.has("--tasks-per-node"))
        && !program.has("--ntasks")
    {
        line.note(format!("{name}={}: as --ntasks", number.display()));
        line.add_to_every_program("--ntasks", &number);
    }
    for (name, flag, seen_by) in VARIABLES {
        if let Some(value) = set(name).filter(|_| !line.has(seen_by)) {
            variables::apply(line, FLAGS, name, flag, &value)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of a line of `./a` with these flags of `lattice launch`, and these variables.
    fn heeded(flags: &[&str], variables: &[(&str, &str)]) -> String {
        let mut line = Line::default();
        flags.iter().for_each(|flag| line.add_to_launch(flag, None));
        line.end_program(&["./a".into()]);
        let value = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
        heed(&mut line, value).unwrap();
        let words = line.finish().words;
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn variables_stand_for_flags_that_a_line_does_not_have() {
        let check = |flags: &[&str], variables: &[(&str, &str)], expected: &str| {
            assert_eq!(heeded(flags, variables), expected, "{variables:?}");
        };
        check(&[], &[("SLURM_NTASKS", "3")], "--ntasks=3 ./a");
        check(&["--tasks-per-node=1"], &[("SLURM_NTASKS", "3")], "--tasks-per-node=1 ./a");
        check(&[], &[("SLURM_NTASKS_PER_NODE", "2")], "--tasks-per-node=2 ./a");
        let bound = [("SLURM_CPU_BIND", "cores"), ("SLURM_LABELIO", "1"), ("SLURM_EXPORT_ENV", "NONE")];
        check(&["--export=ALL"], &bound, "--export=ALL --cpu-bind=cores --label ./a");
        check(&["--cpu-bind=none"], &bound[..1], "--cpu-bind=none ./a");
        check(&[], &[("SLURM_LABELIO", "0"), ("SLURM_TIMELIMIT", "")], "./a");
    }
}

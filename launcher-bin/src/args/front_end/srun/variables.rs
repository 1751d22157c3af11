//! Variables of `srun` (srun(1), "INPUT ENVIRONMENT VARIABLES"). Those that describe an allocation are left out: its nodes are known.

use std::ffi::OsString;

use super::super::line::Line;
use super::super::{Refusal, find, variables};
use super::FLAGS;

/// Each variable with the flag that it stands for, by the last of its names.
const VARIABLES: &[(&str, &str)] = &[
    ("SRUN_CPUS_PER_TASK", "cpus-per-task"),
    ("SLURM_CPU_BIND", "cpu-bind"),
    ("SLURM_MEM_BIND", "mem-bind"),
    ("SLURM_HINT", "hint"),
    ("SLURM_DISTRIBUTION", "distribution"),
    ("SLURM_NTASKS_PER_NODE", "ntasks-per-node"),
    ("SLURM_OVERCOMMIT", "overcommit"),
    ("SLURM_GPUS_PER_TASK", "gpus-per-task"),
    ("SLURM_GPU_BIND", "gpu-bind"),
    ("SRUN_EXPORT_ENV", "export"),
    ("SLURM_EXPORT_ENV", "export"),
    ("SLURM_LABELIO", "label"),
    ("SLURM_UNBUFFEREDIO", "unbuffered"),
    ("SLURM_STDOUTMODE", "output"),
    ("SLURM_STDERRMODE", "error"),
    ("SLURM_STDINMODE", "input"),
    ("SLURM_OPEN_MODE", "open-mode"),
    ("SLURM_KILL_BAD_EXIT", "kill-on-bad-exit"),
    ("SLURM_NO_KILL", "no-kill"),
    ("SLURM_WAIT", "wait"),
    ("SLURM_TIMELIMIT", "time"),
    ("SLURM_BCAST", "bcast"),
    ("SLURM_COMPRESS", "compress"),
    ("SLURM_TASK_PROLOG", "task-prolog"),
    ("SLURM_TASK_EPILOG", "task-epilog"),
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
    for (name, flag) in VARIABLES {
        let is_typed = find(FLAGS, flag).is_some_and(|flag| line.has_typed(flag.names[0]));
        let Some(value) = set(name).filter(|_| !is_typed) else { continue };
        match contradiction(line, flag) {
            Some(other) => line.note(format!("{name}={}: left out, as {other} says otherwise", value.display())),
            None => variables::apply(line, FLAGS, name, flag, &value)?,
        }
    }
    Ok(())
}

/// The flag of a line beside which `flag` cannot stand: a hint is a binding of its own (srun(1), --hint), and a variable gives way to what is
/// typed.
fn contradiction(line: &Line, flag: &str) -> Option<&'static str> {
    let others: &[&'static str] = match flag {
        "hint" => &["--cpu-bind", "--threads-per-core", "--tasks-per-core"],
        "cpu-bind" => &["--hint"],
        _ => &[],
    };
    others.iter().copied().find(|other| line.has(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of `srun FLAGS ./a` without its defaults, with these variables.
    fn heeded(flags: &str, variables: &[(&str, &str)]) -> String {
        let mut line = Line::default();
        let words: Vec<OsString> = flags.split_whitespace().chain(["./a"]).map(OsString::from).collect();
        assert!(super::super::read(&words, &mut line).unwrap().is_none());
        let value = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
        heed(&mut line, value).unwrap();
        let words = line.finish().words;
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn variables_stand_for_flags_that_a_line_does_not_have() {
        let check = |flags: &str, variables: &[(&str, &str)], expected: &str| {
            assert_eq!(heeded(flags, variables), expected, "{flags} {variables:?}");
        };
        check("", &[("SLURM_NTASKS", "3")], "--ntasks=3 ./a");
        check("--ntasks-per-node=1", &[("SLURM_NTASKS", "3")], "--tasks-per-node=1 ./a");
        check("", &[("SLURM_NTASKS_PER_NODE", "2")], "--tasks-per-node=2 ./a");
        let bound = [("SLURM_CPU_BIND", "cores"), ("SLURM_LABELIO", "1"), ("SLURM_EXPORT_ENV", "NONE")];
        check("--export=ALL", &bound, "--export=ALL --cpu-bind=cores --label ./a");
        check("--cpu_bind=none", &bound[..1], "--cpu-bind=none ./a");
        check("", &[("SLURM_UNBUFFEREDIO", "1")], "--unbuffered ./a");
        check("", &[("SLURM_LABELIO", "0"), ("SLURM_TIMELIMIT", "")], "./a");
        check("", &[("SRUN_EXPORT_ENV", "A=1"), ("SLURM_EXPORT_ENV", "B=1")], "--export=A=1 ./a");
    }

    #[test]
    fn a_hint_of_the_environment_gives_way_to_a_binding() {
        let hint = ("SLURM_HINT", "nomultithread");
        assert_eq!(heeded("", &[hint]), "--hint=nomultithread ./a");
        assert_eq!(heeded("--cpu-bind=cores", &[hint]), "--cpu-bind=cores ./a");
        assert_eq!(heeded("--threads-per-core=1", &[hint]), "--threads-per-core=1 ./a");
        assert_eq!(heeded("--ntasks-per-core=1", &[hint]), "--tasks-per-core=1 ./a");
        assert_eq!(heeded("", &[hint, ("SLURM_CPU_BIND", "cores")]), "--cpu-bind=cores ./a");
        assert_eq!(heeded("--hint=multithread", &[("SLURM_CPU_BIND", "cores")]), "--hint=multithread ./a");
    }

    #[test]
    fn a_flag_that_chooses_what_is_usual_goes_before_its_variable() {
        for (flags, variables) in [
            ("--no-kill=off", [("SLURM_NO_KILL", "1")]),
            ("-o all", [("SLURM_STDOUTMODE", "out")]),
            ("-e all", [("SLURM_STDERRMODE", "none")]),
            ("--compress=none", [("SLURM_COMPRESS", "gzip")]),
            ("--open-mode=t", [("SLURM_OPEN_MODE", "append")]),
            ("-t UNLIMITED", [("SLURM_TIMELIMIT", "10")]),
        ] {
            assert!(!heeded(flags, &variables).contains(variables[0].1), "{flags}");
            assert_ne!(heeded("", &variables), "./a", "{flags}");
        }
    }
}

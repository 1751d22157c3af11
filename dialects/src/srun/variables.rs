//! Variables of `srun` (srun(1), "INPUT ENVIRONMENT VARIABLES"). Variables that describe an allocation are omitted: its nodes are known.

use std::ffi::OsString;

use lattice_console::environment::ALLOCATION;

use super::super::flag::{Refusal, find};
use super::super::line::Line;
use super::super::variables;
use super::flags::FLAGS;

/// Each variable with the flag that it stands for, by the last name of the flag.
const VARIABLES: &[(&str, &str)] = &[
    ("SRUN_CPUS_PER_TASK", "cpus-per-task"),
    ("SLURM_CPU_BIND", "cpu-bind"),
    ("SLURM_MEM_BIND", "mem-bind"),
    ("SLURM_HINT", "hint"),
    ("SLURM_DISTRIBUTION", "distribution"),
    ("SLURM_NTASKS_PER_NODE", "ntasks-per-node"),
    ("SLURM_OVERCOMMIT", "overcommit"),
    ("SLURM_GPUS_PER_TASK", "gpus-per-task"),
    ("SLURM_NTASKS_PER_GPU", "ntasks-per-gpu"),
    ("SLURM_CPUS_PER_GPU", "cpus-per-gpu"),
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
    ("SLURM_BCAST_EXCLUDE", "bcast-exclude"),
    ("SLURM_SEND_LIBS", "send-libs"),
    ("SLURM_TASK_PROLOG", "task-prolog"),
    ("SLURM_TASK_EPILOG", "task-epilog"),
    ("SLURM_PROLOG", "prolog"),
    ("SLURM_EPILOG", "epilog"),
    ("SLURM_THREADS_PER_CORE", "threads-per-core"),
    ("SLURM_NTASKS_PER_CORE", "ntasks-per-core"),
    ("SLURM_NTASKS_PER_SOCKET", "ntasks-per-socket"),
    ("SLURM_JOB_NAME", "job-name"),
    ("SLURM_MPI_TYPE", "mpi"),
    ("SLURM_SIGNAL", "signal"),
    ("SLURM_WORKING_DIR", "chdir"),
    ("SLURM_REMOTE_CWD", "chdir"),
    ("SLURM_DEBUG", "verbose"),
    ("SRUN_CONTAINER", "container"),
];

/// Variable that every rank has.
const LAUNCH_ID: &str = "LATTICE_LAUNCH_ID";

/// Variables that are handled outside of the table.
#[cfg(test)]
const OTHERS: &[&str] =
    &["SLURM_NTASKS", "SLURM_NPROCS", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_DIST_PLANESIZE"];

/// Ignored variables, with the reason; `-v` reports those that are set. `SLURM_CONF`, which a shell may have for Slurm itself, and
/// `SLURM_JOB_ID`, which LATTICE_ALLOC_ID replaces, are omitted.
const IDLE: &[(&str, &str)] = &[
    ("SLURM_ACCOUNT", OF_SLURM),
    ("SLURM_ACCTG_FREQ", OF_SLURM),
    ("SLURM_BURST_BUFFER", OF_SLURM),
    ("SLURM_CLUSTERS", OF_SLURM),
    ("SLURM_CONSTRAINT", OF_SLURM),
    ("SLURM_CORE_SPEC", OF_SLURM),
    ("SLURM_CPU_FREQ_REQ", OF_SLURM),
    ("SLURM_DEBUG_FLAGS", OF_SLURM),
    ("SLURM_DELAY_BOOT", OF_SLURM),
    ("SLURM_DEPENDENCY", OF_SLURM),
    ("SLURM_DISABLE_STATUS", "Ctrl-C ends the launch in order, a second one at once"),
    ("SLURM_EXACT", OF_SLURM),
    ("SLURM_EXCLUSIVE", OF_SLURM),
    ("SLURM_EXIT_ERROR", "what cannot be done here exits with 125"),
    ("SLURM_EXIT_IMMEDIATE", "what cannot be done here exits with 125"),
    ("SLURM_GPUS", OF_SLURM),
    ("SLURM_GPUS_PER_NODE", OF_SLURM),
    ("SLURM_GPU_FREQ", OF_SLURM),
    ("SLURM_GRES", OF_SLURM),
    ("SLURM_GRES_FLAGS", OF_SLURM),
    ("SLURM_IMMEDIATE", OF_SLURM),
    ("SLURM_MEM_PER_CPU", OF_SLURM),
    ("SLURM_MEM_PER_GPU", OF_SLURM),
    ("SLURM_MEM_PER_NODE", OF_SLURM),
    ("SLURM_NETWORK", OF_SLURM),
    ("SLURM_OVERLAP", OF_SLURM),
    ("SLURM_PARTITION", OF_SLURM),
    ("SLURM_PMI_KVS_NO_DUP_KEYS", OF_SLURM),
    ("SLURM_POWER", OF_SLURM),
    ("SLURM_PROFILE", OF_SLURM),
    ("SLURM_QOS", OF_SLURM),
    ("SLURM_REQ_SWITCH", OF_SLURM),
    ("SLURM_RESERVATION", OF_SLURM),
    ("SLURM_RESV_PORTS", OF_SLURM),
    ("SLURM_SPREAD_JOB", OF_SLURM),
    ("SLURM_SRUN_REDUCE_TASK_EXIT_MSG", "tasks that ended alike are reported together anyway"),
    ("SLURM_STEP_GRES", OF_SLURM),
    ("SLURM_STEP_KILLED_MSG_NODE_ID", OF_SLURM),
    ("SLURM_TEST_EXEC", "a program that is missing is reported before any task starts"),
    ("SLURM_THREADS", OF_SLURM),
    ("SLURM_THREAD_SPEC", OF_SLURM),
    ("SLURM_UMASK", "files of output have the umask of this shell"),
    ("SLURM_USE_MIN_NODES", OF_SLURM),
    ("SLURM_WAIT4SWITCH", OF_SLURM),
    ("SLURM_WCKEY", OF_SLURM),
    ("SLURMD_DEBUG", OF_SLURM),
    ("PMI_FANOUT", OF_SLURM),
    ("PMI_FANOUT_OFF_HOST", OF_SLURM),
    ("PMI_TIME", OF_SLURM),
];
const OF_SLURM: &str = "it is a setting of Slurm";

/// Each variable that stands for a flag, with the flag.
#[cfg(test)]
pub(super) fn all() -> &'static [(&'static str, &'static str)] {
    VARIABLES
}

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
    // The name of a job is not the name of its steps (srun(1), SLURM_JOB_NAME), or of launches that a rank starts.
    let is_within = [ALLOCATION, LAUNCH_ID].iter().any(|name| set(name).is_some());
    for (name, flag) in VARIABLES.iter().filter(|(name, _)| *name != "SLURM_JOB_NAME" || !is_within) {
        let is_typed = find(FLAGS, flag).is_some_and(|flag| line.has_typed(flag.names[0]));
        let Some(mut value) = set(name).filter(|_| !is_typed) else { continue };
        if *flag == "distribution" && value == "plane" {
            value.extend(set("SLURM_DIST_PLANESIZE").map(with_equals));
        }
        match contradiction(line, flag) {
            Some(other) => line.note(format!("{name}={}: left out, as {other} overrides it", value.display())),
            None => variables::apply(line, FLAGS, name, flag, &value)?,
        }
    }
    for (name, reason) in IDLE {
        if let Some(value) = set(name) {
            line.note(format!("{name}={} is ignored here: {reason}", value.display()));
        }
    }
    Ok(())
}

fn with_equals(value: OsString) -> OsString {
    let mut word = OsString::from("=");
    word.push(value);
    word
}

/// Limits the nodes of the allocation to the number in a variable, if the line does not select nodes. Nodes beyond those that the tasks need are
/// not used (recorded from srun of Slurm 22.05, which reads these variables in an allocation).
pub(super) fn heed_nodes(line: &mut Line, variable: impl Fn(&str) -> Option<OsString>) {
    const SAID: [&str; 6] = ["--nodes", "--nodelist", "--include", "--hostfile", "--relative", "--exclude"];
    let mut nodes = ["SLURM_JOB_NUM_NODES", "SLURM_NNODES"]
        .iter()
        .filter_map(|name| Some((*name, variables::set(&variable, name)?)));
    let Some((name, number)) = nodes.next().filter(|_| !SAID.iter().any(|flag| line.has(flag))) else { return };
    let Some(nodes) = number.to_str().and_then(|number| number.parse::<std::num::NonZeroU32>().ok()) else { return };
    line.note(format!("{name}={nodes}: as --nodes=1-{nodes}"));
    line.add_to_launch("--nodes", Some(format!("1-{nodes}").as_ref()));
}

/// The flag of a line that excludes `flag`, or the missing flag that `flag` needs. A hint is a binding of its own (srun(1), --hint), and typed
/// flags override a variable.
fn contradiction(line: &Line, flag: &str) -> Option<&'static str> {
    let others: &[&'static str] = match flag {
        "hint" => &["--cpu-bind", "--threads-per-core", "--tasks-per-core"],
        "cpu-bind" | "threads-per-core" => &["--hint"],
        "ntasks-per-core" => &["--tasks-per-socket", "--hint"],
        "ntasks-per-socket" => &["--tasks-per-core"],
        _ => &[],
    };
    let needed = match flag {
        "signal" => Some(("--time", "no -t")),
        "bcast-exclude" | "send-libs" => Some(("--bcast", "no --bcast")),
        _ => None,
    };
    let missing = needed.filter(|(needed, _)| !line.has(needed)).map(|(_, without)| without);
    others.iter().copied().find(|other| line.has(other)).or(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Translation of `srun FLAGS ./a` with these variables, without the defaults of srun.
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
    fn each_variable_of_srun_is_known() {
        let names: Vec<&str> =
            include_str!("../../testdata/srun-variables.txt").lines().filter(|line| !line.starts_with('#')).collect();
        assert!(names.len() > 90, "{}", names.len());
        for name in names {
            let is_left_out = ["SLURM_CONF", "SLURM_JOB_ID"].contains(&name);
            let known = VARIABLES.iter().chain(IDLE).any(|(known, _)| *known == name) || OTHERS.contains(&name);
            assert!(known != is_left_out, "{name}");
        }
    }

    #[test]
    fn variables_that_need_a_flag_beside_them_or_stand_against_one_are_left_out() {
        for (flags, variables, expected) in [
            ("", &[("SLURM_SIGNAL", "USR1@10")][..], "./a"),
            ("-t 5", &[("SLURM_SIGNAL", "USR1@10")], "--time=5 --signal=USR1@10 ./a"),
            ("", &[("SLURM_BCAST_EXCLUDE", "/opt"), ("SLURM_SEND_LIBS", "yes")], "./a"),
            (
                "--bcast",
                &[("SLURM_BCAST_EXCLUDE", "/opt"), ("SLURM_SEND_LIBS", "yes")],
                "--bcast --bcast-exclude=/opt --send-libs=yes ./a",
            ),
            ("", &[("SLURM_THREADS_PER_CORE", "1"), ("SLURM_HINT", "nomultithread")], "--hint=nomultithread ./a"),
            (
                "",
                &[("SLURM_THREADS_PER_CORE", "1"), ("SLURM_NTASKS_PER_CORE", "2")],
                "--threads-per-core=1 --tasks-per-core=2 ./a",
            ),
            ("", &[("SLURM_WORKING_DIR", "/usr")], "--chdir=/usr ./a"),
            ("-D /tmp", &[("SLURM_WORKING_DIR", "/usr")], "--chdir=/tmp ./a"),
            ("", &[("SLURM_PROLOG", "./p"), ("SLURM_EPILOG", "none")], "--prolog=./p ./a"),
            ("", &[("SLURM_JOB_NAME", "ocean")], "--job-name=ocean ./a"),
            ("", &[("SLURM_JOB_NAME", "ocean"), ("LATTICE_ALLOC_ID", "a")], "./a"),
            ("", &[("SLURM_DISTRIBUTION", "plane"), ("SLURM_DIST_PLANESIZE", "3")], "--distribution=plane=3 ./a"),
            ("", &[("SLURM_PARTITION", "debug")], "./a"),
        ] {
            assert_eq!(heeded(flags, variables), expected, "{flags} {variables:?}");
        }
    }

    #[test]
    fn a_number_of_nodes_of_the_environment_is_the_greatest() {
        let check = |flags: &str, variables: &[(&str, &str)], expected: &str| {
            let mut line = Line::default();
            let words: Vec<OsString> = flags.split_whitespace().chain(["./a"]).map(OsString::from).collect();
            assert!(super::super::read(&words, &mut line).unwrap().is_none());
            let value =
                |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
            heed_nodes(&mut line, value);
            let words = line.finish().words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>();
            assert_eq!(words.join(" "), expected);
        };
        check("", &[("SLURM_NNODES", "3"), ("SLURM_JOB_NUM_NODES", "2")], "--nodes=1-2 ./a");
        check("", &[("SLURM_NNODES", "3")], "--nodes=1-3 ./a");
        check("-N 4", &[("SLURM_NNODES", "3")], "--nodes=4 ./a");
        check("-w a,b", &[("SLURM_NNODES", "3")], "--nodelist=a,b ./a");
        check("", &[("SLURM_NNODES", "x")], "./a");
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

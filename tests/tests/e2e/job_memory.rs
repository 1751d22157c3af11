//! Ranks read all pairs of fences in the memory of their job, without a message. Without this memory they receive the same values.

use std::fs;
use std::path::Path;

use lattice_tests::{Command, built, launch, mpi};

use crate::raw;

/// Returns the number of gets in the PMI trace of a launch of `lattice pmi` with these words, which checks the received values.
fn gets(flags: &str, words: &str) -> usize {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let command = launch(flags).arg("--pmi-trace").arg(&trace).arg(built::lattice()).words("pmi").words(words);
    command.run().exits(0).says_nothing().prints("exchange: 4 ranks");
    let trace = fs::read_to_string(&trace).unwrap();
    let is_get = |line: &&str| line.contains("C> cmd=get ") || line.contains("cmd=kvs-get;");
    // With PMI-2 each fence ends with a get of this key.
    trace.lines().filter(is_get).filter(|line| !line.contains("-NONEXIST-KEY")).count()
}

fn example() -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let program = mpi::example(directory.path(), "job_memory");
    (directory, program)
}

#[test]
fn a_program_in_c_reads_the_map_and_every_value_without_a_message() {
    let (_directory, program) = example();
    // 100 keys of each rank exceed the first index, and values of 60,000 bytes exceed the first mapping.
    let outcome = launch("-n 4 --cpu-bind map:0,1,0,1").arg(&program).words("3 100").run();
    outcome.exits(0).says_nothing();
    for rank in 0..4 {
        outcome.prints(&format!("rank {rank} of 4: node 0 ("));
        let place = format!("local rank {rank} of 4, node rank {rank}, CPUs {}", rank % 2);
        outcome.prints(&format!("{place}, PMI_process_mapping=(vector,(0,1,4)), 2424 values read, 3 fences\n"));
    }
}

#[test]
fn a_client_asks_for_no_key_that_a_fence_has_brought() {
    assert_eq!(gets("-n 4", "exchange --count 40 --size 1000"), 0);
    assert_eq!(gets("-n 4 --pmi-port", "exchange --count 3"), 0);
    assert_eq!(gets("-n 4", "--method pmi2 exchange --count 3"), 0);
}

#[test]
fn without_the_memory_ranks_ask() {
    assert_eq!(gets("-n 4 --no-job-memory", "exchange --count 3"), 48);
    let (_directory, program) = example();
    let none = "rank 0 of 1: no job memory";
    launch("-n 1 --no-job-memory").arg(&program).run().exits(0).says_nothing().prints_lines([none]);
    let shown = "echo ${LATTICE_JOB_MEMORY-unset} $(readlink /proc/$$/fd/31)";
    launch("-n 1").bash(shown).run().exits(0).prints_lines(["31 /memfd:lattice-job-memory (deleted)"]);
    for flags in ["--no-job-memory", "--pmi pmix", "--pmi none"] {
        launch("-n 1").words(flags).bash(shown).run().exits(0).prints_lines(["unset"]);
    }
}

#[test]
fn a_descriptor_that_was_closed_or_is_something_else_is_no_error() {
    let (_directory, program) = example();
    let check = |script: &str, program: &Path, words: &str, printed: &str| {
        let script = format!("{script}; exec \"$@\"");
        launch("-n 2").bash(&script).arg(program).words(words).run().exits(0).says_nothing().prints(printed);
    };
    for script in ["exec 31<&-", "exec 31</dev/null", "unset LATTICE_JOB_MEMORY", "export LATTICE_JOB_MEMORY=x"] {
        check(script, &built::lattice(), "pmi exchange --count 2", "exchange: 2 ranks, 2 rounds");
        check(script, &program, "2 5", "rank 1 of 2: no job memory");
    }
}

/// A file beyond the limit would end the launcher with SIGXFSZ.
#[test]
fn a_limit_on_the_size_of_files_is_a_limit_on_the_memory() {
    for kilobytes in ["0", "1", "9", "64", "unlimited"] {
        let limited = Command::new("bash").arg("-c").arg(format!("ulimit -S -f {kilobytes}; exec \"$@\"")).arg("bash");
        let launch = limited.arg(built::lattice()).words("launch -n 2").arg(built::lattice());
        launch.words("pmi exchange --count 30 --size 900").run().exits(0).says_nothing().prints("exchange: 2 ranks");
    }
}

#[test]
fn the_memory_of_an_outer_launch_is_not_taken_for_ones_own() {
    let hydra = launch("-n 1").words("mpiexec.hydra -n 2").arg(built::lattice()).words("pmi exchange");
    hydra.run().exits(0).prints("exchange: 2 ranks, 1 round");
    let ours = launch("-n 1").arg(built::lattice()).words("launch -n 3").arg(built::lattice()).words("pmi exchange");
    ours.run().exits(0).prints("exchange: 3 ranks, 1 round");
}

#[test]
fn a_spawned_job_has_a_memory_of_its_own() {
    let (_directory, program) = example();
    let script = r#"init
        printf 'mcmd=spawn\nnprocs=2\nexecname=%s\ntotspawns=1\nspawnssofar=1\nargcnt=2\narg1=2\narg2=5\npreput_num=0\ninfo_num=0\nendcmd\n' "$PROGRAM" >&$PMI_FD
        hear; finalize"#;
    let outcome = raw::script(launch("-n 1 --env").arg(format!("PROGRAM={}", program.display())), script).run();
    outcome.exits(0).says_nothing().prints("rank 1 of 2: node 0 (");
    outcome.prints("local rank 1 of 2, node rank 2, CPUs any, PMI_process_mapping=(vector,(0,1,2)), 36 values read");
}

#[test]
fn a_wrapper_that_holds_the_descriptor_does_no_harm() {
    let wrapped =
        |words: &str| -> Command { launch("-n 2").bash("\"$@\"; exit $?").arg(built::lattice()).words(words) };
    wrapped("pmi exchange --count 3").run().exits(0).says_nothing().prints("exchange: 2 ranks, 3 rounds");
}

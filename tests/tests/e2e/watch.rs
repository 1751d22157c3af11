//! The wire-up watch, and start-ups that hang. Other launchers do not report these errors.

use std::path::{Path, PathBuf};

use lattice_tests::{launch, mpi};
use nix::sys::signal::Signal;

use crate::raw;

/// Compiles a program that is linked with a library of Open MPI's name.
fn linked_with_open_mpi(directory: &Path, body: &str) -> PathBuf {
    let shared = ["-shared", "-fPIC", "-Wl,-soname,libmpi.so.40"];
    mpi::compile_text(directory, "libmpi.so.40", "int MPI_Init(int *c, char ***v) { return 0; }", &shared);
    let program = format!(
        "#include <unistd.h>\nint MPI_Init(int *c, char ***v);\nint main(int c, char **v) {{ MPI_Init(&c, &v); {body} return 0; }}"
    );
    let library = directory.join("libmpi.so.40").display().to_string();
    let path = format!("-Wl,-rpath,{}", directory.display());
    mpi::compile_text(directory, "program", &program, &[&library, &path])
}

#[test]
fn ranks_that_end_without_a_word_are_reported() {
    let outcome = launch("-v -n 3").arg("true").run();
    outcome.exits(0).says("lattice: note: ranks 0-2 ended without a message").says("--pmi=none");
    // It does not contain MPI, as the user expects.
    launch("-n 3").arg("true").run().exits(0).says_nothing();
    launch("-n 3 --pmi none").arg("true").run().exits(0).says_nothing();
    launch("-n 1").arg("true").run().exits(0).says_nothing();
    launch("-q -n 3").arg("true").run().exits(0).says_nothing();
}

#[test]
fn a_library_that_speaks_another_protocol_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let program = linked_with_open_mpi(directory.path(), "");
    let outcome = launch("-n 2").arg(&program).run();
    outcome.exits(0).says("warning: ranks 0-1 ended without a message").says("Open MPI (").says("libmpi.so.40");
    outcome.says("PMIx").says("lattice: try: ");
}

/// The guarantee contains the five seconds.
#[test]
fn ranks_that_run_on_without_a_word_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let program = linked_with_open_mpi(directory.path(), "sleep(1000);");
    let mut foreign = launch("-n 2").words("env -i").arg(&program).start();
    // These programs do not contain MPI, so that only the verbose launch reports them.
    let mut plain = launch("-n 2").words("env -i sleep 1000").start();
    let mut verbose = launch("-v -n 2").words("env -i sleep 1000").start();
    foreign.wait_for_stderr("ranks 0-1 have run for 5");
    verbose.wait_for_stderr("ranks 0-1 have run for 5");
    for running in [&mut foreign, &mut plain, &mut verbose] {
        running.signal(Signal::SIGTERM);
    }
    foreign.finish().exits(143).says("Open MPI (").says("lattice: try: ");
    verbose.finish().exits(143).does_not_say("Open MPI");
    plain.finish().exits(143).does_not_say("have run for");
}

/// For example, the rank reads its input for longer than five seconds. It still has the variables to call its server.
#[test]
fn a_rank_that_can_still_call_is_not_reported_so_soon() {
    let directory = tempfile::tempdir().unwrap();
    let program = linked_with_open_mpi(directory.path(), "sleep(7);");
    let outcome = launch("-n 2").arg(&program).run();
    outcome.exits(0).does_not_say("have run for").says("warning: ranks 0-1 ended without a message");
}

/// A wrapper may start the MPI program late. Its rank has contacted the server.
#[test]
fn a_rank_that_speaks_is_not_reported() {
    let outcome = raw::script(launch("-n 2"), "init; barrier; finalize").run();
    outcome.exits(0).says_nothing();
}

#[test]
fn a_stuck_start_up_names_the_missing_ranks_and_their_last_command() {
    let script = r#"
        case $PMI_RANK in
            0) init; barrier;;
            1) init; ask cmd=get_maxes;;
            2) ;;
        esac
        forever"#;
    let mut running = raw::script(launch("-n 3 --stuck-after 500ms"), script).start();
    running.wait_for_stderr("1 rank waits for ranks 1-2");
    running.wait_for_stderr("rank 1: its last PMI command was get_maxes");
    running.wait_for_stderr("rank 2: has not called MPI_Init");
    running.signal(Signal::SIGTERM);
    running.finish().exits(143).says("start-up is not complete");
}

#[test]
fn a_job_that_has_started_is_not_called_stuck() {
    let script = "init; barrier; sleep 1; barrier; finalize";
    raw::script(launch("-n 2 --stuck-after 200ms"), script).run().exits(0).says_nothing();
    // While one rank writes its results, the other ranks are in MPI_Finalize.
    let script = "init; barrier; [ $PMI_RANK = 0 ] && sleep 2; barrier; finalize";
    raw::script(launch("-n 2 --stuck-after 200ms"), script).run().exits(0).says_nothing();
}

/// Requires gdb, which `cargo xtask setup` installs.
#[test]
fn ranks_that_others_wait_for_are_shown_with_their_functions() {
    let directory = tempfile::tempdir().unwrap();
    let script = r#"init; [ $PMI_RANK = 0 ] && barrier; exec "$SLEEPER""#;
    let launch = launch("-n 4 --stuck-after 500ms").env("SLEEPER", mpi::sleeper(directory.path()));
    let mut running = raw::script(launch, script).start();
    running.wait_for_stderr("lattice: ranks 2-3:\n");
    running.wait_for_stderr("solve");
    running.signal(Signal::SIGTERM);
    let outcome = running.finish();
    outcome.exits(143).says("lattice: note: call stacks:\nlattice: rank 1:\nlattice:   1 thread of sleeper\n");
    outcome.says(" exchange ");
}

#[test]
fn all_ranks_are_shown_with_their_functions_when_the_time_limit_is_reached() {
    let directory = tempfile::tempdir().unwrap();
    let outcome = launch("-n 4 --pmi=none --timeout 5s").arg(mpi::sleeper(directory.path())).run();
    outcome.exits(124).says("lattice: ranks 0,2-3:\n").says("lattice: rank 1:\n").says(" solve ").says(" exchange ");
}

/// The shell that waits for the program is not shown.
#[test]
fn a_program_in_a_script_is_shown_in_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let launch = launch("-n 2 --pmi=none --timeout 5s").env("SLEEPER", mpi::sleeper(directory.path()));
    launch.bash(r#""$SLEEPER"; exit 1"#).run().exits(124).says("1 thread of sleeper").says(" solve ");
}

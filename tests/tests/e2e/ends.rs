//! Ends of launches: exit codes, the first cause, and ranks that leave while other ranks wait for them.

use std::time::Duration;

use lattice_tests::mpi::MPICHS;
use lattice_tests::{launch, turn};

use crate::raw;

#[test]
fn the_exit_code_is_the_ranks_own() {
    for code in [1, 5, 100, 255] {
        let script = r#"if [ $LATTICE_RANK = 2 ]; then exit $1; fi"#;
        launch("-n 4").bash(script).arg(code.to_string()).run().exits(code).says(&format!("exited with status {code}"));
    }
    for mpi in MPICHS {
        let outcome = launch("-n 3").arg(mpi.program("exit_after_finalize")).words("1 5").run();
        outcome.exits(5).says("rank 1 on ").says("exited with status 5");
    }
}

#[test]
fn a_rank_killed_by_a_signal_gives_128_and_the_signal() {
    let outcome = launch("-n 2").bash("if [ $LATTICE_RANK = 1 ]; then kill -KILL $$; fi; sleep 1000").run();
    outcome.exits(137).says("rank 1 on ").says("signal 9 (SIGKILL)");
    for mpi in MPICHS {
        let outcome = launch("-n 3").arg(mpi.program("crash")).arg("2").run();
        outcome.exits(139).says("rank 2 on ").says("signal 11 (SIGSEGV)");
    }
}

#[test]
fn the_first_failing_rank_is_named_though_others_fail_of_it() {
    let script = r#"
        trap 'exit 9' TERM
        if [ $LATTICE_RANK = 1 ]; then until [ -e "$1/ready" ]; do sleep 0.01; done; exit 3; fi
        touch "$1/ready"; while :; do sleep 0.01; done"#;
    let directory = tempfile::tempdir().unwrap();
    let outcome = launch("-n 2").bash(script).arg(directory.path()).run();
    outcome.exits(3).says("rank 1 on ").says("exited with status 3").does_not_say("status 9");
}

#[test]
fn exit_without_finalize_ends_the_job() {
    for mpi in MPICHS {
        let program = mpi.program("exit_without_finalize");
        let outcome = launch("-n 3").arg(&program).words("1 3").run();
        outcome.exits(3).says("rank 1 on ").says("exited with status 3");
        let outcome = launch("-n 3").arg(&program).words("1 0").run();
        outcome.exits(1).says("rank 1 on ").says("without calling MPI_Finalize");
    }
}

#[test]
fn a_rank_that_leaves_before_init_ends_the_job_within_a_second() {
    for mpi in MPICHS {
        let program = mpi.program("leave_before_init");
        let outcome = launch("-n 3").arg(&program).words("1 0").run();
        outcome.exits(1).says("rank 1 on ").says("before MPI_Init");
        let outcome = launch("-n 3").arg(&program).words("2 4").run();
        outcome.exits(4).says("rank 2 on ").says("exited with status 4");
    }
}

/// The other ranks may enter `MPI_Init` after it has left.
#[test]
fn a_rank_that_left_long_before_the_others_come_ends_the_job() {
    let script = r#"
        if [ $PMI_RANK = 1 ]; then touch "$1/gone"; exit 0; fi
        until [ -e "$1/gone" ]; do sleep 0.01; done
        sleep 0.3; echo leaving; init; barrier; forever"#;
    let directory = tempfile::tempdir().unwrap();
    let outcome = raw::script(launch("-n 2"), script).arg(directory.path()).run();
    outcome.exits(1).says("rank 1 on ").says("before MPI_Init");
}

#[test]
fn a_rank_that_finalizes_while_others_wait_in_a_barrier_ends_the_job() {
    let script = r#"init; if [ $PMI_RANK = 0 ]; then sleep 0.2; echo leaving; finalize; exit 0; fi; barrier; forever"#;
    let outcome = raw::script(launch("-n 3"), script).run();
    outcome.exits(1).says("rank 0 on ").says("called MPI_Finalize, while ranks 1-2 wait for it in a barrier");
}

/// Some clients close their socket long before they exit, other clients never.
#[test]
fn closing_the_socket_after_finalize_is_no_failure() {
    let script = "init; barrier; finalize; eval \"exec $PMI_FD>&-\"; sleep 0.3; echo done";
    raw::script(launch("-n 2"), script).run().exits(0).says_nothing().prints_lines(["done"; 2]);
}

#[test]
fn an_mpi_job_whose_ranks_end_at_different_times_is_well() {
    let script = "init; barrier; finalize; sleep 0.$PMI_RANK; exit 0";
    raw::script(launch("-n 4"), script).run().exits(0).says_nothing();
}

#[test]
fn the_time_limit_ends_the_launch() {
    let outcome = launch("-n 2 --timeout 300ms").words("sleep 1000").run();
    outcome.exits(124).says("time limit").check(outcome.wall() >= Duration::from_millis(300), || "too early".into());
    launch("-n 2 --timeout 1h --pmi none").words("true").run().exits(0).says_nothing();
}

#[test]
fn ranks_that_ignore_sigterm_are_killed() {
    let command = launch("-n 2 --kill-wait 200ms --timeout 500ms");
    command.bash("trap '' TERM; while :; do sleep 0.05; done").run().exits(124);
}

#[test]
#[ignore = "second tier"]
fn programs_that_end_at_once_never_hang_in_500_runs() {
    let _machine = turn::heavy();
    for run in 0..500 {
        let ranks = 1 + run % 4;
        launch(&format!("--pmi none -n {ranks}")).arg("true").run().exits(0).says_nothing();
    }
}

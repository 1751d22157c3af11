//! Effects of the end of a rank on other ranks: `--kill-on-bad-exit`, `--wait`, and the signal before a time limit.

use lattice_tests::mpi::{Flavour, MPIS};
use lattice_tests::{lattice, launch};

use crate::raw;

/// Ranks 1 and 2 fail at once. The other ranks continue until rank 0 lets them end.
const FAILING: &str = r#"
    case $LATTICE_RANK in 1) exit 3;; 2) kill -KILL $$;; esac
    sleep 0.3; echo "rank $LATTICE_RANK went on""#;

#[test]
fn the_others_go_on_after_a_failure_that_is_borne() {
    let went_on = ["rank 0 went on", "rank 3 went on"];
    for flag in ["-K0", "--kill-on-bad-exit=0"] {
        let outcome = launch("-n 4 --pmi=none").words(flag).bash(FAILING).run();
        outcome.exits(137).prints_lines(went_on);
        outcome.says("lattice: rank 1 exited with status 3; rank 2 was killed by signal 9 (SIGKILL)");
    }
    for flag in ["", "-K", "-K1", "--kill-on-bad-exit"] {
        let outcome = launch("-n 2 --pmi=none").words(flag).bash("[ $LATTICE_RANK = 1 ] && exit 3; sleep 1000").run();
        outcome.exits(3).says("rank 1 on ").says("exited with status 3");
    }
    launch("-n 4 -K0 --pmi=none").words("true").run().exits(0).says_nothing();
}

#[test]
fn the_failures_that_were_borne_are_in_the_last_line_of_json() {
    let outcome = lattice("launch --json -K0 -n 2 --pmi=none").bash("exit $((LATTICE_RANK * 4))").run();
    let last = outcome.exits(4).text().lines().last().unwrap_or_default().to_owned();
    let cause = r#""cause":{"kind":"failed_ranks","#;
    outcome.check(last.contains(cause) && last.contains(r#""exit_code":4"#), || format!("{last} lacks {cause}"));
}

#[test]
fn ranks_of_mpi_go_on_after_one_that_failed_behind_finalize() {
    for mpi in MPIS {
        let script = r#""$0" 1 5; code=$?; sleep 0.2; [ $code = 0 ] && echo well; exit $code"#;
        let command = launch("-n 3 -K0").words("bash -c").arg(script).arg(mpi.program("exit_after_finalize"));
        command.run().exits(5).says("lattice: rank 1 on ").says(" exited with status 5").prints_lines(["well"; 2]);
    }
}

/// They wait for the failed rank in their shared memory, where only `--wait` detects it. MPICH 3 monitors its peers, and aborts.
#[test]
fn ranks_of_mpi_that_wait_for_one_that_failed_are_ended_by_wait() {
    for mpi in [Flavour::DebianMpich, Flavour::WheelMpich] {
        let command = launch("-n 3 -K0 --wait 500ms").arg(mpi.program("exit_without_finalize")).words("1 3");
        command.run().exits(124).says("rank 1 on ").says("ended first, and the time of the others, 500ms, is over");
    }
}

#[test]
fn ranks_that_wait_for_one_that_failed_in_its_initialization_end_the_launch() {
    // Before its failure, and after.
    for script in [
        "init; put; if [ $PMI_RANK = 1 ]; then sleep 0.2; exit 3; fi; barrier; forever",
        "init; put; if [ $PMI_RANK = 1 ]; then exit 3; fi; sleep 0.2; barrier; forever",
    ] {
        raw::script(launch("-n 3 -K0"), script).run().exits(3).says("rank 1 on ").says("exited with status 3");
    }
    let script = "if [ $PMI_RANK = 1 ]; then exit 4; fi; init; barrier; forever";
    raw::script(launch("-n 3 -K0"), script).run().exits(4).says("exited with status 4 before MPI_Init");
}

/// Rank 1 dies after a first fence. The other ranks get this fact, and complete a second fence without it. Only rank 2 has a
/// handler for the signal with which MPICH receives it.
const DEATH: &str = r#"
    [ $PMI_RANK = 2 ] && trap 'echo "rank 2 has the signal"' USR1
    init; barrier
    [ $PMI_RANK = 1 ] && kill -KILL $$
    until ask 'cmd=get key=PMI_dead_processes'; [ "$reply" != "${reply#*rc=0}" ]; do sleep 0.02; done
    [ $PMI_RANK = 2 ] && sleep 0.5
    echo "rank $PMI_RANK reads ${reply##*value=}"
    barrier; echo "rank $PMI_RANK: $reply"; finalize"#;

#[test]
fn the_others_read_who_is_dead_and_their_fences_do_without_it() {
    let outcome = raw::script(launch("-n 3 -K0"), DEATH).run();
    let fence = "cmd=barrier_out rc=0";
    let read = [0, 2].map(|rank| format!("rank {rank} reads 1"));
    let through = [0, 2].map(|rank| format!("rank {rank}: {fence}"));
    let expected = read.into_iter().chain(through).chain(["rank 2 has the signal".to_owned()]);
    outcome.exits(137).prints_lines(expected).says("rank 1 ").says("was killed by signal 9 (SIGKILL)");
}

#[test]
fn clients_of_pmix_hear_of_a_death_and_their_fences_end_without_it() {
    let outcome = launch("-n 4 -K0").arg(Flavour::Pmix.program("pmix_death")).words("2").run();
    let heard = |rank| format!("rank {rank}: -402 of rank 2, all -61, left 0");
    outcome
        .exits(137)
        .prints_lines([0, 1, 3].map(heard).into_iter().chain(["dying".to_owned()]))
        .says("rank 2 on ")
        .says(" was killed by signal 9 (SIGKILL)");
}

/// MPICH 4 waits for it in MPI_Finalize, in the shared memory.
#[test]
fn ranks_of_mpi_go_on_without_one_that_was_killed() {
    let goes_on = [0, 2, 3].map(|rank| format!("rank {rank} is one of 3, whose sum is 5"));
    for (mpi, flags) in [(Flavour::WheelMpich, ""), (Flavour::WheelOpenMpi, "--env OMPI_MCA_mpi_ft_enable=1")] {
        let outcome = launch("-n 4 -K0").words(flags).arg(mpi.program("survive")).words("1").run();
        for line in &goes_on {
            outcome.prints(line);
        }
        outcome.exits(137).says("rank 1 ").says("was killed by signal 9 (SIGKILL)");
    }
    let outcome = launch("-n 4 -K0 --wait 3").arg(Flavour::DebianMpich.program("survive")).words("1").run();
    for line in &goes_on {
        outcome.prints(line);
    }
    outcome.exits(124).says("rank 1 on ").says("ended first");
}

#[test]
fn an_abort_ends_a_launch_that_bears_failures() {
    for mpi in MPIS {
        let outcome = launch("-n 3 -K0").arg(mpi.program("abort")).words("1 42").run();
        outcome.exits(42).says("rank 1 on ").says("called MPI_Abort with code 42");
    }
}

#[test]
fn the_others_have_the_time_of_wait_after_the_first_exit() {
    let script = "[ $LATTICE_RANK = 1 ] || sleep 1000";
    for flag in ["--wait 300ms", "--wait=1", "-W1"] {
        launch("-n 3 --pmi=none").words(flag).bash(script).run().exits(124).says("rank 1 on ").says("ended first");
    }
    let script = "[ $LATTICE_RANK = 1 ] || sleep 0.3";
    for flag in ["-W0", "-W 1h", ""] {
        launch("-n 2 --pmi=none").words(flag).bash(script).run().exits(0).says_nothing();
    }
}

#[test]
fn a_signal_comes_before_the_time_limit() {
    let script = r#"trap 'echo warned; exit 0' USR1; while :; do sleep 0.05; done"#;
    let outcome = launch("-n 2 --pmi=none --timeout 1h --signal USR1@59m58s").bash(script).run();
    outcome.exits(0).prints_lines(["warned"; 2]);
    let script = r#"trap 'echo warned' USR1; while :; do sleep 0.05; done"#;
    let outcome = launch("-n 1 --pmi=none --timeout 5s --signal 10@2s").bash(script).run();
    outcome.exits(124).says("the time limit of 5s is over").prints_lines(["warned"]);
}

#[test]
fn a_signal_that_would_come_at_once_is_refused() {
    let outcome = launch("-n 1 --timeout 30s --signal USR1").words("true").run();
    outcome.exits(125).says("--signal: the signal comes 1 min before the time limit, which is 30 s");
    launch("-n 1 --signal USR1@5").words("true").run().exits(125).says("--time LIMIT");
}

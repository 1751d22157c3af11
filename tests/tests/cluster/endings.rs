//! Ranks that fail. The launch ends on every node, and reports one first cause with rank and node.

use lattice_tests::mpi::{Flavour, MPIS};
use lattice_tests::{launch_on, script_on};

#[test]
fn abort_reaches_every_node() {
    for mpi in MPIS {
        let outcome = launch_on(2, "-n 4").arg(mpi.program("abort")).words("2 42").run();
        outcome.exits(42).says("rank 2 on node1").says("called MPI_Abort with code 42");
    }
}

#[test]
fn a_crash_ends_the_job_on_every_node() {
    for mpi in MPIS {
        let outcome = launch_on(2, "-n 4").arg(mpi.program("crash")).arg("3").run();
        // MPICH 5.0.2 can crash on the other node because of the broken connection, and that crash can be reported first.
        let first = if mpi == Flavour::WheelMpich { "" } else { "rank 3 on node1" };
        outcome.exits(139).says(&format!("{first} was killed by signal 11 (SIGSEGV)"));
    }
}

#[test]
fn a_rank_killed_from_outside_ends_the_job() {
    let script = r#"if [ $LATTICE_RANK = 3 ]; then echo going; kill -KILL $$; fi; sleep 1000"#;
    let outcome = launch_on(2, "-n 4").bash(script).run();
    outcome.exits(137).says("rank 3 on node1").says("signal 9 (SIGKILL)");
}

#[test]
fn exit_codes_are_the_ranks_own() {
    launch_on(2, "-n 4").bash("if [ $LATTICE_RANK = 2 ]; then exit 7; fi").run().exits(7).says("exited with status 7");
}

/// The session of node 0 gathers the puts of the other nodes. It ends with its last rank.
#[test]
fn a_rank_that_leaves_before_init_is_missed_on_other_nodes() {
    for mpi in MPIS {
        for rank in 0..2 {
            let outcome =
                launch_on(2, "-n 2").arg(mpi.program("leave_before_init")).arg(rank.to_string()).arg("0").run();
            outcome.exits(1).says(&format!("rank {rank} on node{rank}")).says("before MPI_Init");
        }
    }
}

#[test]
fn a_rank_that_finalizes_before_others_meet_is_missed_on_other_nodes() {
    for rank in 0..2 {
        let script = format!(
            "say() {{ echo cmd=$1 >&$PMI_FD; read -r answer <&$PMI_FD; }}
            say 'init pmi_version=1 pmi_subversion=1'; [ $PMI_RANK = {rank} ] || say barrier_in; say finalize"
        );
        let outcome = launch_on(2, "-n 2").bash(&script).run();
        let words = format!("rank {rank} on node{rank} called MPI_Finalize, while rank {} waits for it", 1 - rank);
        outcome.exits(1).says(&words);
    }
}

/// The report that the rank has left waits after unread output of its node.
#[test]
fn a_rank_that_leaves_is_missed_though_nobody_reads_the_output() {
    let script = r#"lattice launch -n 4 bash -c 'case $LATTICE_RANK in 0) exec yes;; 1) sleep 1;; *) exec "$0";; esac' "$1" 2>"$LATTICE_DEV_CLUSTER/err" |
            (until lattice launches --json | grep -q 'before MPI_Init'; do sleep 0.1; done; cat >/dev/null)
        grep 'before MPI_Init' "$LATTICE_DEV_CLUSTER/err""#;
    let outcome = script_on(2, script).arg(Flavour::WheelMpich.program("hello")).run();
    outcome.exits(0).prints("rank 1 on node0 exited with status 0 before MPI_Init, while ranks 2-3 are in it");
}

#[test]
fn exit_without_finalize_ends_the_job_on_every_node() {
    for mpi in MPIS {
        let program = mpi.program("exit_without_finalize");
        let outcome = launch_on(2, "-n 4").arg(&program).words("3 0").run();
        // Open MPI 5 detects the broken connection, and aborts on the other node, as soon as Lattice detects the end
        // of the rank.
        outcome.exits(1).says("rank 3 on node1").says("without calling MPI_Finalize");
    }
}

/// Rank 0 has waited for all ranks, and then waits for rank 2 alone when rank 1 leaves.
#[test]
fn a_rank_that_leaves_is_not_missed_by_a_group_without_it() {
    let outcome = launch_on(2, "-n 3").arg(Flavour::Pmix.program("pmix_part")).run();
    outcome.exits(0).says_nothing().prints_lines((0..3).map(|rank| format!("rank {rank}: 0 wrong")));
}

#[test]
fn a_program_that_is_nowhere_is_127() {
    launch_on(2, "-n 2").arg("/nowhere/at/all").run().exits(127).says("/nowhere/at/all");
}

/// One rank never enters the fence. The message names the missing rank, with its last command.
#[test]
fn a_fence_that_takes_too_long_names_those_who_are_missing() {
    let script = r#"if [ $LATTICE_RANK = 3 ]; then exec sleep 1000; fi; exec "$1""#;
    let command = launch_on(2, "-n 4 --fence-timeout 2s").bash(script);
    let outcome = command.arg(Flavour::WheelMpich.program("hello")).run();
    outcome.exits(125).says("PMI fence timeout").says("rank 3");
}

#[test]
fn a_time_limit_holds_on_every_node() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"; lattice launch --pmi=none -n 4 --timeout 4s bash -c 'echo $$; exec sleep 1000' >ranks
        code=$?; wc -l <ranks; for rank in $(cat ranks); do kill -0 $rank && echo "$rank lives"; done; exit $code"#;
    script_on(2, script).run().exits(124).says("the time limit of 4s is over").prints_lines(["4"]);
}

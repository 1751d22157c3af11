//! `--kill-on-bad-exit`, `--wait` and `--signal` on several nodes.

use lattice_tests::mpi::MPIS;
use lattice_tests::{launch_on, script_on};

#[test]
fn ranks_of_all_nodes_go_on_after_a_failure_that_is_borne() {
    let script = r#"case $LATTICE_RANK in 1) exit 3;; 2) exit 9;; esac; sleep 1; echo "rank $LATTICE_RANK went on""#;
    let outcome = launch_on(2, "-n 4 -K0 --pmi=none").bash(script).run();
    outcome.exits(9).prints("rank 0 went on").prints("rank 3 went on");
    outcome.says("lattice: rank 1 exited with status 3; rank 2 exited with status 9");
}

/// All ranks of a node fail, and the node has ended its part long before the launch ends.
#[test]
fn a_node_all_of_whose_ranks_failed_is_awaited_by_nobody() {
    let script = r#"[ $LATTICE_RANK -ge 2 ] && exit 7; sleep 1; echo "rank $LATTICE_RANK went on""#;
    let outcome = launch_on(2, "-n 4 -K0 --pmi=none").bash(script).run();
    outcome.exits(7).prints("rank 0 went on").prints("rank 1 went on").says("lattice: ranks 2-3 exited with status 7");
}

#[test]
fn a_launch_that_bore_failures_has_failed() {
    let script = r#"lattice launch -K0 -n 2 --pmi=none bash -c 'exit $LATTICE_RANK'
        lattice launches --all --json | field state"#;
    script_on(2, script).run().exits(0).prints_lines(["failed"]);
}

#[test]
fn ranks_of_mpi_go_on_after_one_that_failed_behind_finalize() {
    for mpi in MPIS {
        let script = r#""$0" 3 5; code=$?; sleep 0.2; [ $code = 0 ] && echo well; exit $code"#;
        let command = launch_on(2, "-n 4 -K0").words("bash -c").arg(script).arg(mpi.program("exit_after_finalize"));
        command.run().exits(5).says("lattice: rank 3 exited with status 5").prints_lines(["well"; 3]);
    }
}

/// Nobody of the other node has seen an end.
#[test]
fn the_others_have_the_time_of_wait_wherever_the_first_rank_ended() {
    let script = "[ $LATTICE_RANK -ge 2 ] || sleep 1000";
    let outcome = launch_on(2, "-n 4 --pmi=none --wait 1s").bash(script).run();
    outcome.exits(124).says(" on node1 ended first, and the time of the others, 1s, is over");
}

#[test]
fn a_signal_comes_to_all_nodes_before_the_time_limit() {
    let script = r#"trap 'echo warned; exit 0' USR1; while :; do sleep 0.05; done"#;
    let outcome = launch_on(2, "-n 4 --pmi=none --timeout 1h --signal USR1@59m58s").bash(script).run();
    outcome.exits(0).prints_lines(["warned"; 4]);
}

//! `--kill-on-bad-exit`, `--wait` and `--signal` on several nodes.

use std::path::Path;

use lattice_tests::mpi::{Flavour, MPIS};
use lattice_tests::{Command, launch_on, script_on};

#[test]
fn ranks_of_all_nodes_go_on_after_a_failure_that_is_borne() {
    let script = r#"case $LATTICE_RANK in 1) exit 3;; 2) exit 9;; esac; sleep 1; echo "rank $LATTICE_RANK went on""#;
    let outcome = launch_on(2, "-n 4 -K0 --pmi=none").bash(script).run();
    outcome.exits(9).prints("rank 0 went on").prints("rank 3 went on");
    outcome.says("lattice: rank 1 exited with status 3; rank 2 exited with status 9, on node[0-1]");
}

/// All ranks of a node fail, and the node's part ends long before the launch ends.
#[test]
fn a_node_all_of_whose_ranks_failed_is_awaited_by_nobody() {
    let script = r#"[ $LATTICE_RANK -ge 2 ] && exit 7; sleep 1; echo "rank $LATTICE_RANK went on""#;
    let outcome = launch_on(2, "-n 4 -K0 --pmi=none").bash(script).run();
    outcome
        .exits(7)
        .prints("rank 0 went on")
        .prints("rank 1 went on")
        .says("lattice: ranks 2-3 on node1 exited with status 7");
}

/// The only rank of a node dies: the launch continues without this node as well.
#[test]
fn clients_of_pmix_hear_of_a_death_on_every_node_and_their_fences_end_without_it() {
    for victim in 0..3 {
        let outcome = launch_on(3, "-n 3 -K0").arg(Flavour::Pmix.program("pmix_death")).arg(victim.to_string()).run();
        let others = (0..3).filter(|&rank| rank != victim);
        let heard = others.map(|rank| format!("rank {rank}: -402 of rank {victim}, all -61, left 0"));
        outcome
            .exits(137)
            .prints_lines(heard.chain(["dying".to_owned()]))
            .says(&format!("rank {victim} on node{victim} was killed by signal 9 (SIGKILL)"));
    }
}

/// With and without other ranks on the node.
#[test]
fn ranks_of_mpi_go_on_without_one_that_was_killed() {
    for (mpi, flags) in [(Flavour::WheelMpich, ""), (Flavour::WheelOpenMpi, "--env OMPI_MCA_mpi_ft_enable=1")] {
        for (nodes, ranks) in [(2, 4), (3, 3)] {
            let flags = format!("-n {ranks} -K0 --wait 60 {flags}");
            let outcome = launch_on(nodes, &flags).arg(mpi.program("survive")).words("1").run();
            let sum = (0..ranks).sum::<u32>() - 1;
            let goes_on = |rank| format!("rank {rank} is one of {}, whose sum is {sum}", ranks - 1);
            for rank in (0..ranks).filter(|&rank| rank != 1) {
                outcome.prints(&goes_on(rank));
            }
            outcome.exits(137).says("rank 1 ").says("was killed by signal 9 (SIGKILL)");
        }
    }
}

/// Returns a launch with `--no-kill` on three nodes, with one rank each. The session of this node is killed when the rank is ready.
fn losing(node: u32, program: &Path, flags: &str) -> Command {
    let script = format!(
        r#"out=$LATTICE_DEV_CLUSTER/out; lattice launch -n 3 --no-kill {flags} "$1" {node} wait >$out & launch=$!
        until grep -q dying $out; do sleep 0.05; done; id=$(launch_with 3)
        kill -KILL $(ps -o ppid= -p $(pid_of_rank $id {node})); wait $launch; code=$?; cat $out; exit $code"#
    );
    script_on(3, &script).arg(program)
}

#[test]
fn a_node_that_is_lost_leaves_the_others_running() {
    let script = r#"out=$LATTICE_DEV_CLUSTER/out
        lattice launch -n 4 -k --pmi=none bash -c 'echo up; until [ -e $0 ]; do sleep 0.05; done; echo $LATTICE_RANK is well' $out.go >$out &
        launch=$!; until [ "$(grep -c up $out)" = 4 ]; do sleep 0.05; done; kill -STOP $(daemon node1)
        until lattice nodes --json | field state | grep -q lost; do sleep 0.1; done
        touch $out.go; wait $launch; code=$?; grep well $out; kill -CONT $(daemon node1); exit $code"#;
    let outcome = script_on(2, script).run();
    outcome.exits(1).prints_lines(["0 is well", "1 is well"]).says("lattice: node node1 was lost: ");
}

/// Also without the first node, which is the root of fences of all nodes.
#[test]
fn clients_of_pmix_hear_of_a_lost_node_and_go_on() {
    for lost in 0..2 {
        let outcome = losing(lost, &Flavour::Pmix.program("pmix_death"), "").run();
        for rank in (0..3).filter(|rank| *rank != lost) {
            outcome.prints(&format!("rank {rank}: -200 of rank {lost}, all -61, left 0"));
        }
        let cause = format!("lattice: node node{lost} was lost: the session process was killed by signal 9 (SIGKILL)");
        outcome.exits(1).says(&cause);
    }
}

/// Over UCX MPICH's MPI_Finalize fails after a connection was reset.
#[test]
fn ranks_of_mpi_go_on_without_a_lost_node() {
    for (mpi, flags, code) in
        [(Flavour::WheelMpich, "-K0", 15), (Flavour::WheelOpenMpi, "--env OMPI_MCA_mpi_ft_enable=1", 1)]
    {
        let outcome = losing(1, &mpi.program("survive"), &format!("--wait 60 {flags}")).run();
        for rank in [0, 2] {
            outcome.prints(&format!("rank {rank} is one of 2, whose sum is 2"));
        }
        outcome.exits(code).says("lattice: node node1 was lost: ");
    }
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
        command.run().exits(5).says("lattice: rank 3 on node1 exited with status 5").prints_lines(["well"; 3]);
    }
}

/// No rank of the other node has ended.
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

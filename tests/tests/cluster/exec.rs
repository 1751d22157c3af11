//! `lattice exec`: runs a command once on each node.

use lattice_tests::{cluster, script_on};

#[test]
fn each_node_runs_it_once_and_lines_name_their_node() {
    let outcome = script_on(3, "lattice exec 'node[0,2]' node1 -- sh -c 'echo $(hostname) $#' a b:c : d").run();
    outcome.exits(0).prints_lines(["node0: node0 3", "node1: node1 3", "node2: node2 3"]);
}

#[test]
fn one_node_reads_our_input_and_prints_as_it_is() {
    script_on(2, "echo in | lattice exec node1 -D / -- sh -c 'cat; pwd; hostname'")
        .run()
        .exits(0)
        .prints("in\n/\nnode1\n");
}

#[test]
fn a_command_that_fails_leaves_the_others_running() {
    let script = "lattice exec 'node[0-1]' -- sh -c '[ $(hostname) = node1 ] || exit 4; sleep 1; echo done; exit 7'";
    script_on(2, script)
        .run()
        .exits(7)
        .prints("node1: done\n")
        .says("rank 0 exited with status 4; rank 1 exited with status 7, on node[0-1]");
}

#[test]
fn what_is_missing_is_said() {
    cluster(1).bash("lattice exec node0 hostname").run().exits(125).says("-- COMMAND");
    cluster(1).bash("lattice exec node7 -- true").run().exits(125).says("node7");
    cluster(1).bash("lattice exec -- true").run().exits(125).says("NODES");
}

/// Two ends of a protocol that do not terminate their lines.
#[test]
fn one_node_answers_without_the_end_of_a_line() {
    let talk =
        r#"read -r -N 6 -t 60 asked <&${COPROC[0]}; echo you >&${COPROC[1]}; cat <&${COPROC[0]}; echo "[$asked]""#;
    for talker in ["lattice exec node1 -- bash -c", "lattice launch -u -w node1 bash -c", "lattice-mpi-launcher node1"]
    {
        let script = format!(r#"exec 2>&1; coproc {talker} 'printf "name? "; read name; echo "hello $name"'; {talk}"#);
        script_on(2, &script).run().exits(0).prints("hello you\n[name? ]\n");
    }
}

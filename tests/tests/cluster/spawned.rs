//! Spawns that reach nodes without ranks, and spawns that fail.

use lattice_tests::mpi::Flavour;
use lattice_tests::{cluster, launch_on};

#[test]
fn children_come_to_nodes_that_had_no_rank() {
    for mpi in [Flavour::WheelMpich, Flavour::DebianOpenMpi, Flavour::WheelOpenMpi] {
        let outcome = launch_on(4, "-N 4 -n 1").arg(mpi.program("spawn")).arg("3").run();
        let line = |who, rank, size, place, word| {
            format!("{who} {rank} of {size}: {place} of 4 together, the last word is '{word}'")
        };
        let children = (0..3).map(|rank| line("child", rank, 3, 1 + rank, "words that belong together"));
        // UCX has words of its own now and then, on the same stream.
        outcome.exits(0).warns_of_nothing();
        for line in children.chain([line("parent", 0, 1, 0, "3")]) {
            outcome.prints(&line);
        }
    }
}

/// Open MPI 4.1 hangs in a spawn of several parents that fails, on one machine as on many.
#[test]
fn a_spawn_that_fails_leaves_its_parents_alive() {
    for (mpi, nodes, ranks) in
        [(Flavour::WheelMpich, 2, 2), (Flavour::WheelOpenMpi, 4, 4), (Flavour::DebianOpenMpi, 2, 1)]
    {
        let outcome = launch_on(nodes, &format!("-N {nodes} -n {ranks}")).arg(mpi.program("spawn_missing")).run();
        let lines = (0..ranks).map(|rank| format!("rank {rank}: the spawn fails, {ranks} ranks go on"));
        outcome.exits(0).prints_lines(lines);
        outcome.says("lattice: warning: rank 0 asked for new processes (MPI_Comm_spawn) and got none: ");
        outcome.says("/nonexistent/program");
    }
}

/// MPICH passes `host` and `path` on; Open MPI keeps `path` to itself.
#[test]
fn children_are_on_the_hosts_that_their_parent_names() {
    let script = r#"for hosts in "node2 node1" "node0:1 node2" "node7"; do
            echo "$hosts"; lattice launch -N 3 -n 1 "$1" "${1%/*}" $hosts || exit
        done"#;
    let outcome = cluster(3).bash(script).arg(Flavour::WheelMpich.program("spawn_hosts")).run();
    outcome.exits(0).prints_lines([
        "node2 node1",
        "child 0 on node 2",
        "child 1 on node 1",
        "node0:1 node2",
        "child 0 on node 0",
        "child 1 on node 2",
        "node7",
        "the spawn fails",
    ]);
    outcome.says("and got none: host node7 is none of the launch, which runs on node[0-2]");
    let open_mpi = Flavour::WheelOpenMpi.program("spawn_hosts");
    let outcome = launch_on(3, "-N 3 -n 1").arg(open_mpi).words("- node2 node1").run();
    outcome.exits(0).prints_lines(["child 0 on node 2", "child 1 on node 1"]);
}

#[test]
fn children_are_dealt_out_as_their_parent_says() {
    let in_turn = ["child 0 on node 0", "child 1 on node 1", "child 2 on node 2", "child 3 on node 0"];
    for flavour in [Flavour::WheelMpich, Flavour::WheelOpenMpi] {
        let program = flavour.program("spawn_mapped");
        let children = |hint: &str| launch_on(3, "-N 3 -n 1").arg(&program).words("4").words(hint).run();
        children("map_by node").exits(0).prints_lines(in_turn);
        let pairs = ["child 0 on node 0", "child 1 on node 0", "child 2 on node 1", "child 3 on node 1"];
        children("map_by ppr:2:node").exits(0).prints_lines(pairs);
    }
    let mpich = Flavour::WheelMpich.program("spawn_mapped");
    launch_on(3, "-N 3 -n 1").arg(mpich).words("4 npernode 1").run().exits(0).prints_lines(in_turn);
}

//! Memory that the ranks of a node share, on several nodes.

use lattice_tests::launch_on;
use lattice_tests::mpi::Flavour;

#[test]
fn ranks_share_memory_with_those_of_their_node_alone() {
    let program = Flavour::LatticePmi.program("libpmi_memory");
    let outcome = launch_on(2, "-n 4 -N 2 --node-memory=1M").arg(&program).run();
    let line = |rank, sum| format!("rank {rank}, spawned 0: 1048576 bytes, 0 before, {sum} after");
    outcome.exits(0).warns_of_nothing().prints_lines([line(0, 3), line(1, 3), line(2, 7), line(3, 7)]);
}

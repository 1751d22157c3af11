//! Facts for ranks about their node: the levels of the machine to which they belong, and their shared memory.

use std::path::Path;

use lattice_tests::mpi::Flavour;
use lattice_tests::{Command, launch};

/// Returns the line of a rank of one node that belongs to one level, or to several.
fn place(rank: usize, levels: &str, own: &str) -> String {
    format!("rank {rank}: kind 1, codes 1 0 15 3 3, world{levels} node{levels} self{own}")
}

#[test]
fn ranks_are_told_the_levels_that_they_are_in() {
    let program = Flavour::LatticePmi.program("libpmi_topology");
    let unbound = |rank: usize| place(rank, &format!(" 0:{rank}"), " 0:0");
    launch("-n 3").arg(&program).run().exits(0).says_nothing().prints_lines((0..3).map(unbound));
    // The requests for Lattice's facts are not sent to other launchers, which provide the nodes of ranks.
    Command::new("mpiexec.hydra").words("-n 2").arg(&program).run().exits(0).prints_lines((0..2).map(unbound));
    Command::new(&program).run().exits(0).prints_lines([unbound(0)]);
    if Path::new("/sys/devices/system/node/node0").exists() {
        let bound = launch("-n 2 --cpu-bind map:0,0").arg(&program).run();
        for rank in 0..2 {
            bound.prints(&format!("rank {rank}: kind 1, codes 1 0 15 3 3, world 0:{rank} 0:{rank}"));
        }
    }
}

#[test]
fn attributes_of_pmi2_tell_ranks_place_and_memory() {
    let program = Flavour::LatticePmi2.program("pmi2_node_facts");
    let lines = |facts: &'static str| (0..3).map(move |rank| format!("rank {rank}: 0 1 2; 3 complete - {facts}"));
    launch("-n 3").arg(&program).run().exits(0).says_nothing().prints_lines(lines("- - -"));
    launch("-n 3 --node-memory 64K").arg(&program).run().exits(0).prints_lines(lines("anonmmap 32 -"));
}

#[test]
fn ranks_share_memory_that_was_there_before_them() {
    let program = Flavour::LatticePmi.program("libpmi_memory");
    let line =
        |rank, spawned, bytes, sum| format!("rank {rank}, spawned {spawned}: {bytes} bytes, 0 before, {sum} after");
    let outcome = launch("-n 3 --node-memory=16K").arg(&program).arg("spawn").run();
    let first = (0..3).map(|rank| line(rank, 0, 16_384, 6));
    outcome.exits(0).says_nothing().prints_lines(first.chain((0..2).map(|rank| line(rank, 1, 16_384, 3))));
    let absent = launch("-n 2").arg(&program).run();
    absent.exits(0).says_nothing().prints_lines((0..2).map(|rank| format!("rank {rank}: codes 1 15")));
    // A runtime between launcher and program.
    let script = format!("exec 32<&-; exec {}", program.display());
    launch("-n 1 --node-memory=16K").bash(&script).run().exits(0).prints_lines(["rank 0: codes 1 -1"]);
    let shown = "echo ${LATTICE_NODE_MEMORY-unset} $(readlink /proc/$$/fd/32)";
    let there = ["32 /memfd:lattice-node-memory (deleted)"];
    launch("-n 1 --pmi none --node-memory=4096").bash(shown).run().exits(0).prints_lines(there);
    launch("-n 1").bash(shown).run().exits(0).prints_lines(["unset"]);
}

#[test]
fn sizes_that_no_node_has_are_refused() {
    launch("-n 1 --node-memory=0").arg("true").run().exits(125).says("a size of 0 is none");
    launch("-n 1 --node-memory=much")
        .arg("true")
        .run()
        .exits(125)
        .says("\"much\" is no size; a number of bytes is possible");
    let refused = launch("-n 1 --node-memory=100000T").arg("true").run();
    refused.exits(125).says("--node-memory asks for 109951162777600000 bytes, and this node has ");
}

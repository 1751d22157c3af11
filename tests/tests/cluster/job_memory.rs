//! The memory of a job with ranks on several nodes. Each node has one memory, and all of them have the same contents.

use std::fs;

use lattice_tests::{built, launch_on, mpi};

#[test]
fn ranks_on_two_nodes_read_every_value_without_a_message() {
    let directory = tempfile::tempdir().unwrap();
    let program = mpi::example(directory.path(), "job_memory");
    let outcome = launch_on(2, "-n 4 -N 2").arg(&program).words("3 100").run();
    outcome.exits(0).warns_of_nothing();
    for rank in 0..4 {
        let (node, local) = (rank / 2, rank % 2);
        outcome.prints(&format!("rank {rank} of 4: node {node} (node{node}, "));
        let place = format!(":50052), local rank {local} of 2, node rank {local}, CPUs any");
        outcome.prints(&format!("{place}, PMI_process_mapping=(vector,(0,2,2)), 2424 values read, 3 fences\n"));
    }
}

#[test]
fn a_client_on_two_nodes_asks_for_no_key_that_a_fence_has_brought() {
    let directory = tempfile::tempdir().unwrap();
    let gets = |flags: &str| {
        let trace = directory.path().join("trace");
        let launch = launch_on(2, "-n 4 -N 2").words(flags).arg("--pmi-trace").arg(&trace).arg(built::lattice());
        launch.words("pmi exchange --count 40 --size 1000").run().exits(0).prints("exchange: 4 ranks, 40 rounds");
        fs::read_to_string(&trace).unwrap().lines().filter(|line| line.contains("C> cmd=get ")).count()
    };
    assert_eq!((gets(""), gets("--no-job-memory")), (0, 640));
}

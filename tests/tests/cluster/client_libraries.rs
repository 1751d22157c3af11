//! Programs that use PMI through a client library, on several nodes of a cluster.

use lattice_tests::mpi::{self, Flavour};
use lattice_tests::{Command, built, cluster, launch_on};

#[test]
fn slurms_library_fences_over_nodes() {
    for nodes in [2, 4, 8] {
        let outcome = launch_on(nodes, "-n 9").arg(Flavour::SlurmPmi2.program("pmi2_fence")).run();
        outcome.exits(0).says_nothing().prints_lines((0..9).map(|rank| format!("rank {rank} of 9: 0 wrong values")));
    }
}

#[test]
fn our_library_exchanges_over_nodes_and_knows_the_ranks_of_each() {
    let script = r#"lattice launch -N 3 -n 6 "$1" && lattice launch -N 3 -n 6 "$2""#;
    let programs = ["libpmi_exchange", "libpmi_edges"].map(|name| Flavour::LatticePmi.program(name));
    let outcome = programs.iter().fold(cluster(3).bash(script), Command::arg).run();
    let exchanged = (0..6).map(|rank| {
        let first = rank / 2 * 2;
        format!("rank {rank} of 6: program 0, spawned 0, 0 wrong, local {first} {}", first + 1)
    });
    let edges = (0..6).map(|rank| format!("rank {rank} of 6: 0 failed"));
    outcome.exits(0).says_nothing().prints_lines(exchanged.chain(edges));
}

/// The pairs of groups reach the other node in segments, which the fence between nodes merges.
#[test]
fn groups_of_ranks_on_two_nodes_see_what_their_members_put() {
    let outcome = launch_on(2, "-n 4 -N 2").arg(Flavour::LatticePmi.program("libpmi_groups")).run();
    outcome.exits(0).says_nothing().prints_lines((0..4).map(|rank| format!("rank {rank} of 4: 0 wrong")));
}

#[test]
fn slurms_library_has_its_ring_over_nodes() {
    let outcome = launch_on(3, "-n 3").arg(Flavour::SlurmPmi2.program("pmi2_ring")).run();
    outcome.exits(0).says_nothing().prints_lines([
        "rank 0: code 0, place 0 of 3, left from 2, right from 1",
        "rank 1: code 0, place 1 of 3, left from 0, right from 2",
        "rank 2: code 0, place 2 of 3, left from 1, right from 0",
    ]);
}

/// Intel MPI uses `I_MPI_PMI_LIBRARY`, Open MPI 4.1 its component for Flux.
#[test]
fn mpi_libraries_join_through_ours_over_nodes() {
    let of_pmi1 = format!("--env I_MPI_PMI=pmi1 --env I_MPI_PMI_LIBRARY={}", built::client_library("pmi").display());
    for (flags, flavour) in [
        ("--pmi-library", Flavour::IntelMpi),
        (&of_pmi1, Flavour::IntelMpi),
        ("--pmi=pmi1 --pmi-library --env FLUX_JOB_ID=1", Flavour::DebianOpenMpi),
    ] {
        let outcome = launch_on(2, "-N 2 -n 4").words(flags).arg(flavour.program("allreduce")).run();
        outcome.exits(0).prints_lines(["4 ranks, 0 wrong sums"]);
    }
}

#[test]
fn plugins_of_nvshmem_exchange_over_nodes() {
    for protocol in ["pmi", "pmi2", "pmix"] {
        let command = launch_on(3, "-N 3 -n 6").arg(Flavour::Plain.program("nvshmem_bootstrap"));
        let outcome = command.arg(mpi::nvshmem_plugin(protocol)).run();
        outcome.exits(0).says_nothing().prints_lines((0..6).map(|rank| format!("rank {rank} of 6: 0 wrong")));
    }
}

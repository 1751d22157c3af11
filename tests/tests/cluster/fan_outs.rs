//! Fences over trees of every shape between a chain and a star, on clusters of several sizes, with the ranks of every MPI library.

use lattice_tests::mpi::{Flavour, MPICHS, OPEN_MPIS};
use lattice_tests::{script_on, turn};

/// For each fan-out, configures every tree of the API server with it: barriers, fences with data, and relays. Then launches each
/// program, with one rank more than nodes.
const EACH_FAN_OUT: &str = r#"
    ranks=$1; fan_outs=$2; shift 2
    cp "$LATTICE_DEV_CLUSTER/api.toml" "$LATTICE_DEV_CLUSTER/plain.toml"
    with_fan_out() {
        { printf '%s = %s\n' relay_above 1 relay_fan_out $1 barrier_fan_out $1 data_fan_out $1
          cat "$LATTICE_DEV_CLUSTER/plain.toml"; } >"$LATTICE_DEV_CLUSTER/api.toml"
    }
    for fan_out in $fan_outs; do
        restart_api with_fan_out $fan_out
        for program; do lattice launch -n $ranks "$program" || { echo "fan-out $fan_out: $program: $?"; exit 1; }; done
    done"#;

/// The libraries that complete all programs on several nodes; see `mpi_programs` for MPICH 4.0.2.
const ALL: [Flavour; 3] = [MPICHS[1], OPEN_MPIS[0], OPEN_MPIS[1]];

/// Runs the programs on `nodes` nodes with fan-out 1 (a chain), with as many as there are nodes (a star) and with one more. On one
/// or two nodes the tree has only one shape, and the programs run once. Their lines must be `lines`, once for each fan-out.
#[track_caller]
fn through_every_tree(nodes: u32, programs: &[(Flavour, &'static str)], lines: impl Iterator<Item = String>) {
    let fan_outs = if nodes < 3 { vec![nodes] } else { vec![1, nodes, nodes + 1] };
    let listed: Vec<String> = fan_outs.iter().map(u32::to_string).collect();
    let command = script_on(nodes, EACH_FAN_OUT).arg((nodes + 1).to_string()).arg(listed.join(" "));
    let outcome = programs.iter().fold(command, |command, (mpi, name)| command.arg(mpi.program(name))).run();
    outcome.exits(0).prints_lines(lines.flat_map(|line| vec![line; fan_outs.len()]));
}

/// The data of a fence reach every rank. The sums are correct only if each rank has reached all other ranks at their addresses.
#[test]
fn mpi_ranks_reach_each_other_through_every_tree() {
    let _machine = turn::heavy();
    for nodes in [1, 2, 4] {
        let line = format!("{} ranks, 0 wrong sums", nodes + 1);
        let lines = ALL.iter().map(|_| line.clone());
        through_every_tree(nodes, &ALL.map(|mpi| (mpi, "allreduce")), lines);
    }
}

/// Three fences with data and three without. Every rank checks each value.
#[test]
fn fences_of_slurms_library_are_whole_through_every_tree() {
    let _machine = turn::heavy();
    for nodes in [1, 2, 4] {
        let ranks = nodes + 1;
        let lines = (0..ranks).map(|rank| format!("rank {rank} of {ranks}: 0 wrong values"));
        through_every_tree(nodes, &[(Flavour::SlurmPmi2, "pmi2_fence")], lines);
    }
}

/// Values that are fetched from the node that holds them, and groups of some ranks.
#[test]
#[ignore = "second tier"]
fn pmix_gets_and_groups_work_through_every_tree() {
    let _machine = turn::heavy();
    for nodes in [2, 3] {
        let ranks = nodes + 1;
        let programs =
            [(Flavour::Pmix, "pmix_exchange"), (Flavour::Pmix, "pmix_direct"), (Flavour::Pmix, "pmix_connect")];
        let exchange = (0..ranks).map(|rank| format!("rank {rank} of {ranks}: 0 wrong, late 400"));
        let rest = (0..ranks).flat_map(|rank| vec![format!("rank {rank} of {ranks}: 0 wrong"); 2]);
        through_every_tree(nodes, &programs, exchange.chain(rest));
    }
}

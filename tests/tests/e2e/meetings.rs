//! Groups of one launch that connect through a published name.

use lattice_tests::mpi::{Flavour, OPEN_MPIS};
use lattice_tests::{Command, launch};

/// Twice in a row, even ranks accept and odd ranks connect.
#[track_caller]
fn meet(command: Command, mpi: Flavour) {
    let outcome = command.arg(mpi.program("names")).run();
    let line = |round, rank| format!("round {round}, rank {rank}: 2 on the other side, 4 together");
    outcome.exits(0).warns_of_nothing();
    outcome.prints_lines((0..2).flat_map(|round| (0..4).map(move |rank| line(round, rank))));
}

#[test]
fn groups_of_open_mpi_meet_by_a_name() {
    for mpi in OPEN_MPIS {
        meet(launch("-n 4"), mpi);
    }
}

/// MPICH 4.0.2 cannot open a port, with any launcher. Over UCX, the address of 5.0.2 does not fit into a port's name.
#[test]
fn groups_of_mpich_meet_by_a_name() {
    meet(launch("-n 4").env("MPIR_CVAR_CH4_NETMOD", "ofi"), Flavour::WheelMpich);
}

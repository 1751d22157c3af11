//! Child processes of a rank that start MPI in its place. Other launchers do not report this error.

use std::fs;

use lattice_tests::launch;
use lattice_tests::mpi::{Flavour, MPICHS, OPEN_MPIS, python};
use nix::sys::signal::Signal;

#[test]
fn an_mpi_program_that_a_rank_runs_by_system_is_reported_with_its_process() {
    for mpi in [MPICHS.as_slice(), &[Flavour::IntelMpi]].concat() {
        let mut running = launch("-n 2").arg(mpi.program("second_process")).start();
        running.wait_for_stderr("warning: rank 0: process ");
        running.signal(Signal::SIGTERM);
        let outcome = running.finish();
        outcome.exits(143).says("(second_process) begins MPI as this rank").says("lattice launch -n 1 PROGRAM");
    }
}

/// Its server refuses the second process. The further behaviour of both processes differs between the versions.
#[test]
fn a_second_process_of_a_rank_of_open_mpi_is_reported() {
    for mpi in OPEN_MPIS {
        let outcome = launch("-n 2").arg(mpi.program("second_process")).run();
        outcome.says("warning: rank 0: a second process begins MPI as this rank");
    }
}

#[test]
fn processes_without_the_descriptor_of_their_rank_are_reported_once() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("pool.py");
    let text = "import multiprocessing
from mpi4py import MPI
if __name__ == '__main__':
    with multiprocessing.get_context('spawn').Pool(1) as pool:
        pool.map(abs, [1])
";
    fs::write(&script, text).unwrap();
    for mpi in [Flavour::WheelMpich, Flavour::IntelMpi] {
        let mut running = launch("-n 2").arg(python(mpi)).arg(&script).start();
        running.wait_for_stderr("warning: rank ");
        running.signal(Signal::SIGTERM);
        let outcome = running.finish();
        outcome.says("PMI_FD names a descriptor that was not passed on to it").says("if __name__ ==");
        let warnings = outcome.errors().matches("begins MPI as this rank").count();
        outcome.check(warnings == 1, || format!("{warnings} warnings"));
    }
}

/// `mpi4py` calls MPI_Finalize at the end of a program, even after an exception.
#[test]
fn a_rank_that_raises_an_exception_while_others_are_in_a_barrier_is_reported() {
    let script = "from mpi4py import MPI; MPI.COMM_WORLD.rank == 1 and 1 / 0; MPI.COMM_WORLD.Barrier()";
    for mpi in [Flavour::DebianOpenMpi, Flavour::WheelOpenMpi, Flavour::WheelMpich] {
        let mut running = launch("-n 2 --stuck-after 2s").arg(python(mpi)).words("-c").arg(script).start();
        running.wait_for_stderr("warning: rank 1: waits in MPI_Finalize");
        running.signal(Signal::SIGTERM);
        running.finish().exits(143).says("while rank 0 is in MPI_Barrier").says("ZeroDivisionError");
    }
}

//! Python programs: no flag selects the MPI library that mpi4py loads.

use lattice_tests::launch;
use lattice_tests::mpi::{Flavour, python};

#[track_caller]
fn says_hello(mpi: Flavour) {
    let outcome = launch("-n 4").arg(python(mpi)).words("-m mpi4py.bench helloworld").run();
    outcome.exits(0).says_nothing();
    let lines = outcome.sorted_lines();
    let is_of_rank =
        |(rank, line): (usize, &&str)| line.starts_with(&format!("Hello, World! I am process {rank} of 4 on "));
    outcome.check(lines.len() == 4 && lines.iter().enumerate().all(is_of_rank), || "should be of 4 ranks".to_owned());
}

#[test]
fn debians_mpi4py_runs_with_its_open_mpi() {
    says_hello(Flavour::DebianOpenMpi);
}

#[test]
fn the_wheel_runs_with_mpich() {
    says_hello(Flavour::WheelMpich);
}

#[test]
fn the_wheel_runs_with_open_mpi() {
    says_hello(Flavour::WheelOpenMpi);
}

#[test]
fn the_wheel_runs_with_intel_mpi() {
    says_hello(Flavour::IntelMpi);
}

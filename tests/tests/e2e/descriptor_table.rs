//! The table of open files of the process that starts the ranks has its final size before the first thread.
//!
//! A debug build checks in [`rank_spawner::DescriptorPlan::reserve`] that there is only one thread. Here the test reads the final size from
//! outside.

use lattice_tests::mpi::{Flavour, MAY_SPAWN};
use lattice_tests::{launch, turn};

use crate::raw;

/// Each rank prints the number of entries in the table of its parent while all ranks run.
const SIZE: &str = "init; barrier; sed -n 's/^FDSize:[ \t]*//p' /proc/$PPID/status; barrier; finalize";

#[test]
fn the_table_keeps_the_size_that_it_is_given_for_the_ranks() {
    let _machine = turn::heavy();
    for (ranks, entries) in [(1, 1024), (16, 1024), (64, 1024), (300, 4096)] {
        let outcome = raw::script(launch(&format!("-n {ranks}")), SIZE).run();
        outcome.exits(0).prints_lines(std::iter::repeat_n(entries.to_string(), ranks));
    }
}

#[test]
fn the_table_keeps_its_size_when_ranks_are_spawned() {
    let [name, value] = MAY_SPAWN;
    let size = "[ $LATTICE_RANK != 0 ] || trap 'sed -n \"s/^FDSize:/table/p\" /proc/$PPID/status' EXIT; \"$@\"";
    let outcome = launch("-n 2").env(name, value).bash(size).arg(Flavour::WheelMpich.program("spawn")).arg("60").run();
    outcome.exits(0).prints("table\t1024\n");
}

//! Lines of `lattice mpiexec` and `mpirun` with programs of the MPI libraries, on one machine.

use std::os::unix::fs::symlink;

use lattice_tests::mpi::{Flavour, MAY_SPAWN, OPEN_MPIS, python};
use lattice_tests::{Command, built, lattice, launch};

/// The results of mpirun of Open MPI 4.1.8 and 5.0.11, for a compiled program and for one with a library that the
/// launcher cannot detect.
#[test]
fn lines_of_mpirun_tell_the_number_of_slots_whatever_the_program_is() {
    let size = "from mpi4py import MPI; print('universe size', MPI.COMM_WORLD.Get_attr(MPI.UNIVERSE_SIZE))";
    for (flags, slots) in [("-n 1 --host localhost:3", 3), ("-n 2 --host localhost:4", 4)] {
        let outcome = lattice("mpirun").words(flags).arg(python(Flavour::WheelOpenMpi)).words("-c").arg(size).run();
        outcome.exits(0).prints(&format!("universe size {slots}"));
        let outcome = lattice("mpirun").words(flags).arg(Flavour::WheelOpenMpi4.program("appnum")).run();
        outcome.exits(0).prints(&format!("rank 0: universe size {slots}"));
    }
}

/// Programs of MPICH execute the `mpiexec` in the PATH, which may be a link to Lattice.
#[test]
fn a_program_that_nothing_launched_spawns_through_a_link_to_lattice() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["mpiexec", "mpiexec.hydra"] {
        symlink(built::lattice(), directory.path().join(name)).unwrap();
    }
    for mpi in [Flavour::WheelMpich, Flavour::WheelMpich3, Flavour::IntelMpi] {
        // The program does not wait for the mpiexec. Its output ends with the end of the mpiexec.
        let script = r#"set -o pipefail; PATH=$1:$PATH "$2" 2 | cat"#;
        let command = Command::new("bash").words("-c").arg(script).arg("bash").arg(directory.path());
        let outcome = command.arg(mpi.program("spawn")).env(MAY_SPAWN[0], MAY_SPAWN[1]).run();
        let line = |who: &str, rank: u32, size: u32, place: u32, word: &str| {
            format!("{who} {rank} of {size}: {place} of 3 together, the last word is '{word}'")
        };
        let last = "words that belong together";
        let parent = line("parent", 0, 1, 0, "2");
        outcome.exits(0).prints_lines([parent, line("child", 0, 2, 1, last), line("child", 1, 2, 2, last)]);
    }
}

#[test]
fn a_line_of_multi_prog_is_one_program_to_each_library() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("programs");
    for mpi in [Flavour::WheelMpich, Flavour::WheelOpenMpi] {
        let program = mpi.program("appnum").display().to_string();
        std::fs::write(&file, format!("0,2 {program} %t\n1,3 \\\n {program} b\n")).unwrap();
        let outcome = launch("--universe-size 9 --multi-prog").arg(&file).run();
        let rank = |(rank, appnum)| [format!("rank {rank}: appnum {appnum}"), format!("rank {rank}: universe size 9")];
        outcome.exits(0).says_nothing().prints_lines([0, 1, 0, 1].into_iter().enumerate().flat_map(rank));
    }
    let program = Flavour::WheelOpenMpi.program("process_sets").display().to_string();
    std::fs::write(&file, format!("0,2 {program}\n1,3 {program} b\n")).unwrap();
    let outcome = launch("--pset ocean --multi-prog").arg(&file).run();
    outcome.exits(0).says_nothing().prints_lines(["app://ocean mpi://SELF mpi://WORLD mpix://SHARED"; 4]);
}

#[test]
fn a_process_set_of_mpirun_has_the_name_that_was_typed() {
    let program = Flavour::WheelOpenMpi.program("process_sets");
    let outcome = lattice("mpirun --pset ocean -n 1").arg(&program).run();
    outcome.exits(0).says_nothing().prints_lines(["mpi://SELF mpi://WORLD mpix://SHARED ocean"]);
}

/// The results of mpirun of Open MPI 5.0.11.
#[test]
fn a_launch_that_recovers_from_killed_ranks_ends_well() {
    let check = |flags: &str, script: &str, code: i32| {
        lattice("mpirun --oversubscribe -n 3").words(flags).bash(script).run().exits(code);
    };
    let killed = "[ $LATTICE_RANK = 1 ] && kill -KILL $$; exit 0";
    check("--with-ft ulfm", killed, 0);
    check("--with-ft ulfm", "[ $LATTICE_RANK = 1 ] && kill -KILL $$; exit $((LATTICE_RANK * 2))", 4);
    check("--with-ft ulfm", "kill -KILL $$", 137);
    check("--continuous", killed, 137);
    let survivors = [
        "rank 0 is one of 3, whose sum is 5",
        "rank 2 is one of 3, whose sum is 5",
        "rank 3 is one of 3, whose sum is 5",
    ];
    let program = Flavour::WheelOpenMpi.program("survive");
    let outcome = lattice("mpirun --oversubscribe -n 4 --with-ft ulfm").arg(program).words("1").run();
    outcome.exits(0).prints_lines(["dying"].into_iter().chain(survivors));
}

/// A farm of jobs: `mpirun` itself uses libpmix.
#[test]
fn ranks_that_run_mpirun_of_open_mpi_are_no_mpi_program_that_missed_its_server() {
    for mpi in OPEN_MPIS {
        let farm = launch("-n 2").arg(mpi.mpirun()).words("--allow-run-as-root --oversubscribe -n 1");
        let outcome = farm.arg(mpi.program("hello")).run();
        outcome.exits(0).prints_lines(["rank 0 of 1", "rank 0 of 1"]).does_not_say("jobs of size 1");
    }
}

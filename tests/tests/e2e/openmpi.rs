//! Programs of Open MPI 4.1 and 5.0, unmodified and without a flag, with the same guarantees as for MPICH. `every_mpi` has the tests that
//! run the same program with each library.

use lattice_tests::mpi::{Flavour, OPEN_MPIS};
use lattice_tests::{launch, turn};

#[test]
#[ignore = "second tier"]
fn sixteen_ranks_add_up() {
    let _machine = turn::heavy();
    for mpi in OPEN_MPIS {
        let outcome = launch("-n 16").arg(mpi.program("allreduce")).run();
        outcome.exits(0).says_nothing().prints_lines(["16 ranks, 0 wrong sums"]);
    }
}

/// Sessions exist since 5.0. A second session after the end of the first one crashes in the client, with any launcher.
#[test]
fn ranks_make_a_communicator_from_a_session() {
    let outcome = launch("-n 3").arg(Flavour::WheelOpenMpi.program("one_session")).run();
    outcome.exits(0).says_nothing().prints_lines((0..3).map(|rank| format!("rank {rank} of 3: sum 3")));
}

#[test]
fn a_session_sees_the_process_sets_of_its_launch() {
    let program = Flavour::WheelOpenMpi.program("process_sets");
    let outcome = launch("-n 1 --pset ocean").arg(&program).words(": -n 1 --pset site://ice").arg(&program).run();
    let line = "app://ocean mpi://SELF mpi://WORLD mpix://SHARED site://ice";
    outcome.exits(0).says_nothing().prints_lines([line, line]);
}

#[test]
fn abort_reaches_every_rank() {
    for mpi in OPEN_MPIS {
        let abort = mpi.program("abort");
        let outcome = launch("-n 4").arg(&abort).words("2 42").run();
        outcome.exits(42).says("rank 2 on ").says("called MPI_Abort with code 42");
        launch("").arg(&abort).words("0 42").run().exits(42).says("lattice: rank 0 on ");
        launch("-n 2").arg(&abort).words("1 256").run().exits(1).says("called MPI_Abort with code 256");
    }
}

#[test]
fn a_crash_ends_the_job() {
    for mpi in OPEN_MPIS {
        let outcome = launch("-n 3").arg(mpi.program("crash")).arg("2").run();
        outcome.exits(139).says("rank 2 on ").says("signal 11 (SIGSEGV)");
    }
}

#[test]
fn exit_without_finalize_ends_the_job() {
    for mpi in OPEN_MPIS {
        let program = mpi.program("exit_without_finalize");
        let outcome = launch("-n 3").arg(&program).words("1 3").run();
        outcome.exits(3).says("rank 1 on ").says("exited with status 3");
        let outcome = launch("-n 3").arg(&program).words("1 0").run();
        outcome.exits(1).says("rank 1 on ").says("without calling MPI_Finalize");
    }
}

#[test]
fn a_status_after_finalize_is_the_launchs_own() {
    for mpi in OPEN_MPIS {
        let outcome = launch("-n 3").arg(mpi.program("exit_after_finalize")).words("1 5").run();
        outcome.exits(5).says("rank 1 on ").says("exited with status 5");
    }
}

#[test]
fn a_rank_that_leaves_before_init_ends_the_job() {
    for mpi in OPEN_MPIS {
        let program = mpi.program("leave_before_init");
        let outcome = launch("-n 3").arg(&program).words("1 0").run();
        outcome.exits(1).says("rank 1 on ").says("before MPI_Init");
    }
}

/// The libraries receive the session directory, and it is removed afterwards.
#[test]
fn nothing_is_left_of_a_job_that_aborted() {
    for mpi in OPEN_MPIS {
        let directory = tempfile::tempdir().unwrap();
        let command = launch("-n 3").env("TMPDIR", directory.path()).arg(mpi.program("abort"));
        command.words("1 3").run().exits(3);
        let left: Vec<_> = directory.path().read_dir().unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert!(left.is_empty(), "{mpi:?} left {left:?}");
    }
}

/// With only PMI-1 it would run as three jobs of size 1, without a message. (The wheel of 4.1 starts no such job, because it searches for a
/// daemon.)
#[test]
fn three_jobs_of_size_1_do_not_go_unnoticed() {
    for mpi in [Flavour::DebianOpenMpi, Flavour::WheelOpenMpi] {
        // A job by itself would leave shared memory, unless this is disabled.
        let command = launch("-n 3 --pmi pmi1").env("OMPI_MCA_btl", "self");
        let outcome = command.arg(mpi.program("hello")).run();
        outcome.exits(0).prints_lines(["rank 0 of 1"; 3]);
        outcome.says("warning: ranks 0-2 ended without a message").says("Open MPI (").says("libmpi.so.40");
        outcome.says("3 jobs of size 1 instead of one job of size 3").says("lattice: try: --pmi=auto or --pmi=pmix");
    }
}

#[test]
fn pmix_can_be_asked_for_alone() {
    for mpi in OPEN_MPIS {
        let outcome = launch("-n 3 --pmi pmix").arg(mpi.program("hello")).run();
        outcome.exits(0).says_nothing().prints_lines((0..3).map(|rank| format!("rank {rank} of 3")));
    }
}

/// One job cannot use two MPI families: each half waits for ranks with another protocol. The message names both.
#[test]
fn a_job_of_both_families_ends_with_both_named() {
    ends_with_both_named(Flavour::DebianMpich, Flavour::DebianOpenMpi);
}

/// Ranks of MPICH 5 wait in their shared memory, after a get, and ranks of Open MPI wait in a fence.
#[test]
fn a_job_of_mpich_5_and_open_mpi_ends_with_both_named() {
    for mpi in OPEN_MPIS {
        ends_with_both_named(Flavour::WheelMpich, mpi);
    }
}

/// One rank of each. With several ranks, slow ones may be missing from the message.
#[track_caller]
fn ends_with_both_named(mpich: Flavour, open_mpi: Flavour) {
    let command = launch("-n 1 --stuck-after 1s").arg(mpich.program("hello"));
    let outcome = command.words(": -n 1").arg(open_mpi.program("hello")).run();
    outcome.exits(125).says("rank 0 speaks PMI (MPICH and its kin)").says("rank 1 speaks PMIx (Open MPI)");
}

//! `MPI_Abort` in all forms that known clients send: the job ends with its code.

use lattice_tests::launch;
use lattice_tests::mpi::{Flavour, MPICHS};

use crate::raw;

#[test]
fn abort_reaches_every_rank() {
    for mpi in MPICHS {
        let outcome = launch("-n 4").arg(mpi.program("abort")).words("2 42").run();
        outcome.exits(42).says("rank 2 on ").says("called MPI_Abort with code 42");
    }
}

#[test]
fn abort_of_a_job_of_one_rank_has_its_code() {
    for mpi in MPICHS {
        launch("").arg(mpi.program("abort")).words("0 42").run().exits(42).says("lattice: rank 0 on ");
    }
}

/// A wrapper that ignores signals, and exits with status 0.
#[test]
fn a_wrapper_shields_nobody_from_an_abort() {
    let script = r#"trap '' TERM INT HUP; "$1" 1 42; sleep 1000; exit 0"#;
    for mpi in MPICHS {
        let outcome = launch("-n 3").bash(script).arg(mpi.program("abort")).run();
        outcome.exits(42).says("rank 1 on ").says("code 42");
    }
}

/// The exit code is the low byte of the abort code; 0 would look like success.
#[test]
fn an_abort_never_looks_like_success() {
    for mpi in MPICHS {
        let abort = mpi.program("abort");
        launch("-n 2").arg(&abort).words("1 256").run().exits(1).says("called MPI_Abort with code 256");
        launch("-n 2").arg(&abort).words("1 1000").run().exits(232).says("called MPI_Abort with code 1000");
    }
}

/// Slurm's client sends only a text, without a code.
#[test]
fn slurms_library_aborts_the_job() {
    let outcome = launch("-n 3").arg(Flavour::SlurmPmi2.program("pmi2_abort")).arg("1").run();
    outcome.exits(1).says("rank 1 on ").says("the sea is dry; all of it");
}

#[test]
fn every_spelling_of_an_abort_is_understood() {
    let check = |message: &str, code: i32, words: &str| {
        let script = r#"init; if [ $PMI_RANK = 1 ]; then echo aborting; say "$1"; forever; fi; barrier; forever"#;
        let outcome = raw::script(launch("-n 3"), script).arg(message).run();
        outcome.exits(code).says("rank 1 on ").says(words);
    };
    check("cmd=abort exitcode=42", 42, "code 42");
    check(
        "cmd=abort exitcode=42 message=application called MPI_Abort(MPI_COMM_WORLD, 42) - process 0",
        42,
        "process 0",
    );
    check("cmd=abort exitcode=7 message=abort", 7, "code 7");
    check("cmd=abort exitcode=3 error_msg=out of luck = out", 3, "out of luck = out");
    check("cmd=abort exit_code=9", 9, "code 9");
    check("cmd=abort", 1, "MPI_Abort");
    check("cmd=abort exitcode=738814479", 15, "738814479");
}

#[test]
fn the_code_of_a_pmi2_abort_is_taken_from_its_text() {
    let script = r#"
        init2; say2 "cmd=fullinit;pmirank=$PMI_RANK;"
        if [ $PMI_RANK = 1 ]; then echo aborting; say2 "$1"; fi
        forever"#;
    let check = |message: &str, code: i32| {
        let outcome = raw::script(launch("-n 2"), script).arg(message).run();
        outcome.exits(code).says("rank 1 on ");
    };
    check("cmd=abort;exitcode=-1;message=application called MPI_Abort(MPI_COMM_WORLD, 42) - process 1;", 42);
    check("cmd=abort;isworld=TRUE;msg=application called MPI_Abort(MPI_COMM_WORLD, 43) - process 1;", 43);
    check("cmd=abort;exitcode=-1;message=bye;", 255);
}

/// MPICH 4.3 and later return from `MPI_Abort`, finalize, and exit 0.
#[test]
fn finalize_and_exit_0_after_an_abort_does_not_hide_it() {
    let script = r#"
        init
        if [ $PMI_RANK = 0 ]; then printf 'cmd=abort exitcode=42 message=abort\ncmd=finalize\n' >&$PMI_FD; exit 0; fi
        barrier; exit 0"#;
    for _ in 0..20 {
        raw::script(launch("-n 2"), script).run().exits(42).says("rank 0 on ").says("code 42");
    }
}

/// Only the first cause is reported, though the other ranks end with signals, and with their own statuses.
#[test]
fn what_follows_from_an_abort_is_not_its_cause() {
    let script = r#"
        trap 'exit 77' TERM; init
        if [ $PMI_RANK = 3 ]; then say 'cmd=abort exitcode=6'; fi
        while :; do sleep 0.01; done"#;
    raw::script(launch("-n 4"), script).run().exits(6).says("rank 3 on ").does_not_say("77");
}

/// Ranks abort after the loss of a peer, and the launcher may receive both events at once. Here it was stopped for a
/// moment.
#[test]
fn an_abort_over_a_rank_that_was_killed_is_not_the_cause() {
    let directory = tempfile::tempdir().unwrap();
    // After the barrier the session has both processes.
    let script = r#"init; barrier; if [ $PMI_RANK = 0 ]; then echo $$ >"$1/pid"; forever; fi
        until read -r pid <"$1/pid"; do sleep 0.01; done 2>/dev/null
        kill -STOP $PPID; kill -KILL $pid; until grep -q 'State:.Z' /proc/$pid/status; do sleep 0.01; done
        say 'cmd=abort exitcode=42 message=abort'; kill -CONT $PPID; forever"#;
    let outcome = raw::script(launch("-n 2"), script).arg(directory.path()).run();
    outcome.exits(137).says("rank 0 on ").says("signal 9 (SIGKILL)");
}

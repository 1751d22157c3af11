//! Programs around ranks and launches: prologs and epilogs.

use std::path::{Path, PathBuf};

use lattice_tests::mpi::{MPICHS, OPEN_MPIS};
use lattice_tests::{executable, launch};
use nix::sys::signal::Signal;

/// Creates an executable script.
fn script(directory: &Path, name: &str, text: &str) -> PathBuf {
    executable(directory, name, format!("#!/bin/sh\n{text}\n"))
}

#[test]
fn lines_of_a_task_prolog_change_the_rank() {
    let directory = tempfile::tempdir().unwrap();
    let prolog = r#"echo "print task $LATTICE_RANK begins"; printf '%s\n' 'export WORDS=two "words" $HOME\n'; echo 'unset GONE'; echo 'WORDS=nothing'; echo export; echo 'export A-B=1'; echo 'unset B%%'"#;
    let prolog = script(directory.path(), "prolog", prolog);
    let flags = launch("-n 2 --pmi none --env GONE=here").arg("--task-prolog").arg(&prolog);
    let outcome = flags.bash(r#"echo "$WORDS ${GONE-gone} $(cat)""#).run();
    let words = r#"two "words" $HOME\n gone "#;
    outcome.exits(0);
    assert_eq!(outcome.sorted_lines(), ["task 0 begins", "task 1 begins", words, words]);
}

#[test]
fn lines_of_a_prolog_change_all_ranks_and_its_other_lines_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    // Its background process holds its standard output, and ends when a rank runs.
    let prolog = r#"echo 'export WORDS=two "words" $HOME'; echo 'unset GONE'; echo 'export MINE=prolog'; echo print staged; echo "for $*"
        (until [ -e "$0.done" ]; do sleep 0.05; done) &"#;
    let prolog = script(directory.path(), "prolog", prolog);
    let flags = launch("-n 2 --pmi none --env MINE=line").arg("--prolog").arg(&prolog).env("GONE", "here");
    let ranks = format!(r#"touch {}.done; echo "$WORDS ${{GONE-gone}} $MINE""#, prolog.display());
    let outcome = flags.bash(&ranks).run();
    outcome.exits(0);
    let words = r#"two "words" $HOME gone line"#;
    let lines: Vec<&str> = outcome.text().lines().collect();
    assert_eq!(
        (lines[0], lines[1].starts_with("for bash"), &lines[2..]),
        ("staged", true, &[words, words][..]),
        "{lines:?}"
    );
}

#[test]
fn a_task_prolog_that_is_not_there_starts_nothing() {
    for flag in ["--task-prolog", "--task-epilog"] {
        let outcome = launch("-n 1 --pmi none").arg(flag).arg("./none").words("echo never").run();
        outcome.exits(125).says(&format!("{flag}: cannot find program ")).prints_lines([""; 0]);
    }
}

#[test]
fn mpi_programs_run_between_prolog_and_epilog_and_end_as_they_do() {
    let directory = tempfile::tempdir().unwrap();
    let prolog = script(directory.path(), "prolog", "echo print begins");
    let epilog = script(directory.path(), "epilog", "echo ends");
    for flavour in [MPICHS[1], OPEN_MPIS[1]] {
        let command = launch("-n 2").arg("--task-prolog").arg(&prolog).arg("--task-epilog").arg(&epilog);
        let outcome = command.arg(flavour.program("hello")).run();
        outcome.exits(0);
        let expected = ["begins", "begins", "ends", "ends", "rank 0 of 2", "rank 1 of 2"];
        assert_eq!(outcome.sorted_lines(), expected);
    }
    let command = || launch("-n 1 --pmi none").arg("--task-epilog").arg(&epilog);
    command().bash("exit 7").run().exits(7).prints_lines(["ends"]);
    command().bash("kill -SEGV $$").run().exits(139).prints_lines(["ends"]).says("SIGSEGV");
}

#[test]
fn a_prolog_that_fails_starts_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let fails = script(directory.path(), "fails", "exit 3");
    let outcome = launch("-n 1 --pmi none --task-prolog").arg(&fails).words("echo never").run();
    outcome.exits(3).says("fails ended with status 3").prints_lines([""; 0]);
    let outcome = launch("-n 1 --prolog").arg(&fails).words("echo never").run();
    outcome.exits(125).says("--prolog").says("ended with code 3").prints_lines([""; 0]);
}

#[test]
fn programs_run_around_a_launch_with_its_words() {
    let directory = tempfile::tempdir().unwrap();
    let tells = script(directory.path(), "tells", r#"echo "around $*""#);
    let command = launch("-n 2 --pmi none --prolog").arg(&tells).arg("--epilog").arg(&tells);
    command.words("echo here").run().exits(0).prints_lines(["around echo here", "here", "here", "around echo here"]);
}

/// While the ranks run, the launch handles signals.
#[test]
fn ctrl_c_ends_the_launcher_when_only_its_epilog_runs() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("go");
    let waits = format!("echo epilog; until [ -e {} ]; do sleep 0.01; done", file.display());
    let waits = script(directory.path(), "waits", &waits);
    let mut running = launch("-n 1 --pmi none --epilog").arg(&waits).words("true").start();
    running.wait_for_stdout("epilog");
    running.signal(Signal::SIGINT);
    std::fs::write(file, "").unwrap();
    running.finish().killed_by(Signal::SIGINT as i32);
}

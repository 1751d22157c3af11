//! Standard input: all bytes reach the selected ranks, and no other process.

use lattice_tests::{Command, built, launch, turn};

/// Returns bytes without long repetitions.
fn bytes(len: u32) -> Vec<u8> {
    (0..len).map(|number| number.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}

#[test]
fn ten_megabytes_of_stdin_arrive_whole() {
    let _machine = turn::heavy();
    let input = bytes(10_000_000);
    let outcome = launch("-n 4 --pmi none").arg("cat").input(input.clone()).run();
    outcome.exits(0).says_nothing().check(outcome.stdout() == input, || "should have printed its input".into());
}

#[test]
fn stdin_reaches_the_rank_that_it_is_sent_to() {
    let script = "echo \"$LATTICE_RANK $(cat | wc -c)\"";
    let check = |flags: &str, expected: &[&str]| {
        let outcome = launch("-n 3 --pmi none").words(flags).bash(script).input(bytes(200_000)).run();
        outcome.exits(0).says_nothing().prints_lines(expected);
    };
    check("", &["0 200000", "1 0", "2 0"]);
    check("--stdin 2", &["0 0", "1 0", "2 200000"]);
    check("--stdin all", &["0 200000", "1 200000", "2 200000"]);
    check("--stdin none", &["0 0", "1 0", "2 0"]);
}

#[test]
fn each_rank_can_read_a_file_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    for rank in 0..3 {
        std::fs::write(directory.path().join(format!("in {rank}")), format!("for {rank}\n")).unwrap();
    }
    let outcome = launch("-n 3 --pmi none --stdin").arg("in %r").arg("cat").directory(directory.path()).run();
    outcome.exits(0).says_nothing().prints_lines(["for 0", "for 1", "for 2"]);
}

/// Opening a pipe waits for a writer, possibly indefinitely.
#[test]
fn a_launch_that_waits_for_a_writer_of_its_input_can_be_ended() {
    let script = r#"cd "$(mktemp -d)"; mkfifo in
        "$0" launch -n 1 --pmi none --stdin in --timeout 1 cat; echo "code $?"
        "$0" launch -n 1 --pmi none --stdin in cat & echo something >in; wait $!; echo "code $?"
        "$0" launch -n 1 --pmi none --stdin in cat & launcher=$!
        while kill $launcher 2>/dev/null; do sleep 0.1; done; wait $launcher; echo "code $?"; rm -r "$PWD""#;
    let outcome = Command::new("bash").words("-c").arg(script).arg(built::lattice()).run();
    outcome.exits(0).prints_lines(["code 124", "something", "code 0", "code 143"]);
}

#[test]
fn a_rank_that_reads_nothing_holds_nobody_up() {
    for flags in ["", "--stdin all", "--stdin 1"] {
        launch("-n 2 --pmi none").words(flags).arg("true").input(bytes(1_000_000)).run().exits(0).says_nothing();
    }
    let script = "if [ $LATTICE_RANK = 0 ]; then exit 0; else cat | wc -c; fi";
    let outcome = launch("-n 2 --pmi none --stdin all").bash(script).input(bytes(1_000_000)).run();
    outcome.exits(0).says_nothing().prints_lines(["1000000"]);
}

/// The next command of a script reads the input that the launch did not read.
#[test]
fn what_no_rank_reads_is_left() {
    let script = r#""$0" launch -n 2 --pmi none --stdin none true; cat"#;
    let outcome = Command::new("bash").words("-c").arg(script).arg(built::lattice()).input("still here").run();
    outcome.exits(0).check(outcome.stdout() == b"still here", || "should have left the input".into());
}

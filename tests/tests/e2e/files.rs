//! Files for the output of ranks.

use std::fs;

use lattice_tests::{Command, built, launch};

#[test]
fn output_files_by_template() {
    let directory = tempfile::tempdir().unwrap();
    let script = "echo out $LATTICE_RANK $LATTICE_LAUNCH_ID; echo err $LATTICE_RANK >&2";
    let command = launch("-n 2 --pmi none --output out.%r.%t.%n --error err.%r").directory(directory.path());
    let outcome = command.bash(script).run();
    outcome.exits(0).says_nothing().prints_lines::<&str>([]);
    for rank in 0..2 {
        let read = |name: String| {
            fs::read_to_string(directory.path().join(&name)).unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        assert!(read(format!("out.{rank}.{rank}.0")).starts_with(&format!("out {rank} ")));
        assert_eq!(read(format!("err.{rank}")), format!("err {rank}\n"));
    }
}

#[test]
fn a_file_can_be_named_after_the_launch() {
    let directory = tempfile::tempdir().unwrap();
    let command = launch("--pmi none --output %j.out").directory(directory.path());
    command.bash("printf $LATTICE_LAUNCH_ID").run().exits(0).says_nothing();
    let names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [file] = &names[..] else { panic!("one file should be there, not {names:?}") };
    let id = fs::read_to_string(file).unwrap();
    assert_eq!(file.file_name().unwrap().to_str().unwrap(), format!("{id}.out"));
}

#[test]
fn ranks_and_streams_can_share_a_file_without_torn_lines() {
    let directory = tempfile::tempdir().unwrap();
    let script = "for ((i = 0; i < 500; i++)); do echo out $LATTICE_RANK $i; echo err $LATTICE_RANK $i >&2; done";
    let command = launch("-n 3 --pmi none --label --output both --error both").directory(directory.path());
    command.bash(script).run().exits(0).says_nothing();
    let text = fs::read_to_string(directory.path().join("both")).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let mut expected = Vec::new();
    for rank in 0..3 {
        for line in 0..500 {
            expected.extend(["out", "err"].map(|stream| format!("[{rank}] {stream} {rank} {line}")));
        }
    }
    expected.sort_unstable();
    assert_eq!(lines, expected);
}

#[test]
fn append_keeps_what_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let run = |flags: &str, word: &str| {
        let command = launch("--pmi none --output log").words(flags).directory(directory.path());
        command.words("echo").arg(word).run().exits(0).says_nothing();
        fs::read_to_string(directory.path().join("log")).unwrap()
    };
    assert_eq!(run("", "one"), "one\n");
    assert_eq!(run("--append", "two"), "one\ntwo\n");
    assert_eq!(run("", "three"), "three\n");
}

#[test]
fn a_file_that_cannot_be_written_is_told_before_anything_starts() {
    let directory = tempfile::tempdir().unwrap();
    let command = launch("-n 2 --pmi none --output missing/%r").directory(directory.path());
    let outcome = command.words("touch started").run();
    outcome.exits(125).says("missing/0");
    assert!(!directory.path().join("started").exists());
}

#[test]
fn a_full_disk_is_told_and_fails_the_launch() {
    let outcome = launch("-n 2 --pmi none --output /dev/full").words("echo lost").run();
    outcome.exits(125).says("/dev/full").says("No space left");
}

/// Other output to the stream remains, and its reader receives the end of file with the end of the launch.
#[test]
fn a_file_of_output_can_be_our_own_stream() {
    let directory = tempfile::tempdir().unwrap();
    let lattice = built::lattice();
    let script = r#"(echo header; "$0" launch -n 2 --pmi=none -o /dev/stdout echo rank; echo trailer) >log; cat log
        "$0" launch -n 1 --pmi=none -o shared sh -c 'echo one; echo two >&2' >>shared; cat shared
        "$0" launch --pmi=none -o /dev/stdout yes | head -n 1; echo "code ${PIPESTATUS[0]}""#;
    let outcome = Command::new("bash").words("-c").arg(script).arg(lattice).directory(directory.path()).run();
    outcome.exits(0).prints_lines(["header", "rank", "rank", "trailer", "one", "y", "code 141"]).says("two");
}

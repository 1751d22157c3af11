//! Invalid command lines: each is refused with a message, before any program is started.

use std::fs;
use std::path::Path;

use lattice_tests::{Command, built, executable, lattice, launch};

/// Checks that the launch is refused with this code and these words, and that the first program was not started.
#[track_caller]
fn refused(command: Command, code: i32, words: &[&str]) {
    let outcome = command.run();
    outcome.exits(code).prints_lines::<&str>([]);
    for text in words {
        outcome.says(text);
    }
    let ours = outcome.errors().lines().all(|line| line.starts_with("lattice:"));
    outcome.check(ours, || "every line should be marked as ours".into());
}

/// An invalid second program prevents the start of the first one.
fn after_a_good_one(program: &Path) -> Command {
    launch("-n 1 echo started : -n 1").arg(program)
}

#[test]
fn a_program_that_does_not_exist() {
    refused(launch("-n 2 no_such_program_anywhere"), 127, &["no_such_program_anywhere"]);
    refused(launch("-n 2 ./no_such_program"), 127, &["./no_such_program"]);
    refused(after_a_good_one(Path::new("/nonexistent/program")), 127, &["/nonexistent/program"]);
}

#[test]
fn a_program_that_is_not_executable() {
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("plain");
    fs::write(&plain, "#!/bin/sh\n").unwrap();
    refused(after_a_good_one(&plain), 126, &["plain"]);
    refused(after_a_good_one(directory.path()), 126, &["directory"]);
    let script = executable(directory.path(), "script", "#!/nonexistent/interpreter\n");
    let outcome = after_a_good_one(&script).run();
    outcome.says("/nonexistent/interpreter").prints_lines::<&str>([]);
}

#[test]
fn a_program_for_another_architecture() {
    let directory = tempfile::tempdir().unwrap();
    // An ELF header for a machine on which no test runs: IBM's z.
    let mut header = vec![0; 64];
    header[..7].copy_from_slice(b"\x7fELF\x02\x02\x01");
    header[16..24].copy_from_slice(&[0, 2, 0, 22, 0, 0, 0, 1]);
    let foreign = executable(directory.path(), "foreign", header);
    refused(after_a_good_one(&foreign), 126, &["foreign"]);
}

#[test]
fn a_directory_that_is_not_there() {
    refused(launch("-n 2 --chdir /nonexistent true"), 125, &["/nonexistent", "No such file"]);
    refused(launch("-n 2 --chdir /etc/passwd true"), 125, &["/etc/passwd"]);
    refused(launch("echo started : --chdir /nonexistent true"), 125, &["/nonexistent"]);
}

#[test]
fn numbers_of_ranks_that_no_job_has() {
    refused(launch("-n 0 true"), 125, &["a job has at least 1 rank"]);
    refused(launch("-n -1 true"), 125, &["'-1' for '--ntasks <N>'", "not a positive whole number"]);
    refused(launch("-n many true"), 125, &["many"]);
    refused(launch("-n 99999999999999 true"), 125, &["99999999999999"]);
    refused(launch("-n 2000000000 true"), 125, &["2000000000"]);
    refused(launch("-n 3000000 true"), 125, &["3000000"]);
    refused(launch("-n 2000000000 true : -n 2000000000 true"), 125, &["4000000000"]);
    refused(launch("-n 4 --tasks-per-node 2 true"), 125, &["4 ranks do not fit", "--tasks-per-node=4"]);
}

#[test]
fn tasks_per_node_is_the_number_of_ranks_on_the_one_node() {
    launch("--tasks-per-node 3 --pmi none").words("echo here").run().exits(0).prints_lines(["here"; 3]);
}

#[test]
fn flags_that_exclude_each_other() {
    refused(launch("-q -v true"), 125, &["cannot be used with"]);
    refused(launch("--json --label true"), 125, &["cannot be used with"]);
    refused(launch("--pmi none --pmi-port true"), 125, &["--pmi-port and --pmi=none exclude each other"]);
    refused(launch("--pmi pmi2 --pmi-group-barriers true"), 125, &["exclude each other"]);
    refused(launch("--append true"), 125, &["--append needs --output or --error"]);
}

#[test]
fn flags_that_make_no_sense() {
    refused(launch("--lable true"), 125, &["--lable", "--label"]);
    refused(launch("--output out.%z true"), 125, &["%z"]);
    refused(launch("--timeout 5x true"), 125, &["--timeout", "5x"]);
    refused(launch("--timeout 0 true"), 125, &["--timeout"]);
    refused(launch("--stdin 5 -n 2 true"), 125, &["there is no such rank", "0 to 1"]);
    refused(launch("--stdin /nonexistent true"), 125, &["/nonexistent"]);
    refused(launch("--env =1 true"), 125, &["name"]);
    refused(launch("--env E2E_NEVER_SET true"), 125, &["E2E_NEVER_SET"]);
    refused(launch("true : --label true"), 125, &["--label holds for the whole launch"]);
    refused(launch("-w").arg("").arg("true"), 125, &["it names no node"]);
    refused(launch("true").env("LATTICE_ALLOC_ID", ""), 125, &["LATTICE_ALLOC_ID is empty: it names no allocation"]);
    refused(launch("-n 2"), 125, &["PROGRAM"]);
    refused(launch("true :"), 125, &["PROGRAM"]);
    refused(launch("--pmi-trace /nonexistent/trace true"), 125, &["/nonexistent/trace"]);
}

/// Faults of the machine, and of a program that another process has open for writing. The message names the file or
/// the stream.
#[test]
fn a_fault_of_a_file_or_a_stream_is_named() {
    let check = |script: &str, code: i32, words: &[&str]| {
        let directory = tempfile::tempdir().unwrap();
        let command = Command::new("bash").arg("-c").arg(script).env("LATTICE", built::lattice());
        let outcome = command.directory(directory.path()).run();
        outcome.exits(code);
        for text in words {
            outcome.says(text);
        }
    };
    let full = "lattice: cannot write to standard output: No space left on device";
    for line in ["launch --dry-run true", "launch --dry-run --json true", "launch --help", "man", "set list"] {
        check(&format!("$LATTICE {line} >/dev/full"), 125, &[full]);
    }
    let busy = "cp /bin/true busy; exec 7<>busy; $LATTICE launch -n 1 ./busy";
    check(busy, 126, &["cannot execute", "/busy: Text file busy\nlattice: try: the line again"]);
    for line in ["launch -n 1 cat <(echo hi)", "mpirun -np 1 cat <(echo hi)", "launch <(echo hi)"] {
        check(
            &format!("$LATTICE {line}"),
            125,
            &["/dev/fd/", "is a descriptor of this shell", "lattice: try: a file in its place"],
        );
    }
    let without =
        |directory: &str| format!("unshare -rm bash -c 'mount -t tmpfs none {directory} && $LATTICE launch /bin/true'");
    check(&without("/proc"), 125, &["cannot read /proc/self/task: ", "lattice: try: mount -t proc proc /proc"]);
    check(&without("/dev"), 125, &["cannot open /dev/null, which ranks need: "]);
}

#[test]
fn help_has_the_table_of_exit_codes() {
    let help = lattice("launch --help").run();
    help.exits(0).says_nothing().prints("Exit codes:").prints("127").prints("lattice launch -n 4 ./a.out");
    lattice("--version").run().exits(0).says_nothing().prints("lattice ");
}

#[test]
fn wrong_flags_of_an_agent_are_its_own_failure() {
    Command::new(built::lattice().with_file_name("lattice-agent"))
        .arg("--nonsense")
        .run()
        .exits(125)
        .says("--nonsense");
}

#[test]
fn help_that_nobody_asked_for_is_plain() {
    for (words, list) in [("", "Run"), ("alloc", "Commands"), ("cxi", "Commands"), ("pki", "Commands")] {
        let outcome = lattice(words).run();
        outcome.exits(125).prints_lines::<&str>([]).says("Usage: lattice").says(&format!("\n{list}:\n"));
        outcome.check(!outcome.errors().contains("lattice: "), || "help is no message".into());
    }
}

#[test]
fn protocols_are_listed_on_request() {
    launch("--pmi=list")
        .run()
        .exits(0)
        .says_nothing()
        .prints("auto  ")
        .prints("pmix  PMIx only")
        .prints("serves PMI-1.1, ");
}

#[test]
fn completions_and_man_pages_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        lattice("completions").arg(shell).run().exits(0).says_nothing().prints("pmi-trace");
    }
    lattice("man launch").run().exits(0).says_nothing().prints(".TH").prints("pmi\\-trace");
    let pages = tempfile::tempdir().unwrap();
    let agent = built::lattice().with_file_name("lattice-agent");
    Command::new(agent).words("man --all").arg(pages.path()).run().exits(0).says_nothing();
    for (page, part) in [("lattice-agent.1", "check\\-config"), ("lattice-agent-cxi-list.1", "services")] {
        let text = fs::read_to_string(pages.path().join(page)).unwrap();
        assert!(text.contains(part), "{page}: {text}");
    }
}

#[test]
fn an_id_that_nobody_knows_is_looked_for_here_first() {
    for words in ["attach zz", "status zz", "cancel zz", "signal zz USR1"] {
        let outcome = lattice(words).run();
        outcome.exits(125).says("no launch of yours on this machine has the id zz").says("try: lattice launches");
    }
}

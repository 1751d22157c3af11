//! The output of ranks: whole lines, all of them, unchanged. The launcher's memory never fills with them.

use std::io::Read;
use std::thread;
use std::time::Duration;

use lattice_tests::mpi::Flavour;
use lattice_tests::{Command, Outcome, built, late_output, lattice, launch, processes, turn};
use nix::unistd::geteuid;

/// Returns a line of `half_lines`.
fn half_line(rank: u32, number: usize) -> String {
    format!("from {rank} line {number} {}", "x".repeat(number * 7 % 100))
}

/// Checks that the lines of every rank are complete, unchanged and in order.
#[track_caller]
fn has_all_lines<'a>(outcome: &Outcome, lines: impl Iterator<Item = &'a str>, count: usize) {
    let mut next = [0; 4];
    for line in lines {
        let rank: Option<u32> = line.strip_prefix("from ").and_then(|rest| rest.get(..1)?.parse().ok());
        let rank = rank.unwrap_or_else(|| panic!("torn: {line:?}"));
        let expected = half_line(rank, next[rank as usize]);
        outcome.check(line == expected, || format!("should have printed {expected:?}, not {line:?}"));
        next[rank as usize] += 1;
    }
    outcome.exits(0).check(next == [count; 4], || format!("should have printed {count} lines each, not {next:?}"));
}

#[test]
fn four_ranks_print_2000_lines_each_and_no_line_is_torn() {
    let program = Flavour::Plain.program("half_lines");
    for _ in 0..3 {
        let outcome = launch("-n 4 --pmi none").arg(&program).arg("2000").run();
        has_all_lines(&outcome, outcome.text().lines(), 2000);
    }
}

#[test]
fn labels_stand_before_whole_lines() {
    let outcome = launch("-n 4 --pmi none --label").arg(Flavour::Plain.program("half_lines")).arg("2000").run();
    let unlabelled = |line: &'_ str| -> Option<usize> {
        let (label, text) = line.split_once(' ')?;
        let rank = text.strip_prefix("from ")?.get(..1)?;
        (label == format!("[{rank}]")).then_some(line.len() - text.len())
    };
    let strip = |line| match unlabelled(line) {
        Some(at) => &line[at..],
        None => panic!("mislabelled: {line:?}"),
    };
    has_all_lines(&outcome, outcome.text().lines().map(strip), 2000);
}

#[test]
fn labels_tell_the_rank_on_both_streams() {
    let outcome = launch("-n 2 --pmi none --label").bash("echo out; echo err >&2; printf unfinished").run();
    outcome.exits(0).prints_lines(["[0] out", "[1] out", "[0] unfinished", "[1] unfinished"]);
    outcome.says("[0] err\n").says("[1] err\n");
}

#[test]
fn timestamps_stand_before_each_line() {
    let outcome = launch("-n 2 --pmi none --timestamp --label").bash("echo one; echo two").run();
    outcome.exits(0).check(outcome.text().lines().count() == 4, || "should have printed 4 lines".into());
    for line in outcome.text().lines() {
        // 12:34:56.789, possibly after a date.
        let colons = line.matches(':').count();
        outcome
            .check(colons >= 3 && line.starts_with(|c: char| c.is_ascii_digit()), || format!("{line:?} has no time"));
        outcome.check(line.ends_with("one") || line.ends_with("two"), || format!("{line:?} has lost its text"));
    }
}

#[test]
fn any_bytes_are_passed_on_as_they_are() {
    let all: Vec<u8> = (0..=255).collect();
    let outcome = launch("--pmi none").bash("cat; cat /dev/null >&2").input(all.clone()).run();
    outcome.exits(0).says_nothing().check(outcome.stdout() == all, || "should have passed on every byte".into());
    let outcome = launch("-n 2 --pmi none").bash("printf 'no end'").run();
    outcome.exits(0).check(outcome.stdout() == b"no endno end" || outcome.text().len() == 13, || {
        "should have printed both texts".into()
    });
}

#[test]
fn output_that_passes_through_other_processes_comes_whole_at_every_end() {
    late_output::no_line_is_lost(0);
}

/// Recorded from mpirun 4.1.8 and prterun 5.0.11. In place of the launch id they have the name of a job. (prterun 5.0.11 fails to create
/// some of the files of `dir=`.)
#[test]
fn files_of_open_mpi_lines_are_those_of_open_mpi() {
    const SCRIPT: &str = r#"
        cd "$(mktemp -d)" && trap 'rm -rf "$PWD"' EXIT
        check() {
            "$LATTICE" mpirun --oversubscribe "$@" bash -c 'echo out; echo err >&2' >shown 2>&1
            echo "$*: shown $(grep -cE '^(out|err)$' shown)" $(find d* -type f -print -exec cat {} \; | sed 's/d\.[a-z0-9]*\./d.ID./; s:d/[a-z0-9]\{10\}/:d/ID/:' | sort -u)
            rm -rf d* shown
        }
        check -np 1 --output-filename d
        check -np 1 --output-filename d/b:nocopy
        check -np 2 --output-filename d:nojobid
        check -np 11 --output-filename d:nocopy | grep -o 'd/1/rank.[0-9]*/stdout'
        check -np 1 --output dir=d
        check -np 1 --output file=d,merge
        "$LATTICE" launch -n 1 --output d/%r true 2>&1 | grep -o 'mkdir -p d'"#;
    let outcome = Command::new("bash").words("-c").arg(SCRIPT).env("LATTICE", built::lattice()).run();
    let expected = [
        "-np 1 --output-filename d: shown 2 d/1/rank.0/stderr d/1/rank.0/stdout err out",
        "-np 1 --output-filename d/b:nocopy: shown 0 d/b/1/rank.0/stderr d/b/1/rank.0/stdout err out",
        "-np 2 --output-filename d:nojobid: shown 4 d/rank.0/stderr d/rank.0/stdout d/rank.1/stderr d/rank.1/stdout err out",
        "-np 1 --output dir=d: shown 0 d/ID/rank.0/stderr d/ID/rank.0/stdout err out",
        "-np 1 --output file=d,merge: shown 0 d.ID.0.out err out",
        "mkdir -p d",
    ];
    let padded = (0..11).map(|rank| format!("d/1/rank.{rank:02}/stdout"));
    outcome.exits(0).prints_lines(expected.map(str::to_owned).into_iter().chain(padded));
}

/// A rank without long pauses that never ends its line: dots, bars that end with a carriage return, and bars that begin with one.
#[test]
fn output_without_line_ends_is_shown_as_it_comes() {
    for flags in ["-n 1 --pmi none", "-n 2 --pmi none --label", "-n 2 --pmi none --timestamp"] {
        for (written, shown) in [("one", "one"), (r"10%%\r", "10%"), (r"\r10%%", "10%")] {
            let script = format!(
                "[ $LATTICE_RANK = 0 ] || exit 0; printf '{written}'; until read -r -t 0.03 line; do printf .; done; printf two"
            );
            let mut running = launch(flags).bash(&script).on_terminal(24, 80).start();
            running.wait_for_stdout(shown);
            running.type_in("go on\r");
            running.finish().exits(0).prints("two");
        }
    }
}

/// The reader of a pipe receives it, too.
#[test]
fn unbuffered_output_does_not_wait_for_the_end_of_its_line() {
    let script = "printf 'one '; read -r -t 60 || exit 9; printf two";
    let mut running = launch("--pmi none -u").typed_to().bash(script).start();
    running.wait_for_stdout("one ");
    running.type_in("\n");
    running.finish().exits(0).prints("one two");
}

/// C programs and Python buffer their output to a pipe, and do not to a terminal.
#[test]
fn unbuffered_programs_that_never_flush_show_each_line_at_once() {
    let script = r#"env -u PYTHONUNBUFFERED python3 -c "import sys; print('one'); sys.stdin.readline(); print('two')""#;
    for launcher in ["launch --pmi none -u", "srun -u"] {
        let mut running = lattice(launcher).typed_to().bash(script).start();
        running.wait_for_stdout("one\n");
        running.type_in("\n");
        running.finish().exits(0).prints("one\ntwo\n");
    }
}

/// As in srun: the terminal is for standard output alone, changes no byte, and is not a controlling terminal.
#[test]
fn unbuffered_ranks_have_a_terminal_that_passes_on_every_byte() {
    let kinds = "[ -t 0 ]; i=$?; [ -t 1 ]; o=$?; [ -t 2 ]; e=$?; (: </dev/tty) 2>/dev/null; echo $i $o $e $?";
    launch("--pmi none -u").bash(kinds).run().exits(0).prints("1 0 1 1\n");
    launch("--pmi none --unbuffered=pipe").bash(kinds).run().exits(0).prints("1 1 1 1\n");
    let all: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    let outcome = launch("--pmi none -u").bash("cat").input(all.clone()).run();
    outcome.exits(0).says_nothing().check(outcome.stdout() == all, || "should have passed on every byte".into());
    launch("-n 50 --pmi none -u").bash("echo last words").run().exits(0).prints_lines(["last words"; 50]);
}

/// Ranks that exhaust their user's process limit leave no thread for the launcher's output.
#[test]
fn output_and_the_cause_come_though_the_user_may_have_no_further_thread() {
    assert!(geteuid().is_root(), "this test must run as root");
    let program = r#"import os, sys, time
try:
    while True:
        if os.fork() == 0:
            time.sleep(60)
except OSError:
    pass
print("late")
sys.stdout.flush()
# Until then no process ends.
time.sleep(1)
os._exit(5)"#;
    let script = r#"ulimit -u 60; exec setpriv --reuid=54321 --regid=54321 --clear-groups "$LATTICE" launch -n 1 --pmi none python3 -c "$0""#;
    let outcome = Command::new("bash").words("-c").arg(script).arg(program).env("LATTICE", built::lattice()).run();
    outcome.exits(5).says("exited with status 5").prints("late\n");
}

#[test]
fn a_line_of_10_megabytes_comes_whole() {
    let _machine = turn::heavy();
    let outcome = launch("-n 2 --pmi none").bash("head -c 10000000 /dev/zero | tr '\\0' $LATTICE_RANK; echo").run();
    let bytes = outcome.stdout().iter().filter(|&&byte| byte == b'0' || byte == b'1').count();
    outcome.exits(0).check(bytes == 20_000_000, || format!("should have printed 20 MB, not {bytes} bytes"));
}

#[test]
fn all_output_comes_though_the_rank_ended_at_once() {
    for _ in 0..50 {
        let outcome = launch("-n 4 --pmi none").bash("echo last words").run();
        outcome.exits(0).prints_lines(["last words"; 4]);
    }
}

/// A slow reader of a flood. At its end the memory of the launcher must be within the limit.
fn slow_reader(flags: &str, flood: &str) -> u64 {
    const MEMORY_KB: u64 = 64_000;
    let mut running = launch("-n 2 --pmi none").words(flags).leave_output().bash(flood).start();
    let mut output = running.output();
    let pid = running.pid();
    // Wait until the launcher reads only as much output as it can pass on.
    let mut before = None;
    running.wait_until("the launcher reads no more", || {
        thread::sleep(Duration::from_millis(200));
        let now = processes::bytes_read(pid);
        std::mem::replace(&mut before, now) == now
    });
    let read = before.expect("the launcher still runs");
    assert!(read < FLOOD / 2, "{read} bytes were read though nobody took them");
    let head = std::io::copy(&mut output.by_ref().take(FLOOD / 2), &mut std::io::sink()).unwrap();
    let memory = processes::status(pid, "VmHWM").expect("the launcher still runs");
    let rest = std::io::copy(&mut output, &mut std::io::sink()).unwrap();
    running.finish().exits(0).says_nothing();
    let kilobytes: u64 = memory.split_whitespace().next().unwrap().parse().unwrap();
    assert!(kilobytes < MEMORY_KB, "with {flags:?} the launcher grew to {memory}");
    head + rest
}

const FLOOD_LINE: &str = "a line of a flood\n";
/// Total output of both ranks of a flood, in bytes.
const FLOOD: u64 = 10_000_000 * FLOOD_LINE.len() as u64;

#[test]
#[ignore = "second tier"]
fn a_flood_with_a_slow_reader_keeps_memory_bounded() {
    let _machine = turn::heavy();
    let flood = format!("yes {} | head -c {}", FLOOD_LINE.trim_end(), FLOOD / 2);
    assert_eq!(slow_reader("", &flood), FLOOD);
    assert_eq!(slow_reader("--label", &flood), FLOOD + 10_000_000 * "[0] ".len() as u64);
    assert!(slow_reader("--json", &flood) > FLOOD);
}

#[test]
#[ignore = "second tier"]
fn a_flood_without_line_ends_keeps_memory_bounded() {
    let _machine = turn::heavy();
    let flood = format!("head -c {} /dev/zero", FLOOD / 2);
    for flags in ["", "--label"] {
        assert!(slow_reader(flags, &flood) >= FLOOD);
    }
}

#[test]
fn a_closed_pipe_ends_the_launch_quietly() {
    for flags in ["", "--label", "--json"] {
        let mut running = launch("-n 2 --pmi none").words(flags).leave_output().bash("exec yes").start();
        let mut output = running.output();
        output.read_exact(&mut [0; 100]).unwrap();
        drop(output);
        running.finish().exits(141).says_nothing();
    }
}

#[test]
fn the_errors_of_a_rank_are_not_mixed_into_its_output() {
    let outcome = launch("-n 2 --pmi none").bash("echo out; echo err >&2").run();
    outcome.exits(0).prints_lines(["out"; 2]);
    assert_eq!(outcome.errors(), "err\nerr\n");
}

#[test]
fn quiet_says_nothing_but_the_reason() {
    launch("-q -n 2").bash("exit 0").run().exits(0).says_nothing();
    let outcome = launch("-q -n 2").bash("exit 3").run();
    outcome.exits(3).check(outcome.errors().lines().count() == 1, || "should have said one line".into());
}

#[test]
fn verbose_says_what_is_set_and_started() {
    let outcome = launch("-v -n 2 --env COLOUR=blue --pmi none").arg("true").run();
    outcome.exits(0).says("size: 2;").says("COLOUR=blue").says("rank 1 runs as process ");
}

#[test]
fn a_summary_says_what_the_launch_took() {
    let outcome = launch("-n 2 --pmi none --summary").bash("echo 0123456789").run();
    outcome.exits(0).says("2 ranks on ").says("used: ").says("written: 22 B to standard output, 0 B to standard error");
}

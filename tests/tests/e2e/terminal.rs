//! Launches in a terminal, which `script` provides.

use lattice_tests::{Command, Running, built, launch};
use nix::sys::signal::Signal;

use crate::raw;

/// Returns a running `lattice launch` with these words in a terminal.
fn in_terminal(words: &str) -> Running {
    let command = format!("{} launch {words}", built::lattice().display());
    // It ends with the code of the command, and writes no record.
    Command::new("script").words("-q -e -c").arg(command).arg("/dev/null").typed_to().start()
}

#[test]
fn a_prompt_is_seen_before_its_line_ends() {
    let mut running = in_terminal(r#"--pmi none bash -c 'printf "name? "; read -r name; echo "hello $name"'"#);
    running.wait_for_stdout("name? ");
    running.type_in("Ada\n");
    running.finish().exits(0).prints("hello Ada");
}

#[test]
fn ctrl_c_at_the_keyboard_ends_the_launch() {
    let mut running = in_terminal("-n 2 --pmi none bash -c 'echo here; exec sleep 1000'");
    running.wait_for_stdout_times("here", 2);
    running.type_in("\u{3}");
    running.finish().exits(130);
}

/// A shell ends its loop if SIGINT has killed the command, and continues after an exit with code 130.
#[test]
fn ctrl_c_ends_the_loop_of_a_shell_unless_a_command_of_ours_handles_it() {
    let rank = "bash -c 'echo here; exec sleep 1000'";
    let cluster = "$LATTICE dev-cluster --nodes 1 --loopback --";
    let check = |line: &str, loops: &str, goes_on: bool| {
        let script = format!("for run in {loops}; do {line}; done; echo loop is over");
        let mut running =
            Command::new("bash").arg("-c").arg(script).env("LATTICE", built::lattice()).on_terminal(24, 80).start();
        running.wait_for_stdout("here");
        running.type_in("\u{3}");
        let outcome = running.finish();
        outcome.check(outcome.text().contains("loop is over") == goes_on, || format!("{line}: goes on: {goes_on}"));
        if goes_on {
            outcome.exits(0)
        } else {
            outcome.killed_by(Signal::SIGINT as i32)
        };
    };
    for line in [
        format!("$LATTICE launch -n 2 --pmi none {rank}"),
        format!("$LATTICE mpirun -n 1 {rank}"),
        format!("$LATTICE srun -n 1 {rank}"),
        format!("{cluster} {rank}"),
        format!("{cluster} $LATTICE launch -n 1 --pmi none {rank}"),
    ] {
        check(&line, "1 2 3", false);
    }
    check(&format!(r#"{cluster} bash -c 'trap "exit 130" INT; echo here; sleep 1000 & wait'"#), "1", true);
}

#[test]
fn ranks_in_mpi_init_are_counted_in_a_line_that_goes() {
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let script = r#"[ $PMI_RANK = 0 ] || until [ -e "$GO" ]; do sleep 0.05; done
        init; barrier; [ $PMI_RANK = 0 ] && echo past; sleep 1.5; finalize"#;
    let mut running = raw::script(launch("-n 2").env("GO", &go), script).on_terminal(24, 80).start();
    running.wait_for_stdout("lattice: in MPI_Init: 1 of 2 ranks");
    std::fs::write(go, "").unwrap();
    let outcome = running.finish();
    outcome.exits(0).prints("past");
    let last = outcome.text().rsplit("2 ranks").next().unwrap_or_default();
    outcome.check(last.starts_with("\r\u{1b}[K"), || "the line should go".to_owned());
}

#[test]
fn words_of_ours_have_colours_on_a_terminal_unless_they_are_switched_off() {
    let crowded = |no_color: &str, term: &str| {
        let ranks = rank_spawner::usable_cpus().get() + 1;
        let command = launch(&format!("-n {ranks} --pmi none true")).env("NO_COLOR", no_color).env("TERM", term);
        command.on_terminal(24, 80).start().finish()
    };
    crowded("", "xterm").exits(0).prints("lattice: \u{1b}[36mnote:\u{1b}[0m ");
    crowded("1", "xterm").exits(0).prints("lattice: note: ");
    crowded("", "dumb").exits(0).prints("lattice: note: ");
}

#[test]
fn who_starts_a_shell_to_type_in_is_told_of_its_terminal() {
    let words = |line: &str| launch(line).words("bash --norc -i -c true").on_terminal(24, 120).start().finish();
    words("-n 1 --pmi none")
        .exits(0)
        .prints("lattice: note: bash has no terminal here")
        .prints("try: lattice launch --pty ");
    let quiet = words("-n 1 --pmi none --pty");
    quiet.check(!quiet.text().contains("no terminal here"), || "should have said nothing, for it has one".to_owned());
}

#[test]
fn a_table_of_top_fits_on_the_screen() {
    let script = r#""$0" launch -n 30 --pmi none sleep 1000 & launch=$!
        until [ "$("$0" top --once 2>/dev/null | wc -l)" -gt 30 ]; do sleep 0.05; done
        "$0" top; code=$?; kill $launch; wait $launch; exit $code"#;
    let mut running = Command::new("bash").arg("-c").arg(script).arg(built::lattice()).on_terminal(12, 40).start();
    // Of 11 lines, one is for the cursor, one for the keys, two are the heads, and one is this line.
    running.wait_for_stdout("and 23 more; a taller screen or --once s\r\nkeys: ");
    running.type_in("q");
    let outcome = running.finish();
    outcome.exits(0);
    let table = outcome.text().split("\x1b[2J").nth(1).unwrap().split("keys:").next().unwrap();
    assert!(table.lines().count() == 10 && table.lines().all(|line| line.chars().count() <= 40), "{table}");
}

#[test]
fn keys_sort_the_table_of_top_and_quit() {
    let script = r#""$0" launch -n 2 --pmi none sh -c '[ $LATTICE_RANK = 0 ] || head -c 1000000 /dev/zero >/dev/null; sleep 1000' & launch=$!
        until "$0" top --once >/dev/null 2>&1; do sleep 0.05; done
        "$0" top; code=$?; stty -a | grep -oE -- '-?icanon\b'; kill $launch; wait $launch; exit $code"#;
    let mut running = Command::new("bash").arg("-c").arg(script).arg(built::lattice()).on_terminal(24, 120).start();
    running.wait_for_stdout("q quit");
    running.type_in("i");
    // Rank 1 has read more.
    running.wait_for_stdout("PROGRAM\r\n   1  ");
    running.type_in("q");
    let outcome = running.finish();
    outcome.exits(0).prints("\nicanon");
}

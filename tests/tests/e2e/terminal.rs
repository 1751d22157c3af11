//! Before a terminal, which `script` provides.

use lattice_tests::{Command, Running, built};

/// `lattice launch` with these words in a terminal.
fn in_terminal(words: &str) -> Running {
    let command = format!("{} launch {words}", built::lattice().display());
    // It ends with the code of the command, and keeps no record.
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

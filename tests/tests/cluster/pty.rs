//! `--pty` on a cluster: the terminal of rank 0 is on another machine than the keyboard.

use lattice_tests::terminal::{INTERACTIVE, try_a_shell};
use lattice_tests::{launch_on, script_on};

#[test]
fn a_shell_on_another_node_is_one_at_a_terminal() {
    try_a_shell(launch_on(2, "-w node1 --pty").words(INTERACTIVE)).exits(7);
}

#[test]
fn without_a_terminal_here_rank_0_is_fed_from_standard_input() {
    let script = "tty; stty size; cat; exit 3";
    let outcome = launch_on(2, "-w node1 --pty").bash(script).input("typed\n").run();
    outcome.exits(3).prints("/dev/pts/").prints("24 80\r\n");
    outcome.check(outcome.text().matches("typed\r\n").count() == 2, || "what was typed and what cat says".to_owned());
}

#[test]
fn nothing_of_a_flood_is_lost() {
    let outcome = launch_on(2, "-w node1 --pty").words("seq 100000").run();
    let lines = outcome.exits(0).text().lines().map(str::to_owned);
    assert!(lines.eq((1..=100_000).map(|number| number.to_string())));
}

/// The connection to the API server breaks, and the shell continues with its terminal.
#[test]
fn a_shell_outlives_a_restart_of_the_api_server() {
    let script = r#"
        lattice launch -w node1 --pty bash --norc --noprofile -i <"$1" & shell=$!
        exec 9>"$1"
        launch_with 1 >/dev/null
        restart_api true
        echo 'echo st"ill" here; exit 6' >&9
        wait $shell
    "#;
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("typed");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    script_on(2, script).arg(&fifo).run().exits(6).prints("still here");
}

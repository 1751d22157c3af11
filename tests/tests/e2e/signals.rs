//! Signals to the launcher. The first Ctrl-C ends the job in order, the second one at once. Other signals are
//! sent to the ranks.

use std::time::Duration;

use lattice_tests::{Command, built, launch, processes};
use nix::sys::signal::Signal;

#[test]
fn ctrl_c_once_ends_the_ranks_in_order() {
    let script = "trap 'echo tidied; exit 0' INT; echo here; while :; do sleep 0.01; done";
    let mut running = launch("-n 3").bash(script).start();
    running.wait_for_stdout_times("here", 3);
    running.signal(Signal::SIGINT);
    let outcome = running.finish();
    let tidied = outcome.text().matches("tidied").count();
    outcome.exits(130).check(tidied == 3, || format!("{tidied} of 3 ranks tidied up"));
}

#[test]
fn ctrl_c_twice_ends_the_ranks_at_once() {
    let script = "trap 'echo no' INT TERM; echo here; while :; do sleep 0.01; done";
    let mut running = launch("-n 2 --kill-wait 1h").bash(script).start();
    running.wait_for_stdout_times("here", 2);
    running.signal(Signal::SIGINT);
    running.wait_for_stdout_times("no", 2);
    // Two equal signals in quick succession are merged.
    std::thread::sleep(Duration::from_millis(300));
    running.signal(Signal::SIGINT);
    running.finish().exits(130);
}

/// `timeout`, `kill -- -PGID` and resource managers send a signal to the process and to its group.
#[test]
fn a_signal_to_end_that_comes_twice_at_once_ends_the_ranks_in_order() {
    let script = "trap 'sleep 1; echo saved; exit 0' TERM; echo here; while :; do sleep 0.01; done";
    let mut running = launch("-n 1 --kill-wait 1h").bash(script).start();
    running.wait_for_stdout("here");
    running.signal(Signal::SIGTERM);
    running.signal(Signal::SIGTERM);
    running.finish().exits(143).prints_lines(["here", "saved"]);
}

#[test]
fn sigterm_and_sighup_end_the_launch() {
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let mut running = launch("-n 2").bash("echo here; exec sleep 1000").start();
        running.wait_for_stdout_times("here", 2);
        running.signal(signal);
        running.finish().exits(code);
    }
}

#[test]
fn sigusr1_is_forwarded() {
    let script = "trap 'echo got it; exit 0' USR1; echo here; while :; do sleep 0.01; done";
    let mut running = launch("-n 3 --pmi none").bash(script).start();
    running.wait_for_stdout_times("here", 3);
    running.signal(Signal::SIGUSR1);
    let outcome = running.finish();
    // The shell may report the end of its child, which received the signal as well, because it is sent to the
    // whole group of the rank.
    outcome.exits(0).does_not_say("lattice:").prints_lines(["here", "got it"].into_iter().cycle().take(6));
}

/// A rank that prints "here" and ends when the file exists.
const UNTIL_FILE: &str = r#"echo here; until [ -e "$1" ]; do sleep 0.01; done; echo on"#;

#[test]
fn ctrl_z_stops_the_ranks_and_fg_lets_them_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("go");
    let mut running = launch("-n 1 --pmi none").bash(UNTIL_FILE).arg(&file).start();
    running.wait_for_stdout("here");
    let launcher = running.pid();
    running.signal(Signal::SIGTSTP);
    running.wait_until("the launcher is stopped", || {
        processes::status(launcher, "State").is_some_and(|state| state.starts_with('T'))
    });
    std::fs::write(file, "").unwrap();
    running.signal(Signal::SIGCONT);
    running.wait_for_stdout("on");
    running.finish().exits(0).says_nothing();
}

/// As with `nohup`.
#[test]
fn a_signal_that_was_ignored_from_the_start_stays_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("go");
    let nohup = Command::new("bash").words("-c").arg(r#"trap '' HUP; exec "$0" "$@""#).arg(built::lattice());
    let mut running = nohup.words("launch --pmi none").bash(UNTIL_FILE).arg(&file).start();
    running.wait_for_stdout("here");
    running.signal(Signal::SIGHUP);
    std::fs::write(file, "").unwrap();
    running.finish().exits(0).says_nothing();
}

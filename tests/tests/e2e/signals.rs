//! Signals to the launcher: the first Ctrl-C ends the job in order, the second at once; others go to the ranks.

use lattice_tests::launch;
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
    running.signal(Signal::SIGINT);
    running.finish().exits(130);
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
    outcome.exits(0).says_nothing().prints_lines(["here", "got it"].into_iter().cycle().take(6));
}

#[test]
fn ctrl_z_stops_the_ranks_and_fg_lets_them_go_on() {
    let mut running = launch("-n 1 --pmi none").bash("echo $$; while [ ! -e \"$1\" ]; do sleep 0.01; done; echo on");
    let directory = tempfile::tempdir().unwrap();
    running = running.arg(directory.path().join("go"));
    let mut running = running.start();
    running.wait_for_stdout("\n");
    let launcher = running.pid();
    running.signal(Signal::SIGTSTP);
    let state = move || lattice_tests::processes::status(launcher, "State").unwrap_or_default();
    running.wait_until("the launcher is stopped", || state().starts_with('T'));
    std::fs::write(directory.path().join("go"), "").unwrap();
    running.signal(Signal::SIGCONT);
    running.wait_for_stdout("on");
    running.finish().exits(0).says_nothing();
}

/// As `nohup` starts it.
#[test]
fn a_signal_that_was_ignored_from_the_start_stays_ignored() {
    let lattice = lattice_tests::built::lattice();
    let mut running = lattice_tests::Command::new("bash")
        .words("-c")
        .arg(r#"trap '' HUP; exec "$0" launch --pmi none bash -c 'echo here; until [ -e "$0" ]; do sleep 0.01; done' "$1""#)
        .arg(lattice);
    let directory = tempfile::tempdir().unwrap();
    running = running.arg(directory.path().join("go"));
    let mut running = running.start();
    running.wait_for_stdout("here");
    running.signal(Signal::SIGHUP);
    std::fs::write(directory.path().join("go"), "").unwrap();
    running.finish().exits(0).says_nothing();
}

//! A launch inside a rank of another launch.

use lattice_tests::mpi::Flavour;
use lattice_tests::{Command, built, launch};
use nix::sys::signal::Signal;

#[test]
fn a_rank_can_launch_a_job_of_its_own() {
    let lattice = built::lattice();
    let inner = |command: Command| command.arg(&lattice).words("launch -n 2");
    let outcome = inner(launch("-n 2 --pmi none")).arg(Flavour::WheelMpich.program("hello")).run();
    outcome.exits(0).says_nothing().prints_lines(["rank 0 of 2", "rank 0 of 2", "rank 1 of 2", "rank 1 of 2"]);
}

#[test]
fn the_inner_launch_has_an_id_of_its_own() {
    let lattice = built::lattice();
    let script = r#"echo $LATTICE_LAUNCH_ID; "$1" launch --pmi none printenv LATTICE_LAUNCH_ID"#;
    let outcome = launch("--pmi none").bash(script).arg(lattice).run();
    outcome.exits(0).says_nothing();
    let ids: Vec<&str> = outcome.text().lines().collect();
    outcome.check(ids.len() == 2 && ids[0] != ids[1], || "should have printed two different ids".into());
}

#[test]
fn the_inner_exit_code_comes_out() {
    let outcome = launch("-n 2 --pmi none").arg(built::lattice()).words("launch --pmi none").bash("exit 7").run();
    outcome.exits(7);
}

/// With any order of the signals, no process of the inner launch remains.
#[test]
fn the_death_of_the_outer_launcher_ends_the_inner_launch() {
    let script = "trap '' TERM INT; setsid sleep 1000 & echo here; sleep 1000; sleep 1000";
    for _ in 0..10 {
        let inner = launch("-n 1 --pmi none").arg(built::lattice()).words("launch -n 2 --pmi none");
        let mut running = inner.bash(script).start();
        running.wait_for_stdout_times("here", 2);
        running.signal(Signal::SIGKILL);
        running.finish().killed_by(9);
    }
}

#[test]
fn ctrl_c_on_the_outer_launch_ends_the_inner_one() {
    let inner = launch("-n 1 --pmi none").arg(built::lattice()).words("launch -n 2 --pmi none");
    let mut running = inner.bash("trap 'exit 0' INT; setsid sleep 1000 & echo here; wait; wait").start();
    running.wait_for_stdout_times("here", 2);
    running.signal(Signal::SIGINT);
    running.finish().exits(130);
}

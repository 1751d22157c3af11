//! No process or file of a launch on a cluster remains, nor of the cluster itself.

use std::path::Path;

use lattice_tests::cluster::{interfaces, script_in};
use lattice_tests::mpi::{self, Flavour};
use lattice_tests::{Command, Running, built, cluster, launch_on, script_on, turn};
use nix::sys::signal::Signal;

/// Prints the directory of the cluster.
const TRACES: &str = r#"echo "directory $LATTICE_DEV_CLUSTER"; echo ready"#;

/// Runs the cluster until it is up, ends it, and checks for remaining files and interfaces. `finish` checks for processes, and
/// thereby for namespaces.
#[track_caller]
fn leaves_nothing(command: Command, end: impl FnOnce(&mut Running)) {
    let before = interfaces();
    let mut running = command.start();
    running.wait_for_stdout("ready");
    end(&mut running);
    let outcome = running.finish();
    assert_eq!(interfaces(), before);
    let directory = directory_of(outcome.text());
    assert!(!Path::new(&directory).exists(), "{directory} is left");
}

fn directory_of(output: &str) -> String {
    output.lines().find_map(|line| line.strip_prefix("directory ")).expect("the script prints it").to_owned()
}

#[test]
fn a_cluster_ends_with_its_command() {
    leaves_nothing(cluster(2).bash(&format!("{TRACES}; exit 0")), |_| {});
}

#[test]
fn what_the_command_leaves_in_the_background_ends_with_the_cluster() {
    let script = format!("setsid sleep 1000 & (lattice launch -n 4 sleep 1000 &); {TRACES}; sleep 1");
    leaves_nothing(cluster(2).bash(&script), |_| {});
}

#[test]
fn a_terminated_cluster_leaves_nothing() {
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let script = format!("lattice launch -n 4 sleep 1000 & {TRACES}; wait; sleep 1000");
        leaves_nothing(cluster(2).bash(&script), |running| running.signal(signal));
    }
}

#[test]
fn a_killed_cluster_leaves_nothing() {
    is_killed_and_leaves_nothing(cluster(2));
}

/// Only root may read the environment of its daemons, with the tag in it.
#[test]
fn a_killed_cluster_of_a_plain_user_leaves_nothing() {
    let words = "--reuid nobody --regid nogroup --init-groups";
    let as_nobody = Command::new("setpriv").words(words).arg(built::lattice());
    is_killed_and_leaves_nothing(as_nobody.words("dev-cluster --nodes 2 --"));
}

#[track_caller]
fn is_killed_and_leaves_nothing(cluster: Command) {
    let script = format!("trap '' TERM HUP; lattice launch -n 4 sleep 1000 & {TRACES}; wait; sleep 1000");
    let command = script_in(cluster, &script);
    let before = interfaces();
    let mut running = command.start();
    running.wait_for_stdout("ready");
    running.signal(Signal::SIGKILL);
    let outcome = running.finish();
    outcome.killed_by(9);
    assert_eq!(interfaces(), before);
    let directory = directory_of(outcome.text());
    // Its last process removes the directory.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while Path::new(&directory).exists() {
        assert!(std::time::Instant::now() < deadline, "{directory} is left");
        std::thread::sleep(lattice_tests::running::LOOK_EVERY);
    }
}

#[test]
fn the_exit_code_is_the_commands() {
    cluster(1).bash("exit 7").run().exits(7).says_nothing();
    cluster(1).bash("kill -KILL $$").run().exits(137);
    cluster(1).arg("/nowhere/at/all").run().exits(127).says("cannot run /nowhere/at/all");
}

#[test]
fn nodes_can_share_the_loopback_interface() {
    let command = lattice_tests::lattice("dev-cluster --loopback --nodes 3 -- lattice launch -n 6");
    let outcome = command.arg(Flavour::WheelMpich.program("hello")).run();
    outcome.exits(0).prints_lines((0..6).map(|rank| format!("rank {rank} of 6")));
}

/// Open MPI 4.1 uses the same name for the shared memory of ranks with the same position on two nodes of one host: such ranks
/// crashed.
#[test]
fn nodes_of_one_host_have_their_own_shared_memory() {
    let script = r#"
        lattice launch -N 3 -n 6 "$1" && lattice launch -N 3 -n 6 printenv OMPI_MCA_btl_vader_backing_directory | sort -u | wc -l
        ls -d /dev/shm/lattice-*"#;
    for mpi in mpi::MPIS {
        let command = script_in(lattice_tests::lattice("dev-cluster --loopback --nodes 3 --"), script);
        let outcome = command.arg(mpi.program("allreduce")).run();
        outcome.exits(2).says("No such file").prints("6 ranks, 0 wrong sums\n3\n");
    }
}

#[test]
fn two_clusters_do_not_meet() {
    let script = r#"lattice launch -n 2 "$1" && lattice nodes --json | sed -nE 's/^ *"node": "(.*)",/\1/p'"#;
    let start = || cluster(2).bash(script).arg(Flavour::WheelMpich.program("hello")).start();
    for running in [start(), start()] {
        running.finish().exits(0).prints_lines(["rank 0 of 2", "rank 1 of 2", "node0", "node1"]);
    }
}

/// Compares the descriptors, threads and child processes of the daemons before and after many launches.
const MANY: &str = include_str!("../../scripts/many_processes.sh");

#[test]
#[ignore = "second tier"]
fn a_hundred_launches_in_a_row_leak_nothing() {
    let _machine = turn::heavy();
    cluster(2).bash(MANY).arg(Flavour::WheelMpich.program("hello")).run().exits(0);
}

/// Rank 1, on another node, waits until the file of rank 0 is gone, and checks that its own files exist.
#[test]
fn what_a_killed_rank_has_registered_goes_from_its_node_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let program = Flavour::LatticePmi.program("libpmi_resources");
    let outcome = launch_on(2, "-n 2 -N 2 -K0").arg(program).arg(directory.path()).words("kill 2").run();
    outcome.exits(137).prints("1: 0 failed");
    assert!(!outcome.text().contains("are gone"), "{}", outcome.text());
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    // The file that rank 1 released.
    assert_eq!(left, ["file 1"]);
}

/// The next session of the user on the node removes the recorded directory of a session. An unrecorded directory with such a
/// name remains.
#[test]
fn a_killed_session_leaves_nothing_once_another_has_run() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"; mkdir tmp; export TMPDIR=$PWD/tmp
        mkdir tmp/lattice-qcd.tmp tmp/lattice-qcd; touch -d '3 hours ago' tmp/lattice-qcd.tmp
        lattice launch -n 2 "$1" 0 9 never >/dev/null 2>&1 & launch=$!
        id=$(launch_with 2); until [ $(ls -d tmp/*/contact | wc -l) = 2 ]; do sleep 0.05; done
        kill -KILL $(ps -o ppid= -p $(pid_of_rank $id 1)); wait $launch; echo $?
        ls tmp | grep -v "$id"; lattice alloc release $LATTICE_ALLOC_ID >/dev/null 2>&1
        export LATTICE_ALLOC_ID=$(timeout 20 lattice alloc create -N 2 --wait); sleep 1
        lattice launch -n 2 --timeout 3s "$1" 0 9 never >/dev/null; echo $?; ls tmp"#;
    let outcome = script_on(2, script).arg(Flavour::WheelOpenMpi.program("abort")).run();
    outcome.exits(0).prints_lines(["125", "lattice-qcd", "lattice-qcd.tmp", "124", "lattice-qcd", "lattice-qcd.tmp"]);
}

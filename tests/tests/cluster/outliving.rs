//! Attempts of a user to keep a process after the end of its launch, and to reach into the next user's allocation. These tests require
//! root, to run as other users.

use std::fs;
use std::io::Write;
use std::path::Path;

use lattice_tests::mpi::Flavour;
use lattice_tests::{Command, Outcome, built, cluster::script_in, script_on};
use nix::unistd::{AccessFlags, access, geteuid};

/// Two users that exist on every Debian, a chain of processes, and the checks for both.
///
/// A link of the chain forks and ends, in a new session, so fast that no process list shows it. All links hold the lock of the first one.
/// If the lock is free, no link is left. The chain ends by itself after two minutes if it cannot be killed.
const USERS: &str = r#"
    NOBODY="setpriv --reuid nobody --regid nogroup --init-groups"
    GAMES="setpriv --reuid games --regid games --init-groups"
    export CHAIN='use POSIX; $end = time + 120;
        while (time < $end) { $child = fork; POSIX::_exit(0) if $child; POSIX::setsid(); }'
    # In a rank: begins a chain that holds the lock of its number, and goes on when both ranks have.
    export BEGIN='exec 9>"$LOCKS/$LATTICE_RANK"; flock 9; perl -e "$CHAIN" >/dev/null 2>&1; touch "$BEGUN/$LATTICE_RANK";
        until [ -e "$BEGUN/0" ] && [ -e "$BEGUN/1" ]; do sleep 0.02; done;'
    export LOCKS=$(mktemp -d) BEGUN=$(mktemp -d); trap 'rm -r "$LOCKS" "$BEGUN"' EXIT; chmod 777 "$LOCKS" "$BEGUN"
    chains() { local lock; for lock in "$LOCKS"/*; do flock -n "$lock" true && echo gone || echo there; done; }
    # Where no control group has them, the agent looks for what is left after the end of the launch.
    until_gone() { local look; for ((look = 0; look < 200; look++)); do [ "$(chains | grep -c gone)" = $1 ] && return; sleep 0.05; done; }
    lattice alloc release $LATTICE_ALLOC_ID >/dev/null
    alloc=$(lattice alloc create -N 2 --uid 65534) || exit
    # The next user gets both nodes, and looks for what the one before began there.
    hand_over() {
        lattice alloc release $alloc >/dev/null; alloc=$(lattice alloc create --wait -N 2 --uid 5) || exit
        $GAMES lattice launch --alloc $alloc -n 2 bash -c 'flock -n "$LOCKS/$LATTICE_RANK" true && echo alone'
    }
"#;

/// Runs a script in a cluster of two nodes. Both belong to `$alloc` of the first user.
#[track_caller]
fn as_two_users(script: &str) -> Outcome {
    assert!(geteuid().is_root(), "this test must run as root");
    script_on(2, &format!("{USERS}\n{script}")).run()
}

/// Returns true if agents on this machine can create control groups for sessions. Without them all remaining processes of a user on a
/// node end with the launch, including the clients of these tests. Separate tests below cover this case.
fn has_control_groups() -> bool {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let root = fields.filter(|fields| fields.get(2) == Some(&"cgroup2")).find_map(|fields| fields.get(1).copied());
    let found = root.zip(own).is_some_and(|(root, own)| access(&Path::new(root).join(own), AccessFlags::W_OK).is_ok());
    if !found {
        // The print macros would be captured for tests that pass.
        let test = std::thread::current();
        let test = test.name().unwrap_or_default();
        let _ = writeln!(
            std::io::stdout(),
            "\nnot tried here: {test}: no control group can be made below that of this process"
        );
    }
    found
}

#[test]
fn a_chain_of_forks_ends_with_its_launch() {
    if !has_control_groups() {
        return;
    }
    let script = r#"$NOBODY lattice launch --alloc $alloc -n 2 bash -c "$BEGIN"; echo "code $?"; chains; hand_over"#;
    as_two_users(script).prints_lines(["code 0", "gone", "gone", "alone", "alone"]);
}

#[test]
fn a_chain_of_forks_ends_with_the_session_that_it_killed() {
    if !has_control_groups() {
        return;
    }
    let script = r#"$NOBODY lattice launch --alloc $alloc -n 2 bash -c "$BEGIN"'kill -KILL $PPID; sleep 1000' 2>&1 |
            sed -n 's/.*the session process/the session process/p'
        chains; hand_over"#;
    as_two_users(script).prints_lines([
        "the session process was killed by signal 9 (SIGKILL)",
        "gone",
        "gone",
        "alone",
        "alone",
    ]);
}

#[test]
fn a_chain_of_forks_ends_with_a_launch_that_is_aborted() {
    if !has_control_groups() {
        return;
    }
    let script = r#"$NOBODY lattice launch --alloc $alloc -n 2 bash -c "$BEGIN"'sleep 1000' 2>/dev/null &
        until [ -e "$BEGUN/0" ] && [ -e "$BEGUN/1" ]; do sleep 0.05; done
        lattice cancel $(lattice launches --json | field launch_id); wait $!; chains; hand_over"#;
    as_two_users(script).prints_lines(["gone", "gone", "alone", "alone"]);
}

/// The same without control groups, for example in a container. A process namespace around the cluster isolates the killed processes of
/// the user from other tests.
#[track_caller]
fn without_cgroups(script: &str) -> Outcome {
    assert!(geteuid().is_root(), "this test must run as root");
    let around = r#"umount --all --types cgroup2 && exec "$@""#;
    let container = Command::new("unshare").words("--mount --pid --fork --mount-proc").bash(around);
    let cluster = container.arg(built::lattice()).words("dev-cluster --nodes 2 --");
    script_in(cluster, &format!("{USERS}\n{script}")).run()
}

/// Clients on the node end with the remaining processes of their launch, so that the launch has no client.
const DETACHED: &str = r#"
    $NOBODY lattice launch --detach --alloc $alloc -n 2 bash -c "$BEGIN$THEN" >/dev/null
    while [ "$(lattice launches --json | field launch_id)" ]; do sleep 0.05; done
    until_gone 2; chains; hand_over; grep -c "sessions have no control groups" "$LATTICE_DEV_CLUSTER/node0.log""#;

#[test]
fn without_control_groups_a_chain_of_forks_ends_with_its_launch() {
    without_cgroups(&format!("THEN=; {DETACHED}")).prints_lines(["gone", "gone", "alone", "alone", "1"]);
}

#[test]
fn without_control_groups_a_chain_of_forks_ends_with_the_session_that_it_killed() {
    let script = format!("THEN='kill -KILL $PPID; sleep 1000'; {DETACHED}");
    without_cgroups(&script).prints_lines(["gone", "gone", "alone", "alone", "1"]);
}

/// The agent of a node sends no signal to all processes of a user that has another session on the same machine. It does so after the end
/// of that session, though that session leaves no process. Three chains on few cores are in no process list.
#[test]
fn without_control_groups_chains_of_forks_end_after_the_last_session_of_their_user() {
    let script = r#"lattice alloc release $alloc >/dev/null
        alloc=$(lattice alloc create -N 1 --uid 65534); other=$(lattice alloc create -N 1 --uid 65534)
        export WAIT='until [ -e "$BEGUN/end" ]; do sleep 0.05; done' MORE='for chain in 2 3; do perl -e "$CHAIN" >/dev/null 2>&1; done;'
        $NOBODY lattice launch --detach --alloc $other -n 1 bash -c 'touch "$BEGUN/1"; '"$WAIT" >/dev/null
        $NOBODY lattice launch --detach --alloc $alloc -n 1 bash -c "$BEGIN$MORE"'kill -KILL $PPID; sleep 1000' >/dev/null
        until [ -e "$BEGUN/0" ] && [ $(lattice launches --json | field launch_id | wc -l) = 1 ]; do sleep 0.05; done
        # The chains have a second to fill the table of processes.
        sleep 1; [ $(ls -d /proc/[0-9]* | wc -l) -lt 10000 ] && echo few; touch "$BEGUN/end"; until_gone 1; chains
        for ((look = 0; look < 200; look++)); do pgrep -x perl >/dev/null || break; sleep 0.05; done; pgrep -cx perl"#;
    without_cgroups(script).prints_lines(["few", "gone", "0"]);
}

#[test]
fn a_session_that_its_rank_stops_ends_within_its_agents_patience() {
    let script = r#"$NOBODY lattice launch --timeout 1s --alloc $alloc -n 2 bash -c 'kill -STOP $PPID; sleep 1000' 2>&1 |
            sed -n 's/.*the session process/the session process/p'"#;
    as_two_users(script).prints_lines(["the session process was stopped by a signal, and did not go on"]);
}

/// The shared memory of MPICH's ranks is removed on every node, though the rank that aborts is on one node.
#[test]
fn no_node_keeps_the_shared_memory_of_an_aborted_program() {
    let script = r#"lattice launch -N 2 -n 4 "$1" 3 9 >/dev/null; echo "code $?"
        lattice launch -N 2 -n 2 --pmi=none ls /dev/shm"#;
    let outcome = script_on(2, script).arg(Flavour::WheelMpich.program("abort")).run();
    outcome.exits(0).prints_lines(["code 9"]);
}

/// Kills the process that starts node1's sessions, while each rank has a child that left its session and environment. The child and its
/// descendants hold the lock of its rank.
const KILL_FORK_SERVER: &str = r#"
    export HIDE='exec 9>"$LOCKS/$LATTICE_RANK"; flock 9; env -i setsid sleep 1000 >/dev/null 2>&1 & touch "$BEGUN/$LATTICE_RANK"; sleep 1000'
    $NOBODY lattice launch --detach --alloc $alloc -n 2 bash -c "$HIDE" >/dev/null
    until [ -e "$BEGUN/0" ] && [ -e "$BEGUN/1" ]; do sleep 0.05; done; chains
    agent=$(daemon node1); keep_namespaces node1; kill -KILL $(pgrep -P $agent -x lattice-forks)
    while [ "$(lattice launches --json | field launch_id)" ]; do sleep 0.05; done
    until_gone 2; chains
    while grep -qs '^State:.[^ZX]' /proc/$agent/task/*/status; do sleep 0.05; done; start_agent node1
    hand_over"#;

#[test]
fn nothing_of_a_launch_outlives_a_killed_fork_server() {
    if !has_control_groups() {
        return;
    }
    as_two_users(KILL_FORK_SERVER).prints_lines(["there", "there", "gone", "gone", "alone", "alone"]);
}

#[test]
fn without_control_groups_nothing_of_a_launch_outlives_a_killed_fork_server() {
    without_cgroups(KILL_FORK_SERVER).prints_lines(["there", "there", "gone", "gone", "alone", "alone"]);
}

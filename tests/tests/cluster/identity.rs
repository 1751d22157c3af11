//! Who may do what. These take root: it can be other users.

use lattice_tests::mpi::{Flavour, OPEN_MPIS};
use lattice_tests::{Command, Outcome, script_on};
use nix::unistd::geteuid;

/// A user that exists on every Debian, beside root.
const NOBODY: &str = "setpriv --reuid nobody --regid nogroup --init-groups";

/// Runs a script as root in a cluster of two nodes; `$NOBODY` in front of a command makes another user run it.
///
/// # Panics
/// If we are not root: then there is no other user, and nothing was tested.
#[track_caller]
fn as_root(script: &str) -> Command {
    assert!(geteuid().is_root(), "this test must run as root");
    script_on(2, script).env("NOBODY", NOBODY)
}

#[track_caller]
fn refused(script: &str) -> Outcome {
    let outcome = as_root(script).run();
    outcome.exits(125).says("lattice: ");
    outcome
}

#[test]
fn anothers_allocation_is_refused() {
    refused("$NOBODY lattice launch -n 1 true").says("allocation");
}

#[test]
fn ranks_run_as_the_user_who_launched_them() {
    let script = r#"lattice alloc release $LATTICE_ALLOC_ID >/dev/null
        alloc=$(lattice alloc create -N 2 --uid 65534) || exit
        $NOBODY lattice launch --alloc "$alloc" -n 2 bash -c 'echo $(id -u) $(id -g) $(grep -c "CapEff:.0*$" /proc/self/status)'"#;
    as_root(script).run().exits(0).prints_lines(["65534 65534 1"; 2]);
}

#[test]
fn an_allocation_that_was_released_takes_no_launch() {
    let outcome = refused("lattice alloc release $LATTICE_ALLOC_ID >/dev/null; lattice launch -n 1 true");
    outcome.says("released");
}

#[test]
fn an_allocation_that_never_was_takes_no_launch() {
    refused("LATTICE_ALLOC_ID=nonsense lattice launch -n 1 true").says("nonsense");
}

#[test]
fn another_user_cannot_end_signal_or_follow_a_launch() {
    let script = r#"lattice launch -n 1 sleep 1000 & launch=$!
        id=$(launch_with 1)
        for words in "abort $id" "attach $id" "signal $id USR1" "proctable $id" "status $id"; do
            $NOBODY lattice $words >/dev/null 2>&1 && echo "$words was allowed"
        done
        kill -0 $launch && echo lives; kill -TERM $launch; wait $launch"#;
    as_root(script).run().exits(143).prints_lines(["lives"]);
}

/// What one user's job publishes, another's does not find.
#[test]
fn another_users_names_are_not_found() {
    let script = r#"lattice alloc release $LATTICE_ALLOC_ID >/dev/null
        mine=$(lattice alloc create -w node0) && theirs=$(lattice alloc create -w node1 --uid 65534) || exit
        lattice launch --alloc $mine -n 1 "$1" host & host=$!
        launch_with 1 >/dev/null; sleep 1
        $NOBODY lattice launch --alloc $theirs --timeout 3s -n 1 "$1" guest; echo "guest: $?"
        kill -TERM $host; wait $host; echo "host: $?""#;
    for mpi in OPEN_MPIS {
        let outcome = as_root(script).arg(mpi.program("meeting")).run();
        outcome.exits(0).prints_lines(["guest: 124", "host: 143"]);
    }
}

/// Certificates of another authority, and those of another role, open nothing.
#[test]
fn wrong_certificates_are_refused() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER" && lattice pki init other >/dev/null && lattice pki issue other --agents node0 >/dev/null || exit
        kill -TERM $(daemon node0)
        sed "s|$LATTICE_DEV_CLUSTER/pki/|$LATTICE_DEV_CLUSTER/other/|" node0.toml >stranger.toml
        timeout 3 nsenter --net=/proc/$(daemon node1)/ns/net lattice-agent --config stranger.toml 2>&1 | grep -iq certificate && echo "a stranger is refused"
        sed "s|node1|node0|" node0.toml | sed "s|pki/agent-node0|pki/agent-node1|" >disguised.toml
        timeout 3 nsenter --net=/proc/$(daemon node1)/ns/net lattice-agent --config disguised.toml 2>&1 | grep -q node && echo "a disguise is seen through""#;
    as_root(script).run().prints("a stranger is refused").prints("a disguise is seen through");
}

#[test]
fn without_allow_root_nobody_launches_as_root() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER" && sed -i 's/^allow_root.*/allow_root = false/' node0.toml && pid=$(daemon node0)
        setsid nsenter --target $pid --net --mount --uts --ipc lattice-agent --config $PWD/node0.toml &
        kill -KILL $pid; sleep 1
        until [ "$(lattice nodes --json | field state | grep -c up)" = 2 ]; do sleep 0.1; done
        lattice launch -n 2 "$1"; echo "code $?""#;
    as_root(script).arg(Flavour::Plain.program("half_lines")).run().prints("code 125").says("root");
}

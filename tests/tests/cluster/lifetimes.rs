//! Nodes that are cut off, and parts of launches that do not end by themselves. No process outlives the reported end of
//! its launch.

use lattice_tests::script_on;
use nix::unistd::geteuid;

/// Processes on a node with a cut network end there during the cut, and not before the lease expires.
#[test]
fn ranks_on_a_node_that_is_cut_off_end_by_themselves() {
    assert!(geteuid().is_root(), "this test must run as root");
    let outcome = script_on(
        2,
        r#"restart_api sed -i '1i lease = 6' "$LATTICE_DEV_CLUSTER/api.toml"
           on_node1() { nsenter --net=/proc/$(daemon node1)/ns/net "$@"; }
           lattice launch --pmi=none -n 2 sleep 1000 & launch=$!
           id=$(launch_with 2)
           rank=$(pid_of_rank $id 1)
           on_node1 ip link set eth0 down
           wait $launch; echo "code $?"
           kill -0 $rank && echo "the lease lasts"
           while kill -0 $rank 2>/dev/null; do sleep 0.1; done
           on_node1 ip -brief link show eth0 | grep -o DOWN
           on_node1 ip link set eth0 up
           until nodes_up 2; do sleep 0.1; done
           lattice alloc release $LATTICE_ALLOC_ID >/dev/null
           until alloc=$(lattice alloc create -N 2 2>/dev/null); do sleep 0.1; done
           lattice launch --alloc $alloc --pmi=none -n 2 true; echo "code $?""#,
    )
    .run();
    outcome.exits(0).prints_lines(["code 125", "the lease lasts", "DOWN", "code 0"]).says("node1 was lost");
}

/// The only node of the launch has no API server until its lease expires. The next API server reports this cause to the
/// user.
#[test]
fn a_lease_that_ends_with_the_api_server_ends_launches_and_is_their_cause() {
    let outcome = script_on(
        1,
        r#"restart_api sed -i '1i lease = 5' "$LATTICE_DEV_CLUSTER/api.toml"
           id=$(lattice launch --detach --pmi=none -n 1 sleep 1000)
           launch_with 1 >/dev/null
           rank=$(pid_of_rank $id 0)
           until_rank_ends() { while kill -0 $rank 2>/dev/null; do sleep 0.1; done; }
           restart_api until_rank_ends
           until lattice status $id | grep -o 'come from the API server for 5s'; do sleep 0.1; done"#,
    )
    .run();
    outcome.exits(0).prints_lines(["come from the API server for 5s"]);
}

/// The grace period that a user selects only applies if this user ends the launch.
#[test]
#[ignore = "second tier"]
fn a_released_allocation_does_not_wait_for_a_launchs_long_grace() {
    let outcome = script_on(
        1,
        r#"id=$(lattice launch --detach --pmi=none --kill-wait 1h -n 1 bash -c 'trap "" TERM; while :; do sleep 1; done')
           launch_with 1 >/dev/null
           rank=$(pid_of_rank $id 0)
           lattice alloc release $LATTICE_ALLOC_ID >/dev/null
           kill -0 $rank && echo "it may take its time"
           until alloc=$(lattice alloc create -N 1 2>/dev/null); do sleep 0.2; done
           grep -qs "^State:.[^ZX]" /proc/$rank/status && echo "it outlived its allocation"
           lattice status $id | grep -o 'its allocation is released'"#,
    )
    .run();
    outcome.exits(0).prints_lines(["it may take its time", "its allocation is released"]);
}

/// Users can stop their own session. It is then killed in time, before its nodes are assigned to other users.
#[test]
fn a_session_that_is_stopped_ends_before_its_launch_is_over() {
    let outcome = script_on(
        2,
        r#"id=$(lattice launch --detach --pmi=none -n 2 sleep 1000)
           launch_with 2 >/dev/null
           rank=$(pid_of_rank $id 1)
           kill -STOP $(ps -o ppid= -p $rank)
           lattice cancel $id
           lattice attach $id; echo "code $?"
           grep -qs "^State:.[^ZX]" /proc/$rank/status && echo "it outlived its launch"
           lattice alloc release $LATTICE_ALLOC_ID >/dev/null
           lattice alloc create -N 2 >/dev/null; echo "code $?""#,
    )
    .run();
    outcome.exits(0).prints_lines(["code 143", "code 0"]).says("ended by ");
}

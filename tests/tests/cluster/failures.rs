//! Nodes and daemons that fail. Every launch ends and reports the reason.

use lattice_tests::mpi::Flavour;
use lattice_tests::{Command, script_on};

/// Returns a launch of four ranks that wait indefinitely, an event when all of them run, and the launch's end.
fn with(what_happens: &str) -> Command {
    let script =
        format!("lattice launch -n 4 sleep 1000 & launch=$!; id=$(launch_with 4); {what_happens}; wait $launch");
    script_on(2, &script)
}

/// A killed agent alone is not a lost node: `agents_come_and_go` tests agents that are killed without their fork
/// servers.
#[test]
fn an_agent_that_is_killed_with_its_fork_server_is_a_lost_node() {
    let script = "sed -i '1i lease = 5' $LATTICE_DEV_CLUSTER/api.toml; restart_api
        lattice launch -n 4 sleep 1000 & launch=$!; launch_with 4 >/dev/null
        agent=$(daemon node1); forks=$(pgrep -P $agent); kill -KILL $agent $forks; wait $launch";
    let outcome = script_on(2, script).run();
    outcome.exits(125).says("lattice: node node1 was lost: ");
}

/// The agent is not dead, but other processes cannot detect this.
#[test]
fn a_silent_agent_is_a_lost_node() {
    let outcome = with("kill -STOP $(daemon node1)").run();
    outcome.exits(125).says("lattice: node node1 was lost: ");
}

#[test]
fn the_first_node_is_no_better_than_the_others() {
    let outcome = with("kill -STOP $(daemon node0)").run();
    outcome.exits(125).says("lattice: node node0 was lost: ");
}

#[test]
fn a_killed_session_ends_the_launch() {
    let outcome = with("kill -KILL $(ps -o ppid= -p $(pid_of_rank $id 3))").run();
    outcome.exits(125).says("lattice: node node1 was lost: the session process was killed by signal 9 (SIGKILL)");
}

/// The node is well. Its allocation and the other launches on it continue.
#[test]
fn a_killed_session_ends_nothing_but_its_launch() {
    let script = r#"lattice launch -n 4 --pmi=none bash -c 'until [ -e "$0" ]; do sleep 0.02; done' "$LATTICE_DEV_CLUSTER/go" & other=$!
        launch_with 4 >/dev/null; id=$(lattice launch --detach -n 3 sleep 1000)
        until [ "$(pid_of_rank $id 2)" ]; do sleep 0.05; done
        kill -KILL $(ps -o ppid= -p $(pid_of_rank $id 2)); lattice attach $id; echo $?
        lattice launch -n 2 --pmi=none true; touch "$LATTICE_DEV_CLUSTER/go"; wait $other; echo $?
        lattice alloc list | awk 'NR > 1 { print $2 }'"#;
    script_on(2, script).run().exits(0).prints_lines(["125", "0", "running"]);
}

/// More launches than one connection between the agent and the API server can carry.
#[test]
#[ignore = "second tier"]
fn a_node_has_as_many_launches_as_there_is_room_for() {
    let script = r#"for launch in $(seq 280); do
            lattice launch --detach -n 1 --pmi=none sleep 1000 >/dev/null & [ $((launch % 20)) = 0 ] && wait
        done; wait; sleep 12; lattice launches | grep -c active; lattice alloc list | awk 'NR > 1 { print $2 }'"#;
    script_on(1, script).run().exits(0).prints_lines(["280", "running"]);
}

#[test]
fn a_rank_killed_from_outside_is_told_with_its_node() {
    with("kill -KILL $(pid_of_rank $id 3)").run().exits(137).says("rank 3 on node1").says("signal 9 (SIGKILL)");
}

/// The launcher waits for the lease, in which the nodes run the launch, and some seconds more.
#[test]
#[ignore = "second tier"]
fn an_api_server_that_does_not_come_back_is_told_and_not_waited_for_any_longer() {
    let script = r#"sed -i '1i lease = 5' "$LATTICE_DEV_CLUSTER/api.toml"; restart_api
        lattice launch -n 4 sleep 1000 & launch=$!; launch_with 4 >/dev/null; kill -TERM $(daemon api); wait $launch"#;
    let outcome = script_on(2, script).run();
    outcome.exits(125).says("was lost sight of: cannot reach the API server").says("lattice: try: lattice attach ");
}

/// The API server stands still for longer than the heartbeat limit of nodes. Heartbeats that it could not
/// receive in this time do not count as missing.
#[test]
fn an_api_server_that_stands_still_loses_nobody() {
    let script = r#"lattice launch --pmi=none -n 4 bash -c 'until [ -e "$0" ]; do sleep 0.02; done' "$LATTICE_DEV_CLUSTER/go" &
        launch=$!; launch_with 4 >/dev/null
        kill -STOP $(daemon api); sleep 6; kill -CONT $(daemon api)
        # Whatever is judged by the standstill is judged before a node says anything new.
        sleep 1; lattice nodes --json | field state
        touch "$LATTICE_DEV_CLUSTER/go"; wait $launch"#;
    script_on(2, script).run().exits(0).prints_lines(["up", "up"]);
}

#[test]
fn ctrl_c_ends_every_node() {
    let script = r#"set -m; lattice launch -n 4 sleep 1000 & ranks=$(lattice proctable $(launch_with 4) --json | field pid)
        kill -INT $!; wait $!; code=$?
        echo $(wc -w <<<"$ranks") ranks; for rank in $ranks; do kill -0 $rank && echo "$rank lives"; done; exit $code"#;
    script_on(2, script).run().exits(130).prints_lines(["4 ranks"]);
}

#[test]
#[ignore = "second tier"]
fn an_unreachable_api_server_is_never_a_silent_local_run() {
    let outcome = script_on(1, "kill -KILL $(daemon api); lattice launch -n 1 echo ran").run();
    outcome.exits(125).says("api.sock").prints_lines::<&str>([]);
}

#[test]
fn a_launch_takes_nodes_of_its_allocation_that_are_up() {
    let script = r#"kill_agent node0
        until lattice nodes --json | field state | grep -q away; do sleep 0.1; done
        lattice launch --pmi=none --label -n 1 hostname; echo "code $?"
        lattice launch --pmi=none -n 2 true; echo "code $?""#;
    let outcome = script_on(2, script).run();
    outcome.exits(0).prints_lines(["[0] node1", "code 0", "code 125"]).says("node0 is away");
}

/// The agent of one node is gone; the other agents run.
#[test]
fn launches_that_do_not_need_a_node_that_is_away_work() {
    let script = r#"lattice alloc release $LATTICE_ALLOC_ID >/dev/null; kill_agent node2
        until lattice nodes --json | field state | grep -q away; do sleep 0.1; done
        alloc=$(lattice alloc create -w node3) && lattice launch --alloc "$alloc" -n 2 "$1""#;
    let outcome = script_on(4, script);
    outcome.arg(Flavour::WheelMpich.program("hello")).run().exits(0).prints("rank 1 of 2");
}

//! Nodes and daemons that fail: every launch ends, and is told why.

use lattice_tests::mpi::Flavour;
use lattice_tests::{Command, cluster};

/// A launch of four ranks that wait for ever, something that happens when all of them run, and the launch's end.
fn with(what_happens: &str) -> Command {
    let script = format!(
        r#"lattice launch -n 4 bash -c 'echo here; exec sleep 1000' > >(tee "$LATTICE_DEV_CLUSTER/out") & launch=$!
        until [ $(grep -c here "$LATTICE_DEV_CLUSTER/out" 2>/dev/null || true) = 4 ]; do sleep 0.05; done
        {what_happens}
        wait $launch"#
    );
    cluster(2).bash(&script)
}

#[test]
fn a_killed_agent_is_a_lost_node() {
    let outcome = with(r#"kill -KILL $(<"$LATTICE_DEV_CLUSTER/node1.pid")"#).run();
    outcome.exits(125).says("node1");
}

/// It is not dead, and the others cannot tell.
#[test]
fn a_silent_agent_is_a_lost_node() {
    let outcome = with(r#"kill -STOP $(<"$LATTICE_DEV_CLUSTER/node1.pid")"#).run();
    outcome.exits(125).says("node1");
}

#[test]
fn the_first_node_is_no_better_than_the_others() {
    let outcome = with(r#"kill -KILL $(<"$LATTICE_DEV_CLUSTER/node0.pid")"#).run();
    outcome.exits(125).says("node0");
}

#[test]
fn a_killed_session_ends_the_launch() {
    let outcome = with(r#"pid=$(lattice proctable "$(lattice launches --json | grep -o '"id": *"[^"]*"' | head -1 | cut -d'"' -f4)" --json | grep -o '"pid": *[0-9]*' | tail -1 | tr -dc 0-9); kill -KILL $(ps -o ppid= -p $pid)"#).run();
    outcome.exits(125).says("session");
}

#[test]
fn a_rank_killed_from_outside_is_told_with_its_node() {
    let script = r#"pid=$(lattice proctable "$(lattice launches --json | grep -o '"id": *"[^"]*"' | head -1 | cut -d'"' -f4)" --json | grep -o '"pid": *[0-9]*' | tail -1 | tr -dc 0-9); kill -KILL $pid"#;
    with(script).run().exits(137).says("rank 3 on node1").says("signal 9 (SIGKILL)");
}

#[test]
fn a_stopped_api_server_is_told_and_not_waited_for() {
    let outcome = with(r#"kill -TERM $(<"$LATTICE_DEV_CLUSTER/api.pid")"#).run();
    outcome.exits(125).says("lattice: ");
}

#[test]
fn ctrl_c_ends_every_node() {
    with("kill -INT $launch").run().exits(130);
}

#[test]
fn an_unreachable_api_server_is_never_a_silent_local_run() {
    let script = r#"kill -KILL $(<"$LATTICE_DEV_CLUSTER/api.pid"); sleep 0.2; lattice launch -n 1 echo ran"#;
    let outcome = cluster(1).bash(script).run();
    outcome.exits(125).says("api.sock").prints_lines::<&str>([]);
}

/// The node is lost, the others go on.
#[test]
fn launches_that_do_not_need_a_lost_node_work() {
    let script = r#"kill -KILL $(<"$LATTICE_DEV_CLUSTER/node2.pid")
        until lattice nodes --json | grep -qi lost; do sleep 0.1; done
        alloc=$(lattice alloc create -w node3) && lattice launch --alloc "$alloc" -n 2 "$1""#;
    let outcome = cluster(4).bash(&format!("lattice alloc release $LATTICE_ALLOC_ID >/dev/null; {script}"));
    outcome.arg(Flavour::WheelMpich.program("hello")).run().exits(0).prints("rank 1 of 2");
}

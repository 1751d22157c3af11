//! Each process of a cluster is killed or stopped in each phase of a launch. The launch must end or continue as specified, within time
//! limits, with one cause that names the affected process. No process may remain, and the cluster must serve the next launch.
//!
//! `LATTICE_FAULT_REPEATS=20 cargo test -p lattice-tests --test cluster fault_matrix` repeats the matrix this number of times, and runs all
//! phases of the clusters with inner nodes as well.

use lattice_tests::command::DEADLINE;
use lattice_tests::mpi::Flavour;
use lattice_tests::{script_on, turn};

/// Functions of the script. `$1` is the program and `$2` the number of nodes. `cell` runs one phase. In it `fault` causes the fault, and
/// `mend` removes it. `wanted` prints the expected exit codes by phase, and `cause` is a pattern for the message of a failed launch.
///
/// Each rank has a child process in another session and without its environment. This child, and all other descendants of a rank, hold the
/// lock of the launch. The script also searches for processes with the launch's environment.
const CELL: &str = include_str!("../../scripts/fault_matrix.sh");

/// A tree of seven nodes: node0 is its root, node1 and node2 have two nodes below them each.
const TREE: &str = r"relay_above = 1\nrelay_fan_out = 2\nbarrier_fan_out = 2\ndata_fan_out = 2";

/// Position of the affected process in its cluster.
#[derive(Clone, Copy)]
enum Shape {
    /// A cluster of three nodes, all directly below the root.
    Flat,
    /// The root, an inner node or a leaf of [`TREE`]. Without repeats only the middle phase of a launch runs.
    Tree,
}

/// Runs the phases on a cluster of this shape, with these definitions of the script's functions.
#[track_caller]
fn strike_in(shape: Shape, functions: &str) {
    let _machine = turn::heavy();
    let repeats = std::env::var("LATTICE_FAULT_REPEATS").ok().map(|text| text.parse::<u32>().expect("a number"));
    let (nodes, settings, phases) = match (shape, repeats) {
        (Shape::Flat, _) => (3, "", ["start", "steps", "end"].as_slice()),
        (Shape::Tree, Some(_)) => (7, TREE, ["start", "steps", "end"].as_slice()),
        (Shape::Tree, None) => (7, TREE, ["steps"].as_slice()),
    };
    let repeats = repeats.unwrap_or(1);
    let words = phases.join(" ");
    let script = format!(
        r#"settings='{settings}'
        {CELL}
        {functions}
        restart_api of_cluster
        for ((repeat = 0; repeat < {repeats}; repeat++)); do for phase in {words}; do cell $phase; done; done"#
    );
    let program = Flavour::WheelMpich.program("steps");
    let command = script_on(nodes, &script).arg(program).arg(nodes.to_string());
    let outcome = command.within(DEADLINE * repeats).run();
    let lines = phases.iter().map(|phase| format!("{phase}: as it should"));
    let lines: Vec<_> = std::iter::repeat_n(lines, repeats as usize).flatten().collect();
    outcome.exits(0).prints_lines(lines);
}

/// The same on three nodes.
#[track_caller]
fn strike(functions: &str) {
    strike_in(Shape::Flat, functions);
}

#[test]
#[ignore = "second tier"]
fn ranks_are_killed() {
    strike(
        r#"fault() {
            within 10 rank_there
            local pid=$(rank_of tail)
            struck="rank $(variable $pid LATTICE_RANK) on node$(variable $pid LATTICE_NODE) "
            kill -KILL $pid 2>/dev/null
        }
        wanted() { case $1 in steps) echo 137;; *) echo 137 0;; esac; }
        cause() { echo "$struck.*signal 9 \(SIGKILL\)"; }"#,
    );
}

#[test]
#[ignore = "second tier"]
fn ranks_are_stopped_and_go_on() {
    strike(
        "fault() { within 10 rank_there; struck=$(rank_of tail); kill -STOP $struck 2>/dev/null; }
        mend() { sleep 0.5; kill -CONT $struck 2>/dev/null; }
        wanted() { echo 0; }",
    );
}

/// Kills the session of a node.
fn kill_session(node: &str) -> String {
    format!(
        r#"fault() {{ within 10 rank_there; within 10 rank_on {node} >/dev/null; kill -KILL $(session_on {node}) 2>/dev/null; }}
        wanted() {{ case $1 in steps) echo 125;; *) echo 125 0;; esac; }}
        cause() {{ echo "node {node} was lost: the session process was killed by signal 9"; }}"#
    )
}

#[test]
fn sessions_are_killed() {
    for node in ["node0", "node2"] {
        strike(&kill_session(node));
    }
}

#[test]
#[ignore = "second tier"]
fn sessions_of_the_root_of_inner_nodes_and_of_leaves_are_killed() {
    for node in ["node0", "node1", "node6"] {
        strike_in(Shape::Tree, &kill_session(node));
    }
}

#[test]
#[ignore = "second tier"]
fn sessions_are_stopped_and_go_on() {
    strike(
        "fault() { within 10 rank_there; within 10 rank_on node1 >/dev/null; struck=$(session_on node1); kill -STOP $struck 2>/dev/null; }
        mend() { sleep 2; kill -CONT $struck 2>/dev/null; }
        wanted() { echo 0; }",
    );
}

#[test]
#[ignore = "second tier"]
fn an_inner_session_that_is_stopped_ends_within_its_agents_patience() {
    strike_in(
        Shape::Tree,
        r#"fault() { within 10 rank_there; within 10 rank_on node1 >/dev/null; kill -STOP $(session_on node1) 2>/dev/null; }
        wanted() { case $1 in steps) echo 125;; *) echo 125 0;; esac; }
        cause() { echo "node node1 was lost: the session process was stopped by a signal"; }"#,
    );
}

/// Kills the agent of a node, and starts another one.
fn replace_agent(node: &str) -> String {
    format!(
        r#"fault() {{ kill_agent {node}; }}
        mend() {{ sleep 0.5; start_agent {node}; }}
        # What is not begun on a node yet is not begun while its agent is away.
        wanted() {{ case $1 in start) echo 0 125;; *) echo 0;; esac; }}
        cause() {{ echo ".*{node}"; }}"#
    )
}

#[test]
#[ignore = "second tier"]
fn agents_are_killed_and_started_again() {
    for node in ["node0", "node2"] {
        strike(&replace_agent(node));
    }
}

#[test]
#[ignore = "second tier"]
fn agents_of_inner_nodes_are_killed_and_started_again() {
    strike_in(Shape::Tree, &replace_agent("node1"));
}

/// Stops an agent for longer than the heartbeat limit, so that its node is lost.
fn stop_agent(node: &str) -> String {
    format!(
        r#"fault() {{ kill -STOP $(daemon {node}); }}
        mend() {{ sleep 5; kill -CONT $(daemon {node}); }}
        wanted() {{ case $1 in steps) echo 125;; *) echo 125 0;; esac; }}
        cause() {{ echo "(launch .* did not start: |)node {node} "; }}"#
    )
}

#[test]
#[ignore = "second tier"]
fn agents_are_stopped_and_go_on() {
    for node in ["node0", "node1"] {
        strike(&stop_agent(node));
    }
}

#[test]
#[ignore = "second tier"]
fn agents_of_inner_nodes_are_stopped_and_go_on() {
    strike_in(Shape::Tree, &stop_agent("node1"));
}

/// Kills the fork server of a node, which also ends its agent.
fn kill_fork_server(node: &str) -> String {
    format!(
        r#"fault() {{ keep_namespaces {node}; kill -KILL $(forks_of {node}); }}
        mend() {{ within 10 gone $(daemon {node}); start_agent {node}; }}
        wanted() {{ case $1 in steps) echo 125;; *) echo 125 0;; esac; }}
        cause() {{ echo ".*node {node} "; }}"#
    )
}

#[test]
#[ignore = "second tier"]
fn fork_servers_are_killed() {
    strike(&kill_fork_server("node1"));
}

#[test]
#[ignore = "second tier"]
fn fork_servers_of_inner_nodes_are_killed() {
    strike_in(Shape::Tree, &kill_fork_server("node1"));
}

#[test]
#[ignore = "second tier"]
fn fork_servers_are_stopped_and_go_on() {
    strike(
        "fault() { struck=$(forks_of node1); kill -STOP $struck; }
        mend() { sleep 2; kill -CONT $struck; }
        wanted() { echo 0; }",
    );
}

#[test]
#[ignore = "second tier"]
fn the_api_server_is_killed_and_started_again() {
    strike(
        r#"fault() { restart_api sleep 0.5; }
        # A launch that was not written down yet is not known to the next one.
        wanted() { case $1 in start) echo 0 125;; *) echo 0;; esac; }
        cause() { echo ".*(API server|launch)"; }"#,
    );
}

#[test]
#[ignore = "second tier"]
fn the_api_server_is_stopped_and_goes_on() {
    strike(
        "fault() { kill -STOP $(daemon api); }
        mend() { sleep 2; kill -CONT $(daemon api); }
        wanted() { echo 0; }",
    );
}

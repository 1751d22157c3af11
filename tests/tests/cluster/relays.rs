//! A launch that reaches its nodes by way of each other: the API server asks one, which asks the next.

use lattice_tests::mpi::Flavour;
use lattice_tests::{lattice, script_in, script_on};

/// Has the API server ask the first node only, and each node the next one.
const CHAIN: &str = r#"restart_api sed -i '1i relay_above = 1\nrelay_fan_out = 1' "$LATTICE_DEV_CLUSTER/api.toml""#;

#[test]
fn a_signed_launch_is_passed_on_from_node_to_node() {
    let outcome = script_on(4, &format!(r#"{CHAIN}; lattice launch -n 8 "$1""#));
    let outcome = outcome.arg(Flavour::WheelMpich.program("hello")).run();
    (0..8).fold(outcome.exits(0), |outcome, rank| outcome.prints(&format!("rank {rank} of 8")));
}

#[test]
fn a_node_that_its_relay_cannot_reach_is_named_and_nothing_runs_elsewhere() {
    let script = format!(
        r#"{CHAIN}; kill -KILL $(daemon node3); lattice launch --pmi=none -n 8 sleep 1000; code=$?
           lattice launches --json | field id; exit $code"#
    );
    let outcome = script_on(4, &script).run();
    outcome.exits(125).prints_lines::<&str>([]);
    // It is tried for as long as an agent takes to be replaced, in which the API server may find that it has ended.
    let refusals = ["does not start its part of the launch: node3 at ", "is away: its agent does not run"];
    let said = outcome.errors();
    assert!(refusals.iter().any(|refusal| said.contains(&format!("node node3 {refusal}"))), "{said}");
}

/// A relay keeps its connections for the next launch, and makes a new one where an agent has ended meanwhile.
#[test]
fn an_agent_that_was_started_anew_is_reached_by_its_relay() {
    let script = format!(
        r#"{CHAIN}; cd "$LATTICE_DEV_CLUSTER"; lattice launch --pmi=none -n 3 echo before || exit
           pid=$(daemon node2); kill -KILL $pid; while grep -qs '^State:.[^ZX]' /proc/$pid/task/*/status; do sleep 0.02; done
           env -u LATTICE_API_URL LATTICE_LOG=info lattice-agent --config node2.toml 2>again.log & echo $! >node2.pid
           until grep -q registered again.log; do sleep 0.05; done
           lattice launch --pmi=none -n 3 echo after"#
    );
    let outcome = script_in(lattice("dev-cluster --loopback --nodes 3 --"), &script).run();
    outcome.exits(0).prints_lines(["before", "before", "before", "after", "after", "after"]);
}

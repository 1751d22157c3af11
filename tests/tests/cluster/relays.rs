//! A launch that reaches its nodes by way of each other: the API server asks one, which asks the next.

use lattice_tests::mpi::Flavour;
use lattice_tests::script_on;

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
    let refused = "node node3 does not start its part of the launch: node3 at ";
    outcome.exits(125).says(refused).prints_lines::<&str>([]);
}

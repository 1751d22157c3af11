//! `lattice doctor` and `lattice explain` on a cluster.

use lattice_tests::script_on;

#[test]
fn a_cluster_is_examined_from_a_client() {
    let script = r#"lattice doctor --json >seen.json; code=$?
        grep -A3 -E '"name": "(API server|clock|agents)"' seen.json | field state; grep -o '2 nodes: version .* on node\[0-1\]' seen.json
        kill_agent node1; until lattice nodes --json | field state | grep -qE 'away|lost'; do sleep 0.05; done
        lattice doctor -q | grep -o 'no answer of node1'; exit $code"#;
    let outcome = script_on(2, &format!("cd \"$LATTICE_DEV_CLUSTER\"; {script}")).run();
    let agents = format!("2 nodes: version {} on node[0-1]", env!("CARGO_PKG_VERSION"));
    outcome.exits(0).prints_lines(["ok", "ok", "ok", &agents, "no answer of node1"]);
}

/// The record of a launch stays after its end. Its client returned the same code.
#[test]
fn a_launch_that_has_failed_is_explained_after_its_end() {
    let script = r#"lattice launch -n 2 bash -c 'exit $((LATTICE_RANK + 3))' 2>/dev/null; code=$?
        id=$(lattice launches --all --json | field launch_id | tail -1)
        lattice explain $id | sed "s/$id/ID/; s/rank [01] on node[01] exited with status $code/failed/; s/rank [01]:/rank N:/; s/code $code/code N/"
        lattice explain $id --json | grep -c "\"exit_code\": $code"
        lattice launch -n 1 true; lattice explain $(lattice launches --all --json | field launch_id | tail -1) | tail -1
        lattice explain nosuchid00"#;
    let outcome = script_on(2, script).run();
    outcome.exits(125).says("nosuchid00").prints_lines([
        "launch ID: failed; exit code N",
        "cause: failed",
        "  try: read the output of rank N: -l shows the rank of each line, --output FILE keeps it",
        "1",
        "each rank returned 0",
    ]);
}

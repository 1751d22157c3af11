//! The audit log of the API server: the caller and the outcome of each call.

use lattice_tests::script_on;

#[test]
fn each_call_that_changes_something_is_one_line() {
    let script = r#"
        lattice launch -n 1 true; lattice launch -n 1 true; lattice cancel nosuch; lattice status nosuch
        lattice nodes drain node0 --reason 'new memory'; lattice nodes resume node0
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null
        # Another thread writes the log.
        until grep -q 'audit: .*release allocation.*done' "$LATTICE_DEV_CLUSTER/api.log"; do sleep 0.05; done
        sed -nE 's/.* audit: request=[0-9]+ caller=[a-z]+ [0-9]+ //p' "$LATTICE_DEV_CLUSTER/api.log" |
            sed -E "s/$LATTICE_ALLOC_ID/ALLOC/; s/launch [a-z0-9]{10}/launch ID/""#;
    script_on(1, script).run().exits(0).prints_lines([
        r#"action="allocate" on="" outcome="done: allocation ALLOC of node0""#,
        r#"action="launch" on="ALLOC" outcome="done: launch ID""#,
        r#"action="launch" on="ALLOC" outcome="done: launch ID""#,
        r#"action="release allocation" on="nosuch" outcome="refused: there is no allocation nosuch, or it was released""#,
        r#"action="abort launch" on="nosuch" outcome="refused: there is no launch or batch job nosuch, or it ended long ago""#,
        r#"action="drain nodes" on="node0" outcome="done""#,
        r#"action="resume nodes" on="node0" outcome="done""#,
        r#"action="release allocation" on="ALLOC" outcome="done""#,
    ]);
}

//! States of NICs and nodes: down, busy, short of a resource, or gone.

use super::with_fabric;

#[test]
fn a_node_without_a_link_fails_the_launch_and_leaves_nothing() {
    let script = r#"
        touch "$here/nics/node1/cxi0/down" "$here/nics/node1/cxi1/down"
        lattice launch --pmi none -n 2 echo ran; echo "code $?"
        soon services_are 0 && echo "none is left"
        lattice launch --pmi none -n 1 bash -c 'echo $SLINGSHOT_DEVICES'"#;
    let outcome = with_fabric(script).run();
    outcome
        .exits(0)
        .says("node node1 does not start its part of the launch: none of the 2 CXI devices of this node has a link");
    outcome.prints_lines(["code 125", "none is left", "cxi0,cxi1"]);
}

/// A launch shares the remaining resources. The operator of the node receives a message that names the exhausted ones.
#[test]
fn exhausted_pools_lower_what_is_reserved_and_are_named() {
    let script = r#"
        echo TLE >"$here/nics/node0/cxi1/short"; echo LE >"$here/nics/node1/cxi0/short"
        lattice launch --pmi none -n 2 bash -c 'echo $SLINGSHOT_DEVICES'
        sed -nE 's/.*WARN.*(cxi.: all pools of .*)/\1/p' "$here/node0.log" "$here/node1.log" | sed 's/ launch=.*//'
        release; all_given_back"#;
    let warning = |nic, what| {
        format!("{nic}: all pools of {what} are taken; the launch reserves less and shares what others leave")
    };
    let warnings = [warning("cxi1", "trigger list entries"), warning("cxi0", "list entries")];
    let lines = ["cxi0,cxi1", "cxi0,cxi1", "all given back"].map(str::to_owned);
    with_fabric(script).run().exits(0).prints_lines(lines.into_iter().chain(warnings));
}

#[test]
fn a_busy_service_keeps_its_vni_out_of_use() {
    let script = r#"
        lattice launch --pmi none -n 2 sleep 1000 & launch=$!
        launch_with 2 >/dev/null; touch "$here/nics/node0/cxi1/busy"
        # It is nothing that the launch, or the next one, would wait for.
        kill -TERM $launch; wait $launch
        lattice launch --pmi none -n 2 bash -c 'echo $SLINGSHOT_SVC_IDS'
        release
        soon waits quarantined node0
        soon services_are 2 && echo "one of each is left"
        lattice cxi doctor; echo "doctor $?"
        rm "$here/nics/node0/cxi1/busy"
        all_given_back"#;
    let outcome = with_fabric(script).run();
    outcome.exits(0).prints("11,22").prints("11,21").prints("one of each is left");
    outcome
        .prints("service 21 of cxi1 on node node0 keeps VNI 1024 from being used again")
        .prints("doctor 1")
        .prints("all given back");
}

#[test]
fn a_node_that_is_gone_for_good_can_be_said_to_be() {
    let script = r#"
        lost() { lattice nodes --json | field state | grep -q lost; }
        lattice launch --pmi none -n 2 true
        lattice cxi clean --gone node1; echo "up: $?"
        kill_dead node1
        soon lost
        release
        soon waits quarantined node1
        lattice cxi doctor; echo "doctor $?"
        lattice cxi clean --dry-run --gone node1
        waits quarantined node1 && lattice cxi clean --gone node1
        nothing_is_held && echo "all given back""#;
    let outcome = with_fabric(script).run();
    outcome.exits(0).prints("up: 125").says("node node1 is up").prints("doctor 1").prints("waits for node1");
    outcome.prints("would be taken to hold nothing").prints("may be used again").prints("all given back");
}

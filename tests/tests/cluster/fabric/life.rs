//! The life of credentials: requested with the allocation, provided in the environment of every rank, released after the last
//! launch.

use lattice_tests::lattice;
use lattice_tests::mpi::Flavour;
use lattice_tests::script_in;

use super::{with_fabric, with_fabric_on};

#[test]
fn every_rank_of_every_node_has_its_variables_in_matching_order() {
    let script = r#"
        touch "$here/nics/node1/cxi0/down"
        lattice launch --pmi none -n 4 --env USERS=own bash -c 'echo $LATTICE_NODE \
            $SLINGSHOT_DEVICES $SLINGSHOT_SVC_IDS $SLINGSHOT_VNIS $SLINGSHOT_TCS $FI_CXI_DEFAULT_VNI $FI_PROVIDER \
            ${#FI_CXI_AUTH_KEY} ${FI_CXI_COLL_JOB_ID-none}'
        FI_PROVIDER=tcp lattice launch --pmi none -n 1 bash -c 'echo $FI_PROVIDER $SLINGSHOT_VNIS'
        lattice launch --pmi none -n 1 --env FI_PROVIDER=shm bash -c 'echo $FI_PROVIDER'"#;
    let stale = ["SLINGSHOT_VNIS", "SLINGSHOT_DEVICES", "FI_CXI_DEFAULT_VNI", "FI_CXI_AUTH_KEY", "FI_CXI_COLL_JOB_ID"];
    let command = stale.iter().fold(with_fabric(script), |command, name| command.env(name, "stale"));
    let (first, second) = ("0 cxi0,cxi1 11,21 1024 0xa 1024 cxi 32 none", "1 cxi1 21 1024 0xa 1024 cxi 32 none");
    command.run().exits(0).prints_lines([first, first, second, second, "tcp 1024", "shm"]);
}

#[test]
fn without_a_fabric_nothing_is_set() {
    let script = "lattice launch --pmi none -n 1 bash -c 'env | grep -E \"^(SLINGSHOT|FI)_\"; true'; lattice cxi list";
    let cluster = lattice("dev-cluster --loopback --nodes 1 --");
    let outcome = script_in(cluster, script).env("FI_CXI_DEVICE_NAME", "cxi0").run();
    outcome.exits(125).prints_lines(["FI_CXI_DEVICE_NAME=cxi0"]).says("gives out no fabric credentials");
}

/// As root the nodes have separate networks, and every step uses mutual TLS between them.
#[test]
fn an_allocations_launches_share_one_service_until_it_is_released() {
    let script = r#"
        lattice launch --pmi none -n 2 true && lattice launch --pmi none -n 2 true || exit
        soon services_are 0
        calls; echo; lattice cxi list --json | field state
        lattice launch --pmi none -n 2 sleep 1000 & launch=$!
        launch_with 2 >/dev/null; services_are 4 || exit 9
        killed api; killed node1; services_are 4 || exit 9
        release; wait $launch; all_given_back; calls"#;
    let outcome = with_fabric_on(2, "", script).run();
    outcome.exits(0).prints_lines(["create auth ", "held", "all given back", "create auth auth delete "]);
}

#[test]
fn an_allocation_is_made_when_its_credentials_are_there() {
    let script = r#"
        allocate_with_faults '[{"times": 2, "fault": {"slow": {"milliseconds": 100}}}]'
        calls"#;
    with_fabric(script).run().exits(0).prints_lines(["create auth delete create auth "]);
}

#[test]
fn two_launches_at_once_wait_for_one_answer() {
    let script = r#"
        allocate_with_faults '[{"on": "create", "fault": {"slow": {"milliseconds": 3000}}}]'
        run() { lattice launch --alloc $alloc --pmi none -n 2 bash -c 'echo $SLINGSHOT_VNIS'; }
        run & one=$!; run & two=$!
        wait $one && wait $two || exit
        calls"#;
    let lines = ["1025", "1025", "1025", "1025", "create auth delete create auth "];
    with_fabric(script).run().exits(0).prints_lines(lines);
}

#[test]
fn nodes_are_asked_after_the_manager_has_answered_and_it_is_told_after_the_last_launch() {
    let script = r#"
        allocate_with_faults '[{"on": "create", "fault": {"slow": {"milliseconds": 2500}}}]'
        lattice launch --alloc $alloc --pmi none -n 2 sleep 1000 & launch=$!
        launch_with 2 >/dev/null
        release $alloc; wait $launch; all_given_back >/dev/null
        # It is told a moment after it can be seen.
        soon grep -q "may be used again.*vni=1025" "$here/api.log"
        cat "$here/api.log" "$here/node0.log" | grep -E "$alloc|vni=1025" | sort |
            sed -nE 's/.*(is asked for credentials|are at hand|its nodes are asked|may use the fabric|are to be given back|may be used again).*/\1/p'"#;
    let outcome = with_fabric(script).run();
    let order = [
        "is asked for credentials",
        "are at hand",
        "its nodes are asked",
        "may use the fabric",
        "are to be given back",
        "may be used again",
    ];
    let seen: Vec<&str> = outcome.text().lines().collect();
    outcome.exits(0).check(seen == order, || format!("should have happened in the order {order:?}"));
}

/// Each node receives the request from the node before it. The numbers of its services differ.
#[test]
fn credentials_reach_nodes_by_way_of_others() {
    let script = r#"
        configure '1i relay_above = 1\nrelay_fan_out = 1'
        touch "$here/nics/node2/cxi0/down"
        echo '{"uid": 7, "vnis": [9], "traffic_classes": "0xa"}' >"$here/nics/node3/cxi1/30"
        lattice launch --pmi none -n 8 bash -c 'echo $LATTICE_NODE $SLINGSHOT_DEVICES $SLINGSHOT_SVC_IDS $SLINGSHOT_VNIS ${#FI_CXI_AUTH_KEY}'
        rm "$here/nics/node3/cxi1/30"; release; all_given_back"#;
    let nodes =
        ["0 cxi0,cxi1 11,21 1024 32", "1 cxi0,cxi1 11,21 1024 32", "2 cxi1 21 1024 32", "3 cxi0,cxi1 11,31 1024 32"];
    let lines = nodes.iter().flat_map(|node| [*node; 2]).chain(["all given back"]);
    with_fabric_on(4, "--loopback", script).run().exits(0).prints_lines(lines);
}

#[test]
fn a_spawned_job_has_the_variables_of_its_nodes() {
    let script = r#"
        touch "$here/nics/node1/cxi0/down"
        lattice launch -N 3 -n 1 "$1" LATTICE_NODE SLINGSHOT_DEVICES SLINGSHOT_SVC_IDS SLINGSHOT_VNIS FI_PROVIDER
        release; all_given_back"#;
    let command = with_fabric_on(3, "--loopback", script).arg(Flavour::SlurmPmi2.program("pmi2_spawn_environment"));
    command.run().exits(0).prints_lines([
        "0 cxi0,cxi1 11,21 1024 cxi",
        "1 cxi1 21 1024 cxi",
        "2 cxi0,cxi1 11,21 1024 cxi",
        "spawned",
        "all given back",
    ]);
}

//! Options of a fabric, the fabric of an outer launcher, and the operator's view of a node's fabric.

use std::fs;

use lattice_tests::{Command, built, lattice, launch, script_in};

use super::fabric::with_fabric;

#[test]
fn traffic_classes_and_a_vni_of_the_job_reach_services_and_ranks() {
    let script = r#"
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null; all_given_back
        chosen='backend = "pool"\njob_vni = true\ntraffic_classes = ["bulk_data", "best_effort"]'
        restart_api sed -i "s/^backend = .*/$chosen/" "$here/api.toml"
        alloc=$(lattice alloc create -N 2)
        lattice launch --alloc $alloc --pmi none -n 2 bash -c '
            echo $SLINGSHOT_VNIS $SLINGSHOT_TCS $FI_CXI_DEFAULT_VNI $(cat "$1$LATTICE_NODE/cxi1/21")' - "$here/nics/node"
        lattice alloc release $alloc >/dev/null; all_given_back"#;
    let uid = nix::unistd::getuid();
    let rank = format!(r#"1025,1026 0xc 1025 {{"uid":{uid},"vnis":[1025,1026],"traffic_classes":"0xc"}}"#);
    with_fabric(script).run().exits(0).prints_lines(["all given back", &rank, &rank, "all given back"]);
}

#[test]
fn what_makes_no_sense_of_a_fabric_is_told_before_a_server_starts() {
    let script = r#"
        sed 's/^backend = .*/&\njob_vni = true/' "$here/api.toml" >"$here/other.toml"
        lattice api --config "$here/other.toml" --check-config; echo "api: $?"
        sed 's/^backend = .*/&\nvnis = "1-99"/' "$here/api.toml" >"$here/other.toml"
        lattice api --config "$here/other.toml" --check-config; echo "api: $?""#;
    let outcome = with_fabric(script).run();
    outcome.exits(0).prints_lines(["api: 125", "api: 125"]);
    outcome.says("have one VNI each").says("hold 1, which is that of the NICs' default service");
}

/// Under Slurm or Flux on a Slingshot network, a launch on one machine must keep the credentials of these
/// launchers.
#[test]
fn a_launch_on_one_machine_inherits_the_fabric_and_one_in_a_cluster_does_not() {
    let print = r#"env | sed -n 's/^SLINGSHOT_VNIS=//p; s/^FI_CXI_COLL_JOB_ID=//p; s/^FI_CXI_DEVICE_NAME=//p' | sort"#;
    let outer = [("SLINGSHOT_VNIS", "7"), ("FI_CXI_COLL_JOB_ID", "job"), ("FI_CXI_DEVICE_NAME", "cxi0")];
    let command = launch("--pmi none -n 1").words("bash -c").arg(print);
    let here = outer.iter().fold(command, |command, (name, value)| command.env(name, value));
    here.run().exits(0).prints_lines(["7", "cxi0", "job"]);

    let cluster = lattice("dev-cluster --loopback --nodes 1 --");
    let script = format!(
        "lattice launch --pmi none -n 1 bash -c {print:?}
         lattice launch --pmi none -n 1 --env SLINGSHOT_VNIS=own bash -c {print:?}"
    );
    let command = script_in(cluster, &script);
    let there = outer.iter().fold(command, |command, (name, value)| command.env(name, value));
    there.run().exits(0).prints_lines(["cxi0", "cxi0", "own"]);
}

#[test]
fn a_launch_inside_of_a_rank_uses_the_ranks_services_here_and_its_own_in_the_cluster() {
    let script = r#"
        lattice launch --pmi none -n 1 bash -c '
            echo outer $SLINGSHOT_VNIS $SLINGSHOT_SVC_IDS
            LATTICE_ALLOC_ID=local lattice launch --pmi none -n 1 bash -c "echo here \$SLINGSHOT_VNIS \$SLINGSHOT_SVC_IDS"
            lattice launch --pmi none -n 1 bash -c "echo there \$SLINGSHOT_VNIS \$SLINGSHOT_SVC_IDS"'"#;
    let lines = ["outer 1024 11,21", "here 1024 11,21", "there 1024 12,22"];
    with_fabric(script).run().exits(0).prints_lines(lines);
}

#[test]
fn on_a_node_without_an_api_server_an_operator_sees_what_is_left_and_ends_it() {
    let script = r#"
        cxi() { env -u LATTICE_API_URL -u LATTICE_ALLOC_ID lattice-agent cxi "$@" --config "$here/node0.toml"; }
        # All nodes of all clusters show the processes of this machine: none of those may use this VNI.
        vni=$((20000 + $$ % 20000))
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null; all_given_back
        restart_api sed -i "s/^backend = .*/&\nvnis = \"$vni-$vni\"/" "$here/api.toml"
        cxi doctor || exit 90
        alloc=$(lattice alloc create -w node0)
        lattice launch --alloc $alloc --pmi none -n 1 sleep 1000 & launch_with 1 >/dev/null
        kill_dead api
        cxi list | sed -E "s/process [0-9]+/a process/; s/  +/ /g; s/$vni/VNI/"; cxi doctor || exit 91
        cxi clean --all; echo "clean: $?"
        env -u LATTICE_API_URL lattice-agent --listen 127.0.0.1:0 cxi clean --all --config "$here/node0.toml"
        kill_dead node0
        strays() { [ "$(cxi list --json | grep -c '"used_by": null')" = 2 ]; }
        soon strays
        cxi doctor | sed "s/$vni/N/"; echo "doctor: ${PIPESTATUS[0]}"
        cxi clean --vni 1024,1025
        cxi clean --vni $vni --dry-run && strays || exit 92
        touch "$here/nics/node0/cxi1/busy"
        (sleep 1; rm "$here/nics/node0/cxi1/busy") & cxi clean --vni $vni --json | field dry_run
        cxi doctor"#;
    let outcome = with_fabric(script).run();
    outcome.exits(0);
    outcome.says("an agent listens at 127.").says("stop it first");
    // Even if the address does not identify the node.
    outcome.says("an agent runs on this node (");
    let uid = nix::unistd::getuid();
    for text in [
        "back end paper: 2 NICs, 0 services\nnothing is wrong\n",
        &format!("cxi0 up 11 {uid} VNI a process\ncxi1 up 21 {uid} VNI a process\n"),
        "clean: 125\n",
        "no process uses service 11 of cxi0 (VNI N)\n  try: the agent ends it with its VNI",
        "doctor: 1\nthere is nothing to clean\nservice 11 of cxi0",
        "would be ended\nservice 21 of cxi1",
        "false\nback end paper: 2 NICs, 0 services\nnothing is wrong\n",
    ] {
        outcome.prints(text);
    }
}

#[test]
fn a_doctor_on_a_node_tells_what_its_agent_lacks() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("agent.toml");
    for (fabric, expected) in [
        ("", "no CXI services are made"),
        ("backend = 'libcxi'\npath = '/nonexistent/libcxi.so'", "cannot use /nonexistent/libcxi.so"),
        ("backend = 'cxi_service'\npath = '/nonexistent/cxi_service'", "there is no program /nonexistent/cxi_service"),
        ("backend = 'cxi_service'\npath = '/bin/true'", "there is no CXI device"),
    ] {
        fs::write(&config, format!("[fabric]\n{fabric}\n")).expect("a configuration");
        let agent =
            Command::new(built::lattice().with_file_name("lattice-agent")).words("cxi doctor --config").arg(&config);
        agent.run().exits(1).prints(expected).prints("  try: ");
    }
}

#[test]
fn the_end_of_a_cluster_gives_everything_back_or_says_what_it_does_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("fabric.log");
    let script = r#"
        ln "$here/fabric.log" "$LOG"
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null
        one=$(lattice alloc create -w node0); two=$(lattice alloc create -w node1)
        lattice launch --alloc $one --pmi none -n 1 true || exit 90
        lattice launch --alloc $two --pmi none -n 1 sleep 1000 & launch_with 1 >/dev/null"#;
    let outcome = with_fabric(script).env("LOG", &log).run();
    outcome.exits(0).does_not_say("given back");
    let calls = fs::read_to_string(&log).expect("the manager's calls");
    let count = |call: &str| calls.lines().filter(|line| line.contains(&format!(r#""call":"{call}""#))).count();
    assert_eq!((count("create"), count("delete")), (3, 3), "{calls}");

    let outcome = with_fabric("lattice launch --pmi none -n 2 true; kill_dead fabric").run();
    outcome.exits(0).says("not everything of the fabric is given back").says("is not deleted at the fabric manager");
}

#[test]
fn the_crate_of_the_fabric_does_it_all_by_itself() {
    let example = include_str!("../../../examples/fabric_credentials.rs");
    let shown = example.lines().skip_while(|line| !line.contains("$ cargo run")).skip(1);
    let shown: Vec<&str> =
        shown.map_while(|line| line.strip_prefix("//! ")).take_while(|line| *line != "```").collect();
    Command::new(built::example("fabric_credentials")).run().exits(0).prints_lines(shown);
}

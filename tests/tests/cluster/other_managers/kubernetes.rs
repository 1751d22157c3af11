//! `--via k8s` with stand-ins for pods: network namespaces with names that a name server resolves like that of Kubernetes. The system's
//! resolver queries this server. The user has no entry in the table of users, and the key is in a file.

use lattice_tests::mpi::Flavour;
use lattice_tests::{Command, built};

use super::script_with;

/// `pod N WORDS...` runs a command in a pod. `begin N` starts the process that waits there for invitations, and adds its name to the name
/// server.
const PODS: &str = include_str!("../../../scripts/pods.sh");

/// Returns a bash script with `pods` pods.
fn script_with_pods(pods: u32, script: &str) -> Command {
    script_with(pods, &format!("{PODS}\n{script}"))
}

#[test]
fn a_launch_in_a_pod_finds_the_others_by_name_and_uses_their_processors() {
    let script = r#"for pod in 0 1 2; do begin $pod; done; pod 0 lattice -v launch -n 5 "$1""#;
    for flavour in [Flavour::WheelMpich, Flavour::WheelOpenMpi] {
        let outcome = script_with_pods(3, script).arg(flavour.program("hello")).run();
        outcome.exits(0).prints_lines((0..5).map(|rank| format!("rank {rank} of 5")));
        outcome.says("this is a pod of k8s: mpi-[0-2].mpi; --via none launches on this machine");
    }
    let script = r#"export LATTICE_K8S_PODS='mpi-[0-1].mpi'; cpus=0 begin 0; cpus=0,1 begin 1
        pod 0 lattice launch --fill sh -c 'echo $(hostname) $(id -u) $LATTICE_NODELIST'
        LATTICE_K8S_PODS='mpi-0.mpi:2,mpi-1.mpi:1' pod 0 lattice start -- lattice launch --fill hostname"#;
    let outcome = script_with_pods(2, script).run();
    let line = |pod: u32| format!("mpi-{pod} 4712 mpi-0.mpi,mpi-1.mpi");
    let started = ["mpi-0", "mpi-0", "mpi-1"].map(str::to_owned);
    outcome.exits(0).prints_lines([line(0), line(1), line(1)].into_iter().chain(started));
}

#[test]
fn pods_that_come_late_are_waited_for_and_told() {
    let script = r#"begin 0; begin 2
        pod 0 lattice launch --fill hostname 2>$here/said & launch=$!
        until grep -q 'waits for 1 of 3 nodes: mpi-1.mpi' $here/said; do sleep 0.1; done
        begin 1; wait $launch"#;
    script_with_pods(3, script).run().exits(0).prints_lines(["mpi-0", "mpi-0", "mpi-1", "mpi-1", "mpi-2", "mpi-2"]);
}

#[test]
fn pods_that_do_not_come_are_named_when_time_is_over() {
    let script = r#"begin 0; known 1; LATTICE_JOIN_TIMEOUT=3s pod 0 lattice launch --fill hostname"#;
    let outcome = script_with_pods(2, script).run();
    outcome.exits(125).says("2 of 3 nodes did not join: mpi-[1-2].mpi").says("Connection refused");
    outcome.says("mpi-2.mpi has not accepted within 3s: failed to lookup address information");
}

#[test]
fn who_has_another_key_starts_nothing() {
    let script = r#"export LATTICE_K8S_PODS=mpi-1.mpi LATTICE_JOIN_TIMEOUT=2s; begin 1
        (umask 077; openssl rand -hex 32 >$here/other; chown 4712 $here/other)
        other_key=$here/other pod 0 lattice launch --fill hostname; echo "code $?"
        chmod 644 $here/other; other_key=$here/other pod 0 lattice launch --fill hostname; echo "code $?"
        exec 3<>/dev/tcp/$(getent hosts node1 | cut -d' ' -f1)/50053; echo GET / >&3; cat <&3; grep -c 'is refused' $here/pod1.log"#;
    let outcome = script_with_pods(2, script).run();
    outcome.says("it closed the connection: it has another key").says("can be used by others (mode 644)");
    let lines: Vec<_> = outcome.text().lines().collect();
    assert_eq!(lines[..2], ["code 125", "code 125"], "{}", outcome.errors());
    assert!(lines[2].parse::<u32>().is_ok_and(|refused| refused >= 2), "{lines:?}");
}

/// A name server may still return the address of a pod that is gone.
#[test]
fn an_address_of_another_pod_is_not_taken_for_the_one_that_is_meant() {
    let script = r#"export LATTICE_K8S_PODS='mpi-[0-1].mpi'; begin 0; begin 1
        echo "$(getent hosts node0 | cut -d' ' -f1) mpi-1.mpi.default.svc.cluster.local" >$here/wrong
        cat $names >>$here/wrong; cp $names $here/right; cp $here/wrong $names
        (until grep -q 'this is mpi-0, and mpi-1.mpi is meant\|is refused' $here/pod0.log; do sleep 0.1; done; cp $here/right $names) &
        pod 0 lattice launch --fill hostname | sort | uniq | tr '\n' ' '"#;
    script_with_pods(2, script).run().exits(0).prints("mpi-0 mpi-1 ");
}

/// Pods of a Job end with the launch.
#[test]
fn what_waits_for_one_invitation_ends_with_its_agent_and_what_waits_for_more_stays() {
    let script = r#"export LATTICE_K8S_PODS='mpi-[0-1].mpi'; begin 0; once=1 begin 1
        pod 0 lattice launch --tasks-per-node 1 hostname | sort; wait ${pods[1]}; echo "code $?"
        kill -0 ${pods[0]} && kill -TERM ${pods[0]}; wait ${pods[0]}; echo "code $?"
        for attempt in {1..200}; do [ -z "$(started_on_nodes)" ] && echo nothing is left && exit; sleep 0.1; done
        ps -f -p $(started_on_nodes)"#;
    let outcome = script_with_pods(2, script).run();
    outcome.exits(0).prints("mpi-0\nmpi-1\ncode 0\ncode 0\nnothing is left\n");
}

/// The words of the manifest, with the paths of the programs in the build directory.
#[test]
fn pods_of_a_job_launch_once_and_end() {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/kubernetes/job/job.yaml");
    let manifest = std::fs::read_to_string(manifest).unwrap();
    let command = manifest.lines().find_map(|line| line.trim().strip_prefix("command: ")).unwrap();
    let command: Vec<String> = serde_json::from_str(command).unwrap();
    let programs = built::lattice().parent().unwrap().display().to_string();
    let script = r#"export LATTICE_K8S_PODS='mpi-[0-1].mpi'; known 0; known 1
        run=exec pod 1 env JOB_COMPLETION_INDEX=1 "$@" 2>$here/pod1.log & pods+=($!)
        (pod 0 env JOB_COMPLETION_INDEX=0 "$@"; echo "code $?"); wait ${pods[0]}; echo "code $?""#;
    let mut pods = script_with_pods(2, script);
    for word in &command {
        pods = pods.arg(word.replace("/opt/lattice", &programs));
    }
    let outcome = pods.words("--tasks-per-node 1 hostname").run();
    outcome.exits(0).prints_lines(["mpi-0", "mpi-1", "code 0", "code 0"]);
}

/// No agent or rank remains after the launcher is killed, or after a pod is gone.
#[test]
fn nothing_is_left_when_the_launcher_or_a_pod_is_gone() {
    for end in [
        "kill -KILL $(pgrep --ns $(cat $here/node0.pid) --nslist net -ofx 'lattice launch.*')",
        "kill -TERM ${pods[1]}",
    ] {
        let script = r#"export LATTICE_K8S_PODS='mpi-[0-1].mpi'; begin 0; begin 1; work=$(mktemp -d); chmod 777 $work
            pod 0 lattice launch --fill sh -c 'trap "" TERM; touch $0/$(hostname); sleep 1000' $work 2>$here/said & launch=$!
            for attempt in {1..300}; do [ -e $work/mpi-0 ] && [ -e $work/mpi-1 ] && break; sleep 0.1; done
            END
            wait $launch
            for attempt in {1..400}; do [ -z "$(started_on_nodes)" ] && echo nothing is left && exit; sleep 0.1; done
            ps -f -p $(started_on_nodes); exit 1"#;
        script_with_pods(2, &script.replace("END", end)).run().exits(0).prints("nothing is left\n");
    }
}

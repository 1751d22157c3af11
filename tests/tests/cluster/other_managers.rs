//! `--via` and `lattice start` with nodes of another resource manager. Each node is a network namespace with its own host name. The
//! daemons of the cluster that creates the namespaces are not used.

mod kubernetes;
mod slurm;
mod ssh;
mod stand_ins;

use lattice_tests::mpi::Flavour;
use lattice_tests::{Command, cluster};

/// Leaves the test's cluster except for its namespaces. `enter NODE WORDS...` runs a command on a node, and is a program as well.
const NODES_ALONE: &str = include_str!("../../scripts/nodes_without_daemons.sh");

/// Returns a bash script on a machine with `nodes` further nodes, on which Lattice is not installed.
fn script_with(nodes: u32, script: &str) -> Command {
    assert!(nix::unistd::geteuid().is_root(), "this test must run as root: its nodes are network namespaces");
    cluster(nodes).bash(&format!("{NODES_ALONE}\n{script}"))
}

/// A user that exists on the nodes, but not on this machine, with a shared home directory. `user WORDS...` runs a command as this user
/// on node0, in that directory.
const PLAIN_USER: &str = r#"
    home=$here/home
    mkdir -p $home
    { cat /etc/passwd; echo "tester:x:4711:65534::$home:/bin/sh"; } >$here/passwd
    { cat /etc/shadow; echo "tester:*:19000:0:99999:7:::"; } >$here/shadow
    chown 4711:65534 $home
    for node in $here/node*.pid; do
        $enter $(basename $node .pid) sh -c "mount --bind $here/passwd /etc/passwd && mount --bind $here/shadow /etc/shadow" || exit
    done
    cd $home
    as_user="$enter node0 setpriv --reuid 4711 --regid 65534 --clear-groups env HOME=$home USER=tester"
    user() { $as_user "$@"; }
"#;

/// Returns a bash script on a machine with `nodes` further nodes, on which the plain user exists.
fn script_with_user(nodes: u32, script: &str) -> Command {
    script_with(nodes, &format!("{PLAIN_USER}\n{script}"))
}

#[test]
fn an_mpi_program_runs_on_hosts_that_a_command_of_the_users_reaches() {
    let script = r#"on_node0 lattice launch --host node0:2,node1:2,node2:1 "$1""#;
    for flavour in [Flavour::WheelMpich, Flavour::WheelOpenMpi] {
        let outcome = script_with(3, script).arg(flavour.program("hello")).run();
        outcome.exits(0).prints_lines((0..5).map(|rank| format!("rank {rank} of 5")));
    }
}

/// A program with the arguments of `rsh` passes the words of the user and the agent unchanged. The flag overrides the variable.
#[test]
fn a_program_that_takes_a_host_and_a_command_starts_the_agents() {
    let script = r#"
        export LATTICE_VIA=none
        $enter node0 lattice launch --start-with "$enter" --host node0:1,node1:1 sh -c 'echo "$(hostname) $*"' sh 'a b' '$c' | sort
        $enter node0 lattice start --start-with "sh -c \"exec $enter {host} {command}\"" --host node1:2 -- lattice launch --fill hostname"#;
    let outcome = script_with(2, script).run();
    outcome.exits(0).prints("node0 a b $c\nnode1 a b $c\nnode1\nnode1\n");
}

#[test]
fn ranks_have_the_slots_of_their_hosts_unless_flags_place_them() {
    let script = r#"
        on_node0 lattice start --host node0:2,node1:3 -- sh -c '
            lattice launch --fill hostname | sort | uniq -c; lattice launch -n 3 hostname | sort | uniq -c
            lattice launch --tasks-per-node 1 hostname | sort | uniq -c' | tr -s ' '"#;
    let outcome = script_with(2, script).run();
    outcome.exits(0).prints(" 2 node0\n 3 node1\n 2 node0\n 1 node1\n 1 node0\n 1 node1\n");
}

#[test]
fn exit_code_input_and_words_pass_as_without_it() {
    let script = r#"
        on_node0 lattice launch --host node1:1 sh -c 'read line; echo "$line: $*"; exit 7' sh 'a b' '$c' <<<input; echo "code $?"
        on_node0 lattice start --host node1 -- sh -c 'exit 9'; echo "code $?"
        on_node0 lattice start --host node1 -- /nowhere/at/all; echo "code $?""#;
    let outcome = script_with(2, script).run();
    outcome.exits(0).prints("input: a b $c\ncode 7\ncode 9\ncode 127\n").says("cannot run /nowhere/at/all");
}

#[test]
fn a_node_that_does_not_join_is_named_with_what_was_said_of_it() {
    let script = r#"on_node0 lattice launch --host node0,node1,node7 true"#;
    let outcome = script_with(2, script).run();
    outcome.exits(125).says("1 of 3 nodes did not join: node7").says("for node7 ended (exit status: 1); its log ends:");
    outcome.says("node7.pid: No such file or directory");
}

/// A program that is not an agent, or does not exist, is detected at once, before the timeout.
#[test]
fn the_words_of_a_program_that_starts_no_agent_are_shown() {
    let check = |via: &str, expected: &str| {
        let script = format!("$enter node0 lattice launch --via '{via}' --host node0,node1 true");
        script_with(2, &script).run().exits(125).says(expected);
    };
    check("sh -c \"echo no way to {host} >&2; : {command}\"", "no way to node1");
    check("/nowhere/at/all {host} {command}", "cannot find /nowhere/at/all, which is to start an agent on each node");
}

/// Slurm scripts find the `srun` of this cluster, even before another `srun` in the path, unless they run in a Slurm job.
#[test]
fn srun_is_that_of_the_cluster_but_in_a_job_of_slurms() {
    let script = r#"
        mkdir $here/theirs; printf '#!/bin/sh\necho theirs\n' >$here/theirs/srun; chmod +x $here/theirs/srun; PATH=$here/theirs:$PATH
        on_node0 lattice start --host node0,node1 -- sh -c 'srun -n 2 --ntasks-per-node=1 hostname; command -v srun'
        SLURM_JOB_ID=7 on_node0 lattice start --host node0,node1 -- srun -n 2 hostname"#;
    let outcome = script_with(2, script).run();
    let lines = outcome.exits(0).sorted_lines();
    assert_eq!(lines[1..], ["node0", "node1", "theirs"], "{}", outcome.errors());
    assert!(lines[0].starts_with("/tmp/lattice-") && lines[0].ends_with("/mpirun/srun"), "{lines:?}");
}

/// The job of each manager is over, and two of the managers are not installed, so that their programs would start nothing.
#[test]
fn a_job_whose_only_node_is_this_machine_needs_no_program_of_its_manager() {
    for variables in [
        "SLURM_JOB_ID=99 SLURM_JOB_NODELIST=node0 SLURM_TASKS_PER_NODE=2",
        "PBS_JOBID=99 PBS_NODEFILE=$here/slots",
        "LSB_JOBID=99 LSB_MCPU_HOSTS='node0 2'",
        "JOB_ID=99 PE_HOSTFILE=$here/pe_hosts",
    ] {
        let script = format!(
            "printf 'node0\nnode0\n' >$here/slots; echo node0 2 queue UNDEFINED >$here/pe_hosts
            $enter node0 env {variables} lattice launch --fill hostname
            $enter node0 env {variables} lattice start -- lattice srun -n 2 sh -c 'exit 7'"
        );
        let outcome = script_with(1, &script).run();
        outcome.exits(7).prints_lines(["node0", "node0"]);
    }
}

/// Ends a started cluster with running launches, and checks for remaining processes on its nodes.
fn ends_with_nothing_left(signal: &str) {
    let script = format!(
        r#"
        LATTICE_VIA="$enter {{host}} {{command}}" "$enter" node0 lattice start --host node0,node1 -- sh -c '
            dirname "${{LATTICE_API_URL#unix:}}" >directory
            lattice launch --fill sh -c "trap "" TERM; touch rank.\$(hostname); sleep 1000" & wait' &
        launcher=$!
        until [ -e rank.node0 ] && [ -e rank.node1 ]; do sleep 0.05; done
        kill -{signal} $launcher; wait $launcher; echo "code $?"
        for attempt in {{1..200}}; do
            [ -z "$(started_on_nodes)" ] && [ ! -e "$(cat directory)" ] && echo nothing is left && exit
            sleep 0.1
        done
        ps -f -p $(started_on_nodes); exit 1"#
    );
    let directory = tempfile::tempdir().expect("there is room for a directory");
    let outcome = script_with(2, &script).directory(directory.path()).run();
    outcome.exits(0).check(outcome.text().ends_with("nothing is left\n"), || "something is left".to_owned());
}

#[test]
fn a_terminated_cluster_leaves_nothing_on_its_nodes() {
    ends_with_nothing_left("TERM");
}

#[test]
fn a_killed_cluster_leaves_nothing_on_its_nodes() {
    ends_with_nothing_left("KILL");
}

/// Resource managers send a signal to a job before its time limit, and end the job with a signal to each of its processes.
#[test]
fn signals_reach_the_ranks_of_nodes_that_were_brought_along() {
    let script = r#"
        set -m
        rank='trap "echo told" USR1; trap "sleep 1; echo saved; exit 0" TERM; echo up; while :; do sleep 0.02; done'
        LATTICE_VIA="$enter {host} {command}" "$enter" node0 lattice launch --host node0:1 --kill-wait 1h bash -c "$rank" >out 2>err &
        launch=$!
        until grep -qs up out; do sleep 0.05; done
        kill -USR1 $launch; until grep -q told out; do sleep 0.05; done
        kill -TERM -- -$launch; wait $launch; echo "code $?"; cat out"#;
    let directory = tempfile::tempdir().expect("there is room for a directory");
    let outcome = script_with(1, script).directory(directory.path()).run();
    outcome.exits(0).prints_lines(["code 143", "up", "told", "saved"]);
}

/// A machine that hangs closes no input and refuses no connection.
#[test]
fn agents_leave_when_the_head_falls_silent() {
    let script = r#"
        LATTICE_VIA="$enter {host} {command}" "$enter" node0 lattice start --host node0,node1 -- sh -c '
            dirname "${LATTICE_API_URL#unix:}" >directory
            lattice launch --fill sh -c "touch rank.\$(hostname); sleep 1000" & wait' &
        launcher=$!
        until [ -e rank.node0 ] && [ -e rank.node1 ]; do sleep 0.05; done
        api=$(cat $(cat directory)/api.pid)
        kill -STOP $launcher $api
        for attempt in {1..400}; do [ -z "$(started_on_nodes)" ] && echo nothing is left && break; sleep 0.1; done
        kill -CONT $api $launcher; kill -TERM $launcher; wait $launcher; exit 0"#;
    let directory = tempfile::tempdir().expect("there is room for a directory");
    script_with(2, script).directory(directory.path()).run().exits(0).prints("nothing is left\n");
}

/// No argument or variable of any process contains a key, and no file on the nodes does.
#[test]
fn keys_are_in_no_argument_and_no_variable() {
    let script = r#"
        on_node0 lattice start --host node0,node1 -- sh -c '
            lattice launch --fill sh -c "tr \"\\0\" \"\\n\" </proc/self/environ; ls -l /proc/self/fd"
            for process in /proc/[0-9]*; do cat $process/cmdline $process/environ 2>/dev/null; done | tr "\0" "\n"' |
            grep -a -e "PRIVATE[ ]KEY" -e "lattice-[c]redentials""#;
    script_with(2, script).run().exits(1);
}

/// Compares the listening ports of the kernel with the earlier ones: with one port of the range in use, and with a range that is too
/// small.
#[test]
fn whatever_listens_for_a_launch_does_so_in_its_range_of_ports() {
    let script = r#"
        # The ports at which TCP listens on a node, but at loopback addresses; in hexadecimal digits.
        listening() { awk '$4 == "0A" && $2 !~ /^(0100007F|0{24}01000000|0{31}1):/ { print $2 }' /proc/$(cat $here/$1.pid)/net/tcp{,6} | sed 's/.*://' | sort -u; }
        for node in node0 node1; do listening $node >before.$node; done
        start() { on_node0 lattice start --host node0:1,node1:1 --port-range $1 -- sh -c 'lattice launch --fill hostname; touch up; until [ -e seen ]; do sleep 0.05; done'; }
        # 60001 is taken.
        $enter node0 perl -MIO::Socket::INET -e '$taken = IO::Socket::INET->new(Listen => 1, LocalPort => 60001) or die; sleep' & taken=$!
        until listening node0 | grep -q EA61; do sleep 0.05; done; listening node0 >before.node0
        start 60000-60002 & launcher=$!
        until [ -e up ]; do sleep 0.05; done
        for node in node0 node1; do echo "$node:" $(listening $node | comm -13 before.$node -); done
        touch seen; wait $launcher
        start 60001-60001; echo "code $?"; kill $taken"#;
    let directory = tempfile::tempdir().expect("there is room for a directory");
    let outcome = script_with(2, script).directory(directory.path()).run();
    // The API server and an agent on node0, an agent on node1: 60000, 60002, 60000.
    outcome.exits(0).prints_lines(["node0", "node1", "node0: EA60 EA62", "node1: EA60", "code 125"]);
    outcome.says("no port of 60001-60001 is free at 0.0.0.0; widen the range");
}

#[test]
fn a_second_launch_in_a_started_cluster_needs_no_new_agents() {
    let script = r#"
        on_node0 lattice start --host node0,node1 -- sh -c '
            agents() { lattice nodes --json | grep -o "10[.]20[.]0[.][0-9]*:[0-9]*"; }
            before=$(agents); for i in 1 2 3; do lattice launch --fill true || exit; done
            [ "$before" ] && [ "$before" = "$(agents)" ] && echo same'"#;
    script_with(2, script).run().exits(0).prints("same\n");
}

//! `--via ssh` with the real OpenSSH: an sshd on each node, and a plain user with a key for it.

use lattice_tests::Command;
use lattice_tests::mpi::{Flavour, OPEN_MPIS};

use super::script_with_user;

const SSHD: &str = r#"
    ssh=$here/ssh
    mkdir -p $ssh $home/.ssh /run/sshd
    ssh-keygen -q -t ed25519 -N '' -f $ssh/host && ssh-keygen -q -t ed25519 -N '' -f $home/.ssh/id_ed25519
    cp $home/.ssh/id_ed25519.pub $home/.ssh/authorized_keys
    address() { getent hosts $1 | cut -d' ' -f1; }
    for node in node0 node1 node2; do echo "$node,$(address $node) $(cut -d' ' -f1,2 $ssh/host.pub)"; done >$home/.ssh/known_hosts
    chown -R 4711:65534 $home
    printf '%s\n' "HostKey $ssh/host" 'UsePAM no' 'StrictModes no' 'PidFile none' >$ssh/config
    for node in node0 node1 node2; do $enter $node /usr/sbin/sshd -f $ssh/config -E $ssh/$node.log || exit; done
    # sshd goes to the background before it listens.
    for node in node0 node1 node2; do until grep -q 'Server listening' $ssh/$node.log; do sleep 0.05; done; done
"#;

/// Returns a bash script on a machine with three further nodes that ssh reaches.
fn script_with_ssh(script: &str) -> Command {
    script_with_user(3, &format!("{SSHD}\n{script}"))
}

#[test]
fn a_plain_user_runs_an_mpi_program_on_hosts_that_ssh_reaches() {
    let script = r#"user lattice launch --via ssh --host node0:2,node1:2,node2:1 "$1""#;
    for flavour in [Flavour::WheelMpich, Flavour::WheelOpenMpi] {
        let outcome = script_with_ssh(script).arg(flavour.program("hello")).run();
        outcome.exits(0).prints_lines((0..5).map(|rank| format!("rank {rank} of 5")));
    }
    let script = r#"user lattice launch --via ssh --host node1,node2 sh -c 'echo $(hostname) $(id -u)' | sort"#;
    script_with_ssh(script).run().exits(0).prints("node1 4711\nnode2 4711\n");
    let script = r#"user lattice launch --via ssh --host $(address node1):2,$(address node2):2 "$1""#;
    let outcome = script_with_ssh(script).arg(Flavour::WheelMpich.program("hello")).run();
    outcome.exits(0).prints_lines((0..4).map(|rank| format!("rank {rank} of 4")));
}

#[test]
fn an_unchanged_mpirun_reaches_hosts_that_a_plain_user_started() {
    let script = r#"
        set -o pipefail; said='timeout -k 5 25 "$0" -n 3 sh -c "echo \$(hostname) \$(id -u)"'
        user lattice start --via ssh --host node1:2,node2:1 -- bash -c "$said" "$1" | sort"#;
    for mpi in [Flavour::WheelMpich, OPEN_MPIS[0], OPEN_MPIS[1]] {
        let outcome = script_with_ssh(script).arg(mpi.mpirun()).run();
        outcome.exits(0).prints("node1 4711\nnode1 4711\nnode2 4711\n");
    }
}

#[test]
fn a_host_that_ssh_does_not_reach_is_named_with_its_words() {
    let script = r#"
        sshd_of_node2() { "$1" --ns $(cat $here/node2.pid) --nslist net -x sshd; }
        sshd_of_node2 pkill; while sshd_of_node2 pgrep >/dev/null; do sleep 0.05; done
        user lattice launch --via ssh --host node1,node2 true"#;
    let outcome = script_with_ssh(script).run();
    outcome
        .exits(125)
        .says("1 of 2 nodes did not join: node2")
        .says("ssh for node2 ended (exit status: 255); its log ends:");
    outcome.says("Connection refused");
}

/// Processes on the hosts can detect the end of the cluster only through ssh.
#[test]
fn nothing_is_left_on_hosts_when_a_cluster_by_ssh_is_killed() {
    let script = r#"
        $as_user lattice start --via ssh --host node1,node2 -- lattice launch --fill sh -c 'trap "" TERM; touch rank.$(hostname); sleep 1000' &
        launcher=$!
        until [ -e rank.node1 ] && [ -e rank.node2 ]; do sleep 0.05; done
        kill -KILL $launcher; wait $launcher 2>/dev/null; echo "code $?"
        for attempt in {1..200}; do
            [ -z "$(started_on_nodes)" ] && echo nothing is left && exit
            sleep 0.1
        done
        ps -f -p $(started_on_nodes); exit 1"#;
    script_with_ssh(script).run().exits(0).prints("code 137\nnothing is left\n");
}

//! The unchanged `mpirun` of other MPI libraries, in the shell of an allocation. It starts its daemons on the nodes, without ssh.

use lattice_tests::mpi::{Flavour, MPICHS, MPIS, OPEN_MPIS};
use lattice_tests::{Command, Outcome, cluster, script_on, turn};

/// The libraries that start reliably. prterun 5.0.11 sometimes hangs at its start, mostly on a loaded machine, with any launcher of its daemons.
const STEADY: [Flavour; 6] = [MPICHS[0], MPICHS[1], MPICHS[2], Flavour::IntelMpi, OPEN_MPIS[0], OPEN_MPIS[2]];

/// Otherwise Open MPI refuses to run as root.
const ROOT_MAY: [&str; 4] = [
    "OMPI_ALLOW_RUN_AS_ROOT",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    "PRTE_ALLOW_RUN_AS_ROOT",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
];

/// Returns a shell in a cluster of 2 nodes with the library's `$mpirun`. Further words are arguments of the script.
fn shell(mpi: Flavour, script: &str) -> Command {
    shell_on(2, mpi, script)
}

/// The same with `nodes` nodes.
fn shell_on(nodes: u32, mpi: Flavour, script: &str) -> Command {
    let command = ROOT_MAY.into_iter().fold(cluster(nodes), |command, name| command.env(name, "1"));
    command.bash(&format!("mpirun=$1; shift; {script}")).arg(mpi.mpirun())
}

/// The shell has the environment of a Slurm job on 3 nodes, with Lattice's `srun` and `scontrol`. Calls of `srun` are recorded.
const IN_A_JOB_OF_SLURM: &str = r#"cd "$LATTICE_DEV_CLUSTER"; mkdir slurm; export PATH=$PWD/slurm:$PATH
        printf '#!/bin/sh\necho "srun $*" >>%s/calls; exec lattice srun "$@"\n' "$PWD" >slurm/srun; chmod +x slurm/srun
        ln -s "$(command -v lattice)" slurm/scontrol
        export SLURM_JOBID=7 SLURM_JOB_ID=7 SLURM_NODELIST='node[0-2]' SLURM_JOB_NODELIST='node[0-2]'
        export SLURM_TASKS_PER_NODE='2(x3)' SLURM_NNODES=3 SLURM_JOB_NUM_NODES=3"#;

/// Returns the nodes in the lines, each once.
fn nodes(outcome: &Outcome) -> Vec<&str> {
    let mut nodes = outcome.sorted_lines();
    nodes.dedup();
    nodes
}

#[test]
fn ranks_find_each_other() {
    let _machine = turn::heavy();
    for mpi in MPIS.into_iter().filter(|mpi| *mpi != MPICHS[0]) {
        let script = "timeout -k 5 25 $mpirun -np 4 $1";
        let outcome = shell(mpi, script).arg(mpi.program("hello")).run();
        outcome.exits(0).prints_lines((0..4).map(|rank| format!("rank {rank} of 4")));
    }
}

#[test]
fn ranks_start_on_every_node() {
    let _machine = turn::heavy();
    for mpi in STEADY {
        let outcome = shell(mpi, "$mpirun -np 4 hostname").run();
        outcome.exits(0);
        assert_eq!(nodes(&outcome), ["node0", "node1"], "{mpi:?}");
    }
}

/// With LATTICE_ALLOC_ID alone all ranks are on the node of the shell, because no mpirun reads this variable.
#[test]
#[ignore = "second tier"]
fn a_shell_that_takes_the_variables_of_an_allocation_starts_ranks_on_every_node() {
    let _machine = turn::heavy();
    for mpi in [MPICHS[2], OPEN_MPIS[0]] {
        let script = r#"lattice alloc release $LATTICE_ALLOC_ID; unset LATTICE_ALLOC_ID; export HOME=$LATTICE_DEV_CLUSTER
            for name in $(env | sed -n 's/^\(HYDRA_[A-Z_]*\|I_MPI_HYDRA_[A-Z_]*\|OMPI_MCA_[a-z_]*\|PRTE_MCA_[a-z_]*\)=.*/\1/p'); do unset $name; done
            eval "$(lattice alloc create -N 2 --shell-env)" || exit
            $mpirun -np 4 hostname; lattice alloc release $LATTICE_ALLOC_ID; ls -A .local/state/lattice"#;
        let outcome = shell(mpi, &format!("cd $LATTICE_DEV_CLUSTER; {script}")).run();
        outcome.exits(0);
        assert_eq!(nodes(&outcome), ["node0", "node1"], "{mpi:?}");
    }
}

/// Intel MPI starts as many ranks as a node has cores, regardless of the file in its variable.
#[test]
fn nodes_get_as_many_ranks_as_they_have_slots() {
    let _machine = turn::heavy();
    let script = r#"cd "$LATTICE_DEV_CLUSTER"; export cluster=$PWD; unset LATTICE_ALLOC_ID LATTICE_API_URL
        printf '#!/bin/sh\npid=$(cat $cluster/$1.pid); shift; exec nsenter --target $pid --net --uts --mount -- "$@"\n' >enter; chmod +x enter
        lattice start --start-with $PWD/enter --host node0:1,node1:2,node2:1 -- timeout -k 5 25 $mpirun hostname"#;
    for mpi in [MPICHS[1], OPEN_MPIS[0], OPEN_MPIS[1], OPEN_MPIS[2]] {
        shell_on(3, mpi, script).run().exits(0).prints_lines(["node0", "node1", "node1", "node2"]);
    }
}

/// Names alone (`-w`, `--host`, `--hostfile`) are nodes with a slot for each core. Open MPI refuses more ranks than slots.
#[test]
#[ignore = "second tier"]
fn nodes_that_are_named_without_a_number_take_a_rank_on_each_core() {
    let _machine = turn::heavy();
    let script = r#"cd "$LATTICE_DEV_CLUSTER"; export cluster=$PWD; unset LATTICE_ALLOC_ID LATTICE_API_URL; echo node0 >names; echo node1 >>names
        printf '#!/bin/sh\npid=$(cat $cluster/$1.pid); shift; exec nsenter --target $pid --net --uts --mount -- "$@"\n' >enter; chmod +x enter
        for hosts in '-w node0,node1' '--host node0,node1' '--hostfile names'; do
            for try in 1 2 3; do
                timeout 25 lattice start --start-with $PWD/enter $hosts -- $mpirun -np $((2 * $(nproc))) hostname >out && break
            done; sort out | uniq -c | sed "s/ $(nproc) / all /"
        done"#;
    for mpi in [MPICHS[1], OPEN_MPIS[0]] {
        let outcome = shell_on(2, mpi, script).run();
        let lines: Vec<&str> = outcome.exits(0).text().lines().map(str::trim).collect();
        assert_eq!(lines, ["all node0", "all node1"].repeat(3), "{mpi:?}");
    }
}

#[test]
#[ignore = "second tier"]
fn ranks_have_no_number_of_the_daemon_that_started_them() {
    let _machine = turn::heavy();
    for mpi in STEADY {
        let outcome = shell(mpi, "$mpirun -np 2 sh -c 'echo ${LATTICE_RANK-none} ${LATTICE_NPROCS-none}'").run();
        outcome.exits(0).prints_lines(["none none", "none none"]);
    }
}

/// `prted` waits indefinitely after an abort, over `ssh` as well.
#[test]
fn daemons_of_open_mpi_end_when_an_mpirun_has_aborted() {
    let _machine = turn::heavy();
    let script = r#"for run in 1 2 3; do
            timeout -k 5 25 $mpirun -np 4 $1 2 7 &>"$LATTICE_DEV_CLUSTER/out"
            until ! lattice launches | grep -q active; do sleep 0.1; done
        done; echo none"#;
    let mpi = Flavour::WheelOpenMpi;
    // prterun itself sometimes hangs; then timeout ends each of the three.
    let command = shell(mpi, script).arg(mpi.program("abort"));
    command.run().exits(0).prints_lines(["none"]);
}

#[test]
#[ignore = "second tier"]
fn a_script_of_a_rank_starts_it_too() {
    let _machine = turn::heavy();
    for mpi in STEADY {
        let outcome = shell(mpi, "lattice launch -n 1 -w node1 $mpirun -np 4 hostname").run();
        outcome.exits(0);
        assert_eq!(nodes(&outcome), ["node0", "node1"], "{mpi:?}");
    }
}

/// As in a Slurm job, in which mpirun starts its daemons with srun. Here srun is `lattice srun`.
#[test]
#[ignore = "second tier"]
fn bootstraps_of_slurm_start_their_daemons_by_our_srun() {
    let _machine = turn::heavy();
    let script = format!(
        "{IN_A_JOB_OF_SLURM}; for name in $(compgen -e | grep -E '^(HYDRA|I_MPI|OMPI_MCA|PRTE_MCA)_'); do unset $name; done
        timeout -k 5 25 $mpirun -n 6 $1 hostname || exit; [ -s calls ] && echo by srun"
    );
    for mpi in MPIS {
        let how = if MPICHS.contains(&mpi) { "-bootstrap=slurm" } else { "" };
        let outcome = shell_on(3, mpi, &script.replace("$1", how)).run();
        let nodes = ["node0", "node0", "node1", "node1", "node2", "node2"];
        outcome.exits(0).prints_lines(nodes.into_iter().chain(["by srun"]));
    }
}

/// It runs scontrol to list the nodes of the job, and starts its own script on each node with srun.
#[test]
#[ignore = "second tier"]
fn likwid_mpirun_places_its_processes_by_our_srun() {
    let _machine = turn::heavy();
    let script = format!(
        "{IN_A_JOB_OF_SLURM}; likwid-mpirun -mpi slurm -np 6 -nperdomain N:2 $1; tail -n 1 calls | tr ' ' '\\n' | grep = | sort | xargs"
    );
    let outcome = cluster(3).bash(&script).arg(Flavour::WheelMpich.program("hello")).run();
    let call = "--cpu_bind=none --cpus-per-task=1 --nodes=3 --ntasks-per-node=2 --ntasks=6";
    outcome.exits(0).prints_lines((0..6).map(|rank| format!("rank {rank} of 6")).chain([call.to_owned()]));
}

/// As in Open MPI above 64 nodes, the daemon of one node starts the daemon of the next one. On a node a user reaches the API server over the
/// network, with the certificate in the home directory.
#[test]
#[ignore = "second tier"]
fn daemons_on_nodes_start_further_ones() {
    let _machine = turn::heavy();
    let script = r#"cd "$LATTICE_DEV_CLUSTER"; config=$HOME/.config/lattice; mkdir -p $config; unset LATTICE_API_URL
        lattice pki issue pki --user $(id -u) >/dev/null && cp pki/user-$(id -u)/* $config
        sed -n 's|^listen = \["\(.*\)"\]|api = "https://\1"|p' api.toml >$config/config.toml
        printf '[tls]\nca = "ca.pem"\ncert = "cert.pem"\nkey = "key.pem"\n' >>$config/config.toml
        printf '#!/bin/sh\necho "$(hostname) calls $1" >>%s/callers; exec lattice-mpi-launcher "$@"\n' "$PWD" >agent; chmod +x agent
        $mpirun --mca plm_rsh_agent $PWD/agent --mca routed_radix 1 --map-by node -np 3 hostname; cat callers"#;
    let home = tempfile::tempdir().unwrap();
    let outcome = shell_on(3, OPEN_MPIS[0], script).env("HOME", home.path()).run();
    let calls = ["head calls node0", "node0 calls node1", "node1 calls node2"];
    outcome.exits(0).prints_lines(["node0", "node1", "node2"].into_iter().chain(calls));
}

#[test]
fn a_shell_of_an_allocation_has_its_nodes_and_gives_them_back() {
    let script = "lattice alloc release $LATTICE_ALLOC_ID; lattice alloc shell -w node1 -- sh -c \
        '$0 hostname && lattice launch hostname && exit 6' $mpirun; echo $?; lattice alloc list; \
        lattice alloc shell -- true; echo $?; ls ~/.local/state/lattice";
    let home = tempfile::tempdir().unwrap();
    let outcome = shell(MPICHS[1], script).env("HOME", home.path()).run();
    let lines: Vec<&str> = outcome.text().lines().collect();
    let (slots, rest) = lines.split_at(lines.iter().position(|line| *line == "6").unwrap());
    // One line for each core, and the line of the launch.
    assert!(slots.len() >= 2 && slots.iter().all(|line| *line == "node1"), "{lines:?}");
    assert_eq!(rest.len(), 3, "no allocation is left, and no file: {lines:?}");
    assert_eq!(rest[2], "125");
    outcome.says(" of node1, until the command ends").says("is released");
}

#[test]
#[ignore = "second tier"]
fn its_exit_code_is_that_of_its_ranks() {
    let _machine = turn::heavy();
    // The exit code of Intel MPI varies between 255 and 141, also with two names of this machine and its own launcher only.
    for mpi in STEADY.into_iter().filter(|mpi| *mpi != Flavour::IntelMpi) {
        shell(mpi, "$mpirun -np 4 sh -c 'exit 3'").run().exits(3).does_not_say("lattice:");
    }
    // mpirun without other nodes has the same exit code. Debian's MPICH sometimes reports unreachable peers, over UCX between namespaces.
    for (mpi, code) in [(MPICHS[1], 11), (OPEN_MPIS[0], 139)] {
        shell(mpi, "$mpirun -np 4 $1 3").arg(mpi.program("crash")).run().exits(code).does_not_say("lattice:");
    }
}

#[test]
fn nothing_is_left_when_it_is_killed() {
    let _machine = turn::heavy();
    for mpi in STEADY {
        // The nodes share their processes with this machine. No other process has this sleep, because the test has the machine for itself.
        let script = "sleepers() { pgrep -cxf 'sleep 8642'; }; launches() { lattice launches --json | grep -c '\"launch_id\"'; }
            until_is() { for try in $(seq 300); do [ $($1) = $2 ] && break; sleep 0.1; done; echo $1 $($1); }
            $mpirun -np 4 sleep 8642 & mpirun=$!; until_is sleepers 4; kill -KILL $mpirun; until_is launches 0; until_is sleepers 0";
        let outcome = shell(mpi, script).run();
        outcome.prints("sleepers 4\nlaunches 0\nsleepers 0\n");
    }
}

/// The agent of the node does not respond, or is gone with its fork server, or the network of the node is cut.
#[test]
#[ignore = "second tier"]
fn a_node_that_does_not_answer_while_it_starts_is_named_and_the_rest_is_ended() {
    let _machine = turn::heavy();
    let silent = "node node1 does not start its part of the launch: ";
    let faults = [
        ("kill -STOP $(daemon node1)", silent),
        ("agent=$(daemon node1); kill -KILL $(pgrep -P $agent) $agent", "node node1 is away: its agent does not run"),
        ("nsenter --net=/proc/$(daemon node1)/ns/net ip link set eth0 down", silent),
    ];
    for mpi in [MPICHS[1], OPEN_MPIS[0], OPEN_MPIS[1]] {
        for (fault, told) in faults {
            // The nodes share their processes with this machine. No other process has this sleep, because the test has the machine for itself.
            let script = format!(
                "mpirun=$1; sleepers() {{ pgrep -cxf 'sleep 8643'; }}
                {fault}; timeout -k 5 60 $mpirun -np 3 sleep 8643; code=$?; [ $code != 0 ] && [ $code != 124 ] && echo ended
                for try in $(seq 100); do [ $(sleepers) = 0 ] && break; sleep 0.1; done; sleepers"
            );
            let command = script_on(3, &script).arg(mpi.mpirun());
            let outcome = ROOT_MAY.into_iter().fold(command, |command, name| command.env(name, "1")).run();
            outcome.prints("ended\n0\n").says(told);
        }
    }
}

/// Hydra itself does not detect the end of the command that it called; it ends with the proxy's connection. Processes on a node with a cut
/// network end with the lease of the node.
#[test]
#[ignore = "second tier"]
fn a_node_that_is_lost_while_ranks_run_is_named_and_the_rest_is_ended() {
    let _machine = turn::heavy();
    let faults =
        [("kill -STOP $(daemon node1)", 0), ("nsenter --net=/proc/$(daemon node1)/ns/net ip link set eth0 down", 1)];
    for mpi in [MPICHS[1], OPEN_MPIS[0], OPEN_MPIS[1]] {
        for (fault, left) in faults {
            let script = format!(
                "mpirun=$1; sleepers() {{ pgrep -cxf 'sleep 8644'; }}
                until_are() {{ for try in $(seq 100); do [ $(sleepers) = $1 ] && break; sleep 0.1; done; }}
                timeout -k 5 60 $mpirun -np 3 sleep 8644 & call=$!; until_are 3
                [ $(sleepers) = 3 ] || {{ kill -KILL $call; until_are 0; echo code 124; exit; }}
                {fault}; wait $call; code=$?; [ $code = 124 ] && echo hangs
                [ $code != 0 ] && [ $code != 124 ] && echo ended
                until_are {left}; sleepers"
            );
            let command = script_on(3, &script).arg(mpi.mpirun());
            let outcome = ROOT_MAY.into_iter().fold(command, |command, name| command.env(name, "1")).run();
            outcome.prints(&format!("ended\n{left}\n")).says("lattice: node node1 was lost: ");
        }
    }
}

#[test]
fn a_node_that_is_not_ours_is_named_with_those_that_are() {
    let refusal = "node7 is no node of allocation ";
    shell(MPICHS[1], "$mpirun -hosts node7 -n 1 hostname").run().says(refusal).says(", which has node[0-1]");
}

#[test]
fn its_names_behave_as_ssh() {
    let script = r#"set -x; cd /; ssh node1 'echo "a  b" $((1+1)) $(hostname)'; ssh node2 exit 9; echo $?; echo in | ssh -x node1 cat;
        ssh -n node1 cat </dev/zero; rsh -l "$(id -un)" node2 pwd; lattice-mpi-launcher node1.cluster hostname;
        lattice-mpi-launcher -L 1:a:2 node1 x; echo $?; lattice-mpi-launcher node1 'kill -KILL $$'; echo $?"#;
    let outcome = cluster(3).bash(script).env("HOME", "/tmp").run();
    let expected = ["a  b 2 node1", "9", "in", "/tmp", "node1", "255", "137"];
    assert_eq!(outcome.text().lines().collect::<Vec<_>>(), expected);
    outcome.says("lattice-mpi-launcher has no option -L; it was called with: -L 1:a:2 node1 x");
    outcome.does_not_say("exited with status").does_not_say("killed by");
}

#[test]
#[ignore = "second tier"]
fn other_hosts_are_left_to_the_ssh_behind_us() {
    let script = r#"mkdir -p $LATTICE_DEV_CLUSTER/real; printf '#!/bin/sh\necho real ssh: "$@"' >$LATTICE_DEV_CLUSTER/real/ssh
        chmod +x $LATTICE_DEV_CLUSTER/real/ssh; PATH=$PATH:$LATTICE_DEV_CLUSTER/real; hash -r
        PATH=${PATH%%:*}:$LATTICE_DEV_CLUSTER/real:$PATH; ssh elsewhere -p 22 'a b'; ssh -V;
        LATTICE_ALLOC_ID=local ssh node0 x; LATTICE_API_URL=unix:/nonexistent ssh elsewhere y; lattice alloc release $LATTICE_ALLOC_ID; ssh node0 true; echo $?"#;
    let outcome = cluster(1).bash(script).run();
    let expected =
        ["real ssh: elsewhere -p 22 a b", "real ssh: -V", "real ssh: node0 x", "real ssh: elsewhere y", "255"];
    assert_eq!(outcome.text().lines().collect::<Vec<_>>(), expected);
    outcome
        .says("in LATTICE_ALLOC_ID is over: it is released")
        .says("cannot reach the API server at unix:/nonexistent");
}

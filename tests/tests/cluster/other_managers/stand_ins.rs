//! PBS, LSF, Grid Engine and Flux as stand-ins: programs that handle standard input, environment and arguments according to the manuals
//! and sources of these managers. The real managers were not available.

use lattice_tests::Command;
use lattice_tests::mpi::Flavour;

use super::script_with;

/// Creates programs from standard input that append their arguments to `calls`. `user` runs as root, because the stand-ins must enter
/// the namespaces of the nodes.
const STAND_INS: &str = include_str!("../../../scripts/stand_ins.sh");

/// The variables and files of a job of each manager, with two slots on each of three nodes.
const JOBS: [(&str, &str); 4] = [
    ("pbs", "printf 'node%d\n' 0 0 1 1 2 2 >nodefile; export PBS_JOBID=7.node0 PBS_NODEFILE=$home/nodefile"),
    ("lsf", "export LSB_JOBID=7 LSB_MCPU_HOSTS='node0 2 node1 2 node2 2'"),
    ("sge", "printf 'node%d 2 all.q UNDEFINED\n' 0 1 2 >pe_hostfile; export JOB_ID=7 PE_HOSTFILE=$home/pe_hostfile"),
    ("flux", "export FLUX_URI=local:///run/flux FLUX_ENCLOSING_ID=f7"),
];

/// Returns a bash script in a job with these variables.
fn script_in_job(job: &str, script: &str) -> Command {
    script_with(3, &format!("{STAND_INS}\n{job}\n{script}"))
}

#[test]
fn a_launch_in_a_job_of_each_manager_runs_on_its_nodes_and_in_its_slots() {
    for (via, job) in JOBS {
        let script = r#"user lattice -v launch --fill "$1"; user lattice launch --fill hostname"#;
        let outcome = script_in_job(job, script).arg(Flavour::WheelMpich.program("hello")).run();
        let ranks = (0..6).map(|rank| format!("rank {rank} of 6"));
        let hosts = ["node0", "node1", "node2"].into_iter().flat_map(|node| [node.to_owned(), node.to_owned()]);
        outcome.exits(0).prints_lines(ranks.chain(hosts));
        outcome.says(&format!("this is an allocation of {via}: node[0-2]; --via none launches on this machine"));
    }
}

#[test]
fn nothing_is_left_of_a_job_whose_launcher_is_killed() {
    for (via, job) in JOBS {
        let script = r#"
            $as_user lattice start -- lattice launch --fill sh -c 'trap "" TERM; touch rank.$(hostname); sleep 1000' &
            launcher=$!
            until [ -e rank.node0 ] && [ -e rank.node1 ] && [ -e rank.node2 ]; do sleep 0.05; done
            [ -z "$(ls -d .lattice-join-* 2>/dev/null)" ] || exit
            kill -KILL $launcher; wait $launcher 2>/dev/null
            for attempt in {1..400}; do
                [ -z "$(started_on_nodes)" ] && echo nothing is left && exit
                sleep 0.1
            done
            ps -f -p $(started_on_nodes); exit 1"#;
        let outcome = script_in_job(job, script).run();
        outcome.exits(0).check(outcome.text() == "nothing is left\n", || format!("{via} leaves something"));
    }
}

/// PBS passes no input on. The data for the nodes is in a file that no other user can open, until the nodes have read it.
#[test]
fn a_file_that_tells_nodes_of_pbs_is_seen_by_nobody_else_and_gone_when_they_have_joined() {
    let (_, job) = JOBS[0];
    let script = r#"
        sed -i '2i stat -c "%a %F" $(dirname ${!#}) ${!#} >>$HOME/modes' bin/pbs_tmrsh
        umask 000; user lattice start -- sh -c 'ls -d .lattice-join-*; grep -c PRIVATE calls'; ls -A | grep lattice; sort -u modes"#;
    script_in_job(job, script).run().exits(0).prints("0\n600 regular file\n700 directory\n");
}

#[test]
fn a_file_that_tells_nodes_of_pbs_goes_with_a_launcher_that_is_killed() {
    let (_, job) = JOBS[0];
    let script = r#"
        printf '#!/bin/sh\nsleep 1000\n' >bin/pbs_tmrsh
        $as_user lattice start -- true & launcher=$!
        until ls .lattice-join-*/membership >/dev/null 2>&1; do sleep 0.05; done
        kill -KILL $launcher; wait $launcher 2>/dev/null
        for attempt in {1..100}; do ls -d .lattice-join-* >/dev/null 2>&1 || { echo nothing is left; exit; }; sleep 0.1; done"#;
    script_in_job(job, script).run().exits(0).prints("nothing is left\n");
}

/// An agent without an input ends with the API server, before the lease expires.
#[test]
fn agents_of_pbs_leave_with_the_cluster() {
    let (_, job) = JOBS[0];
    let script = r#"
        user lattice start -- true
        for attempt in {1..100}; do [ -z "$(started_on_nodes)" ] && echo nothing is left && exit; sleep 0.1; done"#;
    script_in_job(job, script).run().exits(0).prints("nothing is left\n");
}

#[test]
fn a_job_without_its_programs_says_which_is_missing() {
    let check = |job: &str, words: &str, expected: &str| {
        script_in_job(job, words).run().exits(125).says(expected);
    };
    check(
        JOBS[1].1,
        "rm bin/blaunch; user lattice launch true",
        "cannot find blaunch, which is to start an agent on each node",
    );
    check(
        JOBS[3].1,
        "rm bin/flux; user lattice launch true",
        "`flux hostlist instance` names no nodes of it: No such file",
    );
    check("", "user lattice launch --via sge true", "this is no job of sge: PE_HOSTFILE is not set");
}

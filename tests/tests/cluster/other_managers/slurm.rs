//! `lattice` in allocations of the real Slurm: its controller on one node, its daemon on each, and a plain user.

use lattice_tests::mpi::Flavour;
use lattice_tests::{Command, built};

use super::script_with_user;

/// In this configuration Slurm trusts the claimed identity of a client. Three nodes are configured with four
/// processors each.
const SLURM: &str = include_str!("../../../scripts/slurm.sh");

/// Returns a bash script with three nodes of Slurm.
fn script_with_slurm(script: &str) -> Command {
    script_with_user(3, &format!("{SLURM}\n{script}"))
}

#[test]
fn a_launch_in_an_allocation_runs_on_its_nodes_and_in_its_slots() {
    let script = r#"user salloc -Q -N 3 -n 7 lattice -v launch --fill "$1""#;
    for flavour in [Flavour::WheelMpich, Flavour::DebianOpenMpi, Flavour::WheelOpenMpi] {
        let outcome = script_with_slurm(script).arg(flavour.program("hello")).run();
        outcome.exits(0).prints_lines((0..7).map(|rank| format!("rank {rank} of 7")));
        outcome.says("this is an allocation of slurm: node[0-2]; --via none launches on this machine");
    }
    let script = r#"user salloc -Q -N 3 -n 7 bash -c '
        lattice launch --fill sh -c "echo \$(hostname) \$(id -u)" | sort | uniq -c | tr -s " "; lattice launch --via none hostname'"#;
    script_with_slurm(script).run().exits(0).prints(" 4 node0 4711\n 2 node1 4711\n 1 node2 4711\nnode0\n");
}

/// `srun` reads variables of the job as options. In the step of the agents they would bind or divide it, or
/// cause an error.
#[test]
fn what_a_job_asks_for_does_not_confine_the_agents() {
    let script = r#"
        user salloc -Q -N 2 -n 2 -c 2 --mem-per-cpu=100 --hint=nomultithread lattice launch --fill hostname
        export SLURM_EXACT=1 SLURM_LABELIO=1 SLURM_CPUS_PER_TASK=1 SLURM_DISTRIBUTION=cyclic SLURM_NTASKS_PER_CORE=1 SLURM_GPUS_PER_TASK=1 SLURM_NTASKS_PER_GPU=1
        user salloc -Q -N 2 -n 2 --ntasks-per-node=1 lattice launch --fill hostname"#;
    let outcome = script_with_slurm(script).run();
    outcome.exits(0).prints_lines(["node0", "node1", "node0", "node1"]);
}

/// Lattice's client and library of PMI-2, served by Slurm itself, which requires the job of a rank.
#[test]
fn ranks_of_srun_join_by_its_own_server() {
    let script = r#"
        for way in pmi2 "lib2 --library $1"; do
            user srun -Q -N 3 -n 6 --mpi=pmi2 lattice pmi --method $way exchange
        done | cut -d : -f 1,2 | cut -d , -f 1"#;
    let outcome = script_with_slurm(script).arg(built::client_library("pmi2")).run();
    outcome.exits(0).says_nothing().prints_lines(["exchange: 6 ranks"; 2]);
}

#[test]
fn a_batch_script_keeps_its_nodes_ready_with_lattice_start() {
    let script = r#"
        printf '%s\n' '#!/bin/sh' 'lattice start -- sh -c "lattice launch --fill hostname; lattice launch -n 1 echo second; exit 3"' >job
        user sbatch -Q --wait -N 2 --ntasks-per-node=2 -o out job; echo "code $?"; cat out"#;
    let outcome = script_with_slurm(script).run();
    outcome.exits(0).prints_lines(["code 3", "node0", "node0", "node1", "node1", "second"]);
}

/// In the job itself Hydra would use `srun`, and the variables of the job.
#[test]
fn an_unchanged_mpiexec_finds_the_nodes_that_are_ready() {
    let script = r#"user salloc -Q -N 3 -n 7 lattice start -- mpiexec.hydra "$1""#;
    let outcome = script_with_slurm(script).arg(Flavour::DebianMpich.program("hello")).run();
    outcome.exits(0).prints_lines((0..7).map(|rank| format!("rank {rank} of 7")));
}

#[test]
fn nothing_is_left_when_a_job_is_cancelled_or_its_launcher_killed() {
    for end in [
        "user scancel --full $(user squeue -h -o %i)",
        "kill -KILL $(pgrep --ns $(cat $here/node0.pid) --nslist net -ofx 'lattice start.*')",
    ] {
        let script = r#"
            user salloc -Q -N 2 -n 2 lattice start -- \
                lattice launch --fill sh -c 'trap "" TERM; touch rank.$(hostname); sleep 1000' &
            job=$!
            until [ -e rank.node0 ] && [ -e rank.node1 ]; do sleep 0.05; done
            END
            wait $job
            for attempt in {1..400}; do
                [ -z "$(started_on_nodes)" ] && echo nothing is left && exit
                sleep 0.1
            done
            ps -f -p $(started_on_nodes); exit 1"#;
        script_with_slurm(&script.replace("END", end)).run().exits(0).prints("nothing is left\n");
    }
}

#[test]
fn an_allocation_that_is_over_is_told_in_the_words_of_srun_with_its_variable() {
    let script = r#"SLURM_JOB_ID=99 SLURM_JOB_NODELIST=node[0-1] user lattice launch hostname"#;
    let outcome = script_with_slurm(script).run();
    outcome.exits(125).says("2 of 2 nodes did not join: node[0-1]").says("srun ended").says("Invalid job id specified");
    outcome.says("try: unset SLURM_JOB_ID, if the job that it names is over");
}

#[test]
fn each_task_of_a_step_launches_on_its_own_node() {
    let script = "user salloc -Q -N 2 -n 2 srun lattice launch hostname";
    script_with_slurm(script).run().exits(0).prints_lines(["node0", "node1"]);
}

//! Properties of the programs of every MPI library, unmodified and without a flag: MPICH 4.0.2 and 5.0.2, Intel MPI, Open MPI 4.1 and 5.0.

use lattice_tests::launch;
use lattice_tests::mpi::MPIS;

/// Prefix of every message of Lattice. Open MPI itself sometimes prints messages.
const OURS: &str = "lattice:";

#[test]
fn hello_knows_its_rank_and_size() {
    for mpi in MPIS {
        let outcome = launch("-n 4").arg(mpi.program("hello")).run();
        outcome.exits(0).says_nothing().prints_lines((0..4).map(|rank| format!("rank {rank} of 4")));
    }
}

#[test]
fn one_rank_needs_no_flag_at_all() {
    for mpi in MPIS {
        launch("").arg(mpi.program("hello")).run().exits(0).says_nothing().prints_lines(["rank 0 of 1"]);
    }
}

#[test]
fn a_token_goes_round_the_ring() {
    for mpi in MPIS {
        let outcome = launch("-n 5").arg(mpi.program("ring")).run();
        outcome.exits(0).says_nothing().prints_lines(["the token came back with 10"]);
    }
}

#[test]
fn ranks_of_a_node_share_memory() {
    for mpi in MPIS {
        let outcome = launch("-n 3").arg(mpi.program("split_type")).run();
        let heard = |rank: u32| format!("rank {rank} of 3 on its node heard of {}", (rank + 2) % 3);
        outcome.exits(0).does_not_say(OURS).prints_lines((0..3).map(heard));
    }
}

#[test]
fn mpmd_appnums() {
    for mpi in MPIS {
        let appnum = mpi.program("appnum");
        let first = launch("--universe-size 9 -n 1").arg(&appnum);
        let outcome = first.words(": -n 2").arg(&appnum).words(": -n 1").arg(&appnum).run();
        let appnums = [0, 1, 1, 2].into_iter().enumerate().map(|(rank, app)| format!("rank {rank}: appnum {app}"));
        let universe = (0..4).map(|rank| format!("rank {rank}: universe size 9"));
        outcome.exits(0).says_nothing().prints_lines(appnums.chain(universe));
    }
}

#[test]
fn two_launches_at_once_do_not_meet() {
    for mpi in MPIS {
        let ring = mpi.program("ring");
        let (three, four) = (launch("-n 3").arg(&ring).start(), launch("-n 4").arg(&ring).start());
        three.finish().exits(0).says_nothing().prints_lines(["the token came back with 3"]);
        four.finish().exits(0).says_nothing().prints_lines(["the token came back with 6"]);
    }
}

/// In an allocation of Slurm each rank of Open MPI 4.1 became a job by itself, and returned 0.
#[test]
fn ranks_join_in_allocations_of_other_managers() {
    const ALLOCATIONS: [&[(&str, &str)]; 6] = [
        &[("SLURM_JOBID", "5"), ("SLURM_JOB_ID", "5"), ("SLURM_NODELIST", "n"), ("SLURM_NNODES", "1")],
        &[("FLUX_JOB_ID", "f1"), ("FLUX_URI", "local:///nonesuch")],
        &[("PBS_JOBID", "4.n"), ("PBS_NODEFILE", "/etc/hosts"), ("PBS_ENVIRONMENT", "PBS_BATCH")],
        &[("LSB_JOBID", "3"), ("LSB_HOSTS", "n"), ("JSM_NAMESPACE_RANK", "0"), ("JSM_NAMESPACE_SIZE", "1")],
        &[("JOB_ID", "3"), ("PE_HOSTFILE", "/etc/hosts"), ("SGE_ROOT", "/nonesuch")],
        &[("ALPS_APP_ID", "3"), ("PALS_APID", "3")],
    ];
    for mpi in MPIS {
        for variables in ALLOCATIONS {
            let command = launch("--via none -n 2").arg(mpi.program("hello"));
            let command = variables.iter().fold(command, |command, (name, value)| command.env(name, value));
            command.run().exits(0).prints_lines((0..2).map(|rank| format!("rank {rank} of 2")));
        }
    }
}

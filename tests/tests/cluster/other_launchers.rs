//! Lines of mpiexec, mpirun and srun, with programs of their MPI libraries, on several nodes.

use lattice_tests::mpi::{MPICHS, OPEN_MPIS};
use lattice_tests::{cluster, script_on, turn};

/// Prints the rank and its node.
const WHERE: &str =
    r#"bash -c 'IFS=, read -ra nodes <<<"$LATTICE_NODELIST"; echo "$LATTICE_RANK ${nodes[$LATTICE_NODE]}"'"#;

#[test]
fn ranks_are_where_the_other_launcher_would_put_them() {
    let check = |line: &str, expected: &[&str]| {
        script_on(2, &format!("{line} {WHERE}")).run().exits(0).prints_lines(expected);
    };
    check("lattice mpiexec -hosts node0,node1 -n 4", &["0 node0", "1 node1", "2 node0", "3 node1"]);
    check("lattice mpiexec -hosts node1,node0 -ppn 2", &["0 node1", "1 node1", "2 node0", "3 node0"]);
    check("lattice mpirun -H node0:1,node1:2 -np 3", &["0 node0", "1 node1", "2 node1"]);
    check("lattice mpirun --map-by ppr:1:node", &["0 node0", "1 node1"]);
    check("lattice srun -N2 -n3 -m cyclic", &["0 node0", "1 node1", "2 node0"]);
    // As many nodes as are named, with a task on each.
    check("lattice srun -w node[0-1]", &["0 node0", "1 node1"]);
    check("lattice srun -w node1 -n2 --overlap -p debug", &["0 node1", "1 node1"]);
    let programs = format!("lattice mpiexec -n 1 -host node1 {WHERE} : -n 2 -host node0");
    check(&programs, &["0 node1", "1 node0", "2 node0"]);
    let programs = format!("lattice mpiexec -n 2 -host node1,node0 {WHERE} : -n 1 -host node0");
    check(&programs, &["0 node1", "1 node0", "2 node0"]);
    check(&format!("lattice srun -N1 -n2 {WHERE} : -N1 -n1"), &["0 node0", "1 node0", "2 node1"]);
}

/// Recorded from mpiexec.hydra of Intel MPI 2021.18.1 on nodes of two cores.
#[test]
fn lines_of_intel_fill_the_cores_of_named_hosts() {
    let script = format!(
        r#"export LATTICE_MPIEXEC=intel; unset ${{!HYDRA_@}} ${{!I_MPI_@}}
        cores=$(lattice launch -N1 --tasks-per 1:core echo | wc -l); printf 'node1\nnode0:1\n' >"$TMPDIR/hosts" || exit 90
        on() {{ sort -n | awk '{{ print $2 }}' | uniq -c | awk '{{ printf "%s:%s ", $2, $1 }}'; }}
        for hosts in "-hosts node1,node0" "-f $TMPDIR/hosts"; do
            echo "$(lattice mpiexec -n $((2 * cores + 1)) $hosts {WHERE} | on)"
            echo "$(lattice mpiexec -n $cores $hosts {WHERE} | on)"
            echo "$(lattice mpiexec $hosts {WHERE} | on)"
        done | sed "s/:$cores /:c /g"
        lattice mpiexec -n 3 -machinefile "$TMPDIR/hosts" {WHERE}"#
    );
    let filled = ["node1:c node0:c node1:1 ", "node1:c ", "node1:c node0:c "];
    let expected = [filled.as_slice(), &filled, &["0 node1", "1 node0", "2 node1"]].concat();
    let directory = tempfile::tempdir().unwrap();
    script_on(2, &script).env("TMPDIR", directory.path()).run().exits(0).prints_lines(&expected);
}

/// Without a number, Open MPI's users expect a rank on each core. They also expect an error for more ranks than
/// slots.
#[test]
fn lines_of_open_mpi_have_a_slot_for_each_core() {
    let script = r#"export LATTICE_MPIEXEC=ompi; unset ${!OMPI_MCA_@} ${!PRTE_MCA_@}; cores=$(lattice launch --tasks-per 1:core echo | wc -l)
        [ $(lattice mpirun echo | wc -l) = $cores ] && lattice mpirun -np $cores true || exit 90
        lattice mpirun -np $((cores + 1)) true; [ $? = 125 ] || exit 91
        lattice mpirun --oversubscribe -np $((cores + 1)) true && LATTICE_MPIEXEC=hydra lattice mpirun -np $((cores + 1)) true"#;
    let outcome = script_on(2, script).run();
    outcome.exits(0).says("ranks do not fit: node[0-1] have room for").says("mpirun's --oversubscribe");
}

/// As in Slurm, where users then add `-O`.
#[test]
fn lines_of_srun_have_a_cpu_for_each_rank_of_an_allocation() {
    let script = r#"cpus=$(nproc); lattice srun -N2 -n $((2 * cpus)) echo && lattice srun -N1 -n $cpus true || exit 90
        lattice srun -N1 -n $((cpus + 1)) true; [ $? = 125 ] || exit 91
        lattice srun -N1 -n $cpus -c2 --cpu-bind=none true; [ $? = 125 ] || exit 92
        LATTICE_ALLOC_ID=none lattice launch --no-overcommit -n $((cpus + 1)) true; [ $? = 125 ] || exit 93
        lattice srun -O -N1 -n $((cpus + 1)) true && SLURM_OVERCOMMIT=1 lattice srun -N1 -n $((cpus + 1)) true"#;
    let outcome = script_on(2, script).run();
    outcome.exits(0).says("lattice: node0 has ").says(", each with 2; start fewer").says("--overcommit (-O)");
}

#[test]
#[ignore = "second tier"]
fn programs_of_each_library_start_by_its_own_launchers_line() {
    let _machine = turn::heavy();
    let script = r#"lattice mpiexec -l -ppn 2 -hosts node0,node1 "$1" &&
        lattice mpirun --tag-output --host node0:2,node1:2 --mca pml ob1 --map-by core "$2" &&
        lattice srun -l -N2 --ntasks-per-node=2 --mpi=pmix "$2" && lattice srun -l -N 2 -n 4 --mpi=pmi2 "$1""#;
    let command = cluster(2).bash(script).arg(MPICHS[1].program("hello")).arg(OPEN_MPIS[1].program("hello"));
    let lines = (0..4).map(|rank| format!("[{rank}] rank {rank} of 4"));
    command.run().exits(0).prints_lines(lines.flat_map(|line| vec![line; 4]));
}

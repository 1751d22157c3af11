//! Names that ranks publish, on a cluster: two copies of one program, two scripts, and the ranges of PMIx.

use lattice_tests::mpi::Flavour;
use lattice_tests::script_on;

/// The client of the second copy looks up its server after the first copy has published the name, and before the second one has.
const COPIES: &str = r#"
    cd "$LATTICE_DEV_CLUSTER"; until_there() { until [ -e "$1" ]; do sleep 0.02; done; }
    copy() { local name=$1; shift; env COPY=$name "$@" lattice launch -N 2 -n 2 "$program" & jobs+=($!); }
    program=$1
    copy one CLIENT_GATE=client PUBLISHED=published; until_there published
    copy two SERVER_GATE=server LOOKED=looked; until_there looked
    touch client server; code=0; for job in "${jobs[@]}"; do wait $job || code=1; done; exit $code"#;

#[test]
fn two_copies_of_a_coupled_program_never_meet_each_other() {
    for (mpi, program) in [
        (Flavour::WheelMpich, "coupled"),
        (Flavour::DebianOpenMpi, "coupled"),
        (Flavour::WheelOpenMpi, "coupled"),
        (Flavour::SlurmPmi2, "pmi2_coupled"),
        (Flavour::Pmix, "pmix_coupled"),
    ] {
        // Over UCX, the address of MPICH 5.0.2 does not fit into a port's name. Open MPI ignores the variable.
        let command = script_on(2, COPIES).env("MPIR_CVAR_CH4_NETMOD", "ofi");
        let outcome = command.arg(mpi.program(program)).run();
        let lines = ["one", "two"].map(|copy| format!("the server of {copy} has the client of {copy}"));
        outcome.exits(0).warns_of_nothing().prints_lines(lines);
    }
}

/// Two scripts that start a server and a client each, as separate launches: with 1 rank each, and with 2 ranks each.
#[test]
fn the_client_of_a_script_meets_the_server_of_the_same_script() {
    let script = r#"
        script() { bash -c 'lattice launch -n $0 "$1" host & lattice launch -n $0 "$1" guest && wait $!' "$@"; }
        script 1 "$1" & one=$!
        script 2 "$1" && wait $one"#;
    for mpi in [Flavour::WheelMpich, Flavour::WheelOpenMpi] {
        let command = script_on(2, script).env("MPIR_CVAR_CH4_NETMOD", "ofi");
        let outcome = command.arg(mpi.program("meeting")).run();
        let lines = [1, 2].into_iter().flat_map(|ranks| {
            let line = move |role, rank| format!("{role} {rank}: {ranks} on the other side, {} together", 2 * ranks);
            (0..ranks).flat_map(move |rank| [line("host", rank), line("guest", rank)])
        });
        outcome.exits(0).warns_of_nothing().prints_lines(lines);
    }
}

/// A rank publishes a value in each range. These ranks look it up: on its node, of its job on another node, of a launch of its allocation and of
/// another allocation.
#[test]
fn values_are_found_in_their_range_on_the_node_in_the_job_the_allocation_and_beyond() {
    let script = r#"
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null; cd "$LATTICE_DEV_CLUSTER"
        mine=$(lattice alloc create -w node[0-1]) && other=$(lattice alloc create -w node2) || exit
        lattice launch --alloc $mine -N 2 --ntasks-per-node 2 "$1" publish & publisher=$!
        # Another program: one that runs the publisher's is taken to publish its own names.
        cp "$1" looking; until [ -e published ]; do sleep 0.02; done
        lattice launch --alloc $mine -w node0 -n 1 ./looking node0
        lattice launch --alloc $mine -w node1 -n 1 ./looking node1
        lattice launch --alloc $other -n 1 ./looking other
        touch looked; wait $publisher"#;
    let outcome = script_on(3, script).arg(Flavour::Pmix.program("pmix_ranges")).run();
    outcome.exits(0).prints_lines([
        "rank 0: PROC_LOCAL LOCAL NAMESPACE SESSION GLOBAL",
        "rank 1: LOCAL NAMESPACE SESSION GLOBAL CUSTOM",
        "rank 2: NAMESPACE SESSION GLOBAL",
        "rank 3: NAMESPACE SESSION GLOBAL",
        "node0: LOCAL SESSION GLOBAL",
        "node1: SESSION GLOBAL",
        "other: GLOBAL",
    ]);
}

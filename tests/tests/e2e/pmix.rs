//! Programs that use libpmix directly: requests to Lattice's PMIx server that no MPI library sends.

use lattice_tests::launch;
use lattice_tests::mpi::Flavour;

#[test]
fn values_of_every_scope_are_found_where_they_belong() {
    let outcome = launch("-n 4").arg(Flavour::Pmix.program("pmix_exchange")).run();
    outcome.exits(0).says_nothing().prints_lines((0..4).map(|rank| format!("rank {rank} of 4: 0 wrong, late 400")));
}

#[test]
fn a_lookup_waits_for_what_is_published() {
    let outcome = launch("-n 3").arg(Flavour::Pmix.program("pmix_names")).run();
    let refused = "rank 0: the name \"an ocean\" is not published: the name is already published by rank 0 of launch ";
    outcome.exits(0).says(refused).prints_lines([
        "published: SUCCESS",
        "looked up: SUCCESS, pacific of rank 0",
        "again: refused",
        "withdrawn: SUCCESS",
        "looked up again: not found",
    ]);
}

#[test]
fn ranks_connect_in_groups() {
    let outcome = launch("-n 5").arg(Flavour::Pmix.program("pmix_connect")).run();
    outcome.exits(0).says_nothing().prints_lines((0..5).map(|rank| format!("rank {rank} of 5: 0 wrong")));
}

/// Twice, because a process may initialize PMIx again after it has finalized it. Ranks also stop each other and
/// continue.
#[test]
fn queries_tell_of_sets_processes_and_memory() {
    let program = Flavour::Pmix.program("pmix_query");
    let outcome = launch("-n 2 --time 90s --pset ocean").arg(&program).words("1 : -n 1 --pset ice").arg(&program).run();
    outcome.exits(0).says_nothing().prints_lines((0..3).map(|rank| format!("rank {rank} of 3: 0 wrong")));
}

#[test]
fn a_name_of_a_set_that_mpi_has_itself_is_refused() {
    launch("--pset mpi://WORLD").arg("true").run().exits(125).says("begin with mpi:// are MPI's own");
}

#[test]
fn an_event_reaches_those_who_wait_for_it() {
    let outcome = launch("-n 4").arg(Flavour::Pmix.program("pmix_event")).run();
    let heard = |rank| format!("rank {rank}: rank 0 says that the tide is high");
    outcome.exits(0).says_nothing().prints_lines((1..4).map(heard));
}

#[test]
fn an_abort_has_its_code_and_its_words() {
    let outcome = launch("-n 4").arg(Flavour::Pmix.program("pmix_abort")).words("1 42").run();
    outcome.exits(42).prints_lines(["aborting"]).says("rank 1 on ").says("code 42: the sea is dry; all of it");
}

#[test]
fn both_families_are_offered_and_either_can_be_left_out() {
    let script = r#"echo "${PMI_FD:+pmi} ${PMIX_NAMESPACE:+pmix} $PMIX_RANK $MPIR_CVAR_PMI_VERSION $OMPI_MCA_schizo""#;
    let prints = |flags: &str, line: &str| {
        launch(flags).bash(script).run().exits(0).prints_lines([line]);
    };
    prints("", "pmi pmix 0 1 ^orte,slurm,alps,flux,jsm,moab");
    prints("--pmi pmix", " pmix 0  ^orte,slurm,alps,flux,jsm,moab");
    prints("--pmi pmi1", "pmi    ");
    prints("--pmi none", "    ");
}

#[test]
fn what_the_user_says_to_mpich_stays() {
    let script = "echo $MPIR_CVAR_PMI_VERSION";
    launch("").env("MPIR_CVAR_PMI_VERSION", "2").bash(script).run().exits(0).prints_lines(["2"]);
    launch("--env MPIR_CVAR_PMI_VERSION=x").bash(script).run().exits(0).prints_lines(["x"]);
}

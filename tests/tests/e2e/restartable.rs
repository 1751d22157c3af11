//! `--restartable`: programs of ranks that are killed and run again, or that close their connection and connect
//! again.

use lattice_tests::launch;
use lattice_tests::mpi::{MPICHS, OPEN_MPIS};

use crate::raw;

/// A client that loses its descriptors in a restart, like a process that DMTCP restores.
const COMES_AGAIN: &str = r#"
    come() {
        exec {PMI_FD}<>/dev/tcp/${PMI_PORT%:*}/${PMI_PORT##*:}
        ask "cmd=initack pmiid=$PMI_ID"; for i in 1 2 3; do hear; done
        init
    }
    of_other() { ask "cmd=get kvsname=$LATTICE_KVSNAME key=k$((1 - LATTICE_RANK))"; echo "$1 ${reply##*value=}"; }
    for generation in 1 2 3; do
        come; of_other "at the start of $generation:"; barrier
        ask "cmd=put key=k$LATTICE_RANK value=$generation"; barrier; of_other "after its fence:"
        test $generation = 3 || exec {PMI_FD}>&-
    done
    finalize"#;

#[test]
fn a_client_that_drops_its_descriptor_comes_again_by_its_key() {
    let check = |flag: &str, found: [&str; 3]| {
        let outcome = raw::script(launch(&format!("-n 2 {flag}")), COMES_AGAIN).run();
        let lines = found.iter().zip(1..).flat_map(|(found, generation)| {
            [format!("at the start of {generation}: {found}"), format!("after its fence: {generation}")]
        });
        let lines: Vec<_> = lines.flat_map(|line| [line.clone(), line]).collect();
        outcome.exits(0).says_nothing().prints_lines(lines);
    };
    let nothing = "cmd=get_result rc=1 msg=key_not_found";
    check("--restartable", [nothing, "1", "2"]);
    check("--restartable=keep", [nothing, "1", "2"]);
    check("--restartable=fresh", [nothing; 3]);
}

/// As `app dies || app` in the script of a rank.
#[test]
fn programs_that_are_killed_on_all_ranks_are_run_again() {
    for mpi in MPICHS.into_iter().chain(OPEN_MPIS) {
        for flag in ["--restartable", "--restartable=fresh"] {
            let script = r#"{ "$1" first || "$1" second || "$1"; } 2>&1"#;
            let outcome = launch(&format!("-n 4 {flag}")).bash(script).arg(mpi.program("restarted")).run();
            let outcome = outcome.exits(0);
            for word in ["first", "second", "last"] {
                outcome.prints(&format!("{word}: the sum over 4 ranks is right"));
            }
        }
    }
}

/// A second program of a rank during the first one is an error.
#[test]
fn a_rank_that_is_there_is_not_claimed_again() {
    let script = r#"
        come() { exec {PMI_FD}<>/dev/tcp/${PMI_PORT%:*}/${PMI_PORT##*:}; ask "cmd=initack pmiid=$PMI_ID"; }
        come; for i in 1 2 3; do hear; done; init
        first=$PMI_FD; come; echo "$reply"; PMI_FD=$first; barrier; finalize"#;
    let outcome = raw::script(launch("-n 2 --restartable"), script).run();
    outcome.exits(0).prints("rank_0_is_claimed_already").prints("rank_1_is_claimed_already");
}

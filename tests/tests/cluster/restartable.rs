//! `--restartable` on several nodes: programs that are killed on all ranks and run again.

use lattice_tests::mpi::{Flavour, MPICHS, OPEN_MPIS};
use lattice_tests::{cluster, turn};

/// As `app dies || app` in the script of a rank.
#[test]
#[ignore = "second tier"]
fn programs_that_are_killed_on_all_nodes_are_run_again() {
    let _machine = turn::heavy();
    // MPICH 4.0.2 often hangs at its end on several nodes, with any launcher.
    for mpi in [MPICHS[1], Flavour::IntelMpi, OPEN_MPIS[0], OPEN_MPIS[1]] {
        let script = r#"
            for flag in --restartable --restartable=fresh; do
                lattice launch -n 5 $flag bash -c '{ "$1" first || "$1" second || "$1"; } 2>&1' bash "$1" || exit
            done"#;
        let outcome = cluster(3).bash(script).arg(mpi.program("restarted")).run();
        let said = String::from_utf8_lossy(outcome.exits(0).stdout());
        for word in ["first", "second", "last"] {
            let line = format!("{word}: the sum over 5 ranks is right");
            assert_eq!(said.matches(&line).count(), 2, "{mpi:?}: {said}");
        }
    }
}

/// Ranks are killed at any time, even while other ranks are in a fence. Each restart restarts all ranks.
#[test]
fn a_restart_in_the_middle_of_a_fence_is_one_of_all_ranks() {
    let rank = r#"
        ask() { printf '%s\n' "$1" >&5; IFS= read -r reply <&5; }
        exec 5<>/dev/tcp/${PMI_PORT%:*}/${PMI_PORT##*:}
        ask "cmd=initack pmiid=$PMI_ID"; for i in 1 2 3; do read -r reply <&5; done
        ask "cmd=init pmi_version=1 pmi_subversion=1"
        ask "cmd=put key=k$LATTICE_RANK value=$1"
        # In all lives but the last some ranks wait for others, which have been killed.
        test $1 = 4 || test $((LATTICE_RANK % 4)) -ge $1 || kill -9 $$
        test $1 = 4 || { printf 'cmd=barrier_in\n' >&5; sleep 0.2; kill -9 $$; }
        ask cmd=barrier_in
        ask "cmd=get key=k$(((LATTICE_RANK + 1) % 5))"; echo "rank $LATTICE_RANK: ${reply##*=}"
        ask cmd=finalize"#;
    let script = r#"lattice launch -n 5 --restartable bash -c '
        { for life in 1 2 3 4; do bash -c "$1" bash $life && exit; done; } 2>/dev/null' bash "$1""#;
    let outcome = cluster(3).bash(script).arg(rank).run();
    outcome.exits(0).prints_lines((0..5).map(|rank| format!("rank {rank}: 4")));
}

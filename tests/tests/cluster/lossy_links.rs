//! Links that lose packets, or that work in one direction only. Launches continue if possible, and otherwise end with the one
//! correct cause.

use lattice_tests::mpi::Flavour;
use lattice_tests::script_on;
use nix::unistd::geteuid;

/// Rules for the incoming packets of a node, in a separate table; `heal` removes them.
const RULES: &str = r#"
    on() { local node=$1; shift; nsenter --net=/proc/$(daemon $node)/ns/net "$@"; }
    address_of() { on $1 ip -4 -o address show scope global | sed -nE 's|.* inet ([0-9.]+)/.*|\1|p'; }
    # The packets from a node that another gets: `lose node0 node1 WHICH`, in words of nft.
    lose() {
        local from=$(address_of $1)
        on $2 nft "add table inet lossy; add chain inet lossy in { type filter hook input priority 0; }; add rule inet lossy in ip saddr $from $3 counter drop"
    }
    lost_some() { on $1 nft list chain inet lossy in | grep -q 'packets [1-9]' && echo "$1 has lost some"; }
    heal() { on $1 nft delete table inet lossy; }
    # An allocation in the place of one that failed, when all nodes are there again.
    allocate_anew() {
        until nodes_up 2; do sleep 0.1; done
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null
        until LATTICE_ALLOC_ID=$(lattice alloc create -N 2 2>/dev/null); do sleep 0.1; done
        export LATTICE_ALLOC_ID
    }"#;

#[test]
fn fences_complete_and_no_node_is_lost_where_a_tenth_of_all_packets_is() {
    assert!(geteuid().is_root(), "this test must run as root");
    let script = format!(
        r#"{RULES}
        lose node0 node1 "numgen random mod 100 < 10"; lose node1 node0 "numgen random mod 100 < 10"
        lattice launch -N 2 -n 4 lattice pmi exchange --count 50 | grep -o '50 rounds'; echo "code ${{PIPESTATUS[0]}}"
        lattice launch -N 2 -n 4 "$1"; echo "code $?"
        lost_some node0; lost_some node1; nodes_up 2 && echo "both are up""#
    );
    // Not a program of MPI: a rank of MPICH can wait for ever in MPI_Finalize for a packet that was lost as its sender ended.
    let outcome = script_on(2, &script).arg(Flavour::SlurmPmi2.program("pmi2_fence")).run();
    let ends = ["50 rounds", "code 0", "code 0", "both are up", "node0 has lost some", "node1 has lost some"];
    let fenced = (0..4).map(|rank| format!("rank {rank} of 4: 0 wrong values"));
    outcome.exits(0).warns_of_nothing().prints_lines(fenced.chain(ends.map(str::to_owned)));
}

/// In both directions: either the API server receives nothing from the node, or the node receives nothing from it.
#[test]
fn a_node_that_is_cut_off_one_way_is_lost_and_what_runs_there_ends() {
    assert!(geteuid().is_root(), "this test must run as root");
    let script = format!(
        r#"{RULES}
        restart_api sed -i '1i lease = 6' "$LATTICE_DEV_CLUSTER/api.toml"
        for way in "node1 api" "api node1"; do
            lattice launch --pmi=none -N 2 -n 2 sleep 1000 & launch=$!
            rank=$(pid_of_rank $(launch_with 2) 1)
            lose $way ""
            wait $launch; echo "code $?"
            while kill -0 $rank 2>/dev/null; do sleep 0.1; done
            lost_some ${{way#* }}; heal ${{way#* }}
            allocate_anew
            lattice launch -N 2 -n 4 lattice pmi barrier | grep -o '4 ranks'
        done"#
    );
    let outcome = script_on(2, &script).run();
    let lost = ["api has lost some", "node1 has lost some"];
    let each = ["code 125", "4 ranks"];
    outcome.exits(0).prints_lines(each.into_iter().chain(each).chain(lost));
    let causes = outcome.errors().lines().filter(|line| line.contains("node1 was lost")).count();
    outcome.check(causes == 2, || format!("node1 should be the cause twice, not {causes} times"));
}

/// The API server reaches both nodes, so that the link between them must be the cause.
#[test]
fn a_link_that_is_cut_one_way_amid_fences_ends_the_launch_with_one_cause() {
    assert!(geteuid().is_root(), "this test must run as root");
    let script = format!(
        r#"{RULES}
        for way in "node0 node1" "node1 node0"; do
            lattice launch -N 2 -n 4 lattice pmi barrier --count 100000000 2>"$LATTICE_DEV_CLUSTER/said" & launch=$!
            id=$(launch_with 4)
            # Some fences are behind them, so the link is there.
            until lattice status $id | grep -q fence; do sleep 0.05; done
            nodes_up 2 && echo "both are up"
            lose $way ""
            wait $launch; echo "code $?"; grep -c . "$LATTICE_DEV_CLUSTER/said"; cat "$LATTICE_DEV_CLUSTER/said" >&2
            nodes_up 2 && echo "both are up"
            lost_some ${{way#* }}; heal ${{way#* }}
            allocate_anew
            lattice launch -N 2 -n 4 lattice pmi barrier | grep -o '4 ranks'
        done"#
    );
    let outcome = script_on(2, &script).run();
    let each = ["both are up", "code 125", "1", "both are up", "4 ranks"];
    let lost = ["node0 has lost some", "node1 has lost some"];
    outcome.exits(0).prints_lines(each.into_iter().chain(each).chain(lost));
}

/// No packet passes in either direction, and the API server reaches both nodes.
#[test]
fn a_link_that_is_cut_both_ways_amid_fences_ends_the_launch_with_one_cause() {
    assert!(geteuid().is_root(), "this test must run as root");
    let script = format!(
        r#"{RULES}
        lattice launch -N 2 -n 4 lattice pmi barrier --count 100000000 2>"$LATTICE_DEV_CLUSTER/said" & launch=$!
        id=$(launch_with 4)
        until lattice status $id | grep -q fence; do sleep 0.05; done
        lose node0 node1 ""; lose node1 node0 ""
        wait $launch; echo "code $?"; grep -c . "$LATTICE_DEV_CLUSTER/said"; cat "$LATTICE_DEV_CLUSTER/said" >&2
        nodes_up 2 && echo "both are up"
        lost_some node0; lost_some node1; heal node0; heal node1
        allocate_anew
        lattice launch -N 2 -n 4 lattice pmi barrier | grep -o '4 ranks'"#
    );
    let outcome = script_on(2, &script).run();
    outcome.exits(0).prints_lines([
        "code 125",
        "1",
        "both are up",
        "node0 has lost some",
        "node1 has lost some",
        "4 ranks",
    ]);
}

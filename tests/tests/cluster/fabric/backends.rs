//! The back ends that are not in the design document: HPE's vnid, and Lattice's own pool.

use super::with_fabric;

/// The vnid assigns VNIs itself. Therefore a job is deleted only after the nodes have confirmed; otherwise its VNI
/// could be reused too early.
#[test]
fn a_vnid_has_the_vni_back_after_the_nodes() {
    let script = r#"
        afresh
        configure 's/^backend = "rest"/backend = "vnid"\npartition = "WLM"/'
        faults '[{"on": "create", "fault": "lose_answer"}]'
        alloc=$(lattice alloc create -N 2)
        run() { lattice launch --alloc $alloc --pmi none -n 2 bash -c 'echo $SLINGSHOT_VNIS $SLINGSHOT_DEVICES ${FI_CXI_AUTH_KEY-none}'; }
        run; spoilt create || exit 95
        killed api; run
        kill -STOP $(daemon node1); release $alloc
        soon grep -q "nothing is left of the VNI here vni=2048" "$here/node0.log"
        waits ending node && tail -n +$((asked + 1)) "$here/fabric.log" | grep -c '"call":"delete"'
        kill_dead api; kill -CONT $(daemon node1); again api; all_given_back
        sed -nE 's/.*"call":"(create|delete)".*"path":"([^"]*)".*"status":(null|[0-9]*).*/\1 \2 \3/p' "$here/fabric.log" |
            grep vnis | sed "s/$alloc/ALLOC/"
        # What it made for a server that was killed meanwhile is found by its name.
        faults '[{"on": "create", "fault": {"slow": {"milliseconds": 5000}}}]'
        alloc=$(lattice alloc create -N 2); soon spoilt create
        killed api; release $alloc; all_given_back"#;
    let rank = "2048 cxi0,cxi1 none";
    let jobs = "/vnis/WLM/jobs";
    let calls = [format!("create {jobs} null"), format!("create {jobs} 409"), format!("delete {jobs}/dev.ALLOC.1 200")];
    let lines = [rank, rank, rank, rank, "0", "all given back", "all given back"].map(str::to_owned);
    with_fabric(script).run().exits(0).prints_lines(lines.into_iter().chain(calls));
}

/// No service exists, and none is required.
#[test]
fn a_pool_needs_no_service() {
    let script = r#"
        afresh
        kill_dead fabric
        configure 's/^backend = "rest"/backend = "pool"/; /^url = /d; /^\[fabric.auth\]/,$d'
        run() {
            alloc=$(lattice alloc create -N 2)
            lattice launch --alloc $alloc --pmi none -n 2 bash -c 'echo $SLINGSHOT_VNIS $SLINGSHOT_DEVICES ${FI_CXI_AUTH_KEY-none}'
            release $alloc
        }
        run; all_given_back
        killed api
        run; all_given_back"#;
    let [first, second] = [1025, 1026].map(|vni| format!("{vni} cxi0,cxi1 none"));
    let given_back = "all given back";
    with_fabric(script).run().exits(0).prints_lines([&first, &first, given_back, &second, &second, given_back]);
}

//! Ranks that write nonsense to all objects with write access (`programs/scribbler.c`): the memory of their job, inherited descriptors, and
//! files in places where their session removes files of ranks.

use std::fs;

use lattice_tests::mpi::Flavour;
use lattice_tests::{built, launch};

/// In the meantime the values of fences are correct, for all ranks and for the hostile one.
#[test]
fn nobody_can_change_the_memory_of_a_job() {
    let script = r#"[ $PMI_RANK = 1 ] || exec "$2" pmi exchange --count 40 --size 500
        "$1" memory 50 & scribbler=$!
        "$2" pmi exchange --count 40 --size 500; code=$?
        wait $scribbler; exit $code"#;
    let scribbler = Flavour::Plain.program("scribbler");
    let outcome = launch("-n 3 --node-memory=1M").bash(script).arg(scribbler).arg(built::lattice()).run();
    outcome.exits(0).says_nothing().prints("0 changes got through of many\n").prints("exchange: 3 ranks, 40 rounds");
}

#[test]
fn a_hostile_launch_ends_and_harms_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let (kept, go) = (directory.path().join("kept"), directory.path().join("go"));
    fs::write(&kept, "not the rank's").unwrap();
    let waits = r#"until [ -e "$1" ]; do sleep 0.01; done; exec "$2" pmi exchange --count 20"#;
    let other = launch("-n 2 --node-memory=1M").bash(waits).arg(&go).arg(built::lattice()).start();
    let temporary = tempfile::tempdir().unwrap();
    // The session removes files of ranks that have used PMIx.
    let script = r#"[ "$3" = none ] || "$2" pmi --method pmix barrier >/dev/null; exec "$1" all "$4""#;
    let check = |flags: &str, pmix: &str, end: &str| {
        let hostile =
            launch("--node-memory=1M --timeout 5s --kill-wait 1s").words(flags).env("TMPDIR", temporary.path());
        let hostile = hostile.bash(script).arg(Flavour::Plain.program("scribbler")).arg(built::lattice()).arg(pmix);
        hostile.arg(directory.path()).run().prints("0 changes got through of ").says(end);
        assert_eq!(fs::read_to_string(&kept).unwrap(), "not the rank's", "{flags}");
        let left = fs::read_dir(temporary.path()).unwrap().count();
        assert!(pmix == "none" || left == 0, "{left} files are left: {flags}");
        fs::read_dir(temporary.path()).unwrap().for_each(|left| drop(fs::remove_file(left.unwrap().path())));
    };
    check("-n 1", "pmix", "broke the PMI protocol");
    check("-n 2", "pmix", "broke the PMI protocol");
    check("-n 2 --stdin all", "pmix", "broke the PMI protocol");
    check("-n 2 --pmi pmix", "pmix", "the time limit of 5s is over");
    check("-n 1 --pmi-port --no-job-memory", "none", "the time limit of 5s is over");
    fs::write(&go, "").unwrap();
    other.finish().exits(0).says_nothing().prints("exchange: 2 ranks, 20 rounds");
}

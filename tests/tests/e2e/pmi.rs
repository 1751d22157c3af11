//! The `--pmi...` flags, and the client `lattice pmi`, under Lattice and under another launcher.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use lattice_tests::mpi::{Flavour, OPEN_MPIS};
use lattice_tests::{Command, built, lattice, launch};

use crate::raw;

#[test]
fn only_what_is_offered_is_served() {
    let mpich = Flavour::DebianMpich.program("hello");
    let slurm = Flavour::SlurmPmi2.program("pmi2_fence");
    launch("-n 2 --pmi pmi1").arg(&mpich).run().exits(0).says_nothing();
    launch("-n 2 --pmi pmi2").arg(&slurm).run().exits(0).says_nothing();
    let speaks = |protocol| format!("speaks {protocol}, which --pmi switched off for this launch");
    launch("-n 2 --pmi pmi2 --timeout 20s").arg(&mpich).run().exits(1).says(&speaks("PMI-1"));
    launch("-n 2 --pmi pmi1 --timeout 20s").arg(&slurm).run().exits(1).says(&speaks("PMI-2"));
}

/// The new job runs. Its name is returned if the method has a field for it.
#[test]
fn a_probe_spawns_a_job_by_every_way_and_under_other_launchers() {
    let [libpmi, libpmi2] = ["pmi", "pmi2"].map(built::client_library);
    let check = |method: &str, library: Option<&Path>, line: &str| {
        let mut probe = launch("-n 2").arg(built::lattice()).words("pmi --method").arg(method);
        if let Some(library) = library {
            probe = probe.arg("--library").arg(library);
        }
        let outcome = probe.words("spawn -n 3 echo -n a-word").run();
        outcome.exits(0).says_nothing().prints(line);
        outcome.check(outcome.text().matches("a-word").count() == 3, || "three ranks should say a word".into());
    };
    check("pmi1", None, "spawn: 3 ranks, job kvs_");
    check("pmi2", None, "spawn: 3 ranks, job kvs_");
    check("pmix", None, "spawn: 3 ranks, job kvs_");
    check("lib", Some(&libpmi), "spawn: 3 ranks: ");
    check("lib2", Some(&libpmi2), "spawn: 3 ranks, job kvs_");
    check("lib2", Some(&slurms_libpmi2()), "spawn: 3 ranks, job kvs_");
    let spawn = |command: Command| command.arg(built::lattice()).words("pmi spawn -n 2 echo a-word").run();
    spawn(Command::new("mpiexec.hydra").words("-n 1")).exits(0).prints("spawn: 2 ranks: ").prints("a-word");
    for mpi in OPEN_MPIS {
        let mpirun = Command::new(mpi.mpirun()).words("--allow-run-as-root --oversubscribe -n 1");
        spawn(mpirun).exits(0).prints("spawn: 2 ranks, job ").prints("a-word");
    }
}

/// Every method refuses an invalid job, and the caller continues to its end.
#[test]
fn a_probe_says_that_a_spawn_was_refused() {
    lattice("pmi spawn true").run().exits(1).says("spawn does not exist without a launcher");
    let [libpmi, libpmi2] = ["pmi", "pmi2"].map(built::client_library);
    let check = |words: &str, library: Option<&Path>, error: &str| {
        let mut probe = launch("-n 1").arg(built::lattice()).words("pmi --method").words(words);
        if let Some(library) = library {
            probe = probe.arg("--library").arg(library);
        }
        probe.words("spawn /no/such/program").run().exits(1).says("rank 0 cannot go on").says(error);
    };
    check("pmix", None, "the PMIx server refused the spawn: status -181");
    check("lib", Some(&libpmi), "PMI_Spawn_multiple returned -1");
    check("lib2", Some(&libpmi2), "PMI2_Job_Spawn returned 14");
}

/// Returns Slurm's client of PMI-2, in Debian's package.
fn slurms_libpmi2() -> PathBuf {
    Path::new("/usr/lib").join(format!("{}-linux-gnu/libpmi2.so.0", std::env::consts::ARCH))
}

/// Values reach the launcher with every method, and each method provides the facts about the job.
#[test]
fn probes_run_by_every_way() {
    let [libpmi, libpmi2] = ["pmi", "pmi2"].map(built::client_library);
    let check = |words: &[&dyn AsRef<std::ffi::OsStr>], fact: &str| {
        let probe = |probe: &str| {
            let probing = launch("-n 3").arg(built::lattice()).words("pmi --method");
            words.iter().fold(probing, |probing, word| probing.arg(word.as_ref())).words(probe).run()
        };
        probe("exchange --count 3 --size 300").exits(0).says_nothing().prints("exchange: 3 ranks, 3 rounds, 300 bytes");
        probe("barrier --count 3").exits(0).says_nothing().prints("barrier: 3 ranks, 3 fences");
        probe(&format!("get {fact}")).exits(0).says_nothing().prints(&format!("{fact}="));
        probe("get nonesuch").exits(1).says("the launcher does not know nonesuch");
    };
    check(&[&"pmix"], "pmix.univ.size");
    check(&[&"pmix"], "pmix.qry.keys");
    check(&[&"lib", &"--library", &libpmi], "PMI_process_mapping");
    check(&[&"lib2", &"--library", &libpmi2], "PMI_process_mapping");
    check(&[&"lib2", &"--library", &slurms_libpmi2()], "PMI_process_mapping");
}

/// libpmix serves its own clients and Lattice's. Without a method option the client selects PMIx itself.
#[test]
fn probes_run_by_pmix_under_launchers_of_others() {
    for mpi in OPEN_MPIS {
        for method in ["", "--method pmix"] {
            let mpirun = || Command::new(mpi.mpirun()).words("--allow-run-as-root --oversubscribe -n 3");
            let probe = |probe: &str| mpirun().arg(built::lattice()).words("pmi").words(method).words(probe).run();
            probe("exchange --count 3 --size 300").exits(0).prints("exchange: 3 ranks, 3 rounds, 300 bytes");
            probe("barrier").exits(0).prints("barrier: 3 ranks, 10 fences");
            probe("get pmix.job.size").exits(0).prints("pmix.job.size=3");
        }
    }
}

#[test]
fn a_probe_says_why_it_cannot_go_a_way() {
    lattice("pmi --method pmix barrier").run().exits(1).says("the environment has no PMIX_NAMESPACE");
    lattice("pmi --method lib --library /nonesuch barrier").run().exits(1).says("cannot use /nonesuch: ");
}

#[test]
fn variables_of_a_launch_reach_the_jobs_that_it_spawns() {
    let script = "echo $COUPLER ${KEPT-gone} $WHERE";
    for method in ["pmi1", "pmi2"] {
        let given = "-n 1 --env COUPLER=ocean --env-remove KEPT --env WHERE={rank}/{size}";
        let probe = launch(given).env("KEPT", "yes").arg(built::lattice()).words("pmi --method").arg(method);
        let outcome = probe.words("spawn -n 2 sh -c").arg(script).run();
        outcome.exits(0).says_nothing().prints("ocean gone 0/2").prints("ocean gone 1/2");
    }
}

#[test]
fn two_protocols_on_one_descriptor_are_told_apart_by_each_message() {
    let script = r#"
        if [ $PMI_RANK = 0 ]; then init; echo "$reply"; barrier; echo "$reply"; finalize; else
            init2; echo "$reply"; ask2 'cmd=fullinit;pmirank=1;'; ask2 'cmd=kvs-fence;'; echo "$reply"; ask2 'cmd=finalize;'
        fi"#;
    raw::script(launch("-n 2"), script).run().exits(0).says_nothing().prints_lines([
        "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1",
        "cmd=barrier_out rc=0",
        "cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0",
        "cmd=kvs-fence-response;rc=0;",
    ]);
}

#[test]
fn the_trace_can_become_a_recorded_conversation() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("trace");
    let command = launch("-n 2 --pmi-trace").arg(&file);
    command.arg(Flavour::DebianMpich.program("hello")).run().exits(0).says_nothing();
    let trace = std::fs::read_to_string(&file).unwrap();
    let mut ranks = HashSet::new();
    let mut asked = [0_i32; 2];
    let mut rank = None;
    for line in trace.lines() {
        match (line.split_at_checked(3), rank) {
            (Some(("C> ", message)), Some(rank)) => {
                assert!(message.starts_with("cmd=") && message.ends_with("\\n"), "{line}");
                asked[rank] += 1;
            }
            (Some(("S> ", message)), Some(rank)) => {
                assert!(message.starts_with("cmd=") && message.ends_with("\\n"), "{line}");
                asked[rank] -= 1;
            }
            _ => {
                let number = line.strip_prefix("@rank ").unwrap_or_else(|| panic!("{line} is of no known form"));
                rank = Some(number.parse::<usize>().unwrap());
                ranks.insert(number.to_owned());
            }
        }
    }
    assert_eq!(ranks.len(), 2, "{trace}");
    assert_eq!(asked, [0, 0], "every request has its reply:\n{trace}");
    assert!(trace.contains("C> cmd=init pmi_version=1 pmi_subversion=1\\n\n"), "{trace}");
    assert!(trace.contains("S> cmd=finalize_ack rc=0\\n\n"), "{trace}");
}

#[test]
fn a_job_has_a_name_that_no_other_has() {
    let script = "init; ask cmd=get_my_kvsname; echo \"$reply\"; finalize";
    let names: HashSet<String> = (0..5)
        .map(|_| {
            let outcome = raw::script(launch(""), script).run();
            outcome.exits(0).says_nothing().prints("cmd=my_kvsname rc=0 kvsname=");
            outcome.text().to_owned()
        })
        .collect();
    assert_eq!(names.len(), 5, "{names:?}");
}

/// A program with an invalid request receives an error, its user a message, and the program continues.
#[test]
fn a_spawn_that_cannot_be_is_refused_in_words() {
    let script = r"init
        printf 'mcmd=spawn\nnprocs=1\nexecname=/no/such/program\ntotspawns=1\nspawnssofar=1\nargcnt=0\npreput_num=0\ninfo_num=0\nendcmd\n' >&$PMI_FD
        hear; echo $reply; finalize";
    let outcome = raw::script(launch("-n 1"), script).run();
    outcome.exits(0).prints("cmd=spawn_result rc=").prints(" msg=").says("cannot find program /no/such/program");
    outcome.check(!outcome.text().contains(" rc=0"), || "should have refused it".into());
}

#[test]
fn lattice_pmi_works_under_lattice() {
    let check = |words: &str, printed: &str| {
        launch("-n 4").arg(built::lattice()).words(words).run().exits(0).says_nothing().prints(printed);
    };
    check("pmi barrier --count 20", "barrier: 4 ranks, 20 fences: ");
    check("pmi exchange --count 3 --size 500", "exchange: 4 ranks, 3 rounds, 500 bytes: ");
    check("pmi get PMI_process_mapping", "PMI_process_mapping=(vector,(0,1,4))\n");
    for method in ["auto", "pmi1", "pmi2"] {
        check(&format!("pmi --method {method} exchange"), "exchange: 4 ranks, 1 round, 64 bytes: ");
    }
}

#[test]
fn lattice_pmi_works_under_hydra() {
    let check = |words: &str, printed: &str| {
        let hydra = Command::new("mpiexec.hydra").words("-n 3").arg(built::lattice());
        hydra.words(words).run().exits(0).prints(printed);
    };
    check("pmi barrier", "barrier: 3 ranks, 10 fences: ");
    check("pmi exchange", "exchange: 3 ranks, 1 round, 64 bytes: ");
    check("pmi get PMI_process_mapping", "PMI_process_mapping=(vector,(0,1,");
}

#[test]
fn lattice_pmi_works_alone() {
    let [libpmi, libpmi2] = ["pmi", "pmi2"].map(built::client_library);
    let check = |method: &str, library: Option<&Path>| {
        let probe = |words: &str| {
            let probe = lattice("pmi --method").arg(method);
            library.into_iter().fold(probe, |probe, library| probe.arg("--library").arg(library)).words(words).run()
        };
        probe("exchange").exits(0).says_nothing().prints("exchange: 1 rank,");
        probe("barrier").exits(0).says_nothing().prints("barrier: 1 rank,");
        probe("get PMI_process_mapping").exits(0).says_nothing().prints("PMI_process_mapping=(vector,(0,1,1))\n");
        probe("get nonesuch").exits(1).says("the launcher does not know nonesuch");
    };
    for method in ["auto", "pmi1", "pmi2"] {
        check(method, None);
    }
    check("lib", Some(&libpmi));
    check("lib2", Some(&libpmi2));
}

#[test]
fn a_key_that_is_not_there_is_told() {
    let outcome = launch("-n 2").arg(built::lattice()).words("pmi get nonesuch").run();
    outcome.says("nonesuch").check(!outcome.text().contains("nonesuch="), || "should have found nothing".into());
    outcome.exits(1);
}

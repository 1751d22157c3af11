//! Programs in C that use PMI through a client library. The libraries and headers are Lattice's and Slurm's. The programs run under
//! Lattice, under Hydra and without a launcher.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process;

use lattice_tests::mpi::{self, Flavour};
use lattice_tests::{Command, built, lattice, launch};

use crate::raw;

/// Functions of Lattice's `libpmi.so.0` that Slurm's lacks.
const PMI_EXTENSIONS: [&str; 25] = [
    "PMI_Allgather",
    "PMI_Allgatherv",
    "PMI_Args_to_info",
    "PMI_Barrier_group",
    "PMI_Bcast",
    "PMI_Get_app_size",
    "PMI_Get_base_rank_in_app",
    "PMI_Get_nid",
    "PMI_Get_nidlist_ptr",
    "PMI_Get_num_apps",
    "PMI_Get_numpes_in_app_on_smp",
    "PMI_Get_numpes_on_smp",
    "PMI_Get_pes_in_app_on_smp",
    "PMI_Get_pes_on_smp",
    "PMI_Get_rank_in_app",
    "PMI_Get_version_info",
    "PMI_Node_memory",
    "PMI_Resource_intend",
    "PMI_Resource_register",
    "PMI_Resource_release_begin",
    "PMI_Resource_release_end",
    "PMI_Spawn",
    "PMI_Topo_cluster_info",
    "PMI_Topo_mesh_info",
    "PMI_Topo_type",
];

/// Functions of Lattice's `libpmi2.so.0` that Slurm's lacks.
const EXTENSIONS: [&str; 1] = ["PMI2_Job_Spawn_keyvals"];

/// Returns Slurm's library with this name, in Debian's package.
fn slurms(name: &str) -> PathBuf {
    format!("/usr/lib/{}-linux-gnu/{}", std::env::consts::ARCH, built::soname(name)).into()
}

/// Returns the functions that a library exports.
fn functions(library: &Path) -> BTreeSet<String> {
    let output = process::Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().unwrap();
    assert!(output.status.success(), "{}: {}", library.display(), String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let names = lines.lines().filter_map(|line| line.split_whitespace().nth(2));
    names.filter(|name| !name.starts_with('_')).map(str::to_owned).collect()
}

#[test]
fn both_libraries_have_slurms_functions_and_documented_extensions() {
    let check = |name: &str, count: usize, extensions: &[&str]| {
        let slurms = functions(&slurms(name));
        assert_eq!(slurms.len(), count, "{slurms:?}");
        let expected =
            slurms.into_iter().chain(extensions.iter().map(|&name| name.to_owned())).collect::<BTreeSet<_>>();
        assert_eq!(functions(&built::client_library(name)), expected);
    };
    check("pmi", 33, &PMI_EXTENSIONS);
    check("pmi2", 22, &EXTENSIONS);
}

#[test]
fn headers_are_for_every_dialect_of_c() {
    let directory = tempfile::tempdir().unwrap();
    let text = "#define PMI2_KEYVAL\n#include <pmi.h>\n#include <pmi_ext.h>\n#include <pmi2.h>\n#include <slurm/pmi.h>\nint main(void) { return 0; }\n";
    for dialect in ["-std=c89", "-std=c99", "-std=c17"] {
        let arguments = [dialect, "-pedantic-errors", "-Wall", "-Werror", mpi::OUR_HEADERS];
        mpi::compile_text(directory.path(), "headers", text, &arguments);
    }
}

/// Runs a program without a launcher, under Lattice in every way, and under both versions of Hydra. Each rank prints a line on
/// success.
fn everywhere(program: &Path, words: &str, line: impl Fn(usize, usize) -> String) {
    let check = |command: Command, size: usize| {
        command.run().exits(0).says_nothing().prints_lines((0..size).map(|rank| line(rank, size)));
    };
    check(Command::new(program).words(words), 1);
    check(launch("-n 4").arg(program).words(words), 4);
    check(launch("-n 2 --pmi-port").arg(program).words(words), 2);
    check(launch("-n 3 --no-job-memory").arg(program).words(words), 3);
    check(Command::new("mpiexec.hydra").words("-n 4").arg(program).words(words), 4);
    check(Command::new(mpi::hydra()).words("-n 3").arg(program).words(words), 3);
}

#[test]
fn every_rank_gets_what_the_others_put_under_every_launcher() {
    for flavour in [Flavour::LatticePmi, Flavour::LatticePmiSlurmHeader] {
        everywhere(&flavour.program("libpmi_exchange"), "3", |rank, size| {
            let program = if size == 1 { -1 } else { 0 };
            let local: Vec<_> = (0..size).map(|rank| rank.to_string()).collect();
            format!("rank {rank} of {size}: program {program}, spawned 0, 0 wrong, local {}", local.join(" "))
        });
    }
}

/// The collectives of Cray's library.
#[test]
fn collectives_bring_every_byte_under_every_launcher() {
    let program = Flavour::LatticePmi.program("libpmi_collectives");
    everywhere(&program, "", |rank, size| format!("rank {rank} of {size}: {size} near, node 0, 0 wrong"));
}

/// A rank with an exhausted share of the key-value space still enters the barrier of a collective.
#[test]
fn a_rank_that_cannot_put_keeps_nobody_in_a_collective() {
    let program = Flavour::LatticePmi.program("libpmi_collectives");
    let outcome = launch("-n 3").arg(&program).words("full").run();
    let lines = (0..3).map(|rank| format!("rank {rank}: gathered nothing, told nothing, met"));
    outcome.exits(0).says_nothing().prints_lines(lines);
}

/// The groups of MPICH's library since PMI 1.2. Hydra 5 serves them; 4.0 does not.
#[test]
fn groups_of_ranks_meet_in_barriers_of_which_several_are_open() {
    let program = Flavour::LatticePmi.program("libpmi_groups");
    let check = |command: Command, size: usize| {
        let outcome = command.arg(&program).run();
        outcome.exits(0).says_nothing().prints_lines((0..size).map(|rank| format!("rank {rank} of {size}: 0 wrong")));
    };
    for (size, flags) in [(4, ""), (5, "--pmi-port"), (3, "--no-job-memory"), (4, "--pmi-group-barriers")] {
        check(launch(&format!("-n {size} {flags}")), size);
    }
    check(Command::new(mpi::hydra()).words("-n 4"), 4);
    check(Command::new("env"), 1);
    let outcome = Command::new("mpiexec.hydra").words("-n 2").arg(&program).run();
    let refused = (0..2).map(|rank| format!("rank {rank} of 2: no barriers of groups, -1"));
    outcome.exits(0).says_nothing().prints_lines(refused);
}

/// The applications of Cray's library. Only Lattice provides the program of each rank, in the memory of the job.
#[test]
fn ranks_know_the_programs_of_their_job() {
    let program = Flavour::LatticePmi.program("libpmi_applications");
    let both = |command: Command| command.arg(&program).words(": -n 3").arg(&program).run();
    let told = both(launch("-n 2"));
    told.exits(0).says_nothing().prints_lines([
        "rank 0: program 0 of 2, 2 3 ranks, place 0 from 0, here 0 1, 0 wrong",
        "rank 1: program 0 of 2, 2 3 ranks, place 1 from 0, here 0 1, 0 wrong",
        "rank 2: program 1 of 2, 2 3 ranks, place 0 from 2, here 2 3 4, 0 wrong",
        "rank 3: program 1 of 2, 2 3 ranks, place 1 from 2, here 2 3 4, 0 wrong",
        "rank 4: program 1 of 2, 2 3 ranks, place 2 from 2, here 2 3 4, 0 wrong",
    ]);
    let alone = "rank 0: program -1 of 1, 1 ranks, place 0 from 0, here 0, 0 wrong";
    Command::new(&program).run().exits(0).says_nothing().prints_lines([alone]);
    for command in [launch("-n 2 --no-job-memory"), Command::new("mpiexec.hydra").words("-n 2")] {
        let outcome = both(command);
        outcome.exits(0).says_nothing().prints_lines((0..5).map(|rank| format!("rank {rank}: 15 15 15 15 15 15")));
    }
}

#[test]
fn pmi1_has_the_codes_and_lengths_of_its_header_under_every_launcher() {
    let program = Flavour::LatticePmi.program("libpmi_edges");
    everywhere(&program, "1", |rank, size| format!("rank {rank} of {size}: 0 failed"));
}

#[test]
fn pmi2_has_the_codes_and_lengths_of_its_header() {
    let program = Flavour::LatticePmi2.program("libpmi2_edges");
    for flags in ["-n 3", "-n 3 --pmi-port", "-n 3 --no-job-memory"] {
        let outcome = launch(flags).arg(&program).run();
        outcome.exits(0).says_nothing().prints_lines((0..3).map(|rank| format!("rank {rank} of 3: 0 failed")));
    }
}

/// Programs that pass NULL, short buffers and wrong lengths, under memcheck.
#[test]
fn no_call_reads_or_writes_where_it_may_not() {
    let pmi1 = ["libpmi_edges", "libpmi_collectives", "libpmi_groups", "libpmi_spaces"]
        .map(|name| Flavour::LatticePmi.program(name));
    let pmi2 = ["libpmi2_edges", "pmi2_ring"].map(|name| Flavour::LatticePmi2.program(name));
    for program in pmi1.iter().chain(&pmi2) {
        // Once, because the loops of the other programs with an argument take long here.
        let words = if program.ends_with("libpmi_edges") || program.ends_with("libpmi2_edges") { "1" } else { "" };
        let watched = launch("-n 2 valgrind -q --error-exitcode=99").arg(program).words(words);
        watched.run().exits(0).says_nothing();
    }
}

/// A rank that waits for other ranks in its second run must not report ranks that are between their two runs.
#[test]
fn a_process_can_join_again_after_it_has_left() {
    for program in [Flavour::LatticePmi.program("libpmi_edges"), Flavour::LatticePmi2.program("libpmi2_edges")] {
        for (command, size) in [(Command::new(&program), 1), (launch("-n 3").arg(&program), 3)] {
            let outcome = command.words("5").run();
            outcome
                .exits(0)
                .says_nothing()
                .prints_lines((0..size).map(|rank| format!("rank {rank} of {size}: 0 failed")));
        }
    }
}

/// As in a script that runs one MPI program after the other.
#[test]
fn ranks_wait_for_those_who_have_not_started_their_second_program_yet() {
    let script = r#"init; barrier; finalize; [ $PMI_RANK = 0 ] || sleep 0.3; init; barrier; finalize; echo twice"#;
    raw::script(launch("-n 3"), script).run().exits(0).says_nothing().prints_lines(["twice"; 3]);
    let script = r#"init; barrier; finalize; [ $PMI_RANK = 0 ] || exit 0; init; barrier; forever"#;
    raw::script(launch("-n 2"), script)
        .run()
        .exits(1)
        .says("rank 1 on ")
        .says("while rank 0 waits for it in a barrier");
}

#[test]
fn programs_run_alike_with_either_header_and_either_library() {
    let libraries = [slurms("pmi2"), built::client_library("pmi2")];
    for name in ["pmi2_fence", "pmi2_names", "pmi2_node_attributes", "pmi2_ring"] {
        let outputs = [Flavour::SlurmPmi2, Flavour::LatticePmi2].map(|header| {
            let program = header.program(name);
            // A preloaded library satisfies every dependency with its soname.
            libraries.each_ref().map(|library| {
                let preload = format!("LD_PRELOAD={}", library.display());
                let outcome = launch("-n 3 --env").arg(preload).arg(&program).run();
                outcome.exits(0).says_nothing();
                outcome.sorted_lines().into_iter().map(str::to_owned).collect::<Vec<_>>()
            })
        });
        let [[first, ..], ..] = &outputs;
        assert!(!first.is_empty(), "{name} printed nothing");
        assert!(outputs.iter().flatten().all(|lines| lines == first), "{name}: {outputs:#?}");
    }
}

#[test]
fn the_launcher_tells_where_they_are_and_gives_them_to_programs_that_call_slurms() {
    let told = lattice("pmi library --functions").run();
    told.exits(0).says_nothing().prints("liblattice_pmi.so  version 0.1.0  58 functions\n  PMI_Abort\n");
    told.prints("liblattice_pmi2.so  version 0.1.0  23 functions\n").prints("  PMI2_KVS_Get\n");
    let maps = r#"grep -ohE 'lib(lattice_)?pmi2?\.so.*' /proc/$$/maps | sort -u; echo $I_MPI_PMI ${LD_PRELOAD##*:}"#;
    let command = launch("-n 1 --pmi-library").env("LD_PRELOAD", "/nonesuch.so").bash(maps);
    command.run().exits(0).prints_lines(["liblattice_pmi.so", "liblattice_pmi2.so", "pmi2 /nonesuch.so"]);
    let outcome = launch("-n 2 --pmi-library").arg(Flavour::SlurmPmi2.program("pmi2_fence")).run();
    outcome.exits(0).says_nothing().prints_lines((0..2).map(|rank| format!("rank {rank} of 2: 0 wrong values")));
}

#[test]
fn mpi_libraries_with_a_client_of_their_own_go_on_to_use_it() {
    for mpi in mpi::MPIS {
        let outcome = launch("-n 3 --pmi-library").arg(mpi.program("allreduce")).run();
        outcome.exits(0).prints_lines(["3 ranks, 0 wrong sums"]);
    }
}

/// With `I_MPI_PMI_LIBRARY`. Intel MPI has its own client of PMI-1, which requests the facts that the libraries read in the memory of
/// the job.
#[test]
fn intel_mpi_joins_through_either_library() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let asks = |flags: &str| {
        let command = launch("-n 3").words(flags).arg("--pmi-trace").arg(&trace);
        let outcome = command.arg(Flavour::IntelMpi.program("allreduce")).run();
        outcome.exits(0).says_nothing().prints_lines(["3 ranks, 0 wrong sums"]);
        let trace = std::fs::read_to_string(&trace).unwrap();
        (trace.contains("C> cmd=init pmi_version=2") || trace.contains("cmd=fullinit"), trace.contains("C> cmd=get "))
    };
    let library = built::client_library("pmi");
    assert_eq!(asks(""), (false, true), "its own client");
    assert_eq!(asks("--pmi-library"), (true, false), "ours of PMI-2");
    assert_eq!(asks(&format!("--env I_MPI_PMI=pmi1 --env I_MPI_PMI_LIBRARY={}", library.display())), (false, false));
}

/// Open MPI 4.1 selects its component for Flux if it detects a Flux job. This component calls Lattice's library.
#[test]
fn open_mpi_runs_over_its_flux_component() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let command = launch("-n 3 --pmi=pmi1 --pmi-library --env FLUX_JOB_ID=1 --pmi-trace").arg(&trace);
    let outcome = command.arg(Flavour::DebianOpenMpi.program("allreduce")).run();
    outcome.exits(0).prints_lines(["3 ranks, 0 wrong sums"]);
    let trace = std::fs::read_to_string(&trace).unwrap();
    assert_eq!(trace.matches("C> cmd=finalize").count(), 3, "{trace}");
}

/// The first two have their own clients of PMI-1 and PMI-2; the third one calls libpmix.
#[test]
fn plugins_of_nvshmem_exchange_what_they_have() {
    for protocol in ["pmi", "pmi2", "pmix"] {
        let command = launch("-n 4").arg(Flavour::Plain.program("nvshmem_bootstrap"));
        let outcome = command.arg(mpi::nvshmem_plugin(protocol)).run();
        outcome.exits(0).says_nothing().prints_lines((0..4).map(|rank| format!("rank {rank} of 4: 0 wrong")));
    }
}

/// For a program that gets a fact as MPICH does.
#[test]
fn facts_about_a_job_need_no_message() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let gets = |flags: &str| {
        let command =
            launch(flags).arg("--pmi-trace").arg(&trace).arg(built::lattice()).words("pmi --method lib --library");
        let command = command.arg(built::client_library("pmi")).words("get PMI_process_mapping hasNameServ");
        command
            .run()
            .exits(0)
            .says_nothing()
            .prints_lines(["PMI_process_mapping=(vector,(0,1,2))", "hasNameServ=TRUE"]);
        std::fs::read_to_string(&trace).unwrap().matches("C> cmd=get ").count()
    };
    assert_eq!(gets("-n 2"), 0);
    assert_eq!(gets("-n 2 --no-job-memory"), 2);
}

#[test]
fn a_rank_that_has_the_memory_of_its_job_joins_by_two_requests() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let asked = |flags: &str| {
        let program = Flavour::LatticePmi.program("libpmi_exchange");
        launch(flags).arg("--pmi-trace").arg(&trace).arg(program).words("1").run().exits(0).says_nothing();
        let trace = std::fs::read_to_string(&trace).unwrap();
        let requests = ["init ", "get_my_kvsname", "get_maxes", "get_appnum"];
        requests.map(|request| trace.matches(&format!("C> cmd={request}")).count())
    };
    assert_eq!(asked("-n 3"), [3, 3, 0, 0]);
    assert_eq!(asked("-n 3 --no-job-memory"), [3; 4]);
}

#[test]
fn gets_need_no_message() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let gets = |flags: &str| {
        let command = launch(flags).arg("--pmi-trace").arg(&trace);
        command.arg(Flavour::LatticePmi.program("libpmi_exchange")).words("20").run().exits(0).says_nothing();
        let trace = std::fs::read_to_string(&trace).unwrap();
        trace.lines().filter(|line| line.contains("C> cmd=get ") && line.contains("key=card-")).count()
    };
    assert_eq!(gets("-n 4"), 0);
    assert_eq!(gets("-n 4 --no-job-memory"), 4 * 4 * 20);
}

#[test]
fn one_process_may_use_both_libraries() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = [mpi::with_our_library("pmi"), mpi::with_our_library("pmi2")].concat();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).chain(["-Wall", "-Werror"]).collect();
    let text = include_str!("../../programs/libpmi_both.c");
    let program = mpi::compile_text(directory.path(), "libpmi_both", text, &arguments);
    for flags in ["-n 4", "-n 4 --no-job-memory"] {
        let outcome = launch(flags).arg(&program).run();
        outcome.exits(0).says_nothing().prints_lines((0..4).map(|rank| format!("rank {rank} of 4: 0 wrong")));
    }
}

#[test]
fn ranks_make_key_value_spaces_of_their_own_under_us_alone() {
    let program = Flavour::LatticePmi.program("libpmi_spaces");
    let outcome = launch("-n 3").arg(&program).run();
    let line = |rank: usize| format!("rank {rank} of 3: 9 right, walked 533, then 0 and 3, walked -14");
    let rank_0 = ["made: 0 0, without room: 8".to_owned(), "removed: 0, own: 14".to_owned()];
    outcome.exits(0).says_nothing().prints_lines((0..3).map(line).chain(rank_0));
    // Hydra ends a job that sends an unknown request.
    let outcome = Command::new("mpiexec.hydra").words("-n 1").arg(&program).run();
    outcome.exits(0).prints("made: -1 -1");
}

#[test]
fn a_job_is_spawned_by_the_papers_calls() {
    let program = Flavour::LatticePmi.program("libpmi_spawn_one");
    launch("-n 1").arg(&program).run().exits(0).says_nothing().prints_lines([
        "args: 0, 3 left: -v PMI_=x no more, 2 taken: wdir '/tmp' host 'a=b', then 0, 3, NULL 3",
        "spawn: 0, a name of its own 1, without room 8, negative 3, missing 3",
        "child 0: one argument",
        "child 1: one argument",
    ]);
}

#[test]
fn pairs_are_walked_through_under_us_alone() {
    let program = Flavour::LatticePmi.program("libpmi_walk");
    let outcome = launch("-n 3").arg(&program).run();
    outcome
        .exits(0)
        .says_nothing()
        .prints_lines((0..3).map(|rank| format!("rank {rank} of 3: 0 before, 60 after, 5 without room")));
    // Hydra ends a job that sends an unknown request.
    let outcome = Command::new("mpiexec.hydra").words("-n 2").arg(&program).run();
    let line = |rank| format!("rank {rank} of 2: -1000 before, -1000 after, -1 without room");
    outcome.exits(0).says_nothing().prints_lines((0..2).map(line));
}

#[test]
fn jobs_are_spawned_and_find_names_and_pairs() {
    let outcome = launch("-n 1").arg(Flavour::LatticePmi.program("libpmi_jobs")).run();
    let child = |rank, word, program| {
        format!("child {rank} of 3: spawned 1, {word}, program {program}, 0 'hello; child', 0 'tag#0$x'")
    };
    outcome.exits(0).says_nothing().prints_lines([
        "parent: spawned 0, publish 0, spawn 0, errors 0 0".to_owned(),
        child(0, "first", 0),
        child(1, "the second", 1),
        child(2, "the second", 1),
    ]);
}

#[test]
fn pmi2_spawns_with_either_layout_of_pairs() {
    let directory = tempfile::tempdir().unwrap();
    let source = include_str!("../../programs/pmi2_spawn.c");
    // The same program in the version for MPICH.
    let keyval = source
        .replace("struct MPID_Info pair = {.key = \"greeting\", .value = \"hello; child\"};", "")
        .replace(
            "const struct MPID_Info *preput[] = {&pair};",
            "const PMI2_keyval_t preput[] = {{\"greeting\", \"hello; child\"}};",
        )
        .replace("struct MPID_Info", "PMI2_keyval_t");
    assert_eq!(keyval.matches("PMI2_keyval_t").count(), 2, "pmi2_spawn.c is written otherwise");
    let arguments = mpi::with_our_library("pmi2");
    let arguments =
        arguments.iter().map(String::as_str).chain(["-DPMI2_KEYVAL", "-Wall", "-Werror"]).collect::<Vec<_>>();
    let for_mpich = mpi::compile_text(directory.path(), "pmi2_spawn_keyval", &keyval, &arguments);
    for program in [Flavour::LatticePmi2.program("pmi2_spawn"), for_mpich] {
        let outcome = launch("-n 1").arg(program).run();
        let child = |rank, word, appnum| format!("child {rank} of 3: {word}, appnum {appnum}, found 'hello; child'");
        outcome.exits(0).says_nothing().prints_lines([
            "parent: spawn 0, a job with a name".to_owned(),
            child(0, "first", 0),
            child(1, "the; second", 1),
            child(2, "the; second", 1),
        ]);
    }
}

#[test]
fn an_abort_ends_the_job_with_its_code_and_its_text() {
    let outcome = launch("-n 3").arg(Flavour::LatticePmi.program("libpmi_jobs")).words("abort").run();
    outcome.exits(42).says("rank 1 on").says("called MPI_Abort with code 42: the sea is dry");
    // A waiting thread has the connection, so that only the exit code reaches the launcher.
    let outcome = launch("-n 3").arg(Flavour::LatticePmi.program("libpmi_jobs")).words("abort thread").run();
    outcome.exits(42).says("rank 1 on");
    let outcome = launch("-n 3").arg(Flavour::LatticePmi2.program("pmi2_abort")).words("1").run();
    outcome.exits(1).says("the sea is dry; all of it");
    // The form in which MPI libraries call it.
    for flavour in [Flavour::SlurmPmi2, Flavour::LatticePmi2] {
        let text = "application called MPI_Abort(MPI_COMM_WORLD, 43) - process 1";
        launch("-n 2").arg(flavour.program("pmi2_abort")).arg(text).arg("1").run().exits(43).says(text);
    }
}

#[test]
fn a_library_can_be_loaded_and_unloaded_often() {
    let (program, library) = (Flavour::Plain.program("libpmi_reload"), built::client_library("pmi"));
    launch("-n 2").arg(&program).arg(&library).run().exits(0).prints_lines(["0 pages more", "0 pages more"]);
    Command::new(&program).arg(&library).run().exits(0).prints_lines(["0 pages more"]);
}

/// Otherwise each rank would be a job by itself.
#[test]
fn a_launcher_that_serves_pmix_alone_is_no_absent_launcher() {
    let program = Flavour::LatticePmi.program("libpmi_exchange");
    launch("-n 2 --pmi=pmix").arg(&program).run().exits(2);
    launch("-n 2 --pmi=none")
        .arg(&program)
        .run()
        .exits(0)
        .prints_lines(["rank 0 of 1: program -1, spawned 0, 0 wrong, local 0"; 2]);
    launch("-n 1 --pmi=pmix")
        .arg(built::lattice())
        .words("pmi --method pmi1 barrier")
        .run()
        .exits(1)
        .says("PMIX_NAMESPACE");
}

/// A wrapper between launcher and program may have the descriptor as well, and so may the program's MPI library.
#[test]
fn the_descriptor_stays_open_for_others_of_the_process() {
    let script = r#""$PROGRAM" 2 && init && echo "$reply" && finalize"#;
    let program = Flavour::LatticePmi.program("libpmi_exchange");
    let outcome = raw::script(launch("-n 2 --env").arg(format!("PROGRAM={}", program.display())), script).run();
    outcome
        .exits(0)
        .says_nothing()
        .prints("cmd=response_to_init rc=0")
        .prints("rank 1 of 2: program 0, spawned 0, 0 wrong");
}

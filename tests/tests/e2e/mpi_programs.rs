//! Programs of MPICH 4.0.2, MPICH 5.0.2 and Slurm's PMI-2 library, unmodified and without a flag.

use lattice_tests::mpi::{Flavour, MPICHS, MPIS, OPEN_MPIS};
use lattice_tests::{Command, built, launch, processes, turn};

#[test]
fn allreduce_adds_up() {
    for mpi in MPICHS {
        let outcome = launch("-n 4").arg(mpi.program("allreduce")).run();
        outcome.exits(0).says_nothing().prints_lines(["4 ranks, 0 wrong sums"]);
    }
}

/// MPICH 4.0.2 cannot: its second session crashes in the client, with any launcher.
#[test]
fn mpi_can_be_started_again_in_one_process() {
    let directory = tempfile::tempdir().unwrap();
    let outcome = launch("-n 3").arg(Flavour::WheelMpich.program("sessions")).arg(directory.path()).run();
    outcome.exits(0).says_nothing().prints_lines(["3 then 3 ranks"; 3]);
}

/// PMIx provides the names of the launch's sets, and this MPICH does not use PMIx. Its session only counts
/// MPI's own sets.
#[test]
fn a_session_counts_its_process_sets() {
    let program = Flavour::WheelMpich.program("process_sets");
    let outcome = launch("-n 1 --pset ocean").arg(&program).words(": -n 1 --pset site://ice").arg(&program).run();
    outcome.exits(0).says_nothing().prints_lines(["mpi://SELF mpi://WORLD"; 2]);
}

#[test]
fn without_a_universe_size_mpi_has_none() {
    for mpi in MPICHS {
        let outcome = launch("-n 2").arg(mpi.program("appnum")).run();
        outcome.exits(0).prints("rank 1: universe size unset");
    }
}

#[test]
fn a_rank_behind_a_shell_wrapper() {
    for mpi in MPICHS {
        let outcome = launch("-n 3").bash(r#"set -e; "$1"; exit 0"#).arg(mpi.program("hello")).run();
        outcome.exits(0).says_nothing().prints_lines((0..3).map(|rank| format!("rank {rank} of 3")));
    }
}

#[test]
fn sixty_four_ranks_on_two_cores() {
    for mpi in MPICHS {
        let _machine = turn::heavy();
        let outcome = launch("-n 64").arg(mpi.program("allreduce")).run();
        outcome.exits(0).says_nothing().prints_lines(["64 ranks, 0 wrong sums"]);
    }
}

#[test]
fn group_barriers_can_be_offered() {
    let directory = tempfile::tempdir().unwrap();
    let program = Flavour::WheelMpich.program("sessions");
    let outcome = launch("-n 3 --pmi-group-barriers").arg(program).arg(directory.path()).run();
    outcome.exits(0).says_nothing().prints_lines(["3 then 3 ranks"; 3]);
}

#[test]
fn a_port_serves_as_well_as_a_descriptor() {
    for mpi in MPICHS {
        let outcome = launch("-n 3 --pmi-port").arg(mpi.program("allreduce")).run();
        outcome.exits(0).says_nothing().prints_lines(["3 ranks, 0 wrong sums"]);
    }
}

#[test]
fn slurms_library_fences_values_with_semicolons() {
    let outcome = launch("-n 3").arg(Flavour::SlurmPmi2.program("pmi2_fence")).run();
    outcome.exits(0).says_nothing().prints_lines((0..3).map(|rank| format!("rank {rank} of 3: 0 wrong values")));
}

#[test]
fn slurms_library_waits_for_node_attributes() {
    let outcome = launch("-n 3").arg(Flavour::SlurmPmi2.program("pmi2_node_attributes")).run();
    let line = |rank| format!("rank {rank}: /dev/shm/x;y (vector,(0,1,3)) absent");
    outcome.exits(0).says_nothing().prints_lines((0..3).map(line));
}

#[test]
fn slurms_library_has_its_ring() {
    let outcome = launch("-n 3").arg(Flavour::SlurmPmi2.program("pmi2_ring")).run();
    outcome.exits(0).says_nothing().prints_lines([
        "rank 0: code 0, place 0 of 3, left from 2, right from 1",
        "rank 1: code 0, place 1 of 3, left from 0, right from 2",
        "rank 2: code 0, place 2 of 3, left from 1, right from 0",
    ]);
}

#[test]
fn slurms_library_publishes_names() {
    let outcome = launch("-n 2").arg(Flavour::SlurmPmi2.program("pmi2_names")).run();
    let lines = ["publish 0", "lookup 0 port=1;tag#0$x", "unpublish 0", "lookup again fails"];
    outcome.exits(0).says_nothing().prints_lines(lines);
}

/// The example of the README.
#[test]
fn ranks_without_any_mpi_find_each_other() {
    let outcome = launch("-n 4 --label").arg(built::example("pmi_ring")).run();
    outcome.exits(0).says_nothing().prints("found 4 of 4 ranks").prints("the token went: rank 0");
}

/// A host of some 50 lines, and MPI libraries with three protocols.
#[test]
fn an_embedded_session_runs_programs_of_every_library() {
    for flavour in [Flavour::WheelMpich, Flavour::SlurmPmi2, Flavour::WheelOpenMpi] {
        let program = if flavour == Flavour::SlurmPmi2 { "pmi2_fence" } else { "hello" };
        let outcome = Command::new(built::example("embed_session")).arg(flavour.program(program)).run();
        outcome.exits(0).prints("all 4 ranks have ended well");
    }
    Command::new(built::example("embed_session"))
        .arg("/nonexistent/program")
        .run()
        .exits(1)
        .says("/nonexistent/program");
}

/// Orphans of ranks become children of another process than these hosts, which are not subreapers.
#[test]
fn an_embedded_session_leaves_no_process() {
    for host in ["embed_session", "own_spawner"] {
        let outcome =
            Command::new(built::example(host)).bash("(sleep 1000 & echo $!); setsid sleep 1000 & echo $!").run();
        outcome.exits(0).prints("all 4 ranks have ended well");
        let last_words = outcome.text().lines().filter_map(|line| line.rsplit("] ").next());
        let left: Vec<u32> = last_words.filter_map(|word| word.parse().ok()).collect();
        assert_eq!(left.len(), 8, "{left:?}");
        let runs = |pid: &&u32| processes::status(**pid, "State").is_some_and(|state| !state.starts_with('Z'));
        assert_eq!(left.iter().find(runs), None, "{host}");
    }
}

/// Hosts around a PMI server, with tokio and with threads, and with their own fence.
#[test]
fn embedded_servers_run_mpi_programs() {
    let of_every_mpi = MPIS.map(|mpi| ("embed_server", mpi, 2, "both ranks are through\n"));
    let of_pmi = MPICHS.map(|mpi| ("embed_with_threads", mpi, 3, "all 3 ranks are through\n"));
    let of_pmix = OPEN_MPIS.map(|mpi| ("embed_pmix", mpi, 3, "all 3 ranks are through\n"));
    for (host, mpi, ranks, end) in of_every_mpi.into_iter().chain(of_pmi).chain(of_pmix) {
        let outcome = Command::new(built::example(host)).arg(mpi.program("allreduce")).run();
        outcome.exits(0).says_nothing().prints(&format!("{ranks} ranks, 0 wrong sums\n")).prints(end);
    }
    // Ranks that reach no server run as jobs of their own, with status 0.
    let alone = r#"unset ${!PMI@} ${!OMPI@}; exec "$0""#;
    for program in [Flavour::WheelMpich.program("allreduce"), Flavour::WheelOpenMpi.program("allreduce"), "true".into()]
    {
        let outcome = Command::new(built::example("embed_server")).words("bash -c").arg(alone).arg(program).run();
        outcome.exits(1).says("called neither PMI nor PMIx");
    }
    Command::new(built::example("embed_pmix")).words("sh -c").arg("exit 3").run().exits(1).says("exit status: 3");
    Command::new(built::example("embed_server")).words("sh -c").arg("exit 3").run().exits(1).says("exit status: 3");
    // The failing rank ends the other ranks.
    let fails = "test $PMI_RANK = 0 && exit 3; exec sleep 1000";
    Command::new(built::example("embed_with_threads")).words("sh -c").arg(fails).run().exits(1).says("exit status: 3");
    // A rank that ends in good order while the other ranks wait for it.
    let leave = format!("test $PMI_RANK = 0 || exec {} pmi barrier", built::lattice().display());
    let outcome = Command::new(built::example("embed_with_threads")).words("sh -c").arg(leave).run();
    outcome.exits(1).says("the job must end");
    let promises = "9 nodes with one directory keep all promises of a fence";
    Command::new(built::example("fence_over_files")).run().exits(0).prints_lines([promises]);
}

/// A host that starts ranks with the standard library: PMI through a port, and PMIx.
#[test]
fn a_spawner_of_the_hosts_own_starts_programs_of_every_library() {
    let started = || Command::new(built::example("own_spawner"));
    for flavour in [Flavour::WheelMpich, Flavour::WheelOpenMpi] {
        started().arg(flavour.program("hello")).run().exits(0).prints("all 4 ranks have ended well");
    }
    // Without arguments the command prints its own niceness; 19 is the maximum.
    started().arg("nice").run().exits(0).prints(&format!("[3] {}\n", (niceness() + 5).min(19)));
    started().arg("/nonexistent/program").run().exits(1).says("/nonexistent/program");
    started().arg("sh").arg("-c").arg("exit 3").run().exits(1).says("status 3");
}

/// Returns the niceness of this process, which its children inherit.
fn niceness() -> i32 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("procfs is mounted");
    let fields = stat.rsplit_once(") ").expect("the name is in brackets").1;
    fields.split(' ').nth(16).and_then(|field| field.parse().ok()).expect("field 19 is a number")
}

/// The command from the start of the example.
#[test]
fn ranks_that_a_shell_starts_find_the_key_value_server() {
    let script = r#"exec 9< <("$1" 3); read -r line <&9; export "$line"
        for id in 0 1 2; do PMI_ID=$id "$2" & done; cat <&9; wait"#;
    for mpi in MPICHS {
        let command = Command::new("bash").arg("-c").arg(script).arg("bash").arg(built::example("kvs_server"));
        let outcome = command.arg(mpi.program("allreduce")).run();
        outcome.exits(0).says_nothing().prints("3 ranks, 0 wrong sums\n").prints("all 3 ranks are through after ");
    }
}

//! Ranks that spawn new ranks. Parents and children connect, disconnect, fail and abort together.

use lattice_tests::mpi::{Flavour, MAY_SPAWN, SPAWNING};
use lattice_tests::{Command, built, launch};

fn spawning(mpi: Flavour, flags: &str, program: &'static str) -> Command {
    let [name, value] = MAY_SPAWN;
    launch(flags).env(name, value).arg(mpi.program(program))
}

#[test]
fn parents_and_children_merge_and_part() {
    for mpi in SPAWNING {
        let outcome = spawning(mpi, "-n 2", "spawn").arg("3").run();
        let line = |who, rank, size, place, word| {
            format!("{who} {rank} of {size}: {place} of 5 together, the last word is '{word}'")
        };
        let parents = (0..2).map(|rank| line("parent", rank, 2, rank, "3"));
        let children = (0..3).map(|rank| line("child", rank, 3, 2 + rank, "words that belong together"));
        outcome.exits(0).says_nothing().prints_lines(parents.chain(children));
    }
}

#[test]
fn two_programs_are_spawned_as_one_job() {
    for mpi in SPAWNING {
        let outcome = spawning(mpi, "-n 2", "spawn_multiple").run();
        outcome.exits(0).says_nothing().prints_lines([
            "child 0 of 3: first, appnum 0, 5 together",
            "child 1 of 3: second, appnum 1, 5 together",
            "child 2 of 3: second, appnum 1, 5 together",
        ]);
    }
}

/// With two ranks, the second rank of Open MPI 4.1 would wait indefinitely, because its library does not report the failure of
/// the first one.
#[test]
fn a_spawn_that_fails_harms_nobody() {
    for mpi in SPAWNING {
        let outcome = spawning(mpi, "-n 1", "spawn_missing").run();
        outcome.exits(0).prints_lines(["rank 0: the spawn fails, 1 ranks go on"]);
        outcome.says("rank 0 asked for new processes (MPI_Comm_spawn) and got none: ").says("/nonexistent/program");
    }
}

#[test]
fn an_abort_of_a_child_ends_its_parents_too() {
    for mpi in SPAWNING {
        let outcome = spawning(mpi, "-n 2", "spawn_abort").arg("9").run();
        outcome.exits(9).prints("aborting").says("called MPI_Abort with code 9");
    }
}

#[test]
fn a_child_on_libpmix_knows_its_parent() {
    let outcome = launch("-n 1").arg(Flavour::Pmix.program("pmix_spawn")).run();
    let children = (0..3).map(|rank| format!("child {rank}: SUCCESS, 1 others, whose numbers make 1"));
    let parent = "parent 0: SUCCESS, 3 others, whose numbers make 33".to_owned();
    outcome.exits(0).says_nothing().prints_lines(children.chain([parent]));
}

#[test]
fn pmi2_spawns_as_well() {
    let outcome = launch("-n 1").arg(Flavour::SlurmPmi2.program("pmi2_spawn")).run();
    outcome.exits(0).says_nothing().prints_lines([
        "child 0 of 3: first, appnum 0, found 'hello; child'",
        "child 1 of 3: the; second, appnum 1, found 'hello; child'",
        "child 2 of 3: the; second, appnum 1, found 'hello; child'",
        "parent: spawn 0, a job with a name",
    ]);
}

/// Each spawned job of two ranks used a descriptor for each rank, one for its memory, and 9 KB until the end of the launch.
#[test]
fn a_launch_spawns_for_ever_whatever_its_limit_of_descriptors() {
    let rank = r#"
        mkfifo $D/ended; exec 9<>$D/ended
        printf 'cmd=init pmi_version=1 pmi_subversion=1\n' >&$PMI_FD; read -r reply <&$PMI_FD
        descriptors() { ls /proc/$PPID/fd | wc -l; }
        memory() { while read -r name value unit; do [ $name = RssAnon: ] && echo $value; done </proc/$PPID/status; }
        for round in {1..320}; do
            printf 'mcmd=spawn\nnprocs=2\nexecname=/bin/sh\ntotspawns=1\nspawnssofar=1\nargcnt=2\narg1=-c\narg2=echo >%s\npreput_num=0\ninfo_num=0\nendcmd\n' $D/ended >&$PMI_FD
            read -r reply <&$PMI_FD
            case $reply in *rc=0*) read -r line <&9; read -r line <&9;; *) echo "round $round: $reply"; exit 1;; esac
            if [ $round = 120 ]; then few=$(descriptors) small=$(memory); fi
        done
        # The last job may not be reaped.
        until [ $(descriptors) -le $few ]; do read -t 0.1 <> <(:); done
        grown=$(($(memory) - small)); [ $grown -lt 900 ] || echo "200 jobs left $grown KB"
        printf 'cmd=finalize\n' >&$PMI_FD; read -r reply <&$PMI_FD; echo all"#;
    let directory = tempfile::tempdir().unwrap();
    let script = "ulimit -n 128; exec \"$LATTICE\" launch -n 1 bash -c \"$0\"";
    let command = Command::new("bash").words("-c").arg(script).arg(rank);
    command.env("LATTICE", built::lattice()).env("D", directory.path()).run().exits(0).prints("all\n");
}

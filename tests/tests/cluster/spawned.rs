//! Spawns that reach nodes without ranks, and spawns that fail.

use lattice_tests::mpi::Flavour;
use lattice_tests::{cluster, launch_on};

#[test]
fn children_come_to_nodes_that_had_no_rank() {
    for mpi in [Flavour::WheelMpich, Flavour::DebianOpenMpi, Flavour::WheelOpenMpi] {
        let outcome = launch_on(4, "-N 4 -n 1").arg(mpi.program("spawn")).arg("3").run();
        let line = |who, rank, size, place, word| {
            format!("{who} {rank} of {size}: {place} of 4 together, the last word is '{word}'")
        };
        let children = (0..3).map(|rank| line("child", rank, 3, 1 + rank, "words that belong together"));
        // UCX sometimes prints its own messages to the same stream.
        outcome.exits(0).warns_of_nothing();
        for line in children.chain([line("parent", 0, 1, 0, "3")]) {
            outcome.prints(&line);
        }
    }
}

/// Open MPI 4.1 hangs in a failing spawn of several parents, on one machine as well as on several.
#[test]
fn a_spawn_that_fails_leaves_its_parents_alive() {
    for (mpi, nodes, ranks) in
        [(Flavour::WheelMpich, 2, 2), (Flavour::WheelOpenMpi, 4, 4), (Flavour::DebianOpenMpi, 2, 1)]
    {
        let outcome = launch_on(nodes, &format!("-N {nodes} -n {ranks}")).arg(mpi.program("spawn_missing")).run();
        let lines = (0..ranks).map(|rank| format!("rank {rank}: the spawn fails, {ranks} ranks go on"));
        outcome.exits(0).prints_lines(lines);
        outcome.says("lattice: warning: rank 0 asked for new processes (MPI_Comm_spawn) and got none: ");
        outcome.says("/nonexistent/program");
    }
}

/// MPICH passes `host` and `path` on; Open MPI does not pass `path` on.
#[test]
fn children_are_on_the_hosts_that_their_parent_names() {
    let script = r#"for hosts in "node2 node1" "node0:1 node2" "node7"; do
            echo "$hosts"; lattice launch -N 3 -n 1 "$1" "${1%/*}" $hosts || exit
        done"#;
    let outcome = cluster(3).bash(script).arg(Flavour::WheelMpich.program("spawn_hosts")).run();
    outcome.exits(0).prints_lines([
        "node2 node1",
        "child 0 on node 2",
        "child 1 on node 1",
        "node0:1 node2",
        "child 0 on node 0",
        "child 1 on node 2",
        "node7",
        "the spawn fails",
    ]);
    outcome.says("and got none: host node7 is none of the launch, which runs on node[0-2]");
    let open_mpi = Flavour::WheelOpenMpi.program("spawn_hosts");
    let outcome = launch_on(3, "-N 3 -n 1").arg(open_mpi).words("- node2 node1").run();
    outcome.exits(0).prints_lines(["child 0 on node 2", "child 1 on node 1"]);
}

#[test]
fn children_are_dealt_out_as_their_parent_says() {
    let in_turn = ["child 0 on node 0", "child 1 on node 1", "child 2 on node 2", "child 3 on node 0"];
    for flavour in [Flavour::WheelMpich, Flavour::WheelOpenMpi] {
        let program = flavour.program("spawn_mapped");
        let children = |hint: &str| launch_on(3, "-N 3 -n 1").arg(&program).words("4").words(hint).run();
        children("map_by node").exits(0).prints_lines(in_turn);
        let pairs = ["child 0 on node 0", "child 1 on node 0", "child 2 on node 1", "child 3 on node 1"];
        children("map_by ppr:2:node").exits(0).prints_lines(pairs);
    }
    let mpich = Flavour::WheelMpich.program("spawn_mapped");
    launch_on(3, "-N 3 -n 1").arg(&mpich).words("4 npernode 1").run().exits(0).prints_lines(in_turn);
    // Daemons of mpirun run on all nodes, though it starts one rank.
    let script = r#"lattice mpirun -np 1 "$1" 4 npernode 1"#;
    cluster(3).bash(script).arg(mpich).run().exits(0).prints_lines(in_turn);
}

/// The slots are those of all nodes in the allocation, which mpirun's line with one rank has.
#[test]
fn managers_of_open_mpi_are_told_the_slots_of_all_nodes() {
    let script = r#"lattice mpirun -np 1 "$1"; lattice mpirun -np 1 -H node0:2,node2:5 "$1"; lattice launch -n 1 "$1""#;
    let outcome = cluster(3).bash(script).arg(Flavour::WheelOpenMpi.program("appnum")).run();
    let slots = 3 * rank_spawner::usable_cpus().get();
    let sizes = [slots, 7, 1].map(|size| format!("rank 0: universe size {size}"));
    outcome.exits(0).prints_lines(sizes.into_iter().flat_map(|size| ["rank 0: appnum 0".to_owned(), size]));
}

/// Hosts from a file, and the highest of several requested numbers of children. Open MPI does not pass `soft` on.
#[test]
fn children_are_on_the_hosts_of_a_file_and_as_many_as_are_wanted() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"; printf '# two hosts\nnode2 slots=2\nnode1\n' >hosts
        for hints in "hostfile hosts" "hostfile hosts soft 2" "soft 1,7" "soft 7:9" "hostfile none"; do
            echo "$hints"; lattice launch -N 3 -n 1 "$1" 3 $hints || exit
        done; lattice launch -N 3 -n 1 "$2" 3 hostfile "$PWD/hosts""#;
    let (mpich, open_mpi) = (Flavour::WheelMpich, Flavour::WheelOpenMpi);
    let [mpich, open_mpi] = [mpich, open_mpi].map(|flavour| flavour.program("spawn_mapped"));
    let outcome = cluster(3).bash(script).arg(mpich).arg(open_mpi).run();
    let on_file = ["child 0 on node 2", "child 1 on node 2", "child 2 on node 1"];
    let first = ["hostfile hosts"].into_iter().chain(on_file);
    let fewer = ["hostfile hosts soft 2", "child 0 on node 2", "child 1 on node 2", "2 children"];
    let others = [
        "soft 1,7",
        "child 0 on node 1",
        "1 children",
        "soft 7:9",
        "the spawn fails",
        "hostfile none",
        "the spawn fails",
    ];
    outcome.exits(0).prints_lines(first.chain(fewer).chain(others).chain(on_file));
    outcome.says("and got none: soft is \"7:9\", which has no number from 1 to the 3 ranks");
    outcome.says("and got none: the hostfile none: No such file or directory");
}

/// Children with binding use the cores that their parent's job does not.
#[test]
fn children_are_bound_to_cores_that_nobody_has() {
    let usable = rank_spawner::usable_here(&lattice_inventory::ThisNode::default()).expect("the kernel tells them");
    let cores = usable.cores();
    // For a core with several threads the children print no CPU. If there is only one core, all of them are on it.
    let on = |core: usize| match cores[core % cores.len()].cpus.iter().collect::<Vec<_>>()[..] {
        [cpu] => format!(", CPU {cpu}"),
        _ => String::new(),
    };
    for flavour in [Flavour::WheelMpich, Flavour::WheelOpenMpi] {
        let program = flavour.program("spawn_mapped");
        let outcome = launch_on(2, "-N 2 -n 2 --cpu-bind cores").arg(&program).words("1 bind_to core host node1").run();
        outcome.exits(0).prints_lines([format!("child 0 on node 1{}", on(1))]);
        let outcome = launch_on(1, "-n 1").arg(&program).words("2 bind_to core").run();
        let both = [0, 1].map(|child| format!("child {child} on node 0{}", on(child)));
        outcome.exits(0).prints_lines(both);
    }
}

/// Sessions of all nodes used to keep descriptors and memory of each spawned job.
#[test]
fn sessions_hold_nothing_of_jobs_that_have_ended_on_all_nodes() {
    let rank = r#"
        ask() { printf "$1\n" >&$PMI_FD; read -r reply <&$PMI_FD; }
        descriptors() { ls /proc/$PPID/fd | wc -l; }
        ask 'cmd=init pmi_version=1 pmi_subversion=1'
        if [ $PMI_RANK = 1 ]; then
            read -r line <$D/few; few=$(descriptors); echo >$D/go
            read -r line <$D/many
            until [ $(descriptors) -le $few ]; do read -t 0.1 <> <(:); done
        else
            exec 9<>$D/ended
            for round in {1..120}; do
                ask "mcmd=spawn\nnprocs=2\nexecname=/bin/sh\ntotspawns=1\nspawnssofar=1\nargcnt=2\narg1=-c\narg2=echo >$D/ended\npreput_num=0\ninfo_num=0\nendcmd"
                case $reply in *rc=0*) read -r line <&9; read -r line <&9;; *) echo "round $round: $reply"; exit 1;; esac
                if [ $round = 20 ]; then few=$(descriptors); echo >$D/few; read -r line <$D/go; fi
            done
            echo >$D/many
            until [ $(descriptors) -le $few ]; do read -t 0.1 <> <(:); done
        fi
        ask cmd=finalize; echo level"#;
    let script =
        r#"export D=$(mktemp -d); mkfifo $D/{ended,few,go,many}; lattice launch -N 2 -n 2 bash -c "$1"; rm -r $D"#;
    cluster(2).bash(script).arg(rank).run().exits(0).prints_lines(["level", "level"]);
}

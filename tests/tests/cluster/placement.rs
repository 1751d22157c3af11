//! The placement of ranks on nodes.

use lattice_tests::{Outcome, cluster, launch_on, processes, script_on};

/// Prints the rank and its node.
const WHERE: &str = r#"IFS=, read -ra nodes <<<"$LATTICE_NODELIST"; echo "$LATTICE_RANK ${nodes[$LATTICE_NODE]}""#;

/// Returns the ranks of each node, in node order, from the output of [`WHERE`].
#[track_caller]
fn ranks_of_nodes(outcome: &Outcome, nodes: u32) -> Vec<Vec<u32>> {
    outcome.exits(0);
    let mut of_nodes = vec![Vec::new(); nodes as usize];
    for line in outcome.text().lines() {
        let mut words = line.split(' ');
        let (Some(rank), Some(node)) = (words.next(), words.next()) else { panic!("{line:?} names no node") };
        let node: usize = node.strip_prefix("node").and_then(|number| number.parse().ok()).expect("a node's name");
        of_nodes[node].push(rank.parse().expect("a rank"));
    }
    of_nodes.iter_mut().for_each(|ranks| ranks.sort_unstable());
    of_nodes
}

#[track_caller]
fn check(nodes: u32, flags: &str, expected: &[&[u32]]) {
    let outcome = launch_on(nodes, flags).bash(WHERE).run();
    assert_eq!(ranks_of_nodes(&outcome, nodes), expected, "{flags} on {nodes} nodes");
}

#[test]
fn ten_ranks_on_three_nodes_are_four_three_and_three() {
    check(3, "-n 10", &[&[0, 1, 2, 3], &[4, 5, 6], &[7, 8, 9]]);
}

/// Nodes of 1, 2 and 1 CPUs.
#[test]
fn four_ranks_on_nodes_of_one_two_and_one_cpus_have_a_cpu_each() {
    for launch in ["launch", "srun"] {
        let script = format!(
            r#"
            for node in node0 node2; do
                printf '#!/bin/sh\nexec taskset -c 0 lattice-agent "$@"\n' >"$LATTICE_DEV_CLUSTER/limited"
                chmod +x "$LATTICE_DEV_CLUSTER/limited"
                kill_agent $node && start_agent $node "$LATTICE_DEV_CLUSTER/limited"
            done
            until [ $(lattice -v nodes --json | grep -c '"usable_cpus": "0"') = 2 ]; do sleep 0.05; done
            lattice {launch} -n 4 bash -c '{WHERE}'"#
        );
        let outcome = script_on(3, &script).run();
        assert_eq!(ranks_of_nodes(&outcome, 3), [vec![0], vec![1, 2], vec![3]], "{launch}");
    }
}

#[test]
fn cyclic_deals_ranks_out_one_by_one() {
    check(3, "-n 5 --distribution cyclic", &[&[0, 3], &[1, 4], &[2]]);
}

#[test]
fn planes_deal_several_ranks_out_at_a_time() {
    check(3, "-n 8 --distribution plane=2", &[&[0, 1, 6, 7], &[2, 3], &[4, 5]]);
}

/// As in srun(1): concurrent steps in one allocation.
#[test]
fn a_launch_can_begin_with_a_later_node() {
    check(4, "-N 2 -r 2", &[&[], &[], &[0], &[1]]);
    launch_on(2, "-r 2").bash("true").run().exits(125).says("there is no node 2 to begin with");
}

#[test]
fn tasks_per_node_fills_every_node() {
    check(2, "--tasks-per-node 2", &[&[0, 1], &[2, 3]]);
}

#[test]
fn fewer_nodes_can_be_asked_for() {
    check(3, "-N 2 -n 4", &[&[0, 1], &[2, 3], &[]]);
    check(3, "-w node2,node0 -n 2", &[&[1], &[], &[0]]);
    check(3, "-x node0 -n 2", &[&[], &[0], &[1]]);
}

/// The request has more nodes than ranks. The nodes without ranks take part in the launch.
#[test]
fn nodes_without_ranks_take_part() {
    check(3, "-N 3 -n 2", &[&[0], &[1], &[]]);
}

/// The launch has one rank, for any size of the allocation, and reports the idle slots. It does not report them for a launch
/// inside a rank.
#[test]
fn a_launch_without_a_number_of_ranks_is_one_rank_and_reports_idle_nodes() {
    let launch = |line: &str| cluster(2).bash(&format!("lattice launch {line} | sort | uniq -c | tr -s ' '")).run();
    let note = "without -n this is 1 rank, in an allocation of 2 nodes";
    for line in ["echo x", "--slurm-env echo x"] {
        launch(line).exits(0).prints(" 1 x\n").says(note);
    }
    let cores = cores_of_this_machine();
    for (line, ranks) in
        [("-N all echo x", 2), ("-n 3 echo x", 3), ("--fill echo x", 2 * cores), ("-n 1 lattice launch echo x", 1)]
    {
        let outcome = launch(line);
        outcome.exits(0).prints(&format!(" {ranks} x\n"));
        assert!(!outcome.errors().contains("note:"), "{line}: {}", outcome.errors());
    }
    let quiet = cluster(2)
        .bash("lattice -q launch echo x; lattice launch -q -w node1 hostname; lattice launch -w node0 hostname")
        .run();
    quiet.exits(0).prints("x\nnode1\nnode0\n");
    assert!(!quiet.errors().contains("note:"), "{}", quiet.errors());
}

/// Names with a domain and addresses once were refused, with a suggestion that failed as well.
#[test]
fn nodes_are_called_by_any_name_and_address() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"; address=$(lattice exec node1 -- hostname -I | cut -d' ' -f1)
        for name in node1 node1.site $address; do
            printf '%s slots=1\n' $name >hosts
            lattice launch -w $name -n 1 hostname; lattice launch --host $name:1 hostname; lattice launch -n 1 -x $name hostname
            lattice launch --hostfile hosts hostname; lattice mpiexec -hosts $name -n 1 hostname
            lattice srun -n1 -w $name hostname; lattice exec $name -- hostname; lattice launch -w node0 hostname : -w $name hostname | sort
        done
        lattice nodes drain $address --reason test; lattice nodes | grep -c drained; lattice nodes resume $address
        lattice launch -w 192.0.2.1 true; echo "code $?""#;
    let each = "node1\nnode1\nnode0\nnode1\nnode1\nnode1\nnode1\nnode0\nnode1\n".repeat(3);
    cluster(2).bash(script).run().exits(0).prints(&format!("{each}1\ncode 125\n"));
}

#[test]
fn a_hostfile_is_followed_line_by_line() {
    let script = r#"printf 'node1 slots=2 # the big one\nnode0:1\n' >"$LATTICE_DEV_CLUSTER/hostfile"
        lattice launch -n 3 --hostfile "$LATTICE_DEV_CLUSTER/hostfile" bash -c "$1""#;
    let outcome = cluster(2).bash(script).arg(WHERE).run();
    assert_eq!(ranks_of_nodes(&outcome, 2), [vec![2], vec![0, 1]]);
}

/// Open MPI's rankfile: a host and cores for each rank, which differ from node to node.
#[test]
fn a_rankfile_has_the_node_and_the_cores_of_each_rank() {
    let last = cores_of_this_machine() - 1;
    let script = format!(
        r#"cd "$LATTICE_DEV_CLUSTER"; printf 'rank 1=node0 slot={last}\nrank 0=node1 slot=0\nrank 2=node0 slot=0:0\nrank 3=node1\n' >ranks
        lattice launch --rankfile ranks bash -c "$1" && lattice mpirun --map-by rankfile:file=ranks -np 3 bash -c "$1""#
    );
    let on_its_core = format!("{WHERE}:$(sed -n 's/^Cpus_allowed_list:\t//p' /proc/self/status)");
    let outcome = cluster(2).bash(&script).arg(&on_its_core).run();
    let all = processes::status(std::process::id(), "Cpus_allowed_list").expect("a kernel's word");
    let (first, last) = (cpu_of_core(0), cpu_of_core(last));
    let placed =
        [format!("0 node1:{first}"), format!("1 node0:{last}"), format!("2 node0:{first}"), format!("3 node1:{all}")];
    let twice: Vec<&String> = placed.iter().chain(&placed[..3]).collect();
    outcome.exits(0).prints_lines(twice);
}

#[test]
fn a_rankfile_with_fewer_ranks_or_other_nodes_is_refused() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"; printf 'rank 0=node1 slot=0\nrank 1=node7 slot=0\n' >ranks
        lattice launch --rankfile ranks true; echo $?
        sed -i s/node7/node0/ ranks; lattice launch --rankfile ranks -n 3 true; echo $?
        sed -i s/=0$/=4711/ ranks; lattice launch --rankfile ranks true; echo $?"#;
    let outcome = script_on(2, script).run();
    outcome.exits(0).prints_lines(["125", "125", "125"]);
    outcome.says("node node7 is not in the allocation").says("3 ranks do not fit").says("bound to cores 4711");
}

/// `ppr:N:OBJECT` of Open MPI: the number of ranks on a node depends on its reported objects.
#[test]
fn ranks_by_objects_fill_each_node() {
    let cores = cores_of_this_machine();
    let of = |first: u32| (first..first + cores).collect::<Vec<u32>>();
    check(2, "--tasks-per 1:core", &[&of(0), &of(cores)]);
    check(2, "--tasks-per 1:core -w node1", &[&[], &of(0)]);
    check(2, "--tasks-per-core 1 -n 1", &[&[0], &[]]);
    // As in srun, and not as in mpirun.
    check(2, "--tasks-per-core 1 -n 2", &[&[0], &[1]]);
    check(3, "--include node2 -N 2 -n 3", &[&[0, 1], &[], &[2]]);
    check(3, "-N 1-2 -n 4", &[&[0, 1], &[2, 3], &[]]);
    let too_many = format!("--tasks-per 1:core -n {}", 2 * cores + 1);
    let words = format!("{} ranks do not fit: node[0-1] have room for {}", 2 * cores + 1, 2 * cores);
    launch_on(2, &too_many).bash("true").run().exits(125).says(&words).says("--overcommit");
}

/// As in the node files of PBS and LSF.
#[test]
fn a_hostfile_may_have_a_line_for_each_slot() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"; printf 'node%s\n' 0 0 1 1 2 >hosts; lattice launch --hostfile hosts bash -c "$1"
        printf 'node%s\n' 0 1 1 0 >hosts; lattice launch --hostfile hosts bash -c "$1""#;
    let outcome = cluster(3).bash(script).arg(WHERE).run();
    outcome.exits(0).prints_lines(
        ["0 node0", "1 node0", "2 node1", "3 node1", "4 node2"]
            .into_iter()
            .chain(["0 node0", "1 node1", "2 node1", "3 node0"]),
    );
}

/// As the components of a heterogeneous step of srun.
#[test]
fn programs_have_nodes_of_their_own() {
    let check = |flags: &str, next: &str, expected: &[&[u32]]| {
        let outcome = launch_on(4, flags).bash(WHERE).words(next).bash(WHERE).run();
        assert_eq!(ranks_of_nodes(&outcome, 4), expected, "{flags} {next} on 4 nodes");
    };
    check("-N 1 -n 2", ": -N 2 --tasks-per-node 2", &[&[0, 1], &[2, 3], &[4, 5], &[]]);
    check("-w node3", ": -N 2 -n 3", &[&[1, 2], &[3], &[], &[0]]);
    check("-n 1", ": -H node3:2,node1", &[&[0], &[3], &[], &[1, 2]]);
    let outcome = launch_on(2, "-N 1 true : -N 2").words("true").run();
    outcome.exits(125).says("program 2 is to have 2 nodes of its own, and of node[0-1] 1 is left for it");
}

/// The order of rank numbers differs from the order of the places.
#[test]
fn ranks_are_numbered_by_slot_or_by_node() {
    check(2, "-n 5 --distribution cyclic --rank-by slot", &[&[0, 1, 2], &[3, 4]]);
    check(2, "-n 5 --rank-by node", &[&[0, 2, 4], &[1, 3]]);
    check(2, "-n 6 -H node0:4,node1:4 -m block --rank-by node", &[&[0, 2, 4, 5], &[1, 3]]);
}

/// Returns the number of cores that ranks may use.
fn cores_of_this_machine() -> u32 {
    let usable = rank_spawner::usable_here(&lattice_inventory::ThisNode::default()).expect("the kernel tells them");
    usable.cores().len() as u32
}

/// Returns the CPUs of a core.
fn cpu_of_core(core: u32) -> String {
    let usable = rank_spawner::usable_here(&lattice_inventory::ThisNode::default()).expect("the kernel tells them");
    usable.cores()[core as usize].cpus.to_string()
}

/// Each rank sees its node as a separate machine, if the cluster has network namespaces.
#[test]
fn a_rank_is_on_the_node_that_it_is_told() {
    let script = format!("{WHERE} $(hostname) $(echo $(ls /sys/class/net))");
    let outcome = launch_on(2, "-n 2").bash(&script).run();
    if nix::unistd::geteuid().is_root() {
        outcome.exits(0).prints_lines(["0 node0 node0 eth0 lo", "1 node1 node1 eth0 lo"]);
    } else {
        outcome.exits(0).prints("0 node0 ").prints("1 node1 ");
    }
}

/// The plan is equal to the map of the later launch. The dry run starts no process.
#[test]
fn a_dry_run_tells_where_a_launch_would_put_its_ranks() {
    let script = r#"check() {
            plan=$(lattice launch --dry-run "$@") && map=$(lattice launch --show-map "$@" 2>&1 >/dev/null) || exit
            echo "$plan"; [ "$plan" = "$map" ] || { echo "but it was: $map" >&2; exit 90; }
        }
        lattice launch --dry-run -n 4 touch "$LATTICE_DEV_CLUSTER/started" >/dev/null || exit
        [ ! -e "$LATTICE_DEV_CLUSTER/started" ] && [ -z "$(lattice launches --all --json | field launch_id)" ] || exit 91
        check -n 5 true
        check -w node2,node0 --distribution cyclic -n 2 true : -n 1 echo
        lattice launch --dry-run --json -n 2 -w node1 true | grep -o '"rank":[0-9]*,"node":"[^"]*"'"#;
    let outcome = script_on(3, script).run();
    outcome.exits(0).prints("   4  node2      0  any   true\n").prints("   1  node0      0  any   true\n");
    outcome.prints("\"rank\":0,\"node\":\"node1\"\n\"rank\":1,\"node\":\"node1\"\n");
}

/// A node without its agent, which the API server remembers even after a restart, and a node that never existed.
#[test]
fn a_plan_has_nodes_that_are_not_there_as_they_told_last() {
    let script = r#"
        launch="lattice launch --api $LATTICE_API_URL -n 4 --cpu-bind threads"
        kill_agent node1
        until lattice nodes | grep -q '^node1 .*away'; do sleep 0.05; done
        $launch --dry-run -w node1,node0 true && $launch -w node1 true; echo "launch: $?"
        nodes_up() { lattice nodes | grep -q 'node0.* up '; }
        restart_api true
        env -u LATTICE_ALLOC_ID $launch --dry-run -w node1,node0 true
        env -u LATTICE_ALLOC_ID $launch --dry-run -w node[1-2] true; echo "nobody's: $?""#;
    let outcome = script_on(2, script).run();
    let planned = "planned with its last inventory, and a launch would be refused now";
    outcome.exits(0).says(&format!("lattice: note: node1 is away: its agent does not run; {planned}"));
    outcome.says("lattice: node node1 is away: its agent does not run; leave it out").prints("launch: 125\n");
    outcome.says(&format!("lattice: note: node1 has not registered; {planned}"));
    outcome.says("nothing is known of node node2").says("known are node[0-1]").prints("nobody's: 125\n");
    let rows = outcome.text().lines().filter(|line| line.ends_with(" true")).collect::<Vec<_>>();
    assert!(rows.len() == 8 && rows.iter().all(|row| !row.contains(" any ")), "CPUs of every rank: {rows:?}");
}

#[test]
fn what_does_not_fit_is_refused_with_what_is_there() {
    let check = |flags: &str, words: &str| {
        launch_on(2, flags).words("echo ran").run().exits(125).says(words).prints_lines::<&str>([]);
    };
    check("-N 3", "lattice: 3 nodes were asked for, and 2 can be used: node[0-1]");
    check("-n 5 --tasks-per-node 2", "lattice: 5 ranks do not fit: 2 nodes with at most 2 ranks each hold 4");
    check("-w node7", "lattice: node node7 is not in the allocation, which has node[0-1]");
}

/// Each node binds its ranks by its own topology.
#[test]
fn hints_bind_ranks_on_every_node() {
    let cpus = r#"echo "$LATTICE_NODE $LATTICE_LOCAL_RANK $(sed -n 's/^Cpus_allowed_list:\t//p' /proc/self/status)""#;
    let allowed = processes::status(std::process::id(), "Cpus_allowed_list").expect("a kernel's word");
    let first = allowed.split([',', '-']).next().expect("a CPU").to_owned();
    for flags in ["-n 2 --hint memory_bound", "-N 2 --hint nomultithread", "-n 2 --threads-per-core 1"] {
        let outcome = launch_on(2, flags).bash(cpus).run();
        outcome.exits(0).prints_lines([format!("0 0 {first}"), format!("1 0 {first}")]);
    }
}

#[test]
fn memory_is_bound_on_every_node() {
    let script = r#"read -r _ policy _ < /proc/self/numa_maps; echo "$LATTICE_NODE $policy""#;
    let outcome = launch_on(2, "-n 2 --mem-bind rank").bash(script).run();
    match std::path::Path::new("/proc/self/numa_maps").exists() {
        true => outcome.exits(0).prints_lines(["0 bind:0", "1 bind:0"]),
        false => outcome.exits(125).says("the kernel of this node has none"),
    };
}

/// All nodes of a development cluster are this machine.
#[test]
fn the_map_of_a_cluster_has_the_cpus_that_the_kernels_give() {
    let script = r#"
        until lattice nodes --topology --json | tr -d ' \n' | grep -q '"nodes":\["node0","node1"\]'; do sleep 0.05; done
        lattice nodes --topology --json | grep -q '"cpus"' || sleep 1
        show='echo "$LATTICE_RANK $(sed -n "s/^Cpus_allowed_list:\t//p" /proc/self/status)"'
        for flags in "--cpu-bind cores" "--cpu-bind threads -m cyclic:fcyclic" "--cpu-bind sockets" "--hint memory_bound" "--cpu-bind map:0"; do
            planned=$(lattice launch -n 4 $flags --dry-run true | awk '$1 ~ /^[0-9]+$/ { print $1, $4 }')
            shown=$(lattice launch -n 4 $flags --show-map true 2>&1 >/dev/null | awk '$1 ~ /^[0-9]+$/ { print $1, $4 }')
            seen=$(lattice launch -n 4 $flags bash -c "$show" | sort -n)
            [ "$planned" = "$seen" ] && [ "$shown" = "$seen" ] && echo "as planned" || echo "$flags: $planned; $shown; $seen"
        done
        lattice launch -n 2 -c 999 --dry-run true"#;
    let outcome = script_on(2, script).run();
    outcome
        .exits(125)
        .prints_lines(["as planned"; 5])
        .says("lattice: node0: 1 local ranks are to be bound to cores:cpus=999");
}

//! Nodes with agents that may use a part of the CPUs: because of `CPUAffinity=` or `AllowedCPUs=` of their unit, a control group or isolated
//! CPUs. Plans, maps and pictures show the CPUs that the kernel gives to ranks.

use lattice_inventory::{CpuSet, ThisNode};
use lattice_tests::script_on;

/// Functions of the scripts: an agent of node1 that may use the CPUs of a list, and a comparison of plans with the CPUs of ranks.
const LIMITED: &str = r#"
    limit_node1() {
        printf '#!/bin/sh\nexec taskset -c %s lattice-agent "$@"\n' "$1" >"$LATTICE_DEV_CLUSTER/limited"
        chmod +x "$LATTICE_DEV_CLUSTER/limited"
        kill_agent node1 && start_agent node1 "$LATTICE_DEV_CLUSTER/limited"
        told ${2-$1}
    }
    # Waits until node1 has told these CPUs, which it does behind its registration.
    told() { until [ "$(lattice -v nodes --json | sed -nE 's/^ *"usable_cpus": "(.*)",$/\1/p' | tail -n 1)" = "$1" ]; do sleep 0.05; done; }
    rows() { awk '$1 ~ /^[0-9]+$/ { print $1, $4 }'; }
    # Whether the plan, the map and the kernel have the same CPUs for each rank of a launch.
    check() {
        local plan=$(lattice launch --dry-run "$@" true | rows)
        lattice launch --show-map "$@" bash -c 'echo "$LATTICE_RANK $(sed -n "s/^Cpus_allowed_list:\t//p" /proc/$$/status)"' 2>map >seen
        [ "$plan" ] && [ "$plan" = "$(rows <map)" ] && [ "$plan" = "$(sort -n seen)" ] && echo "as planned: $*" && return
        printf '%s\n' "not as planned: $*" "$plan" map "$(cat map)" seen "$(cat seen)"
    }
    cd "$LATTICE_DEV_CLUSTER""#;

/// Returns the last CPU, and all CPUs, that this process may use.
fn cpus() -> (CpuSet, CpuSet) {
    let all = rank_spawner::usable_here(&ThisNode::default()).expect("the kernel tells them").cpus();
    let last = all.iter().last().into_iter().collect();
    assert!(all.len() > 1, "this test needs a machine, or a control group, of two CPUs");
    (last, all)
}

#[test]
fn ranks_have_the_cpus_of_the_plan_where_an_agent_may_use_one() {
    let (last, _) = cpus();
    let flags = [
        "-n 4 --tasks-per-node 2 --cpu-bind cores",
        "-n 4 --tasks-per-node 2 --cpu-bind threads",
        "-n 4 --tasks-per-node 2 --cpu-bind sockets",
        "-n 4 --tasks-per-node 2 --cpu-bind numa",
        "-n 4 --tasks-per-node 2 --cpu-bind rank",
        "-n 4 --tasks-per-node 2 -c 1 --overcommit",
        "-n 2 -N 2 -c 1",
        "--tasks-per 1:core --cpu-bind cores",
    ];
    let checks: Vec<String> = flags.iter().map(|flags| format!("check {flags}")).collect();
    let script = format!("{LIMITED}\nlimit_node1 {last}\n{}", checks.join("\n"));
    let outcome = script_on(2, &script).run();
    outcome.exits(0).prints_lines(flags.map(|flags| format!("as planned: {flags}")));
}

#[test]
fn what_a_limited_node_cannot_bind_is_refused_by_the_plan() {
    let (last, all) = cpus();
    let first = all.first().expect("two CPUs");
    let script = format!(
        r#"{LIMITED}
        limit_node1 {last}
        lattice launch --dry-run -n 2 -N 2 -c 2 true; echo $?
        lattice launch --dry-run -w node1 -n 1 --cpu-bind map:{first} true; echo $?
        lattice launch --tasks-per 1:core bash -c 'echo $LATTICE_NODE' | grep -c 1
        # Also while it is away, and after a restart of the API server.
        kill_agent node1
        until lattice nodes | grep -q '^node1 .*away'; do sleep 0.05; done
        nodes_up() {{ lattice nodes | grep -q 'node0.* up '; }}
        restart_api true
        lattice launch --dry-run -w node1 -n 2 --no-overcommit true; echo $?
        lattice launch --dry-run -w node1 -n 1 --cpu-bind cores true | rows"#
    );
    let outcome = script_on(2, &script).run();
    outcome.exits(0).prints_lines(["125", "125", "1", "125", &format!("0 {last}")]);
    outcome.says(&format!("node1: 1 local ranks are to be bound to cores:cpus=2, but CPUs {last}, which this launch"));
    outcome.says(&format!("bound to CPU {first}, but this launch may use CPUs {last}"));
    outcome.says("node1 has 1 CPU for 2 ranks");
}

#[test]
fn pictures_mark_the_cores_that_ranks_may_not_use() {
    let (last, _) = cpus();
    let script = format!(
        r#"{LIMITED}
        limit_node1 {last}
        lattice nodes --topology | grep -E '^node|ranks may use'
        lattice -v nodes | awk 'NR > 1 {{ print $1, $6 }}'
        lattice launch -n 2 -N 2 --cpu-bind cores --show-map true 2>&1 | grep -c '×'
        lattice nodes --topology node1 --format svg | grep -o 'ranks may use CPUs {last} only; grey'
        # A later one may use all of them.
        limit_node1 0-1023 all
        lattice nodes --topology | grep -cE '^node|ranks may use'"#
    );
    let outcome = script_on(2, &script).run();
    let may = format!("ranks may use CPUs {last} only; ");
    outcome.exits(0).prints(&format!(" {may}× marks cores without one\n"));
    outcome.prints(&format!("node0 all\nnode1 {last}\n2\n{may}grey\n1\n"));
}

/// As with `systemctl set-property AllowedCPUs=`.
#[test]
fn cpus_that_an_agent_is_given_while_it_runs_are_planned_with() {
    let (last, all) = cpus();
    let first = all.first().expect("two CPUs");
    let script = format!(
        r#"{LIMITED}
        limit_node1 {last}
        # The agent, and the processes below it, from which its sessions are forked.
        give() {{
            taskset -a -p -c $1 $2 >/dev/null || exit
            for pid in $(pgrep -P $2); do give $1 $pid; done
        }}
        give {first} $(daemon node1); told {first}; check -n 3 --tasks-per-node 2 --cpu-bind cores
        give 0-1023 $(daemon node1); told all; check --tasks-per 1:core --cpu-bind cores
        lattice nodes --json | field cores | uniq -c | wc -l"#
    );
    let outcome = script_on(2, &script).run();
    let planned = ["-n 3 --tasks-per-node 2 --cpu-bind cores", "--tasks-per 1:core --cpu-bind cores"];
    outcome
        .exits(0)
        .prints_lines(planned.map(|flags| format!("as planned: {flags}")).into_iter().chain(["1".to_owned()]));
}

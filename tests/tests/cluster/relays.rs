//! A launch that reaches its nodes through each other: the API server calls one node, which calls the next one.

use lattice_tests::mpi::Flavour;
use lattice_tests::{lattice, script_in, script_on};

/// Makes the API server call the first node only, and each node the next one.
const CHAIN: &str = r#"restart_api sed -i '1i relay_above = 1\nrelay_fan_out = 1' "$LATTICE_DEV_CLUSTER/api.toml""#;

#[test]
fn a_signed_launch_is_passed_on_from_node_to_node() {
    let outcome = script_on(4, &format!(r#"{CHAIN}; lattice launch -n 8 "$1""#));
    let outcome = outcome.arg(Flavour::WheelMpich.program("hello")).run();
    (0..8).fold(outcome.exits(0), |outcome, rank| outcome.prints(&format!("rank {rank} of 8")));
}

#[test]
fn a_node_that_its_relay_cannot_reach_is_named_and_nothing_runs_elsewhere() {
    let script = format!(
        r#"{CHAIN}; kill -KILL $(daemon node3); lattice launch --pmi=none -n 8 sleep 1000; code=$?
           lattice launches --json | field launch_id; exit $code"#
    );
    let outcome = script_on(4, &script).run();
    outcome.exits(125).prints_lines::<&str>([]);
    // The call is repeated for the time of an agent's replacement. In this time the API server may detect the end of the agent.
    let refusals = ["does not start its part of the launch: node3 at ", "is away: its agent does not run"];
    let said = outcome.errors();
    assert!(refusals.iter().any(|refusal| said.contains(&format!("node node3 {refusal}"))), "{said}");
}

/// A relay keeps its connections for the next launch, and opens a new one if an agent has ended in the meantime.
#[test]
fn an_agent_that_was_started_anew_is_reached_by_its_relay() {
    let script = format!(
        r#"{CHAIN}; cd "$LATTICE_DEV_CLUSTER"; lattice launch --pmi=none -n 3 echo before || exit
           pid=$(daemon node2); kill -KILL $pid; while grep -qs '^State:.[^ZX]' /proc/$pid/task/*/status; do sleep 0.02; done
           env -u LATTICE_API_URL LATTICE_LOG=info lattice-agent --config node2.toml 2>again.log & echo $! >node2.pid
           until grep -q registered again.log; do sleep 0.05; done
           lattice launch --pmi=none -n 3 echo after"#
    );
    let outcome = script_in(lattice("dev-cluster --loopback --nodes 3 --"), &script).run();
    outcome.exits(0).prints_lines(["before", "before", "before", "after", "after", "after"]);
}

/// Of 12 nodes, the API server calls three, which pass the launch on to three nodes each. A node sends its map, a start, an exit and its report.
/// A separate stream would begin with an additional message.
#[test]
fn few_messages_tell_of_many_nodes() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        restart_api sed -i '1i relay_above = 3\nrelay_fan_out = 3\nmetrics = "127.0.0.1:9464"' api.toml
        count() {
            nsenter --net=/proc/$(daemon api)/ns/net bash -c 'exec 3<>/dev/tcp/127.0.0.1/9464
                printf "GET /metrics HTTP/1.0\r\n\r\n" >&3; cat <&3' | sed -nE "s/^lattice_api_$1_total ([0-9]+).*/\1/p"
        }
        lattice launch --pmi=none -n 12 true || exit
        messages=$(count report_messages) events=$(count events)
        [ $events -ge 48 ] && [ $messages -gt 0 ] && [ $((2 * messages)) -lt $events ] && echo few || echo "$messages messages, $events events""#;
    script_on(12, script).run().exits(0).prints_lines(["few"]);
}

/// The agents of two relays are replaced one after the other, while all ranks print.
#[test]
fn what_ranks_print_comes_once_while_agents_that_relay_reports_are_replaced() {
    let script = format!(
        r#"{CHAIN}; cd "$LATTICE_DEV_CLUSTER"
           lattice launch --pmi=none -n 4 bash -c 'for line in {{1..60}}; do echo $LATTICE_RANK $line; sleep 0.1; done' >printed & launch=$!
           until [ $(grep -c ' 5$' printed) = 4 ]; do sleep 0.05; done
           for node in node1 node0; do kill_agent $node; start_agent $node; done
           wait $launch; code=$?
           [ $(wc -l <printed) = 240 ] && [ $(sort -u printed | wc -l) = 240 ] && echo complete || sort -V printed
           exit $code"#
    );
    script_on(4, &script).run().exits(0).prints_lines(["complete"]);
}

/// The kernel accepts connections for the relay, and the relay passes nothing on.
#[test]
fn nodes_behind_a_relay_that_stands_still_go_on() {
    let script = format!(
        r#"{CHAIN}; cd "$LATTICE_DEV_CLUSTER"
           lattice launch --pmi=none --no-kill -n 4 bash -c 'for line in {{1..12}}; do echo $LATTICE_RANK $line; sleep 1; done' >printed & launch=$!
           until [ $(grep -c ' 1$' printed) = 4 ]; do sleep 0.05; done
           kill -STOP $(daemon node1); wait $launch; code=$?; kill -CONT $(daemon node1)
           grep ' 12$' printed | sort; exit $code"#
    );
    let outcome = script_on(4, &script).run();
    outcome.exits(1).prints_lines(["0 12", "2 12", "3 12"]).says("node node1 was lost");
}

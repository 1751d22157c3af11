//! Addresses of agents: an address that changes while its agent runs, and an address at which another agent takes the name of a node.

use lattice_tests::script_on;

/// The agent of node1 listens at all addresses of its node, and advertises none.
const AT_ALL_ADDRESSES: &str = r#"cd "$LATTICE_DEV_CLUSTER"
    sed -i 's/^listen.*/listen = "0.0.0.0:50052"/; /^advertise/d' node1.toml
    kill_agent node1; start_agent node1
    in_node1() { nsenter --net=/proc/$(daemon node1)/ns/net "$@"; }
    # node1 has this address alone from now on.
    readdress() {
        in_node1 ip -4 addr flush dev eth0
        in_node1 ip addr add $1/24 dev eth0
    }
    agent_of() { lattice nodes | awk -v node=$1 '$1 == node { for (i = 1; i <= NF; i++) if ($i ~ /:500/) print $2, $i }'; }"#;

/// The node loses its lease of the address, and receives another one.
#[test]
fn a_node_whose_address_changes_comes_back_under_the_new_one() {
    let script = format!(
        r#"{AT_ALL_ADDRESSES}
        agent_of node1; readdress 10.20.0.77
        until [ "$(agent_of node1)" = "up 10.20.0.77:50052" ]; do sleep 0.1; done
        lattice launch -N 2 -n 2 sh -c 'echo $LATTICE_RANK runs'"#
    );
    let outcome = script_on(2, &script).run();
    outcome.exits(0).prints("up 10.20.0.2:50052\n").prints("0 runs").prints("1 runs");
}

/// A clone of node1 is started on the network of node0. The launch on the first node1 continues, and the clone is reported. After the end
/// of the first one, the clone becomes the node.
#[test]
fn a_second_agent_of_a_node_is_refused_while_the_first_is_heard() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        lattice launch -w node1 -n 1 sh -c 'until [ -e go ]; do sleep 0.05; done; echo goes on' & launch=$!
        launch_with 1 >/dev/null
        sed 's/^listen.*/listen = "10.20.0.1:50099"/; s/^advertise.*/advertise = "10.20.0.1:50099"/' node1.toml >clone.toml
        sed -i "s#^runtime_dir.*#runtime_dir = '$PWD/clone'#" clone.toml
        nsenter --net=/proc/$(daemon node0)/ns/net env -u LATTICE_API_URL lattice-agent --config $PWD/clone.toml 2>clone.log & clone=$!
        until grep -q 'cannot register' clone.log; do sleep 0.05; done
        grep -om1 'two agents register as node1: 10.20.0.1:50099, and 10.20.0.2:50052' clone.log
        grep -c 'WARN.*two agents register as node1' api.log | sed 's/^[1-9].*/warned/'
        lattice nodes | grep -o 'two agents register as .*'
        touch go; wait $launch; echo "code $?"
        # An agent that is started anew is no second one.
        kill_agent node1; start_agent node1; nodes_up 2 && echo "up at once"
        kill_agent node1
        until lattice nodes --json | grep -q '"grpc_address": "10.20.0.1:50099"'; do sleep 0.1; done
        kill $clone; wait $clone"#;
    let outcome = script_on(2, script).run();
    outcome.exits(0).prints_lines([
        "two agents register as node1: 10.20.0.1:50099, and 10.20.0.2:50052",
        "warned",
        "two agents register as node1: 10.20.0.2:50052, and 10.20.0.1:50099, which is refused",
        "goes on",
        "code 0",
        "up at once",
    ]);
}

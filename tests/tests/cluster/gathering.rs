//! Queries about the ranks of a large launch. Its sessions gather the answers over their tree. Here a launch on two nodes counts as large,
//! and a node has two nodes below it: node0 queries node1 for nodes 1 to 3, and node4 for nodes 4 and 5.

use lattice_tests::mpi::Flavour;
use lattice_tests::script_on;

const LARGE: &str = r#"cd "$LATTICE_DEV_CLUSTER"
    restart_api sed -i '1i relay_above = 1\nbarrier_fan_out = 2\nmetrics = "127.0.0.1:9464"' api.toml
    # Number of questions that have left the API server: to "tree" or to "node".
    questions() {
        nsenter --net=/proc/$(daemon api)/ns/net bash -c 'exec 3<>/dev/tcp/127.0.0.1/9464
            printf "GET /metrics HTTP/1.0\r\n\r\n" >&3; cat <&3' |
            { sed -nE "s/^lattice_api_rank_questions_total\{to=\"$1\"\} ([0-9]+).*/\1/p"; echo 0; } | head -1
    }
    session_of() { ps -o ppid= -p $(pid_of_rank $id $1); }"#;

#[test]
fn one_question_leaves_the_api_server_for_each_look_at_a_large_launch() {
    let script = format!(
        r#"{LARGE}
        lattice launch --detach -n 6 "$1" >/dev/null || exit; id=$(launch_with 6)
        # Now and then a debugger finds a rank where it cannot tell the callers.
        until lattice stacks $id >seen && [ $(grep -cE '^0-5  main$|^0-4  *exchange|^5  *compute' seen) = 3 ]; do sleep 0.1; done
        tree=$(questions tree) node=$(questions node)
        lattice stacks $id >/dev/null
        lattice top $id --once --json | field memory_bytes | grep -vc '^0$'
        lattice status $id --json | field phase | grep -c '^initialized'
        lattice proctable $id --json | field program | grep -c '/divided$'
        echo "$(($(questions tree) - tree)) to the root, $(($(questions node) - node)) to others"
        lattice cancel $id"#
    );
    let outcome = script_on(6, &script).arg(Flavour::WheelMpich.program("divided")).run();
    outcome.exits(0).prints_lines(["6", "6", "6", "4 to the root, 0 to others"]);
}

/// Ranks of `sleep` need no other node, so that no links exist before the query.
#[test]
fn a_node_that_tells_nothing_is_named_and_those_behind_it_are_told_of() {
    let script = format!(
        r#"{LARGE}
        lattice launch --detach --no-kill -n 6 sleep 1000 >/dev/null || exit; id=$(launch_with 6)
        known() {{ lattice top $id --once --json | field memory_bytes | grep -vc '^0$'; }}
        known
        session=$(session_of 1)
        kill -STOP $session; lattice status $id | grep -oE 'node[0-9] [(]silent[)]'; known
        kill -CONT $session; kill -KILL $session
        until lattice status $id | grep 'lambs on node\[2-5\]'; do sleep 0.1; done
        known; lattice status $id | grep -c silent
        lattice cancel $id"#
    );
    let outcome = script_on(6, &script).run();
    outcome.exits(0).prints_lines([
        "6",
        "node1 (silent)",
        "5",
        "sessions: shepherd on node0, lambs on node[2-5]",
        "5",
        "0",
    ]);
}

//! The visible state of a cluster and its launches, for people and for programs.

use lattice_tests::mpi::{self, Flavour};
use lattice_tests::{Outcome, cluster, launch_on, script_on};
use serde_json::Value;

/// Starts a launch that waits indefinitely, runs a query about it (`$id`), and ends it.
#[track_caller]
fn asked(question: &str) -> Outcome {
    let script = format!(
        "lattice launch --detach -n 4 sleep 1000 >/dev/null || exit
        id=$(launch_with 4); {question}; code=$?
        lattice cancel $id >/dev/null && exit $code"
    );
    script_on(2, &script).run()
}

#[track_caller]
fn json(outcome: &Outcome) -> Value {
    outcome.exits(0);
    serde_json::from_slice(outcome.stdout()).unwrap_or_else(|error| panic!("{error}: {}", outcome.text()))
}

/// Returns the values of a field, at any place in the document.
fn all<'a>(value: &'a Value, field: &str) -> Vec<&'a Value> {
    match value {
        Value::Object(fields) => {
            let deeper = fields.values().flat_map(|value| all(value, field));
            fields.get(field).into_iter().chain(deeper).collect()
        }
        Value::Array(values) => values.iter().flat_map(|value| all(value, field)).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn what_ranks_use_is_told_by_their_nodes() {
    let ranks = json(&asked("lattice top $id --once --json"));
    let of_ranks = ranks.as_array().unwrap();
    assert_eq!(all(&ranks, "node"), ["node0", "node0", "node1", "node1"]);
    assert!(
        of_ranks.iter().all(|rank| rank["usage"]["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 0)),
        "{ranks}"
    );
}

/// All nodes of a development cluster are this machine.
#[test]
fn nodes_of_one_kind_are_shown_as_one() {
    let script = "until lattice nodes --topology | grep -q '^node\\[0-2\\].* thread'; do sleep 0.05; done
        lattice nodes --topology --json";
    let kinds = json(&script_on(3, script).run());
    assert_eq!(all(&kinds, "nodes"), [&serde_json::json!(["node0", "node1", "node2"])]);
    assert!(all(&kinds, "template").iter().all(|template| template["cpus"].is_string()), "{kinds}");
}

/// Each form has the same content for a kind. hwloc counts the CPUs of the last form.
#[test]
fn a_kind_of_node_is_shown_in_each_form() {
    let script = r#"until lattice nodes --topology node1 >/dev/null 2>&1; do sleep 0.05; done
        lattice nodes --topology node1 --format svg >node.svg && grep -c '</svg>' node.svg
        lattice nodes --topology node1 --format xml >node.xml && [ $(lstopo -i node.xml --only pu | wc -l) = $(nproc --all) ] && echo counted
        [ "$(lattice nodes --topology --format json)" = "$(lattice nodes --topology --json)" ] && echo same
        lattice nodes -v | sed -n '1s/ \+/ /gp'; lattice nodes -v --json | field support
        lattice nodes --topology elsewhere"#;
    let outcome = script_on(2, &format!("cd \"$LATTICE_DEV_CLUSTER\"; {script}")).run();
    outcome.exits(125).says("elsewhere is no known launch, and no node with an inventory").prints_lines([
        "1",
        "counted",
        "same",
        "NODE STATE KIND SUPPORT CORES CPUS MEMORY GPUS NICS LAUNCHES HEARD AGENT VERSION NOTE",
        "full",
        "full",
    ]);
}

/// Ranks are bound as planned, until a CPU is removed from one of them.
#[test]
fn ranks_of_a_launch_stand_in_the_cores_that_the_kernel_gives_them() {
    let script = r#"until [ $(lattice nodes --topology --json | field cpus | wc -l) -gt 0 ]; do sleep 0.05; done
        lattice launch --detach -n 2 -N 2 --cpu-bind map:0 sleep 1000 >/dev/null || exit
        bound=$(launch_with 2)
        lattice launch --detach -n 1 sleep 1000 >/dev/null; free=$(lattice launches --json | field launch_id | grep -v $bound)
        until lattice nodes --topology $free | grep -q 'on node'; do sleep 0.05; done
        lattice nodes --topology $bound; lattice nodes --topology $free | grep -c 'not bound: rank'
        lattice nodes --topology $bound --format json | field planned
        lattice nodes --topology $bound --format svg
        lattice cancel $bound; lattice cancel $free
        lattice nodes --topology nobodys"#;
    let outcome = script_on(2, script).run();
    outcome.exits(125).says("the launch runs on 2 nodes").says("nobodys is no known launch");
    let text = String::from_utf8_lossy(outcome.stdout()).into_owned();
    let drawn = text.lines().filter(|line| line.contains("cores ") && line.contains("[0") || line.contains("[1"));
    outcome.check(drawn.count() == 2, || "each node should have its rank in its first core".into());
    outcome.check(!text.contains("not as planned"), || "ranks are where they should be".into());
    outcome.check(text.lines().filter(|&line| line == "0").count() == 2, || "both were to be on CPU 0".into());
}

/// The list has one network interface too many, and nodes that have never registered.
#[test]
fn a_node_that_lacks_what_its_list_says_is_told_once() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        until lattice nodes --topology node0 --format xml >told.xml 2>/dev/null; do sleep 0.05; done
        nic='<object type="PCIDev" pci_busid="0000:99:00.0" pci_type="0200 [17db:0501] [17db:0501] 00" pci_link_speed="1.0"></object>'
        sed "/type=\"Machine\"/a $nic" told.xml >kind.xml
        printf '%s\n' '[[topology]]' 'name = "kind"' 'file = "kind.xml"' '[[nodes]]' 'list = "node[0,7-9]"' 'topology = "kind"' >inventory.toml
        restart_api sed -i "1i inventory = '$PWD/inventory.toml'" api.toml
        until lattice nodes --topology >seen && grep -q missing seen; do sleep 0.05; done
        grep -oE '1 of [0-9]+ NICs? of "kind" is missing' seen; grep -c missing api.log
        kill_agent node0; start_agent node0; until [ $(lattice nodes --json | field state | grep -c up) = 1 ]; do sleep 0.05; done
        grep -c missing api.log
        lattice nodes --topology | grep -oE '^node[^:]*"kind"|[(]as listed[)]'; lattice nodes -v --json | field kind | grep -c kind
        sed -i s/kind.xml/absent.xml/ inventory.toml; lattice api --check-config --config api.toml"#;
    let outcome = script_on(1, script).run();
    outcome.says("topology \"kind\": cannot read").exits(125);
    let nics = outcome.text().lines().next().unwrap_or_default().to_owned();
    outcome.check(nics.ends_with("of \"kind\" is missing"), || "should say that a NIC is missing".to_owned());
    outcome.prints_lines([&nics, "1", "1", "node0  \"kind\"", "node[7-9]  \"kind\"", "(as listed)", "1"]);
}

#[test]
fn nodes_are_listed() {
    let outcome = cluster(3).words("lattice nodes --json").run();
    let nodes = json(&outcome);
    assert_eq!(all(&nodes, "node"), ["node0", "node1", "node2"]);
    cluster(2).words("lattice nodes").run().exits(0).prints("node0").prints("node1");
}

#[test]
fn launches_are_listed() {
    let outcome = asked("lattice launches --json");
    let launches = json(&outcome);
    assert_eq!(all(&launches, "num_ranks"), [4]);
    assert!(outcome.text().contains("sleep 1000"), "{}", outcome.text());
}

#[test]
fn a_debugger_finds_every_rank() {
    let outcome = asked("lattice proctable $id --json");
    let table = json(&outcome);
    assert_eq!(all(&table, "node"), ["node0", "node0", "node1", "node1"]);
    assert_eq!(all(&table, "rank"), [0, 1, 2, 3]);
    let programs = all(&table, "program");
    assert!(
        programs.len() == 4 && programs.iter().all(|name| name.as_str().unwrap().ends_with("/sleep")),
        "{programs:?}"
    );
    asked("lattice proctable $id").exits(0).prints("node1");
}

/// Ranks 2 and 3 are on the second node.
#[test]
fn a_debugger_is_run_on_the_node_of_its_ranks() {
    let outcome = asked(
        "lattice debug $id --ranks 2-3 -- -batch -nx -ex 'info inferiors'; lattice proctable $id | grep -c sleep",
    );
    outcome.exits(0).prints("* 1 ").prints("  2 ").prints("\n4\n");
}

/// One gdb on this machine attaches to all ranks, and continues them together. The ranks outlive it.
#[test]
fn ranks_of_several_nodes_are_debugged_by_one_gdb() {
    let outcome = asked(
        r#"cd "$LATTICE_DEV_CLUSTER"; table() { lattice proctable $id --json | field pid; }; table >pids
        lattice debug $id --ranks 0-1,3 -- -batch -nx -ex 'info inferiors' -ex 'continue &' -ex 'info threads' -ex 'interrupt -a' >said
        for pid in $(sed -n '1,2p;4p' pids); do grep -c "process $pid .*gdbserver" said; done; grep -c '^[* ] .*(running)' said
        table | cmp - pids && lattice status $id | grep -c ' runs, '"#,
    );
    outcome.exits(0).prints_lines(["1", "1", "1", "3", "4"]);
}

#[test]
fn the_status_names_nodes_and_ranks() {
    let outcome = asked("lattice status $id --json");
    let status = json(&outcome);
    assert_eq!(all(&status, "rank").len(), 4, "{status:#}");
    assert_eq!(all(&status, "role"), ["shepherd", "lamb"], "{status:#}");
    asked("lattice status $id").exits(0).prints("sessions: shepherd on node0, lambs on node1");
}

#[test]
fn the_status_of_a_launch_that_has_ended_tells_what_it_used() {
    let script = r#"id=$(lattice launch --detach -n 4 bash -c 'for i in {1..20000}; do :; done') || exit
        lattice attach $id && lattice status $id --json"#;
    let status = json(&script_on(2, script).run());
    let usage = &status["usage"];
    let positive = |name: &str| usage[name].as_f64().is_some_and(|value| value > 0.0);
    assert!(positive("user_s") && positive("peak_memory_bytes"), "{usage}");
}

#[test]
fn a_signal_reaches_every_rank() {
    let script = r#"id=$(lattice launch --detach -n 4 bash -c 'trap "echo caught; exit 0" USR1; echo here; while :; do sleep 0.1; done') || exit
        lattice attach $id >"$LATTICE_DEV_CLUSTER/out" & attached=$!
        until [ $(grep -c here "$LATTICE_DEV_CLUSTER/out") = 4 ]; do sleep 0.05; done
        lattice signal $id USR1; wait $attached; code=$?; grep caught "$LATTICE_DEV_CLUSTER/out"; exit $code"#;
    script_on(2, script).run().exits(0).prints_lines(["caught"; 4]);
}

#[test]
fn a_signal_reaches_the_ranks_that_are_named() {
    let script = r#"id=$(lattice launch --detach -n 4 bash -c 'trap "echo $LATTICE_RANK caught; exit 0" USR1; trap "exit 0" USR2; echo here; while :; do sleep 0.1; done') || exit
        lattice attach $id >"$LATTICE_DEV_CLUSTER/out" & attached=$!
        until [ $(grep -c here "$LATTICE_DEV_CLUSTER/out") = 4 ]; do sleep 0.05; done
        lattice signal $id USR1 --ranks 1-4; lattice signal $id USR1 --ranks 1,3
        until [ $(grep -c caught "$LATTICE_DEV_CLUSTER/out") = 2 ]; do sleep 0.05; done
        lattice signal $id USR2; wait $attached; code=$?; grep caught "$LATTICE_DEV_CLUSTER/out"; exit $code"#;
    let outcome = script_on(2, script).run();
    outcome.exits(0).says("has no rank 4; it has ranks 0 to 3").prints_lines(["1 caught", "3 caught"]);
}

/// One client leaves and another one attaches. Together they receive every event once.
#[test]
fn a_detached_launch_can_be_followed_later() {
    let script = r#"id=$(lattice launch --detach -n 2 bash -c 'for line in 1 2 3; do echo "$LATTICE_RANK: $line"; sleep 0.3; done; exit $LATTICE_RANK') || exit
        sleep 0.5; lattice attach $id"#;
    let outcome = script_on(2, script).run();
    outcome.exits(1).prints_lines((0..2).flat_map(|rank| (1..4).map(move |line| format!("{rank}: {line}"))));
}

#[test]
fn a_launch_that_was_aborted_says_so() {
    let script = "id=$(lattice launch --detach -n 2 sleep 1000) && lattice cancel $id && lattice attach $id";
    script_on(2, script).run().exits(143).says("ended by administrator 0: lattice cancel");
}

#[test]
fn events_name_the_nodes_of_ranks() {
    let outcome = cluster(2).words("lattice launch --json -n 2").arg(Flavour::WheelMpich.program("hello")).run();
    outcome.exits(0);
    let events: Vec<Value> = outcome.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for event in ["started", "exited"] {
        let of_kind = events.iter().filter(|value| value["event"] == event);
        let mut places: Vec<_> = of_kind.map(|value| (value["rank"].as_u64(), value["node"].as_str())).collect();
        places.sort_unstable();
        assert_eq!(places, [(Some(0), Some("node0")), (Some(1), Some("node1"))], "{event}: {}", outcome.text());
    }
}

#[test]
fn without_an_allocation_the_launch_stays_here_and_says_so() {
    let outcome = cluster(2).words("env -u LATTICE_ALLOC_ID lattice -v launch -n 1").words("echo here").run();
    outcome.exits(0).prints_lines(["here"]).says("(this machine)");
}

/// Commands and reasons are texts of other users, and the reader may be root at a terminal.
#[test]
fn nobodys_words_reach_a_terminal_but_in_letters() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        lattice launch -n 1 bash -c 'sleep 1000' $'\e[31mEVIL\e]0;title\a' $'two\nlines \xc2\x9b2J' 2>said & launch=$!
        id=$(launch_with 1)
        (lattice launches; lattice status $id) >seen
        lattice cancel $id --reason $'\e[2Jgone'; wait $launch
        (lattice launches --all; lattice status $id) >>seen
        lattice nodes drain node0 --reason $'new\tmemory\e[H'; lattice nodes >>seen
        cat seen said | LC_ALL=C tr -d '\n' | LC_ALL=C grep -c $'[\x01-\x1f\x7f\x80-\x9f]'
        for words in '\x1b[31mEVIL\x1b]0;title\x07 two\nlines \x9b2J' '\x1b[2Jgone' 'new\tmemory\x1b[H'; do
            cat seen said | grep -cF "$words"
        done"#;
    // The command is in all four outputs. The reason is in a table, in a status and in a message of the launcher.
    script_on(1, script).run().exits(0).prints_lines(["0", "4", "3", "1"]);
}

#[test]
fn call_stacks_of_ranks_on_several_nodes_are_shown_once() {
    let directory = tempfile::tempdir().unwrap();
    let outcome = launch_on(2, "-n 4 --pmi=none --timeout 5s").arg(mpi::sleeper(directory.path())).run();
    outcome.exits(124).says("lattice: ranks 0,2-3:\n").says("lattice: rank 1:\n").says(" solve ").says(" exchange ");
}

/// The node of the waiting ranks has no information about the other ranks.
#[test]
fn late_ranks_of_another_node_are_shown_with_their_functions() {
    let directory = tempfile::tempdir().unwrap();
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        lattice launch -n 4 --stuck-after 1s bash -c '[ $LATTICE_RANK -ge 2 ] && exec $0; exec $1' "$1" "$2" 2>said & launch=$!
        until grep -q 'lattice: ranks 2-3:' said && grep -q ' exchange ' said; do sleep 0.05; done
        kill $launch; wait $launch; code=$?; cat said >&2; exit $code"#;
    let command = script_on(2, script).arg(mpi::sleeper(directory.path())).arg(Flavour::WheelMpich.program("hello"));
    command.run().exits(143).says("for ranks 2-3").says("lattice: ranks 2-3:\nlattice:   1 thread of sleeper\n");
}

/// Returns the functions of four ranks on two nodes as one tree: the computation that one rank is in, and the barrier in which the
/// other ranks wait.
#[track_caller]
fn functions_of_four(flavour: Flavour) {
    let script = r#"lattice launch --detach -n 4 "$1" >/dev/null || exit; id=$(launch_with 4)
        until lattice stacks $id >"$LATTICE_DEV_CLUSTER/seen" && grep -q '^3  *compute' "$LATTICE_DEV_CLUSTER/seen" &&
            grep -q '^0-2  *exchange' "$LATTICE_DEV_CLUSTER/seen"; do sleep 0.1; done
        cat "$LATTICE_DEV_CLUSTER/seen"; lattice stacks $id --full; lattice stacks $id --json >"$LATTICE_DEV_CLUSTER/json"
        field silent_nodes <"$LATTICE_DEV_CLUSTER/json"; lattice cancel $id; lattice stacks $id"#;
    let outcome = script_on(2, script).arg(flavour.program("divided")).run();
    outcome.exits(125).says("no rank of launch").prints("\n0-3  main\n").prints("PMPI_Barrier");
    outcome.prints("\n3:\n").prints(" of divided\n");
}

#[test]
fn functions_of_ranks_on_several_nodes_are_shown_as_one_tree() {
    for flavour in [Flavour::WheelMpich, Flavour::WheelOpenMpi] {
        functions_of_four(flavour);
    }
}

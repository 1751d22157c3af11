//! Clients that follow a launch: its owner, for which its output waits, and viewers, which come and go without an effect on the launch.

use lattice_tests::script_on;

/// Waits until no launch runs.
const UNTIL_OVER: &str = r#"until_over() { while [ "$(lattice launches --json | field launch_id)" ]; do sleep 0.05; done; }
    cd "$LATTICE_DEV_CLUSTER"
"#;

fn script(nodes: u32, text: &str) -> lattice_tests::Command {
    script_on(nodes, &format!("{UNTIL_OVER}{text}"))
}

/// The kernel closes the connection of a killed process. A lost network closes no connection; the limit for it (20 s) is much longer than
/// this test.
#[test]
fn a_launch_ends_when_its_owner_is_killed() {
    let text = r#"
        check() {
            lattice launch --pmi=none -n 2 "${@:2}" >/dev/null 2>&1 & owner=$!
            launch_with 2 >/dev/null; $1; kill -KILL $owner; wait $owner 2>/dev/null
            timeout 15 bash -c "$(declare -f field until_over); until_over" && echo over
        }
        stop() { kill -STOP $owner; }
        check : sleep 1000
        check : yes
        check stop sleep 1000"#;
    script(2, text).run().exits(0).prints_lines(["over"; 3]);
}

/// One viewer leaves in the middle, the other one stays. Neither affects the owner or the ranks.
#[test]
fn viewers_beside_an_owner_change_nothing_for_it() {
    let text = r#"
        lattice launch --pmi=none -n 2 bash -c 'until [ -e go ]; do sleep 0.02; done; seq 200000; touch said.$LATTICE_RANK
            # The first one that exits ends the other.
            until [ -e said.0 ] && [ -e said.1 ]; do sleep 0.02; done; exit 3' >owner & owner=$!
        id=$(launch_with 2)
        lattice -v attach $id >/dev/null 2>one.err & one=$!
        lattice -v attach $id >two 2>two.err & two=$!
        until [ -s one.err ] && [ -s two.err ]; do sleep 0.02; done
        kill -TERM $one; wait $one; echo "viewer left: $?"
        touch go
        wait $owner; echo "owner: $?"
        wait $two; echo "viewer: $?"
        (seq 200000; seq 200000) | sort >expected
        sort owner | cmp - expected && sort two | cmp - expected && echo all seen
    "#;
    script(2, text).run().exits(0).prints_lines(["viewer left: 143", "owner: 3", "viewer: 3", "all seen"]);
}

/// `lattice attach | less`, without a key press.
#[test]
fn a_viewer_that_does_not_read_holds_up_neither_ranks_nor_their_end() {
    let text = r#"
        id=$(lattice launch --pmi=none --detach -n 2 bash -c 'yes | head -c 20000000; echo done >done.$LATTICE_RANK; exec yes')
        mkfifo pipe; sleep 1000 <pipe & reader=$!
        lattice attach $id >pipe 2>/dev/null & viewer=$!
        until [ -e done.0 ] && [ -e done.1 ]; do sleep 0.05; done
        lattice cancel $id; until_over; echo over
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null; lattice alloc show $LATTICE_ALLOC_ID --json | field state
        kill $reader; wait $viewer; true
    "#;
    script(2, text).run().exits(0).prints_lines(["over", "released"]);
}

#[test]
fn an_owner_that_does_not_read_cannot_keep_a_launch_from_its_end() {
    let text = r#"
        mkfifo pipe; sleep 1000 <pipe & reader=$!
        lattice launch --pmi=none -n 2 yes >pipe 2>/dev/null & owner=$!
        id=$(launch_with 2)
        lattice cancel $id; until_over; echo over
        kill $reader; wait $owner; true
    "#;
    script(2, text).run().exits(0).prints_lines(["over"]);
}

#[test]
fn all_that_a_detached_launch_said_is_there_for_everybody() {
    let text = r#"
        id=$(lattice launch --pmi=none --detach -n 2 seq 1000000); until_over
        (seq 1000000; seq 1000000) | sort >expected
        for time in first second; do lattice attach $id | sort | cmp - expected && echo $time; done
    "#;
    script(2, text).run().exits(0).prints_lines(["first", "second"]).says_nothing();
}

/// All events of the launch arrive together, like late events through relays.
#[test]
fn times_of_a_summary_are_those_of_the_nodes_when_events_arrive_late() {
    let text = r#"
        id=$(lattice launch --pmi=none --detach -N 2 -n 2 sleep 2); until_over
        lattice attach $id --json >events
        python3 -c '
import json
took = [json.loads(line) for line in open("events")][-1]["summary"]
print([took[times][0]["after_s"] >= 1 for times in ("ran", "ended")], [node["ended_after_s"] >= 1 for node in took["nodes"]])'
    "#;
    script(2, text).run().exits(0).prints_lines(["[True, True] [True, True]"]);
}

#[test]
fn what_there_is_no_room_for_is_missing_with_a_word() {
    let text = r#"
        sed -i '1i spool_launch = 1' api.toml; restart_api
        id=$(lattice launch --pmi=none --detach -n 1 seq 1000000); until_over
        lattice attach $id --json >events 2>said
        grep -c '"notice":"dropped"' events; grep -c '1000000.n"' events; grep -c 'bytes of output are missing here' said
    "#;
    script(1, text).run().exits(0).prints_lines(["1", "1", "1"]);
}

/// The owner is stopped until its connection is gone, and then continued.
#[test]
fn ranks_go_on_when_an_owner_comes_back_over_a_new_connection() {
    let text = r#"
        lattice launch --pmi=none -n 2 bash -c 'until [ -e go ]; do sleep 0.02; done; echo on' & owner=$!
        id=$(launch_with 2)
        kill -TSTP $owner; until grep -q '^State:.T' /proc/$owner/status; do sleep 0.02; done
        until lattice launches | grep -q 'client stopped'; do sleep 0.02; done
        restart_api; touch go
        kill -CONT $owner; wait $owner; echo "owner: $?"
    "#;
    script(2, text).run().exits(0).prints_lines(["on", "on", "owner: 0"]);
}

/// A debugger attaches to the program that runs now, not to the script that executed it.
#[test]
fn the_process_table_names_the_program_that_a_script_became() {
    let text = r#"
        id=$(lattice launch --pmi=none --detach -n 2 bash -c 'until [ -e go ]; do sleep 0.02; done; exec sleep 1000')
        launch_with 2 >/dev/null; lattice proctable $id --json | field program | sed 's|.*/||'
        touch go; until [ "$(lattice proctable $id --json | grep -c '/sleep"')" = 2 ]; do sleep 0.05; done; echo became
        lattice cancel $id; until_over
    "#;
    script(2, text).run().exits(0).prints_lines(["bash", "bash", "became"]);
}

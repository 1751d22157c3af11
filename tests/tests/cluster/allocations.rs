//! The nodes of an allocation, and launches on nodes that are taken out of service.

use lattice_tests::script_on;

/// An interactive shell reports that its nodes no longer belong to it.
#[test]
fn a_shell_is_told_when_its_allocation_ends() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"; lattice alloc release $LATTICE_ALLOC_ID >/dev/null; unset LATTICE_ALLOC_ID
        lattice alloc shell -N 2 -t 1s -- sh -c 'until grep -q "has ended" told; do sleep 0.05; done; echo "goes on"' 2>told; echo "code $?"
        lattice alloc shell -N 1 -- sh -c 'lattice alloc release $LATTICE_ALLOC_ID >/dev/null
            until grep -q "has ended" other; do sleep 0.05; done' 2>other
        sed 's/allocation [^ ]* has/allocation has/' told other | grep -o 'allocation has ended.*'"#;
    let end = |why: &str| format!("allocation has ended: {why}; the command goes on without its nodes");
    let outcome = script_on(2, script).run();
    let ends = [end("its time limit of 1 s is over"), end("it was released")];
    outcome.exits(0).prints_lines(["goes on", "code 0"].into_iter().chain(ends.iter().map(String::as_str)));
}

#[test]
fn nothing_new_begins_on_a_drained_node() {
    let script = r#"lattice launch -w node1 -n 1 sleep 1000 2>/dev/null & launch=$!; launch_with 1 >/dev/null
        lattice nodes drain node1 --reason 'new memory' || exit
        restart_api :
        lattice nodes | grep -o 'draining\|drained .* new memory' | sed 's/drained .* by .*:/drained:/'
        lattice launch -w node1 -n 1 echo refused; echo "code $?"
        lattice launch -w node0 -n 1 echo elsewhere
        lattice cancel $(launch_with 1); wait $launch
        until lattice nodes | grep -q ' drained '; do sleep 0.05; done
        lattice nodes resume node1 && lattice launch -w node1 -n 1 echo again"#;
    let outcome = script_on(2, script).run();
    outcome.exits(0).prints_lines(["draining", "drained: new memory", "code 125", "elsewhere", "again"]);
    outcome.says("node node1 is drained: new memory; leave it out");
}

/// Requests by name or by number for nodes that are not free fail, or wait.
#[test]
fn nodes_are_had_now_or_waited_for() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        for words in '-N 2' '-w node9' '-w node0' '-w x[0-1048575]'; do lattice alloc create $words; echo "code $?"; done
        lattice alloc create --wait -N 2 >id 2>waited & waiting=$!
        until grep -q 'is pending: 2 nodes were asked for, and 0 are up and free' waited; do sleep 0.05; done
        lattice alloc release $LATTICE_ALLOC_ID; wait $waiting || exit
        lattice launch --alloc $(cat id) -N 2 -n 2 echo ran"#;
    let outcome = script_on(2, script).run();
    outcome.exits(0).prints_lines(["code 125", "code 125", "code 125", "code 125", "ran", "ran"]);
    outcome.says("2 nodes were asked for, and 0 are up and free").says("node node9 has not registered");
    outcome.says("node node0 belongs to allocation").says("stands for more than 131072 names");
}

/// After any signal to the command, its allocation and its files are removed.
#[test]
fn nothing_is_left_of_a_shell_that_was_sent_a_signal() {
    let script = r#"lattice alloc release $LATTICE_ALLOC_ID; unset LATTICE_ALLOC_ID; export XDG_STATE_HOME=$LATTICE_DEV_CLUSTER/state
        for signal in USR1 ALRM TERM; do
            lattice alloc shell -N 1 -- sleep 1000 & shell=$!
            until ls $XDG_STATE_HOME/lattice/lattice-shell-*/mpirun >/dev/null 2>&1 && pgrep -P $shell -x sleep >/dev/null; do sleep 0.05; done
            kill -$signal $shell; wait $shell; echo "code $?"
            lattice alloc list --json | field state; ls $XDG_STATE_HOME/lattice
        done 2>/dev/null"#;
    script_on(1, script).run().exits(0).prints_lines(["code 138", "code 142", "code 143"]);
}

/// Directories with a similar name, and the files of a running shell, remain.
#[test]
fn the_files_of_a_shell_that_was_killed_go_with_the_next_one() {
    let script = r#"lattice alloc release $LATTICE_ALLOC_ID; unset LATTICE_ALLOC_ID; export XDG_STATE_HOME=$LATTICE_DEV_CLUSTER/state
        files() { ls $XDG_STATE_HOME/lattice | grep -c lattice-shell-; }
        mkdir -p $XDG_STATE_HOME/lattice/lattice-shell-mine/lock
        started='touch $XDG_STATE_HOME/started-$$; exec sleep 1000'
        lattice alloc shell -N 1 -- bash -c "$started" & killed=$!; lattice alloc shell -N 1 -- bash -c "$started" & running=$!
        until [ "$(ls $XDG_STATE_HOME/started-* | wc -l)" = 2 ]; do sleep 0.05; done 2>/dev/null
        kill -KILL $killed; wait $killed; files; lattice alloc release --all >/dev/null 2>&1
        lattice alloc shell --wait -N 1 -- bash -c 'ls $XDG_STATE_HOME/lattice | grep -c lattice-shell-'; kill $running; wait $running; files"#;
    script_on(3, script).run().prints_lines(["3", "3", "1"]);
}

#[test]
fn more_ranks_than_cores_run_and_are_told_to_those_who_ask() {
    let script = r#"ranks=$(($(nproc) + 1)); crowded() { lattice $1 launch --pmi none -w node0 -n $ranks true 2>&1; }
        crowded --verbose | grep note: | sed "s/$ranks ranks on $(nproc) cores/many ranks on few cores/"; crowded"#;
    script_on(2, script).run().exits(0).prints_lines(["lattice: note: many ranks on few cores of node0"]);
}

//! Input for the ranks of many nodes. The nodes pass it on to each other, even if some of them end.

use lattice_tests::{script_on, turn};

/// More nodes than receive the input directly from the API server, which are nodes 0, 3, 6, 9, 12, 14, 16 and 18.
const NODES: u32 = 20;

/// The input arrives through a pipe, in two parts. A rank is ready for the second part when its mark file exists.
const IN_PARTS: &str = r#"
    cd "$LATTICE_DEV_CLUSTER"; head -c 1500000 /dev/urandom >second; sum=$(md5sum <second | cut -c1-32); mkfifo in
    # Each rank reads a line, and sums up the rest.
    rank='read -r first; : >"ready.$LATTICE_RANK"; md5sum'
    begin() { lattice launch "$@" --stdin all -N 20 -n 20 bash -c "$rank" <in >out & launch=$!; exec 3>in; echo first >&3; }
    ready() { until [ "$(ls | grep -c '^ready')" = 20 ]; do sleep 0.05; done; }
    finish() { cat second >&3; exec 3>&-; wait $launch; echo "code $?"; sed "s/$sum/SUM/" out | sort | uniq -c; }
"#;

#[test]
fn input_reaches_many_nodes_in_few_copies() {
    let _machine = turn::heavy();
    let script = r#"
        cd "$LATTICE_DEV_CLUSTER"; head -c 4000000 /dev/urandom >in
        written() { sed -n 's/^wchar: //p' "/proc/$(daemon api)/io"; }
        before=$(written)
        lattice launch --stdin all -N 20 -n 40 md5sum <in | sed "s/$(md5sum <in | cut -c1-32)/SUM/" | sort | uniq -c
        echo "$((($(written) - before) / 4000000)) copies""#;
    script_on(NODES, script).run().exits(0).prints_lines(["     40 SUM  -", "8 copies"]);
}

#[test]
#[ignore = "second tier"]
fn input_goes_round_nodes_whose_ranks_have_ended() {
    let _machine = turn::heavy();
    let script = r#"
        rank='read -r first; : >"ready.$LATTICE_RANK"; case $LATTICE_RANK in 0 | 3 | 5) exit ;; esac; md5sum'
        begin; ready; finish"#;
    let outcome = script_on(NODES, &format!("{IN_PARTS}{script}")).run();
    outcome.exits(0).prints_lines(["code 0", "     17 SUM  -"]);
}

/// Node 0 passes input on to nodes 1 and 2, and node 3 to nodes 4 and 5.
#[test]
fn input_goes_round_nodes_that_are_lost() {
    let _machine = turn::heavy();
    let script = r#"
        begin --no-kill -K0; id=$(launch_with 20); ready
        for rank in 0 5; do kill -KILL "$(ps -o ppid= -p "$(pid_of_rank "$id" $rank)")"; done
        finish"#;
    let outcome = script_on(NODES, &format!("{IN_PARTS}{script}")).run();
    outcome.exits(0).prints("     18 SUM  -").says("node node0 was lost").says("node node5 was lost");
}

/// The next server has no record of the input that ranks have read. It sends the input to each node directly.
#[test]
fn input_goes_on_after_the_api_server_was_restarted() {
    let _machine = turn::heavy();
    let outcome = script_on(NODES, &format!("{IN_PARTS}begin; ready; restart_api 3>&-; finish")).run();
    outcome.exits(0).prints_lines(["code 0", "     20 SUM  -"]);
}

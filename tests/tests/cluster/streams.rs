//! Input and output of ranks on other nodes. No byte is lost, and a slow reader delays only the writer.

use std::io::{BufRead, BufReader};

use lattice_tests::{cluster, late_output, launch_on, script_on, turn};

const MIB: usize = 1 << 20;

#[test]
fn ten_megabytes_of_input_reach_a_rank() {
    let input: Vec<u8> = (0..10 * MIB).map(|place| (place % 251) as u8).collect();
    let outcome =
        launch_on(2, "-n 2 --stdin 1").bash("if [ $LATTICE_RANK = 1 ]; then cat; fi").input(input.clone()).run();
    outcome.exits(0).check(outcome.stdout() == input, || "the input should have come back unchanged".to_owned());
}

#[test]
fn input_for_all_reaches_every_node() {
    let outcome = launch_on(3, "-n 3 --stdin all").bash("md5sum").input(vec![b'x'; 3 * MIB]).run();
    let sums = outcome.exits(0).sorted_lines();
    outcome.check(sums.len() == 3 && sums.iter().all(|sum| *sum == sums[0]), || "should be one sum, thrice".to_owned());
}

#[test]
fn output_that_passes_through_other_processes_comes_whole_at_every_end_from_every_node() {
    late_output::no_line_is_lost(2);
}

/// The rank stops its launcher until the signal has arrived, usually before the launcher is attached.
#[test]
fn a_signal_while_the_launch_starts_costs_no_output() {
    let rank =
        "[ $LATTICE_RANK = 0 ] || exit 0; kill -STOP $L; echo line; kill -TERM $L; kill -CONT $L; exec sleep 1000";
    let script =
        r#"for i in {1..8}; do bash -c 'export L=$$; exec lattice launch -n 2 bash -c "$0"' "$1"; echo $?; done"#;
    let outcome = script_on(2, script).arg(rank).run();
    outcome.exits(0).prints(&"line\n143\n".repeat(8));
}

#[test]
fn what_a_rank_does_not_read_holds_up_nobody() {
    launch_on(2, "-n 2 --stdin 1").bash("exit 0").input(vec![b'x'; 4 * MIB]).run().exits(0);
}

/// Both ranks write more than all buffers can hold. The reader begins late and reads small pieces.
#[test]
#[ignore = "second tier"]
fn a_flood_waits_for_its_reader_and_loses_nothing() {
    const LINES: u32 = 1_500_000;
    let _machine = turn::heavy();
    let script = format!("seq -f \"$LATTICE_RANK %020.0f\" {LINES}");
    let mut running = launch_on(2, "-n 2").bash(&script).leave_output().start();
    let mut seen = [0; 2];
    for line in BufReader::with_capacity(16 << 10, running.output()).lines() {
        let line = line.expect("a pipe can be read, and the lines are text");
        let (rank, number) = line.split_once(' ').expect("each line is of one rank");
        let seen = &mut seen[rank.parse::<usize>().expect("a rank's number")];
        *seen += 1;
        assert_eq!(number.parse::<u32>().expect("the line's number"), *seen, "rank {rank}");
    }
    running.finish().exits(0);
    assert_eq!(seen, [LINES; 2]);
}

#[test]
fn lines_are_whole_and_labelled() {
    let script = "for line in 1 2 3; do echo line $line; done";
    let outcome = launch_on(2, "-n 4 --label").bash(script).run();
    let lines = (0..4).flat_map(|rank| (1..4).map(move |line| format!("[{rank}] line {line}")));
    outcome.exits(0).prints_lines(lines);
}

#[test]
fn output_can_go_to_files_here() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER" && lattice launch -n 2 --output out.%r bash -c 'echo $LATTICE_RANK' && head out.*"#;
    let outcome = cluster(2).bash(script).run();
    outcome.exits(0).prints("==> out.0 <==\n0\n").prints("==> out.1 <==\n1\n");
}

/// The API server stands still until the connections of all agents have broken. It later reads the output that they
/// contain.
#[test]
fn what_was_on_its_way_when_connections_broke_arrives_once() {
    let outcome = script_on(
        2,
        r#"cd "$LATTICE_DEV_CLUSTER"
           lattice launch --pmi=none -n 2 bash -c '
               signals=0; trap "signals=\$((signals + 1))" USR1
               for part in $(seq 0 299); do seq -f "$LATTICE_RANK %.0f" $((part * 1000 + 1)) $((part * 1000 + 1000)); sleep 0.01; done
               until [ -e go ] && [ $signals -gt 0 ]; do sleep 0.02; done
               exit $((40 + signals))' >out & launch=$!
           id=$(launch_with 2)
           kill -STOP $(daemon api)
           for node in node0 node1; do until grep -q "reports wait" $node.log; do sleep 0.1; done; done
           kill -CONT $(daemon api)
           for rank in 0 1; do until grep -q "^$rank 300000$" out; do sleep 0.1; done; done
           lattice signal $id USR1 >/dev/null
           touch go; wait $launch; echo "code $?"
           for rank in 0 1; do grep "^$rank " out | cmp - <(seq -f "$rank %.0f" 300000) && echo whole; done"#,
    )
    .run();
    outcome.exits(0).prints_lines(["code 41", "whole", "whole"].map(str::to_owned));
}

/// A pipe without a writer delays the start of ranks on its node, but not the end of the launch.
#[test]
fn a_launch_that_waits_for_a_writer_of_its_input_can_be_ended() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"; mkfifo {in,other}.{0,1}
        lattice launch -N 2 --stdin in.%r --timeout 1 cat; echo "code $?"
        lattice launch -N 2 --stdin in.%r cat & until id=$(lattice launches --json | field launch_id) && [ "$id" ]; do sleep 0.05; done
        lattice cancel $id; wait $!; echo "code $?"
        # What opens the pipes of a launch that is over goes with its session, a moment later.
        lattice launch -N 2 --stdin other.%r cat >out & for rank in 0 1; do echo "for $rank" >other.$rank; done; wait $!; echo "code $?"; sort out"#;
    let outcome = script_on(2, script).run();
    outcome.exits(0).prints_lines(["code 124", "code 143", "code 0", "for 0", "for 1"]);
}

/// Programs that never flush, on several nodes: the terminals are created there.
#[test]
fn unbuffered_programs_on_other_nodes_show_each_line_at_once() {
    let script = r#"python3 -c "import sys; print('one', sys.stdout.isatty()); sys.stdin.readline(); print('two')""#;
    let mut running = launch_on(2, "-n 2 --pmi none --stdin all -u").typed_to().bash(script).start();
    running.wait_for_stdout("one True\none True\n");
    running.type_in("\n");
    running.finish().exits(0).prints("one True\none True\ntwo\ntwo\n");
}

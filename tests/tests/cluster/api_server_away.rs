//! Launches that fail while there is no API server. Their sessions end them on all nodes. After its return the API server reports one
//! cause.

use lattice_tests::mpi::Flavour;
use lattice_tests::{Command, script_on};

/// Sets a lease of the API server that is longer than the test, and defines `end_with`. It runs a command while there is no API
/// server, and waits for the end of all ranks of the last named launch.
const AWAY: &str = r#"cd "$LATTICE_DEV_CLUSTER"
    restart_api sed -i '1i lease = 600' api.toml
    ranks_of() { ranks=$(lattice proctable $1 --json | field pid); }
    end_with() {
        "$@"
        for rank in $ranks; do while kill -0 $rank 2>/dev/null; do sleep 0.02; done; done
    }
"#;

fn with(nodes: u32, script: &str) -> Command {
    script_on(nodes, &format!("{AWAY}\n{script}"))
}

#[track_caller]
fn a_killed_rank_ends_a_program_in_the_middle_of_its_steps(flavour: Flavour) {
    let script = r#"
        lattice launch -n 6 "$1" "$PWD/go" >out & launch=$!
        id=$(launch_with 6); ranks_of $id
        until grep -q 'step 10' out; do sleep 0.02; done
        restart_api end_with kill -KILL $(pid_of_rank $id 3)
        wait $launch; echo "code $?"
        lattice status $id | grep '^cause:'"#;
    let outcome = with(3, script).arg(flavour.program("steps")).run();
    let cause = "rank 3 on node1 was killed by signal 9 (SIGKILL)";
    outcome.exits(0).prints("code 137").prints(&format!("cause: {cause}")).says(cause);
}

#[test]
fn a_killed_rank_ends_an_mpich_program() {
    a_killed_rank_ends_a_program_in_the_middle_of_its_steps(Flavour::WheelMpich);
}

#[test]
fn a_killed_rank_ends_an_open_mpi_program() {
    a_killed_rank_ends_a_program_in_the_middle_of_its_steps(Flavour::WheelOpenMpi);
}

#[test]
fn an_abort_ends_programs_whose_ranks_wait_in_a_barrier() {
    for flavour in [Flavour::WheelMpich, Flavour::WheelOpenMpi] {
        let script = r#"
            lattice launch -n 6 "$1" 5 42 "$PWD/go" >out & launch=$!
            id=$(launch_with 6); ranks_of $id
            until grep -q aborting out; do sleep 0.02; done
            restart_api end_with touch go
            wait $launch; echo "code $?""#;
        let outcome = with(3, script).arg(flavour.program("abort")).run();
        outcome.exits(0).prints("code 42").says("rank 5 on node2 called MPI_Abort with code 42");
    }
}

/// Ranks request a job and look up names while there is no API server.
#[test]
fn what_ranks_ask_for_meanwhile_is_answered_by_the_next_server() {
    let script = r#"
        lattice launch -n 1 bash -c 'until [ -e go ]; do sleep 0.02; done; exec lattice pmi --method pmi2 spawn -n 2 echo a-child' >out &
        launch=$!; launch_with 1 >/dev/null
        restart_api bash -c 'touch go; sleep 1'
        wait $launch; echo "code $?"; grep a-child out"#;
    with(2, script).run().exits(0).prints_lines(["code 0", "a-child", "a-child"]);
}

/// Scripts continue while the API server is away, and so do their next launches.
#[test]
fn launches_of_a_script_wait_for_it() {
    let script = r#"
        meanwhile() {
            env -u LATTICE_ALLOC_ID lattice nodes; echo "elsewhere $?"
            lattice launch --tasks-per 1:core -n 2 "$1" >out 2>err & launch=$!
            until grep -q 'is waited for' err; do sleep 0.02; done
        }
        restart_api meanwhile "$1"
        wait $launch; echo "code $?"; cat out; grep -c 'is waited for' err"#;
    let outcome = with(2, script).arg(Flavour::WheelMpich.program("hello")).run();
    outcome.exits(0).prints_lines(["elsewhere 125", "code 0", "rank 0 of 2", "rank 1 of 2", "1"]);
    outcome.says("lattice: cannot reach the API server at ");
}

/// The ranks have no connection to each other. Their sessions notify each other, over new links.
#[test]
fn ranks_that_never_spoke_to_each_other_end_together() {
    let script = r#"
        lattice launch --pmi=none -n 4 sleep 1000 & launch=$!
        id=$(launch_with 4); ranks_of $id
        restart_api end_with kill -KILL $(pid_of_rank $id $1)
        wait $launch; echo "code $?""#;
    for rank in [0, 2] {
        let outcome = with(4, script).arg(rank.to_string()).run();
        let cause = format!("rank {rank} on node{rank} was killed by signal 9");
        outcome.exits(0).prints_lines(["code 137"]).says(&cause);
    }
}

/// The API server runs, and receives the failure through the root node.
#[test]
fn a_rank_of_a_node_whose_agent_is_gone_ends_the_launch_everywhere() {
    let script = r#"
        lattice launch -n 6 bash -c 'lattice pmi barrier >/dev/null; touch "$0/past.$LATTICE_RANK"; exec sleep 1000' "$PWD" &
        launch=$!
        id=$(launch_with 6); ranks_of $id
        until [ $(ls past.* 2>/dev/null | wc -l) = 6 ]; do sleep 0.02; done
        kill_agent node2
        end_with kill -KILL $(sed -n 5p <<<"$ranks")
        start_agent node2
        wait $launch; echo "code $?""#;
    with(3, script).run().exits(0).prints_lines(["code 137"]).says("rank 4 on node2 was killed by signal 9");
}

/// The API server process exists, and does not respond.
#[test]
fn a_launch_ends_though_the_api_server_stands_still() {
    let script = r#"
        lattice launch --pmi=none -n 3 sleep 1000 & launch=$!
        id=$(launch_with 3); ranks_of $id; rank=$(pid_of_rank $id 1)
        kill -STOP $(daemon api)
        end_with kill -KILL $rank
        kill -CONT $(daemon api)
        wait $launch; echo "code $?""#;
    with(3, script).run().exits(0).prints_lines(["code 137"]).says("rank 1 on node1 was killed by signal 9");
}

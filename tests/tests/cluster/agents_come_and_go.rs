//! Agents that are killed, stopped and replaced while launches run. Neither the launches nor the clients that follow them are affected.

use lattice_tests::mpi::Flavour;
use lattice_tests::{built, script_on, turn};

/// Makes stopped agents keep their launches. This is the default, which a development cluster overrides.
const KEEP: &str = r#"
    for node in node0 node1; do
        sed -i 's/^when_stopped.*/when_stopped = "keep"/' "$LATTICE_DEV_CLUSTER/$node.toml"
        kill_agent $node; start_agent $node
    done
"#;

/// Starts `steps` on four ranks in the background, and waits until some steps are done. The script of a test follows, and then its end.
const STEPS: &str = r#"cd "$LATTICE_DEV_CLUSTER"
    lattice launch -n 4 "$1" "$LATTICE_DEV_CLUSTER/go" >out & launch=$!
    id=$(launch_with 4)
    steps() { grep -c '^step' out; }
    more_steps() { local before=$(steps); until [ $(steps) -gt $((before + 10)) ]; do sleep 0.05; done; }
    more_steps
"#;

/// Checks that the output has all steps once and in order, and that all ranks ended.
const ALL_TOLD: &str = r#"
    touch go; wait $launch; echo "code $?"
    grep '^step' out | awk '$2 != NR - 1 { print "step " NR - 1 " is missing"; exit }'
    grep -c 'took some steps' out"#;

#[track_caller]
fn all_is_told(flavour: Flavour, what_happens: &str) {
    let outcome = script_on(2, &format!("{STEPS}\n{what_happens}\n{ALL_TOLD}")).arg(flavour.program("steps")).run();
    outcome.exits(0).prints_lines(["code 0", "4"]);
}

/// Replaces every agent in turn, and one of them twice.
const ONE_AFTER_THE_OTHER: &str = r#"for node in node0 node1 node1; do
        kill_agent $node; start_agent $node
        more_steps
    done"#;

#[test]
fn mpich_programs_do_not_notice_that_their_agents_are_replaced() {
    all_is_told(Flavour::WheelMpich, ONE_AFTER_THE_OTHER);
}

#[test]
fn open_mpi_programs_do_not_notice_that_their_agents_are_replaced() {
    all_is_told(Flavour::WheelOpenMpi, ONE_AFTER_THE_OTHER);
}

/// Without any agent ranks compute, complete fences and end. Their output arrives when there are agents again.
#[test]
fn a_program_ends_without_an_agent_and_its_end_is_told_to_the_next_one() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        lattice launch -n 4 "$1" "$PWD/go" 7 >out & launch=$!
        id=$(launch_with 4)
        until grep -q 'step 10' out; do sleep 0.02; done
        ranks=$(lattice proctable $id --json | field pid)
        kill_agent node0; kill_agent node1
        touch go
        for rank in $ranks; do while kill -0 $rank 2>/dev/null; do sleep 0.02; done; done
        start_agent node0; start_agent node1
        wait $launch; echo "code $?"
        grep '^step' out | awk '$2 != NR - 1 { print "step " NR - 1 " is missing"; exit }'
        grep -c 'took some steps' out"#;
    let outcome = script_on(2, script).arg(Flavour::WheelMpich.program("steps")).run();
    outcome.exits(0).prints_lines(["code 7", "4"]).says("rank 3 on node1 exited with status 7");
}

/// A session opens its first link to another node through the port of the agent there. It waits for this agent.
#[test]
fn a_fence_that_begins_without_agents_is_completed_when_there_are_some() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        lattice launch -n 2 bash -c 'until [ -e "$0/go" ]; do sleep 0.02; done; touch "$0/began.$LATTICE_RANK"
            lattice pmi barrier >/dev/null && echo past the barrier' "$PWD" & launch=$!
        launch_with 2 >/dev/null
        kill_agent node0; kill_agent node1
        touch go; until [ -e began.0 ] && [ -e began.1 ]; do sleep 0.02; done; sleep 0.5
        start_agent node0; start_agent node1
        wait $launch; echo "code $?""#;
    script_on(2, script).run().exits(0).prints_lines(["past the barrier", "past the barrier", "code 0"]);
}

/// The result of a fence goes down another tree than the data on the way up. Ranks with the result end at once. Their sessions wait for
/// the agents of the nodes that do not have it yet.
#[test]
fn results_of_the_last_fence_come_though_agents_are_away_and_those_who_send_them_have_no_rank_left() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        lattice launch -n 6 --pmi=pmi1 bash -c 'ask() { echo "$1" >&$PMI_FD; read -r -u $PMI_FD answer; }
            ask "cmd=init pmi_version=1 pmi_subversion=1"; ask "cmd=get_my_kvsname"
            ask "cmd=put kvsname=${answer##*=} key=k$LATTICE_RANK value=v"
            touch "$0/came.$LATTICE_RANK"
            [ $LATTICE_RANK != 0 ] || until [ -e "$0/go" ]; do sleep 0.02; done
            ask cmd=barrier_in; echo "$answer"; ask cmd=finalize' "$PWD" & launch=$!
        until [ $(ls came.* 2>/dev/null | wc -l) = 6 ]; do sleep 0.02; done
        # All but rank 0 wait, and what they have put is on its way up.
        id=$(launch_with 6)
        until [ $(lattice status $id --json | grep -c '"waiting": true') = 5 ]; do sleep 0.1; done; sleep 0.5
        for node in 2 3 4 5; do kill_agent node$node; done
        touch go; sleep 4
        for node in 2 3 4 5; do start_agent node$node; done
        wait $launch; echo "code $?""#;
    let past = ["cmd=barrier_out rc=0"; 6];
    script_on(6, script).run().exits(0).prints_lines(past.into_iter().chain(["code 0"]));
}

#[test]
fn the_next_agent_passes_on_signals_and_aborts_and_answers_questions() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        lattice launch -n 4 --pmi=none bash -c 'trap "echo signalled; touch \"$0/signalled.$LATTICE_RANK\"" USR1
            touch "$0/ready.$LATTICE_RANK"; while :; do sleep 0.02; done' "$PWD" & launch=$!
        id=$(launch_with 4)
        all() { until [ $(ls $1.? 2>/dev/null | wc -l) = 4 ]; do sleep 0.02; done; }
        all ready
        kill_agent node1
        lattice signal $id USR1
        start_agent node1
        all signalled
        lattice status $id --json | field node | sort -u | tr '\n' ' '; echo
        lattice cancel $id; wait $launch; echo "code $?""#;
    let outcome = script_on(2, script).run();
    let signalled = vec!["signalled"; 4];
    outcome.exits(0).prints_lines([signalled, vec!["node0 node1 ", "code 143"]].concat()).says("ended by ");
}

/// The node waits for its next agent. In the meantime no launch begins on it.
#[test]
fn a_node_whose_agent_does_not_run_is_away() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        kill_agent node1
        until lattice nodes --json | field state | grep -q away; do sleep 0.1; done
        lattice launch --pmi=none --label -n 1 hostname
        lattice launch --pmi=none -n 2 true; echo "code $?"
        start_agent node1
        lattice launch --pmi=none -n 2 true; echo "code $?""#;
    let outcome = script_on(2, script).run();
    outcome.exits(0).prints_lines(["[0] node0", "code 125", "code 0"]).says("node1 is away: its agent does not run");
}

/// The agent is never replaced. When the lease expires, the launch ends on all nodes and reports the reason.
#[test]
fn a_launch_whose_agent_is_not_replaced_ends_with_the_lease() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        restart_api sed -i '1i lease = 6' api.toml
        sed -i '1i agent_lease = 6' node1.toml; kill_agent node1; start_agent node1
        lattice launch -n 4 --pmi=none sleep 1000 & launch=$!
        id=$(launch_with 4)
        ranks=$(lattice proctable $id --json | field pid)
        kill_agent node1
        wait $launch; echo "code $?"
        for rank in $ranks; do while kill -0 $rank 2>/dev/null; do sleep 0.05; done; done
        until [ -z "$(ls runtime/node1)" ]; do sleep 0.05; done
        start_agent node1
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null
        until alloc=$(lattice alloc create -N 2 2>/dev/null); do sleep 0.1; done
        lattice launch --alloc $alloc --pmi=none -n 2 true; echo "code $?""#;
    let outcome = script_on(2, script).run();
    let cause = "node node1 was lost: its agent ended, and none took its place in time";
    outcome.exits(0).prints_lines(["code 125", "code 0"]).says(cause);
}

/// A stopped agent keeps its launches, unless its settings end them.
#[test]
fn a_stopped_agent_keeps_its_launches() {
    let script = r#"for node in node0 node1 node1; do kill_agent $node TERM; start_agent $node; more_steps; done"#;
    let script = format!("{KEEP}{STEPS}\n{script}\n{ALL_TOLD}");
    let outcome = script_on(2, &script).arg(Flavour::WheelMpich.program("steps")).run();
    outcome.exits(0).prints_lines(["code 0", "4"]);
}

/// Fork servers and their sockets exist only as long as their sessions.
#[test]
fn nothing_is_left_of_agents_that_were_replaced() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        lattice launch -n 2 --pmi=none bash -c 'until [ -e "$0/go" ]; do sleep 0.02; done' "$PWD" & launch=$!
        launch_with 2 >/dev/null
        for turn in 1 2 3; do kill_agent node0; start_agent node0; done
        ls runtime/node0 | wc -l
        touch go; wait $launch; echo "code $?"
        until [ $(ls runtime/node0 | wc -l) = 1 ]; do sleep 0.05; done
        # One fork server, and its spare child.
        until [ $(pgrep -c -P $(daemon node0)) = 1 ]; do sleep 0.05; done
        kill_agent node0; until [ -z "$(ls runtime/node0)" ]; do sleep 0.05; done
        start_agent node0; ls runtime/node0 | wc -l"#;
    let outcome = script_on(1, script).run();
    // The fork server of the living agent, and the fork server of the session.
    outcome.exits(0).prints_lines(["2", "code 0", "1"]);
}

/// Upgrades a cluster to another version of the agent, node by node, while a program runs.
fn upgraded_under(flavour: Flavour) {
    let _machine = turn::heavy();
    let script = r#"
        for node in node0 node1; do kill_agent $node TERM; start_agent $node "$2"; more_steps; done
        lattice nodes --json | field version"#;
    let script = format!("{KEEP}{STEPS}\n{script}\n{ALL_TOLD}");
    let outcome = script_on(2, &script).arg(flavour.program("steps")).arg(built::next_agent()).run();
    let next = concat!(env!("CARGO_PKG_VERSION"), "-next");
    outcome.exits(0).prints_lines([next, next, "code 0", "4"]);
}

#[test]
fn a_cluster_is_upgraded_under_a_running_program_of_mpich() {
    upgraded_under(Flavour::WheelMpich);
}

#[test]
fn a_cluster_is_upgraded_under_a_running_program_of_open_mpi() {
    upgraded_under(Flavour::WheelOpenMpi);
}

/// Launches that begin while an agent is replaced are started again, and reach the next agent.
#[test]
fn launches_that_begin_meanwhile_find_the_next_agent() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        for round in 1 2 3; do
            for node in node0 node1; do
                kill_agent $node TERM; sleep 0.3; start_agent $node
            done
        done >/dev/null 2>&1 & agents=$!
        # These agents end what runs on their node when they are stopped: a launch that has begun may be lost.
        while kill -0 $agents 2>/dev/null; do lattice launch -n 2 true; done; echo through"#;
    script_on(2, script).run().exits(0).prints_lines(["through"]).does_not_say("does not start its part");
}

/// The same for agents that keep the launches of their node: no launch is lost, at any time of its start.
#[test]
fn no_launch_is_lost_while_agents_that_keep_theirs_are_replaced() {
    let script = format!(
        r#"cd "$LATTICE_DEV_CLUSTER"; {KEEP}
        for round in 1 2 3 4; do
            for node in node0 node1; do
                kill_agent $node TERM; sleep 0.3; start_agent $node; sleep 0.4
            done
        done >/dev/null 2>&1 & agents=$!
        while kill -0 $agents 2>/dev/null; do lattice launch -n 2 true || echo "code $?"; done; echo through"#
    );
    script_on(2, &script).run().exits(0).prints_lines(["through"]);
}

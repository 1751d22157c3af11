//! The API server is killed and started again while launches run.

use lattice_tests::script_on;

#[test]
fn a_launch_goes_on_to_its_right_end() {
    // The second node's part is already over. Its output must not be lost.
    let outcome = script_on(
        4,
        r#"lattice launch --pmi=none -n 4 bash -c '
               [ $LATTICE_RANK = 1 ] && name=first || name=last
               until [ -e "$0/$name" ]; do sleep 0.02; done
               echo "end of $LATTICE_RANK"' "$LATTICE_DEV_CLUSTER" & launch=$!
           id=$(launch_with 4)
           touch "$LATTICE_DEV_CLUSTER/first"
           until [ "$(lattice proctable $id --json | field pid | wc -l)" = 3 ]; do sleep 0.02; done
           restart_api
           touch "$LATTICE_DEV_CLUSTER/last"
           wait $launch; echo "code $?"
           lattice status $id | grep -o 'has succeeded'
           lattice status $id | grep -c 'exited with status 0'
           lattice alloc list | grep -o running
           lattice launch --pmi=none -n 4 true; echo "code $?""#,
    )
    .run();
    let ends = (0..4).map(|rank| format!("end of {rank}"));
    let words = ["code 0", "has succeeded", "4", "running", "code 0"].map(str::to_owned);
    outcome.exits(0).says("attached again").says("output may be missing here").prints_lines(ends.chain(words));
}

/// No output was in transit when the server ended. Therefore all of it arrives, after any number of attempts of the agents to report.
#[test]
fn what_ranks_print_while_there_is_no_server_is_kept() {
    let outcome = script_on(
        2,
        r#"cd "$LATTICE_DEV_CLUSTER"
           lattice launch --pmi=none -n 2 bash -c '
               until [ -e go ]; do sleep 0.02; done
               for i in $(seq 200); do echo $i; sleep 0.02; done; touch printed.$LATTICE_RANK' & launch=$!
           launch_with 2 >/dev/null
           print_all() { touch go; until [ -e printed.0 ] && [ -e printed.1 ]; do sleep 0.05; done; }
           restart_api print_all
           wait $launch; echo "code $?""#,
    )
    .run();
    let lines = (1..=200).map(|line| line.to_string());
    outcome.exits(0).prints_lines(lines.clone().chain(lines).chain(["code 0".to_owned()]));
}

#[test]
fn a_failure_after_the_restart_is_told_as_ever() {
    let outcome = script_on(
        2,
        r#"lattice launch --pmi=none -n 4 bash -c '
               until [ -e "$0" ]; do sleep 0.02; done
               [ $LATTICE_RANK = 3 ] && exit 7; exec sleep 1000' "$LATTICE_DEV_CLUSTER/go" & launch=$!
           launch_with 4 >/dev/null
           restart_api
           touch "$LATTICE_DEV_CLUSTER/go"
           wait $launch"#,
    )
    .run();
    outcome.exits(7).says("rank 3 on node1 exited with status 7");
}

#[test]
fn an_abort_after_the_restart_names_who_and_why() {
    let outcome = script_on(
        2,
        r#"lattice launch --pmi=none -n 4 sleep 1000 & launch=$!
           id=$(launch_with 4)
           restart_api
           lattice cancel $id
           wait $launch; echo "code $?"
           lattice status $id | grep -c '^cause: ended by '"#,
    )
    .run();
    outcome.exits(0).prints_lines(["code 143", "1"]).says("ended by ");
}

/// A server without its state has no record of a launch. All running launches are ended.
#[test]
fn agents_end_launches_that_the_server_has_forgotten() {
    let outcome = script_on(
        2,
        r#"lattice launch --pmi=none -n 4 sleep 1000 & launch=$!
           id=$(launch_with 4)
           ranks=$(lattice proctable $id --json | field pid)
           restart_api rm "$LATTICE_DEV_CLUSTER/api.redb"
           for rank in $ranks; do while kill -0 $rank 2>/dev/null; do sleep 0.05; done; done
           wait $launch; echo "code $?""#,
    )
    .run();
    outcome.exits(0).prints_lines(["code 125"]);
}

/// The environment of launches is stored while they run, for a restart of the server. It is sealed in the state file, and its keys are
/// overwritten after the launches have ended.
#[test]
fn ended_launches_leave_no_environment_and_are_still_reported() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        for n in {0..9}; do export "BALLAST$n=$(head -c 100000 /dev/zero | tr '\0' x)"; done
        for n in {1..24}; do lattice launch --detach -n 1 sleep 1000 >>ids || exit; done
        for n in {0..9}; do unset BALLAST$n; done
        [ $(stat -c %s api.redb) -gt 20000000 ] && echo "large, while they run"
        restart_api :; lattice launches --json | field launch_id | wc -l
        keys() { tr -d '\0' <api.redb.keys | wc -c; }; [ $(keys) -gt 700 ] && echo "keys"
        for id in $(cat ids); do lattice cancel --reason enough $id; done
        until [ -z "$(lattice launches --json | field launch_id)" ]; do sleep 0.05; done
        until [ $(keys) = 0 ]; do sleep 0.05; done; grep -rla BALLAST . | wc -l
        # What is known to be over when the server starts is given back.
        restart_api :
        [ $(stat -c %s api.redb) -lt 4000000 ] && echo "small, when they are over"
        lattice launches --all --json | field launch_id | wc -l
        id=$(head -n 1 ids); lattice status $id | grep -o 'cause: ended by administrator 0: enough'
        lattice attach $id; echo "code $?""#;
    let outcome = script_on(1, script).run();
    outcome.exits(0).prints_lines([
        "large, while they run",
        "24",
        "keys",
        "0",
        "small, when they are over",
        "24",
        "cause: ended by administrator 0: enough",
        "code 143",
    ]);
}

/// Agents find a restarted API server within a second. Before that the server has no nodes.
#[test]
fn launches_that_begin_before_agents_have_found_the_new_server_wait_for_them() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        # One that is being asked for when the server is killed may fail.
        while [ ! -e stop ]; do lattice launch -n 2 -N 2 true </dev/null; done & launches=$!
        for restart in 1 2 3 4; do restart_api sleep 1; done
        touch stop; wait $launches; echo through"#;
    script_on(2, script).run().exits(0).prints_lines(["through"]).does_not_say("has not registered");
}

/// After the release there may be no further command for the allocation. Therefore a release also waits for an absent server outside of the
/// allocation.
#[test]
fn a_release_waits_for_the_new_server() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"; alloc=$LATTICE_ALLOC_ID; unset LATTICE_ALLOC_ID
        begin() {
            lattice alloc release $alloc 2>told & release=$!
            until grep -q 'is waited for' told; do kill -0 $release || break; sleep 0.02; done
        }
        restart_api begin; wait $release; echo "code $?"; lattice alloc list --json | field allocation_id"#;
    script_on(1, script).run().exits(0).prints_lines(["code 0"]);
}

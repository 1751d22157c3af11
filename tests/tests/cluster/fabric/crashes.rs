//! The API server or an agent is killed at every step of the life of credentials. Afterwards no credentials remain.

use super::with_fabric;

/// The operation that is in progress when a daemon is killed, and the commands that start it. They create an allocation
/// `$alloc`, and may leave a launch running in it, `$launch`.
type Step = (&'static str, &'static str);

/// Functions for the steps.
const STEPS: &str = r#"
    slow='{"slow": {"milliseconds": 5000}}'
    allocate() { begun=$(wc -l <"$here/api.log"); alloc=$(lattice alloc create -N 2); }
    # Whether the API server has said so since.
    said() { tail -n +$((begun + 1)) "$here/api.log" | grep -q "$1"; }
    equip() { allocate; soon said "are at hand allocation=\"$alloc\""; }
    start() { lattice launch --alloc $alloc --pmi none -n 2 sleep 1000 2>/dev/null & launch=$!; }
    run() { equip; start; launch_with 2 >/dev/null; }
    # Ends whatever holds a step open.
    go_on() { faults '[]'; rm -f "$here"/nics/*/*/slow; kill -CONT $(daemon node0) $(daemon node1) 2>/dev/null; }
    # Ends what is left of the launch and its allocation, and sees that nothing is left of them.
    put_right() {
        release $alloc
        [ "$launch" ] && wait $launch; launch=
        all_given_back >/dev/null; echo "$1"
    }
    afresh
"#;

/// Kills `daemon` at each of the steps, in one cluster.
#[track_caller]
fn check(daemon: &str, steps: &[Step]) {
    let step =
        |(what, reach): &Step| format!("{reach}\nkill_dead {daemon}; go_on; again {daemon}\nput_right '{what}'\n");
    let killing: String = steps.iter().map(step).collect();
    let end = "equip; lattice launch --alloc $alloc --pmi none -n 2 echo works; put_right over";
    let outcome = with_fabric(&format!("{STEPS}\n{killing}\n{end}")).run();
    outcome.exits(0).prints_lines(steps.iter().map(|(what, _)| *what).chain(["works", "works", "over"]));
}

#[test]
fn an_api_server_killed_at_any_step_gives_everything_back_afterwards() {
    check(
        "api",
        &[
            (
                "while it asks for a service",
                r#"faults "[{\"on\": \"create\", \"fault\": $slow}]"; allocate; soon spoilt create"#,
            ),
            ("between POST and GET", r#"faults "[{\"on\": \"auth\", \"fault\": $slow}]"; allocate; soon spoilt auth"#),
            (
                "before a node has heard of the launch",
                r#"equip; kill -STOP $(daemon node0) $(daemon node1); start; soon said "its nodes are asked""#,
            ),
            ("while nodes make services", r#"equip; touch "$here/nics/node1/cxi1/slow"; start; soon services_are 3"#),
            ("while ranks run", "run"),
            ("when nobody was told of the end", "equip; release $alloc"),
            (
                "while it deletes the service",
                r#"faults "[{\"on\": \"delete\", \"fault\": $slow}]"; equip; release $alloc; soon spoilt delete"#,
            ),
            (
                "between DELETE and the confirmation of a node",
                "equip; kill -STOP $(daemon node1); release $alloc; soon waits quarantined node",
            ),
        ],
    );
}

/// Without its journal it finds its services by their names.
#[test]
fn an_api_server_that_has_lost_its_state_deletes_what_it_had() {
    let script = r#"
        equip; kill_dead api; rm "$here/api.redb"; again api
        gone() { [ "$(calls)" = "create auth delete create auth delete " ]; }
        soon gone; all_given_back"#;
    with_fabric(&format!("{STEPS}\n{script}")).run().exits(0).prints_lines(["all given back"]);
}

#[test]
fn a_command_or_a_session_that_is_killed_leaves_no_service() {
    let script = r#"
        run; kill -KILL $launch; put_right "command"
        run; rank=$(pid_of_rank "$(launch_with 2)" 0)
        kill -KILL "$(sed -n 's/^PPid:\t//p' /proc/$rank/status)"; soon services_are 0; put_right "session""#;
    let outcome = with_fabric(&format!("{STEPS}\n{script}")).run();
    outcome.exits(0).prints_lines(["command", "session"]);
}

#[test]
fn an_agent_killed_at_any_step_gives_everything_back_afterwards() {
    check(
        "node1",
        &[
            ("before it has read the request", "equip; kill -STOP $(daemon node1); start; soon services_are 2"),
            ("while it makes services", r#"equip; touch "$here/nics/node1/cxi1/slow"; start; soon services_are 3"#),
            ("while ranks run", "run; services_are 4 || exit 90"),
            (
                "while it gives services back",
                r#"run; touch "$here/nics/node1/cxi1/slow"; kill -TERM $launch; soon services_are 1"#,
            ),
            (
                "while it retires the VNI",
                // The session ends with its fork server. The allocation fails with the node, so that the VNI is retired at
                // once.
                r#"run; kill -STOP $(daemon node1); kill -KILL $(pgrep -P $(daemon node1)); kill_dead node1; touch "$here/nics/node1/cxi1/slow"; again node1; soon services_are 1"#,
            ),
        ],
    );
}

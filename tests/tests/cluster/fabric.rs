//! Fabric credentials, from a manager over the API server and the agents to the ranks, and all the way back: the manager is a
//! real HTTP server that does what a file of faults says, the NICs are directories, and everything in between is real.

use std::io::Write;

use lattice_tests::{Command, lattice, script_in};

/// What scripts need to look at a fabric.
const LOOKING: &str = r#"
    here=$LATTICE_DEV_CLUSTER
    # The calls that the manager got, but for tokens and lists.
    calls() { sed -nE 's/.*"call":"(create|auth|delete)".*/\1/p' "$here/fabric.log" | tr '\n' ' '; }
    # How many services there are on all NICs.
    services() { find "$here/nics" -type f -name '[0-9]*' | wc -l; }
    # Fails, and shows why, unless a command succeeds within a minute; a server that was killed waits half of that for reports.
    soon() {
        for patience in {1..600}; do "$@" && return; sleep 0.1; done
        echo "never: $*" >&2; lattice cxi list >&2; tail -n 40 "$here"/*.log >&2; exit 99
    }
    nothing_is_held() { [ "$(lattice cxi list --json)" = "[]" ]; }
    all_given_back() {
        soon nothing_is_held
        [ "$(services)" = 0 ] || { echo "services are left" >&2; find "$here/nics" >&2; exit 98; }
        echo "all given back"
    }
    # Starts a daemon again that was killed: api, node0, ...
    again() {
        local program="lattice-agent"; [ "$1" = api ] && program="lattice api"
        env -u LATTICE_API_URL -u LATTICE_ALLOC_ID LATTICE_LOG=info $program --config "$here/$1.toml" >>"$here/$1.log" 2>&1 &
        echo $! >"$here/$1.pid"
        soon all_up
    }
    all_up() { ! lattice nodes --json 2>/dev/null | field state | grep -vq up && lattice nodes >/dev/null 2>&1 &&
        [ "$(lattice nodes --json | field state | wc -l)" = 2 ]; }
    # Kills a daemon; its files are free when it is dead, which may take a moment.
    kill_dead() { local pid=$(daemon "$1"); kill -KILL "$pid"; soon is_dead "$pid"; }
    is_dead() { ! grep -qs '^State:.[^ZX]' "/proc/$1/task/"*/status; }
    killed() { kill_dead "$1"; again "$1"; }
    # Adds a line to the section fabric of the API server's configuration, or to the top.
    configure() { sed -i "$1" "$here/api.toml"; killed api; }
"#;

/// A script in a cluster of two nodes with a fabric whose manager has these faults.
fn with_faults(faults: &str, script: &str) -> (Command, tempfile::NamedTempFile) {
    let mut file = tempfile::NamedTempFile::new().expect("a file of faults");
    file.write_all(faults.as_bytes()).expect("it is written");
    let cluster = lattice("dev-cluster --loopback --nodes 2 --fabric --fabric-faults").arg(file.path()).words("--");
    (script_in(cluster, &format!("{LOOKING}\n{script}")), file)
}

pub(super) fn with_fabric(script: &str) -> Command {
    script_in(lattice("dev-cluster --loopback --nodes 2 --fabric --"), &format!("{LOOKING}\n{script}"))
}

#[test]
fn every_rank_of_every_node_has_its_variables_in_matching_order() {
    let script = r#"
        touch "$here/nics/node1/cxi0/down"
        lattice launch --pmi none -n 4 --env USERS=own bash -c 'echo $LATTICE_NODE \
            $SLINGSHOT_DEVICES $SLINGSHOT_SVC_IDS $SLINGSHOT_VNIS $SLINGSHOT_TCS $FI_CXI_DEFAULT_VNI $FI_PROVIDER \
            ${#FI_CXI_AUTH_KEY} ${FI_CXI_COLL_JOB_ID-none}'
        FI_PROVIDER=tcp lattice launch --pmi none -n 1 bash -c 'echo $FI_PROVIDER $SLINGSHOT_VNIS'
        lattice launch --pmi none -n 1 --env FI_PROVIDER=shm bash -c 'echo $FI_PROVIDER'"#;
    let stale = ["SLINGSHOT_VNIS", "SLINGSHOT_DEVICES", "FI_CXI_DEFAULT_VNI", "FI_CXI_AUTH_KEY", "FI_CXI_COLL_JOB_ID"];
    let command = stale.iter().fold(with_fabric(script), |command, name| command.env(name, "stale"));
    let (first, second) = ("0 cxi0,cxi1 11,21 1024 0xa 1024 cxi 32 none", "1 cxi1 21 1024 0xa 1024 cxi 32 none");
    command.run().exits(0).prints_lines([first, first, second, second, "tcp 1024", "shm"]);
}

#[test]
fn without_a_fabric_nothing_is_set() {
    let script = "lattice launch --pmi none -n 1 bash -c 'env | grep -E \"^(SLINGSHOT|FI)_\"; true'; lattice cxi list";
    let cluster = lattice("dev-cluster --loopback --nodes 1 --");
    let outcome = script_in(cluster, script).env("FI_CXI_DEVICE_NAME", "cxi0").run();
    outcome.exits(125).prints_lines(["FI_CXI_DEVICE_NAME=cxi0"]).says("gives out no fabric credentials");
}

#[test]
fn an_allocations_launches_share_one_service_until_it_is_released() {
    let script = r#"
        lattice launch --pmi none -n 2 true && lattice launch --pmi none -n 2 true || exit
        [ "$(services)" = 0 ] || exit 9
        calls; echo; lattice cxi list --json | field state
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null
        all_given_back; calls"#;
    let lines = ["create auth ", "held", "all given back", "create auth delete "];
    with_fabric(script).run().exits(0).prints_lines(lines);
}

#[test]
fn nodes_are_asked_after_the_manager_has_answered_and_it_is_told_after_the_last_launch() {
    let slow = r#"[{"on": "create", "fault": {"slow": {"milliseconds": 700}}}]"#;
    let script = r#"
        lattice launch --pmi none -n 2 sleep 1000 & launch=$!
        launch_with 2 >/dev/null
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null
        wait $launch; all_given_back
        cat "$here/api.log" "$here/node0.log" | sort | sed -nE 's/.*(is asked for credentials|are at hand|its nodes are asked|may use the fabric|services are ended|launch is over|are to be given back|may be used again).*/\1/p'"#;
    let (command, _faults) = with_faults(slow, script);
    let outcome = command.run();
    let order = [
        "is asked for credentials",
        "are at hand",
        "its nodes are asked",
        "may use the fabric",
        "are to be given back",
        "may be used again",
    ];
    let seen: Vec<&str> = outcome.text().lines().filter(|line| order.contains(line)).collect();
    outcome.exits(0).check(seen == order, || format!("should have happened in the order {order:?}"));
}

/// What passes is no failure of the launch, and nothing of it is left at the manager.
#[test]
fn faults_that_pass_are_waited_out() {
    for faults in [
        r#"[{"on": "create", "fault": {"status": {"status": 401}}}]"#,
        r#"[{"on": "create", "fault": {"status": {"status": 429, "retry_after": 1}}}]"#,
        r#"[{"on": "create", "times": 2, "fault": {"status": {"status": 500}}}, {"on": "auth", "fault": {"status": {"status": 503}}}]"#,
        r#"[{"on": "create", "fault": "lose_answer"}, {"on": "delete", "fault": "lose_answer"}]"#,
        r#"[{"on": "create", "times": 2, "fault": "down"}]"#,
        r#"[{"on": "create", "fault": "garbage"}, {"on": "delete", "times": 3, "fault": {"status": {"status": 400}}}]"#,
        r#"[{"on": "auth", "fault": "wrong_types"}]"#,
    ] {
        let script = r#"
            lattice launch --pmi none -n 2 bash -c 'echo $SLINGSHOT_DEVICES' || exit
            lattice alloc release $LATTICE_ALLOC_ID >/dev/null
            all_given_back"#;
        let (command, _faults) = with_faults(faults, script);
        command.run().exits(0).prints_lines(["cxi0,cxi1", "cxi0,cxi1", "all given back"]);
    }
}

#[test]
fn a_refusal_is_told_in_the_managers_words_and_no_node_is_asked() {
    let refuse =
        r#"[{"on": "create", "times": 100, "fault": {"status": {"status": 409, "detail": "partition is full"}}}]"#;
    let script = r#"
        lattice launch --pmi none -n 2 echo ran; code=$?
        grep -c "started" "$here/node0.log" "$here/node1.log"
        lattice launches --all --json | field cause
        exit $code"#;
    let (command, _faults) = with_faults(refuse, script);
    let outcome = command.run();
    outcome.exits(125).says("partition is full").says("POST /fabric/cxi/services").says("no fabric credentials");
    outcome.prints("node0.log:0").prints("node1.log:0").check(!outcome.text().contains("ran"), || "it ran".to_owned());
}

#[test]
fn a_manager_that_is_gone_fails_a_launch_in_time() {
    let script = r#"
        configure '1i fabric_patience = 2'
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null; all_given_back
        kill_dead fabric
        alloc=$(lattice alloc create -N 1); lattice launch --alloc $alloc --pmi none -n 1 echo ran"#;
    let outcome = with_fabric(script).run();
    outcome.exits(125).says("gave up at the deadline").says("cannot be reached").prints_lines(["all given back"]);
}

#[test]
fn an_exhausted_pool_is_told_with_counts() {
    let script = r#"
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null; all_given_back
        configure 's/^\[fabric\]/&\nvnis = "2000-2000"/'
        one=$(lattice alloc create -w node0); two=$(lattice alloc create -w node1)
        run() { lattice launch --alloc "$1" --pmi none -n 1 bash -c 'echo $SLINGSHOT_VNIS'; }
        run $one && ! run $two || exit
        lattice alloc release $one >/dev/null; soon run $two"#;
    let outcome = with_fabric(script).run();
    outcome.exits(0).says("VNI pool exhausted (1/1 in use").prints_lines(["all given back", "2000", "2000"]);
}

#[test]
fn an_api_server_killed_at_any_step_gives_everything_back_afterwards() {
    let slow = r#"[{"on": "create", "fault": {"slow": {"milliseconds": 500}}},
                   {"on": "delete", "times": 2, "fault": {"slow": {"milliseconds": 500}}}]"#;
    let script = r#"
        # While the manager makes the service.
        killed api
        # While a launch runs, which goes on.
        lattice launch --pmi none -n 2 sleep 1000 & launch_with 2 >/dev/null
        killed api
        soon launch_with 2 >/dev/null
        # While it is given back.
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null
        killed api
        all_given_back
        alloc=$(lattice alloc create -N 2)
        lattice launch --alloc $alloc --pmi none -n 2 echo works
        # When nobody has told it of the end.
        lattice alloc release $alloc >/dev/null; killed api
        all_given_back
        echo $(calls | tr ' ' '\n' | grep -c create) $(lattice cxi doctor)"#;
    let (command, _faults) = with_faults(slow, script);
    let outcome = command.run();
    outcome.exits(0).prints("works").prints("nothing is wrong");
    outcome.check(outcome.text().matches("all given back").count() == 2, || "should all be given back".to_owned());
}

#[test]
fn an_agent_that_was_killed_ends_what_it_left() {
    let script = r#"
        lattice launch --pmi none -n 2 sleep 1000 & launch=$!
        launch_with 2 >/dev/null
        kill_dead node1; wait $launch
        soon [ $(services) = 2 ]
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null
        soon waits_for_node1
        lattice cxi doctor; echo "doctor $?"
        again node1
        all_given_back"#;
    let waits = r#"waits_for_node1() { lattice cxi list | grep -q "quarantined  node1"; }"#;
    let outcome = with_fabric(&format!("{waits}\n{script}")).run();
    outcome.exits(0).prints("doctor 1").prints("waits for node1").prints("all given back");
}

#[test]
fn a_node_that_is_gone_for_good_can_be_said_to_be() {
    let script = r#"
        lattice launch --pmi none -n 2 true
        lattice cxi clean --gone node1; echo "up: $?"
        kill_dead node1
        soon lost
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null
        soon waits_for_node1
        lattice cxi clean --dry-run --gone node1
        waits_for_node1 && lattice cxi clean --gone node1
        nothing_is_held && echo "all given back""#;
    let words = r#"waits_for_node1() { lattice cxi list | grep -q "quarantined  node1"; }
        lost() { lattice nodes --json | field state | grep -q lost; }"#;
    let outcome = with_fabric(&format!("{words}\n{script}")).run();
    outcome.exits(0).prints("up: 125").says("node node1 is up");
    outcome.prints("would be taken to hold nothing").prints("may be used again").prints("all given back");
}

#[test]
fn a_busy_service_keeps_its_vni_out_of_use() {
    let script = r#"
        lattice launch --pmi none -n 2 sleep 1000 & launch=$!
        launch_with 2 >/dev/null; touch "$here/nics/node0/cxi1/busy"
        kill -TERM $launch; wait $launch
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null
        soon quarantined
        [ "$(services)" = 1 ] && echo "one is left"
        rm "$here/nics/node0/cxi1/busy"
        all_given_back"#;
    let words = r#"quarantined() { lattice cxi list | grep -q "quarantined  node0"; }"#;
    let outcome = with_fabric(&format!("{words}\n{script}")).run();
    outcome.exits(0).prints("one is left").prints("all given back");
}

/// Whatever a launch writes, shows or leaves: the key and the secret are in it nowhere, in no spelling.
#[test]
fn no_key_is_left_anywhere() {
    let script = r#"
        unset LATTICE_LOG
        lattice launch --pmi none -n 2 bash -c 'echo $FI_CXI_AUTH_KEY >"$1".$LATTICE_RANK; sleep 1000' bash "$KEYS/key" & launch=$!
        id=$(launch_with 2)
        until [ -s "$KEYS/key.0" ] && [ -s "$KEYS/key.1" ]; do sleep 0.05; done
        key=$(<"$KEYS/key.0"); secret=$(<"$here/fabric.secret")
        [ ${#key} = 32 ] && [ "$key" = "$(<"$KEYS/key.1")" ] || exit 97
        bytes=$(sed 's/../\\x&/g' <<<"$key")
        numbers=$(for at in {0..30..2}; do printf '%d, ' 0x${key:at:2}; done); numbers=${numbers%, }
        for command in "status $id" "launches --all" "proctable $id" nodes "cxi list" "cxi doctor" "alloc list --all"; do
            lattice $command --json; lattice $command
        done >"$here/shown" 2>&1
        cat /proc/[0-9]*/cmdline >"$here/cmdlines" 2>/dev/null
        kill -TERM $launch; wait $launch 2>/dev/null
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null; all_given_back
        kill_dead fabric; alloc=$(lattice alloc create -N 1)
        lattice launch --alloc $alloc --timeout 2s --pmi none -n 1 true >>"$here/shown" 2>&1
        [ $(wc -c <"$here/api.log") -gt 10000 ] || exit 96
        leaked() { LC_ALL=C grep -rla "$@" "$here" --exclude=fabric.secret --exclude-dir=pki; }
        # Whoever looks must be able to see.
        printf "$bytes" >"$here/planted"; leaked -P "$bytes" >/dev/null || exit 91
        rm "$here/planted"
        leaked -iF "$key" && exit 95
        leaked -P "$bytes" && exit 94
        leaked -F "$numbers" && exit 93
        leaked -F "$secret" && exit 92
        echo clean"#;
    let keys = tempfile::tempdir().expect("a directory");
    let command = with_fabric(script).env("KEYS", keys.path()).env("LATTICE_LOG", "trace");
    command.run().exits(0).prints_lines(["all given back", "clean"]);
}

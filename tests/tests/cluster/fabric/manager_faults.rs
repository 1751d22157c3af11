//! Faults of a fabric manager that affect launches. Lattice waits for the end of temporary faults, and reports
//! permanent ones in the manager's own words.

use super::with_fabric;

/// A temporary fault does not fail the launch, and leaves nothing at the manager.
#[test]
fn faults_that_pass_are_waited_out() {
    const FAULTS: [&str; 11] = [
        r#"{"on": "create", "fault": {"status": {"status": 401}}}"#,
        r#"{"on": "auth", "fault": "expire_tokens"}"#,
        r#"{"on": "delete", "fault": "expire_tokens"}"#,
        r#"{"on": "create", "fault": {"status": {"status": 429, "retry_after": 1}}}"#,
        r#"{"on": "create", "times": 2, "fault": {"status": {"status": 500}}}, {"on": "auth", "fault": {"status": {"status": 503}}}"#,
        r#"{"on": "create", "fault": "lose_answer"}, {"on": "delete", "fault": "lose_answer"}"#,
        r#"{"on": "create", "times": 2, "fault": "down"}"#,
        r#"{"on": "create", "fault": "garbage"}"#,
        r#"{"on": "auth", "fault": "wrong_types"}"#,
        r#"{"on": "delete", "times": 3, "fault": {"status": {"status": 500}}}"#,
        r#"{"on": "delete", "times": 3, "fault": {"status": {"status": 400}}}"#,
    ];
    let step = |faults: &&str| {
        format!(
            r#"faults '[{faults}]'
            alloc=$(lattice alloc create -N 2)
            lattice launch --alloc $alloc --pmi none -n 2 bash -c 'echo $SLINGSHOT_DEVICES' || exit
            release $alloc; all_given_back
            spoilt "[a-z]*" || {{ echo "nothing was spoilt by {}" >&2; exit 95; }}"#,
            faults.replace('"', "")
        )
    };
    let steps: Vec<String> = FAULTS.iter().map(step).collect();
    let outcome = with_fabric(&format!("afresh\n{}", steps.join("\n"))).run();
    let lines = FAULTS.iter().flat_map(|_| ["cxi0,cxi1", "cxi0,cxi1", "all given back"]);
    outcome.exits(0).prints_lines(lines);
}

#[test]
fn a_refusal_is_told_in_the_managers_words_and_no_node_is_asked() {
    let script = r#"
        allocate_with_faults '[{"on": "create", "times": 100, "fault": {"status": {"status": 409, "detail": "partition is full"}}}]'
        lattice launch --alloc $alloc --pmi none -n 2 echo ran; code=$?
        grep -c "started" "$here/node0.log" "$here/node1.log"
        lattice launches --all --json | field reason
        exit $code"#;
    let outcome = with_fabric(script).run();
    outcome.exits(125).says("partition is full").says("POST /fabric/cxi/services").says("no fabric credentials");
    outcome.prints("node0.log:0").prints("node1.log:0").check(!outcome.text().contains("ran"), || "it ran".to_owned());
}

#[test]
fn a_manager_that_is_slower_than_the_launch_fails_it_in_time_and_is_cleaned_up_after() {
    let script = r#"
        allocate_with_faults '[{"on": "create", "fault": {"slow": {"milliseconds": 4000}}}]'
        lattice launch --alloc $alloc --timeout 1s --pmi none -n 2 echo ran; echo "code $?"
        calls; echo
        release $alloc; all_given_back; calls"#;
    let outcome = with_fabric(script).run();
    outcome.exits(0).says("no fabric credentials for allocation").says("within 1.000 s");
    let once = "create auth delete create ";
    let twice = "create auth delete create delete ";
    outcome.prints_lines(["code 125", once, "all given back", twice]);
}

#[test]
fn a_manager_that_is_gone_fails_a_launch_in_time() {
    let script = r#"
        configure '1i fabric_patience = 2'
        release; all_given_back
        kill_dead fabric
        alloc=$(lattice alloc create -N 1); lattice launch --alloc $alloc --pmi none -n 1 echo ran"#;
    let outcome = with_fabric(script).run();
    outcome.exits(125).says("gave up at the deadline").says("cannot be reached").prints_lines(["all given back"]);
}

/// A VNI is not assigned again until all nodes have confirmed its release.
#[test]
fn an_exhausted_pool_is_told_with_counts() {
    let script = r#"
        afresh
        configure 's/^\[fabric\]/&\nvnis = "2000-2000"/'
        one=$(lattice alloc create -w node0); two=$(lattice alloc create -w node1)
        run() { lattice launch --alloc "$1" --pmi none -n 1 bash -c 'echo $SLINGSHOT_VNIS'; }
        touch "$here/nics/node0/cxi0/busy"
        run $one && ! run $two || exit
        release $one; soon waits quarantined node0
        run $two && exit 95
        rm "$here/nics/node0/cxi0/busy"; soon run $two"#;
    let outcome = with_fabric(script).run();
    outcome.exits(0).says("VNI pool exhausted (1/1 in use").says("(1/1 in use, 1 of them in quarantine");
    outcome.prints_lines(["2000", "2000"]);
}

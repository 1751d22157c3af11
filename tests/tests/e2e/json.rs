//! `--json`: every line of a launch and every document of another command matches its schema.

use lattice_tests::schema::{Schema, check_documents};
use lattice_tests::{Command, Outcome, built, launch};
use serde_json::{Value, json};

/// Returns the events of a launch. Each of them must match the schema.
#[track_caller]
fn events(outcome: &Outcome) -> Vec<Value> {
    let schema = Schema::of_document("events");
    let event = |line: &str| {
        let event = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line} is no JSON: {error}"));
        schema.check(&event).unwrap_or_else(|error| panic!("{error}"));
        event
    };
    let events: Vec<Value> = outcome.text().lines().map(event).collect();
    assert_eq!(events.first().map(|event| &event["event"]), Some(&json!("launch")));
    assert_eq!(events.last().map(|event| &event["event"]), Some(&json!("complete")));
    events
}

fn named<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["event"] == name).collect()
}

#[test]
fn every_line_fits_the_schema() {
    let script = "echo hello; printf '\\377\\n'; echo err >&2; printf open; exit $LATTICE_RANK";
    let outcome = launch("-n 2 --json").bash(script).run();
    outcome.exits(1);
    let events = events(&outcome);
    assert_eq!(named(&events, "started").len(), 2);
    assert_eq!(named(&events, "exited").len(), 2);
    assert_eq!(named(&events, "ending").len(), 1);
    let outputs = named(&events, "output");
    let text = |rank: u32, stream: &str| -> String {
        let own = outputs.iter().filter(|event| event["rank"] == rank && event["stream"] == stream);
        own.filter_map(|event| event["text"].as_str()).collect()
    };
    assert_eq!(text(1, "stderr"), "err\n");
    assert!(text(1, "stdout").ends_with("open") || outputs.iter().any(|event| event["base64"].is_string()));
    let complete = events.last().unwrap();
    assert_eq!(complete["exit_code"], 1);
    assert_eq!(complete["cause"]["kind"], "failed");
    assert_eq!(complete["cause"]["rank"], 1);
    assert_eq!(complete["ranks"][1], json!({ "rank": 1, "code": 1 }));
}

#[test]
fn a_launch_that_is_well_has_no_cause() {
    let outcome = launch("-n 2 --json --pmi none").arg("true").run();
    outcome.exits(0).says_nothing();
    let events = events(&outcome);
    assert_eq!(events[0]["num_ranks"], 2);
    assert_eq!(events.last().unwrap()["cause"], Value::Null);
    assert_eq!(named(&events, "ending").len(), 0);
}

#[test]
fn notices_are_events_too() {
    let outcome = launch("-n 2 --json").arg("true").run();
    let events = events(&outcome);
    let notices = named(&events, "notice");
    assert_eq!(notices.len(), 1);
    assert_eq!(notices[0]["notice"], "silent");
    assert_eq!(notices[0]["ranks"], json!([0, 1]));
}

#[test]
fn every_kind_of_end_is_told() {
    let check = |flags: &str, script: &str, kind: &str, code: i32| {
        let outcome = launch("-n 2 --json").words(flags).bash(script).run();
        outcome.exits(code);
        let events = events(&outcome);
        let complete = events.last().unwrap();
        assert_eq!(complete["cause"]["kind"], kind, "{complete}");
        assert_eq!(complete["exit_code"], code, "{complete}");
    };
    check("--timeout 200ms", "sleep 1000", "timed_out", 124);
    check("", "printf 'cmd=abort exitcode=5\\n' >&$PMI_FD; sleep 1000", "aborted", 5);
    check("", "kill -9 $$", "failed", 137);
    check("", "printf 'nonsense\\n' >&$PMI_FD; sleep 1000", "offence", 1);
}

/// Tools that read the events detect a refused launch by its exit code and its message, and receive no incomplete
/// events.
#[test]
fn a_refused_launch_prints_no_events() {
    launch("-n 2 --json").arg("/nonexistent").run().exits(127).says("/nonexistent").prints_lines::<&str>([]);
}

/// A cluster is not necessary. `tests/cluster/documents.rs` has the documents of all commands.
#[test]
fn documents_on_one_machine_match_their_schemas() {
    let script = r#"lattice() { command "$LATTICE" "$@"; }
        shows() { echo "== $1"; lattice "${@:2}" --json; }
        field() { sed -nE "s/^ *\"$1\": \"?([^\",]*)\"?,?\$/\1/p"; }
        lattice launch --pmi=none -n 2 sleep 1000 & launch=$!
        until id=$(lattice launches --json | field launch_id) && [ "$(lattice proctable "$id" --json 2>&1 | grep -c pid)" = 2 ]; do sleep 0.05; done
        shows launches launches; shows status status $id; shows proctable proctable $id; shows top top $id --once
        shows stacks stacks $id; shows nodes-topology nodes --topology; shows nodes-topology-launch nodes --topology $id
        shows explain-launch explain $id; shows explain-code explain 0; shows doctor doctor; shows set-list set list
        shows set-graph set graph; shows signal signal $id CONT; shows cancel cancel $id; wait $launch; true"#;
    let home = tempfile::tempdir().unwrap();
    let bash = Command::new("bash").arg("-c").arg(script).env("LATTICE_API_URL", "").env("LATTICE", built::lattice());
    let outcome = bash.env("HOME", home.path()).env("LATTICE_SETS", home.path().join("sets")).run();
    assert_eq!(check_documents(outcome.exits(0).text()).len(), 14);
}

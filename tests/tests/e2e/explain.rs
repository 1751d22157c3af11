//! `lattice explain` on one machine: exit codes, and launches that run.

use lattice_tests::{Command, built, lattice};
use serde_json::Value;

#[test]
fn a_code_is_explained_with_the_next_step() {
    let outcome = lattice("explain 139").run();
    let text = outcome.exits(0).says_nothing().text();
    assert!(text.starts_with("139: SIGSEGV killed a rank"), "{text}");
    assert!(
        text.contains("\n  try: ulimit -c unlimited") && text.contains("\n128 + 11 (SIGSEGV): signal N killed "),
        "{text}"
    );
    lattice("explain 0").run().exits(0).prints_lines(["0: each rank returned 0"]);
    let outcome = lattice("explain 127 --json").run();
    let code: Value = serde_json::from_slice(outcome.exits(0).stdout()).unwrap();
    assert_eq!(
        (&code["exit_code"], &code["meanings"][0]["meaning"]),
        (&127.into(), &"the program does not exist".into())
    );
}

#[test]
fn a_word_that_is_neither_a_code_nor_a_launch_is_refused() {
    let refused = lattice("explain 256").run();
    refused.exits(125).says("256 is no exit code; exit codes are 0 to 255");
    let unknown = lattice("explain nosuchid00").env("LATTICE_API_URL", "").env("HOME", "/nonexistent").run();
    unknown.exits(125).says("nosuchid00 is no exit code (0 to 255), and no launch of yours that runs on this machine");
    unknown.says("a launch on this machine leaves no record");
}

#[test]
fn a_launch_of_this_machine_that_runs_has_not_failed() {
    let script = r#"lattice() { command "$LATTICE" "$@"; }
        lattice launch -n 2 sleep 1000 & launch=$!
        until id=$(lattice launches --json | sed -nE 's/^ *"launch_id": "(.*)",$/\1/p') && [ "$id" ]; do sleep 0.05; done
        lattice explain $id | sed "s/$id/ID/g"; lattice cancel $id; wait $launch; echo "code $?""#;
    let outcome =
        Command::new("bash").arg("-c").arg(script).env("LATTICE_API_URL", "").env("LATTICE", built::lattice()).run();
    outcome.exits(0).prints("launch ID: active\nnothing has failed\n  try: lattice status ID shows").prints("code 143");
}

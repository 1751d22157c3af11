//! Malformed input at the sockets of launches on one machine, during another launch that must not be affected (`tests/src/malformed.rs`).

use std::env;
use std::time::Duration;

use lattice_tests::{Command, built, turn};

/// Starts launches of a waiting program. Runs the attack on each, with its id, until `$2` has sent `$1` frames, which it counts in `$sent`.
const SCRIPT: &str = r#"
    cd "$(mktemp -d)"; count=$1 malformed=$2 lattice=$3 attack=$4; export LATTICE_SETS=$PWD/sets sent=$PWD/sent
    field() { sed -nE "s/^ *\"$1\": \"?([^\",]*)\"?,?\$/\1/p"; }
    $lattice launch -n 2 bash -c "until [ -e $PWD/stop ]; do :; sleep 0.05; done; exec $lattice pmi exchange" >undisturbed 2>&1 & undisturbed=$!
    until other=$($lattice launches --json | field launch_id) && [ "$other" ]; do sleep 0.02; done
    for ((total = round = 0; total < count; round++)); do
        # Who knows what it may ask can end the launch as well: then there is another one.
        $lattice launch -n 2 sleep 1000 2>>attacked & launch=$!
        until id=$($lattice launches --json | field launch_id | grep -vx $other); do sleep 0.02; done
        eval "$attack" >/dev/null || exit
        grown=$(sed -n 's/^VmRSS:[ \t]*\([0-9]*\) kB/\1/p' /proc/$launch/status 2>/dev/null)
        [ "${grown:-0}" -lt 131072 ] || echo "it has $grown KiB"
        $lattice cancel $id 2>/dev/null; wait $launch
        total=$((total + $(cat $sent)))
    done
    touch stop; wait $undisturbed; echo "undisturbed: $? $(grep -c 'exchange: 2 ranks' undisturbed)"
    grep panicked attacked undisturbed; rm -r "$PWD"
"#;

#[track_caller]
fn check(attack: &str) {
    let _machine = turn::heavy();
    let count: usize = env::var("LATTICE_BAD_FRAMES").map_or(300, |text| text.parse().expect("a number"));
    let script = Command::new("bash").words("-c").arg(SCRIPT).arg("bash").arg(count.to_string());
    let script = script.arg(built::attacker()).arg(built::lattice()).arg(attack);
    script.within(Duration::from_secs(300 + count as u64 / 20)).run().exits(0).prints_lines(["undisturbed: 0 1"]);
}

/// The socket of a launch, with which commands query, follow and end it.
#[test]
fn malformed_questions_to_a_launch_disturb_nobody() {
    check(
        r#"mkdir -m 700 -p place/lattice/launches
        talk="$lattice status $id; $lattice proctable $id; $lattice signal $id CONT; timeout 1 $lattice attach $id; true"
        $malformed 400 $round unix $XDG_RUNTIME_DIR/lattice/launches/$id $PWD/place/lattice/launches/$id $sent \
            env XDG_RUNTIME_DIR=$PWD/place bash -c "$talk"; rm place/lattice/launches/$id"#,
    );
}

/// The socket of its set, with the set's key.
#[test]
fn malformed_frames_to_a_set_disturb_nobody() {
    check(
        r#"until $lattice set list --json | field launch_id | grep -qx $id; do sleep 0.05; done
        $malformed 2000 $round set $PWD/sets $id $sent"#,
    );
}

//! Floods of a session by a process of its user, at the port of its PMI servers: thousands of connections, endless lines and messages, invalid
//! frames, and connections that send half a line. Another flood is a rank that reads no reply. Its ranks continue, and its memory does not grow.

use lattice_tests::{Command, built, launch, launch_on, turn};

use crate::raw;

/// Runs the flood `$ARGV[0]` against the server at `$ARGV[1]` (HOST:PORT). Creates the file `$ARGV[2]` when a tenth is done, and holds its
/// connections until the file is removed.
const FLOOD: &str = include_str!("../../scripts/flood.pl");

/// The script of each rank. `$1` is the flood, `$2` its kind, `$3` lattice, `$4` a directory, and `$5` the protocol between ranks and server.
const RANK: &str = r#"
    [ $LATTICE_RANK = 2 ] || exec $3 pmi --method $5 exchange --count 100 --size 1000
    # The session's, in kilobytes.
    memory() { sed -n "s/^$1:[ \t]*\([0-9]*\) kB/\1/p" /proc/$PPID/status; }
    address=$PMI_PORT; [ $5 != pmix ] || address=${PMIX_SERVER_URI41##*/}
    before=$(memory VmRSS); perl -e "$1" $2 $address $4/begun & flood=$!
    until [ -e $4/begun ] || ! kill -0 $flood 2>/dev/null; do sleep 0.02; done
    $3 pmi --method $5 exchange --count 100 --size 1000; code=$?
    [ $2 != held ] || rm $4/begun
    wait $flood || echo "flood: $?"
    grown=$(($(memory VmHWM) - before)); [ $grown -lt 65536 ] || echo "grown by $grown KiB"
    exit $code
"#;

#[track_caller]
fn check(launch: impl Fn() -> Command, kind: &str, method: &str) {
    let _machine = turn::heavy();
    let directory = tempfile::tempdir().unwrap();
    let rank = launch().bash(RANK).arg(FLOOD).arg(kind).arg(built::lattice()).arg(directory.path()).arg(method);
    let outcome = rank.run();
    // The exchange prints the time of its rounds.
    let is_ours = |line: &&str| ["flood", "closed", "grown"].iter().any(|word| line.starts_with(word));
    let said: Vec<&str> = outcome.text().lines().filter(is_ours).collect();
    assert!(said.is_empty(), "{kind} by {method}: {said:?}");
    outcome.exits(0).prints("exchange: 3 ranks, 100 rounds");
}

const KINDS: [&str; 5] = ["rapid", "resets", "malformed", "endless", "held"];

#[test]
fn floods_of_the_port_of_pmi_disturb_no_rank() {
    KINDS.iter().for_each(|kind| check(|| launch("-n 3 --pmi-port"), kind, "pmi1"));
}

#[test]
#[ignore = "second tier"]
fn floods_of_the_port_of_pmix_disturb_no_rank() {
    KINDS.iter().for_each(|kind| check(|| launch("-n 3 --pmi pmix"), kind, "pmix"));
}

/// The same for a session process.
#[test]
#[ignore = "second tier"]
fn floods_of_a_session_on_a_node_disturb_no_rank() {
    KINDS.iter().for_each(|kind| check(|| launch_on(1, "-n 3 --pmi-port"), kind, "pmi1"));
    KINDS.iter().for_each(|kind| check(|| launch_on(1, "-n 3 --pmi pmix"), kind, "pmix"));
}

/// A hundred thousand requests with replies that are not read for a second.
#[test]
fn a_rank_that_asks_and_does_not_read_is_served_as_fast_as_it_reads() {
    let flood = r#"
        open(my $server, "+<&=", $ENV{PMI_FD}) or die; my $writer = fork;
        if (!$writer) { for (1 .. 100) { my $left = "cmd=dance tempo=3\n" x 1000; $left = substr($left, syswrite($server, $left)) while length $left } exit }
        # The writer cannot go on by then.
        select undef, undef, undef, 1;
        my $answers = 0;
        while ($answers < 100000) { sysread($server, my $answer, 1 << 16) or die; $answers += ($answer =~ tr/\n//) }
        waitpid $writer, 0; print "answers: $answers\n";"#;
    let script = r#"init
        memory() { sed -n "s/^$1:[ \t]*\([0-9]*\) kB/\1/p" /proc/$PPID/status; }
        if [ $PMI_RANK = 1 ]; then before=$(memory VmRSS); perl -e "$1" || exit; grown=$(($(memory VmHWM) - before)); fi
        for i in 1 2 3; do put; barrier; done; finalize; [ $PMI_RANK = 0 ] || [ $grown -lt 65536 ] || echo "grown by $grown KiB""#;
    let outcome = raw::script(launch("-n 2"), script).arg(flood).run();
    outcome.exits(0).says_nothing().prints_lines(["answers: 100000"]);
}

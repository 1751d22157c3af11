//! Ranks that violate the protocol. The server replies with an error if PMI has one; otherwise the launch ends and names the
//! rank and the violation. No rank ever delays another one.

use lattice_tests::{Outcome, launch};

use crate::raw;

/// Rank 1 runs `script` while rank 0 waits in a barrier. The launch must end and name rank 1.
#[track_caller]
fn ends_the_launch(script: &str, words: &str) {
    let script = format!("init; if [ $PMI_RANK = 1 ]; then {script}; forever; fi; barrier; forever");
    let outcome = raw::script(launch("-n 2"), &script).run();
    outcome.exits(1).says("lattice: rank 1 on ").says("broke the PMI protocol").says(words);
}

/// Runs `script` in one rank to its end, without a message of Lattice.
#[track_caller]
fn lives_on(script: &str) -> Outcome {
    let outcome = raw::script(launch(""), script).run();
    outcome.exits(0).says_nothing();
    outcome
}

/// Starts PMI-1, and gets the name of the key-value space, `$name`.
const NAMED: &str = "init; ask cmd=get_my_kvsname; name=${reply##*kvsname=}\n";

/// [`lives_on`] for a rank that uses the key-value space.
#[track_caller]
fn puts_and_gets(script: &str) -> Outcome {
    lives_on(&format!("{NAMED}{script}\nfinalize"))
}

#[test]
fn garbage_ends_the_launch() {
    ends_the_launch("say 'GET / HTTP/1.1'", "");
    ends_the_launch("head -c 1000 /dev/urandom | tr -d 'c0-9 \\n' >&$PMI_FD; say ''", "");
    ends_the_launch("printf 'cmd=\\n' >&$PMI_FD", "");
}

#[test]
fn an_endless_line_ends_the_launch() {
    ends_the_launch("printf 'cmd=put ' >&$PMI_FD; yes xxxxxxxxx | tr -d '\\n' >&$PMI_FD", "");
}

#[test]
fn an_endless_spawn_ends_the_launch() {
    ends_the_launch("printf 'mcmd=spawn\\n' >&$PMI_FD; yes 'arg1=x' >&$PMI_FD", "");
}

#[test]
fn a_bad_length_ends_the_launch() {
    let script = |length: &str| format!("init2; printf '%s' '{length}cmd=fullinit;' >&$PMI_FD");
    for length in ["     0", "-00001", "999999", "1 2   ", "0x0010"] {
        ends_the_launch(&script(length), "");
    }
}

#[test]
fn an_unknown_command_is_answered_and_the_job_lives_on() {
    let script = "init; ask 'cmd=dance tempo=3'; echo \"$reply\"; ask cmd=get_maxes; echo \"$reply\"; finalize";
    let outcome = lives_on(script);
    outcome.prints("cmd=dance_result rc=").prints(" msg=unknown_command").prints("cmd=maxes rc=0");
    outcome.check(!outcome.text().contains("cmd=dance_result rc=0"), || "should have refused to dance".into());
}

#[test]
fn what_cannot_be_stored_is_answered_and_the_job_lives_on() {
    let script = r#"
        printf -v long '%0300d' 0
        ask "cmd=put kvsname=$name key=k$long value=v"; echo "long key: ${reply%% msg*}"
        ask "cmd=put kvsname=other key=k value=v"; echo "other space: ${reply%% msg*}"
        ask "cmd=put kvsname=$name value=v"; echo "no key: ${reply%% msg*}"
        ask "cmd=put kvsname=$name key=k value=v"; echo "good: $reply"
        ask "cmd=get kvsname=$name key=k"; echo "got: $reply""#;
    let outcome = puts_and_gets(script);
    outcome.prints("good: cmd=put_result rc=0").prints("got: cmd=get_result rc=0 value=v");
    for what in ["long key", "other space", "no key"] {
        outcome.prints(&format!("{what}: cmd=put_result rc="));
        outcome
            .check(!outcome.text().contains(&format!("{what}: cmd=put_result rc=0")), || format!("{what} was taken"));
    }
}

#[test]
fn values_longer_than_announced_are_stored_whole() {
    let script = r#"
        printf -v long '%060000d' 7
        ask "cmd=put kvsname=$name key=k value=$long"; echo "$reply"
        ask "cmd=get kvsname=$name key=k"; if [ "$reply" = "cmd=get_result rc=0 value=$long" ]; then echo same; fi"#;
    puts_and_gets(script).prints_lines(["cmd=put_result rc=0", "same"]);
}

#[test]
fn a_rank_cannot_fill_the_launchers_memory() {
    let script = r#"
        printf -v long '%060000d' 7
        for ((i = 0; i < 10000; i++)); do
            ask "cmd=put kvsname=$name key=k$i value=$long"
            if [ "$reply" != 'cmd=put_result rc=0' ]; then echo "$reply"; break; fi
        done"#;
    puts_and_gets(script).prints("cmd=put_result rc=").prints("the_limit_is_");
}

#[test]
fn a_message_beyond_any_limit_ends_the_launch() {
    ends_the_launch("printf -v long '%070000d' 0; say \"cmd=put key=k value=$long\"", "bytes");
}

/// One rank sends a part of a message and then nothing; the other ranks continue.
#[test]
fn half_a_message_stalls_nobody_else() {
    let script = r#"
        if [ $PMI_RANK = 3 ]; then init; printf 'cmd=barr' >&$PMI_FD; until [ -e "$1/go" ]; do sleep 0.01; done
            say ier_in; hear; finalize; exit 0; fi
        init; ask cmd=get_my_kvsname; name=${reply##*kvsname=}
        for i in 1 2 3 4 5 6 7 8 9; do ask "cmd=put kvsname=$name key=k$PMI_RANK value=$i"; done
        ask "cmd=get kvsname=$name key=k$PMI_RANK"; echo "$reply"
        barrier; finalize"#;
    let directory = tempfile::tempdir().unwrap();
    let mut running = raw::script(launch("-n 4"), script).arg(directory.path()).start();
    running.wait_for_stdout_times("cmd=get_result rc=0 value=9", 3);
    std::fs::write(directory.path().join("go"), "").unwrap();
    running.finish().exits(0).says_nothing();
}

#[test]
fn messages_may_come_in_any_pieces() {
    let script = r#"
        printf 'cmd=init pmi_ver' >&$PMI_FD; sleep 0.1; printf 'sion=1 pmi_subversion=1\ncmd=get_maxes\ncmd=get_app' >&$PMI_FD
        sleep 0.1; printf 'num\n' >&$PMI_FD
        for i in 1 2 3; do hear; echo "$reply"; done; finalize"#;
    lives_on(script).prints_lines([
        "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1",
        "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024",
        "cmd=appnum rc=0 appnum=0",
    ]);
}

/// A rank that sends endless requests and never reads a reply must not exhaust the launcher's memory, nor delay other ranks.
#[test]
fn a_rank_that_takes_no_answer_stalls_nobody_else() {
    let script = r#"
        if [ $PMI_RANK = 1 ]; then init; trap '' PIPE; echo asking; yes cmd=get_universe_size >&$PMI_FD & fi
        if [ $PMI_RANK = 0 ]; then
            init; until [ -e "$1/go" ]; do sleep 0.01; done
            for i in 1 2 3; do ask cmd=get_maxes; done; echo "$reply"; say 'cmd=abort exitcode=8'; fi
        forever"#;
    let directory = tempfile::tempdir().unwrap();
    let mut running = raw::script(launch("-n 2"), script).arg(directory.path()).start();
    running.wait_for_stdout("asking");
    std::fs::write(directory.path().join("go"), "").unwrap();
    running.finish().exits(8).prints("cmd=maxes rc=0").says("rank 0 on ");
}

#[test]
fn strangers_at_the_port_are_turned_away() {
    let script = r#"
        # Somebody else's noise, claims without a key, and a rank that is claimed twice.
        host=${PMI_PORT%:*} port=${PMI_PORT##*:}
        exec 5<>/dev/tcp/$host/$port; printf 'hello\n' >&5; read -r reply <&5; exec 5>&-
        for id in 77 $LATTICE_RANK; do
            exec 5<>/dev/tcp/$host/$port; printf 'cmd=initack pmiid=%s\n' $id >&5; read -r reply <&5 || reply=closed
            case $reply in *rc=0*) echo "a stranger was let in as $id";; esac; exec 5>&-
        done
        exec 6<>/dev/tcp/$host/$port; PMI_FD=6
        ask "cmd=initack pmiid=$PMI_ID"; for i in 1 2 3; do hear; done
        exec 5<>/dev/tcp/$host/$port; printf 'cmd=initack pmiid=%s\n' $PMI_ID >&5; read -r again <&5 || again=closed
        case $again in *rc=0*) echo "the rank was claimed twice";; esac
        init; echo "$reply"; barrier; finalize"#;
    let outcome = raw::script(launch("-n 2 --pmi-port"), script).run();
    outcome.exits(0).prints_lines(["cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1"; 2]);
}

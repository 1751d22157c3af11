//! Floods that try to exhaust the memory of daemons. The kernel limits each daemon to 256 MiB of private memory, so that a daemon with a larger
//! request ends. The tests also read the peak memory. Other users must be served in the meantime.

use lattice_tests::{built, script_on, turn};
use nix::unistd::geteuid;

/// Starts the daemons with their limit, and gives node0 and node1 to user 65534. `$1` is the attacker.
const BEFORE: &str = r#"
    cd "$LATTICE_DEV_CLUSTER"; malformed=$1; chmod 711 .; lattice alloc release $LATTICE_ALLOC_ID >/dev/null
    daemons="api $(basename -s .pid node*.pid)"
    for name in $daemons; do
        prlimit --pid $(daemon $name) --data=268435456: || exit
        echo 5 >/proc/$(daemon $name)/clear_refs
        declare before_$name=$(daemon $name)/$(cut -d' ' -f22 /proc/$(daemon $name)/stat)
    done
    nobody="setpriv --reuid nobody --regid nogroup --init-groups"
    alloc=$(lattice alloc create -w 'node[0-1]' --uid 65534); export LATTICE_ALLOC_ID=$(lattice alloc create -w node2)
    lattice launch -n 1 bash -c "until [ -e $PWD/stop ]; do sleep 0.05; done" & undisturbed=$!
    launch_with 1 >/dev/null
    network=(); [ "$(readlink /proc/$(daemon api)/ns/net)" = "$(readlink /proc/self/ns/net)" ] || network=(nsenter --net=/proc/$(daemon api)/ns/net)
    port_of() { sed -nE 's/^listen = \[?"([^"]*)".*/\1/p' $1.toml; }
    # Twelve variables, of 125 KB each.
    large=$(head -c 125000 /dev/zero | tr '\0' x); for i in {1..12}; do variables+=(--env LARGE_$i=$large); done
"#;

/// Checks that no daemon was restarted. Prints the peak memory of each daemon if it was too high.
const AFTER: &str = r#"
    lattice launch -n 1 true; echo "next: $?"
    touch stop; wait $undisturbed; echo "undisturbed: $?"
    for name in $daemons; do
        before=before_$name; [ ${!before} = $(daemon $name)/$(cut -d' ' -f22 /proc/$(daemon $name)/stat) ] || echo "$name: another one"
        peak=$(sed -n 's/^VmHWM:[ \t]*\([0-9]*\) kB/\1/p' /proc/$(daemon $name)/status)
        echo "$name had $((peak >> 10)) MiB" >&2
        [ $peak -lt 262144 ] || echo "$name: had $peak KiB"
    done
    lattice nodes --json | field state | sort | uniq -c | tr -s ' '"#;

/// Runs the flood on `nodes` nodes.
#[track_caller]
fn check(nodes: u32, flood: &str, expected: &str) {
    assert!(geteuid().is_root(), "this test must run as root");
    let _machine = turn::heavy();
    let script = script_on(nodes, &format!("{BEFORE}{flood}{AFTER}")).arg(built::attacker());
    let outcome = script.run();
    outcome.exits(0).prints(&format!("{expected}next: 0\nundisturbed: 0\n {nodes} up\n"));
}

/// From a user and from a node, with their keys: 256 concurrent calls that send all bytes but one.
#[test]
#[ignore = "second tier"]
fn requests_that_never_end_do_not_fill_daemons() {
    check(
        3,
        r#"lattice pki issue pki --user 65534 >/dev/null; launches=/lattice.v1.AllocationService/LaunchTasks
        begun() { "${network[@]}" $malformed 256 4 begun "$@" | grep -o '^sent 256'; }
        begun $(port_of api) lattice:///api pki/user-65534 $launches & clients=$!
        begun $(port_of api) lattice:///api pki/agent-node1 /lattice.v1.NodeService/Heartbeat & clients+=" $!"
        for path in $launches /grpc.health.v1.Health/Check /lattice.v1.NodeAgentService/LaunchProcesses; do
            begun $(port_of node0) lattice:///agent/node0 pki/agent-node1 $path & clients+=" $!"
        done
        wait $clients
        "#,
        &"sent 256\n".repeat(5),
    );
}

/// Starts endless launches of 1.5 MB each until the limit is reached. Then lists all of them concurrently, several times. After their end new
/// launches can start.
#[test]
#[ignore = "second tier"]
fn launches_with_large_environments_do_not_fill_daemons() {
    check(
        3,
        r#"for round in 1 2; do
            for i in {1..100}; do
                $nobody lattice launch --alloc $alloc --chdir / --detach --overcommit -N 2 -n 2 "${variables[@]}" sleep 1000 >>ids 2>refusal || break
            done
            grep -o 'the launches of user 65534 would take' refusal; [ $(wc -l <ids) -gt 30 ] || wc -l ids
            lists=(); for i in {1..12}; do $nobody lattice launches --all --json >/dev/null & lists+=($!); done; wait ${lists[@]}
            for id in $(cat ids); do $nobody lattice cancel $id 2>/dev/null; done; rm ids
            until [ "$($nobody lattice launches --json | field launch_id)" = "" ]; do sleep 0.05; done
        done
        "#,
        &"the launches of user 65534 would take\n".repeat(2),
    );
}

/// Eight users start the maximum number of launches of 1.5 MB, all at once. Then all users list all their launches, and a user without launches
/// is served.
#[test]
#[ignore = "second tier"]
fn users_who_fill_their_shares_together_do_not_fill_the_api_server() {
    check(
        11,
        r#"
        cat /etc/passwd >passwd; for uid in {2001..2008}; do echo "u$uid:x:$uid:65534::/:/bin/sh" >>passwd; done; chmod 644 passwd
        for node in node{3..10}; do nsenter -t $(daemon $node) -m mount --bind $PWD/passwd /etc/passwd || exit; done
        for uid in {2001..2008}; do allocs[uid]=$(lattice alloc create -w node$((uid - 1998)) --uid $uid); done
        as() { setpriv --reuid $1 --regid 65534 --clear-groups "${@:2}"; }
        fill() {
            for i in {1..100}; do
                as $1 lattice launch --alloc ${allocs[$1]} --chdir / --detach --overcommit -n 1 "${variables[@]}" sleep 1000 >>ids.$1 2>refusal.$1 || break
            done
            as $1 lattice launches --all --json >/dev/null
        }
        users=(); for uid in {2001..2008}; do fill $uid & users+=($!); done; wait ${users[@]}
        wc -l ids.* >&2; tail -n 1 refusal.* >&2; grep VmHWM /proc/$(daemon api)/status >&2
        for uid in {2001..2008}; do [ $(wc -l <ids.$uid) -ge 4 ] && grep -o 'the launches of all users take' refusal.$uid; done | uniq -c | tr -s ' '
        $nobody lattice launch --alloc $alloc --chdir / -N 2 -n 2 true; echo "small: $?"
        for uid in {2001..2008}; do for id in $(cat ids.$uid); do as $uid lattice cancel $id 2>/dev/null; done; done
        until [ "$(lattice launches --json | field launch_id | wc -l)" -le 1 ]; do sleep 0.05; done
        "#,
        " 8 the launches of all users take\nsmall: 0\n",
    );
}

/// A hundred and fifty launches print 4 MB each, and their commands are stopped. Output that they do not read stays on the nodes.
#[test]
#[ignore = "second tier"]
fn output_that_nobody_takes_does_not_fill_the_api_server() {
    check(
        3,
        r#"
        for i in {1..150}; do
            $nobody lattice launch --alloc $alloc --chdir / --overcommit -n 1 bash -c 'until [ -e $0 ]; do sleep 0.2; done; head -c 4000000 /dev/zero; sleep 1000' \
                $PWD/print >/dev/null 2>>refusal & owners+=($!)
            [ $((i % 25)) != 0 ] || until [ "$($nobody lattice launches --json | field launch_id | wc -l)" = $i ]; do sleep 0.05; done
        done
        kill -STOP ${owners[@]}; touch print
        # Sessions that wait for credit have written what they may.
        before=-1; now=0; while [ $now != $before ]; do before=$now; sleep 2; now=$(grep -o 'RssAnon.*' /proc/$(daemon api)/status | tr -cd 0-9); done
        grep -E 'RssAnon|HWM' /proc/$(daemon api)/status >&2
        lattice launch -n 1 true; echo "meanwhile: $?"
        kill -KILL ${owners[@]}; wait ${owners[@]} 2>/dev/null
        for id in $($nobody lattice launches --json | field launch_id); do $nobody lattice cancel $id 2>/dev/null; done
        until [ "$($nobody lattice launches --json | field launch_id)" = "" ]; do sleep 0.05; done
        "#,
        "meanwhile: 0\n",
    );
}

/// A thousand plans of half a megabyte, with answers that stay in the server's memory. After they are gone, the same user can request more
/// plans.
#[test]
fn answers_that_nobody_reads_do_not_fill_the_api_server() {
    check(
        3,
        r#"
        exec {flood}< <($nobody $malformed 960 8 unread $PWD/api.sock 32 plan $alloc 500000)
        read -u $flood sent; echo $sent
        lattice launch -n 1 true; echo "meanwhile: $?"
        read -u $flood; exec {flood}<&-
        until $nobody lattice launch --alloc $alloc --chdir / -n 1 true; do sleep 0.1; done 2>refusals; echo "later: $?"
        "#,
        "sent 960 over 32\nmeanwhile: 0\nlater: 0\n",
    );
}

/// Sixteen viewers of each of 48 launches that have printed 4 MB each. No viewer reads.
#[test]
#[ignore = "second tier"]
fn launches_that_are_followed_and_not_read_do_not_fill_the_api_server() {
    check(
        3,
        r#"
        mkdir -m 777 printed
        for i in {1..48}; do
            ids+=" $($nobody lattice launch --alloc $alloc --chdir / --detach --overcommit -n 1 bash -c 'head -c 4000000 /dev/zero; touch $0; sleep 1000' $PWD/printed/$i)"
        done
        until [ $(ls printed | wc -l) = 48 ]; do sleep 0.05; done
        exec {flood}< <($nobody $malformed 768 8 unread $PWD/api.sock 24 attach $ids)
        read -u $flood sent; echo $sent
        lattice launch -n 1 true; echo "meanwhile: $?"
        for id in $ids; do $nobody lattice cancel $id; done
        read -u $flood; exec {flood}<&-
        $nobody lattice launch --alloc $alloc --chdir / -n 1 seq 100000 | tail -n 1
        "#,
        "sent 768 over 24\nmeanwhile: 0\n100000\n",
    );
}

//! Daemons and users that exhaust a resource of a machine: space on a disk, descriptors, processes. Running launches continue, and new requests
//! fail with the reason. Normal service resumes when the resource is available again. No other test uses the users with counted processes.

use lattice_tests::script_on;
use nix::unistd::geteuid;

/// An API server with its state on a disk of 2 MiB, and one agent. Running launches store data there.
#[test]
fn an_api_server_whose_disk_is_full_ends_what_runs_and_starts_nothing() {
    assert!(geteuid().is_root(), "this test must run as root");
    let script = r#"
        mkdir -p $LATTICE_DEV_CLUSTER/alone/disk; cd $LATTICE_DEV_CLUSTER/alone
        unshare --mount bash -c 'mount -t tmpfs -o size=2m tmpfs disk && exec lattice api --insecure --listen 127.0.0.1:7070 \
            --socket "" --state disk/api.redb' 2>api.log & api=$!
        lattice-agent --insecure --allow-root --node-id apart --listen 127.0.0.1:7071 --api 127.0.0.1:7070 --runtime-dir $PWD 2>agent.log & agent=$!
        export LATTICE_API_URL=http://127.0.0.1:7070
        until lattice nodes --json 2>/dev/null | grep -q '"up"'; do sleep 0.05; done
        alloc=$(lattice alloc create -w apart)
        lattice launch --alloc $alloc -n 1 bash -c 'until [ -e go ]; do sleep 0.02; done; echo ran to its end' & launch=$!
        launch_with 1 >/dev/null
        disk=/proc/$api/root$PWD/disk
        cat /dev/zero >$disk/full 2>/dev/null
        # What little the file of the state still holds is filled up first.
        export LARGE=$(head -c 100000 /dev/zero | tr '\0' x)
        for i in {1..100}; do timeout 30 lattice launch --alloc $alloc --overcommit -n 1 true 2>err || { echo "after some: $?"; break; }; done
        cat err
        touch go; wait $launch; echo "code $?"
        rm $disk/full
        until lattice launch --alloc $alloc -n 1 echo served 2>/dev/null; do sleep 0.2; done
        kill $agent $api; wait $agent $api"#;
    let outcome = script_on(1, script).run();
    outcome.exits(0).prints("after some: 125").prints("nothing can be started or changed at present");
    outcome.prints("ran to its end\ncode 0\n").prints("served\n");
}

/// Existing connections stay open. Waiting connections are accepted later.
#[test]
fn an_api_server_without_descriptors_goes_on_with_what_runs() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        lattice launch -n 2 bash -c 'until [ -e go ]; do sleep 0.02; done; echo ran to its end' & launch=$!
        launch_with 2 >/dev/null
        api=$(daemon api); before=$(prlimit --pid $api --nofile --output SOFT --noheadings)
        last=$(ls /proc/$api/fd | sort -n | tail -1); prlimit --pid $api --nofile=$((last + 1)):
        for i in {1..20}; do timeout 5 lattice nodes >/dev/null 2>&1 & clients+=" $!"; done; wait $clients
        nodes=$(daemon node0); kill -0 $nodes && touch go; wait $launch; echo "code $?"
        prlimit --pid $api --nofile=$before:
        until nodes_up 2; do sleep 0.1; done
        lattice launch -n 2 echo served"#;
    script_on(2, script).run().exits(0).prints_lines([
        "ran to its end",
        "ran to its end",
        "code 0",
        "served",
        "served",
    ]);
}

/// The sessions of a node may have at most twelve processes of a user: the limit with which they are started.
#[test]
fn a_user_without_processes_hears_so_and_is_served_again() {
    assert!(geteuid().is_root(), "this test must run as root");
    let script = r#"
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null; unset LATTICE_ALLOC_ID
        alloc=$(lattice alloc create -N 1 --uid 10)
        of_user() { setpriv --reuid uucp --regid uucp --init-groups lattice launch --alloc $alloc --overcommit "$@"; }
        forks=$(pgrep -P $(daemon node0)); for pid in $forks $(pgrep -P $forks); do prlimit --pid $pid --nproc=12:; done
        for i in 1 2; do
            of_user -n 64 sleep 1000; echo "code $?"
            pgrep -u uucp -x sleep
            of_user -n 2 echo served
        done
        lattice nodes --json | field state"#;
    let outcome = script_on(1, script).run();
    let cause = "cannot make a process: the limit of processes and threads of the user (`ulimit -u`)";
    outcome.exits(0).says(cause);
    outcome.prints_lines(["code 125", "served", "served", "code 125", "served", "served", "up"]);
}

/// One of these limits allows the session, but no thread to open the file.
#[test]
fn a_file_for_standard_input_needs_a_thread_and_says_so() {
    assert!(geteuid().is_root(), "this test must run as root");
    let script = r#"
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null; unset LATTICE_ALLOC_ID; cd $LATTICE_DEV_CLUSTER; chmod 755 .
        alloc=$(lattice alloc create -N 1 --uid 13); echo line >file
        forks=$(pgrep -P $(daemon node0))
        # A session that was forked between the look and the new limits has the limit before: the limits are tried again then.
        for ((try = 0; try < 10; try++)); do
            for limit in 1 2 3 4 5 6 7 8; do
                for pid in $forks $(pgrep -P $forks); do prlimit --pid $pid --nproc=$limit: 2>/dev/null; done
                setpriv --reuid proxy --regid proxy --init-groups lattice launch --alloc $alloc -n 1 -i file cat 2>>said >out
                echo "code $?" >>out; tr '\n' ' ' <out; echo
            done
            grep -q 'no thread can be had' said && break
        done | sort -u
        cat said >&2
        ! grep panicked node0.log"#;
    let outcome = script_on(1, script).run();
    outcome
        .exits(0)
        .prints_lines(["code 125 ", "line code 0 "])
        .says("no thread can be had that opens the files of standard input");
}

/// Both daemons run as a user that cannot start another thread.
#[test]
fn daemons_without_further_threads_go_on() {
    assert!(geteuid().is_root(), "this test must run as root");
    let script = r#"
        mkdir $LATTICE_DEV_CLUSTER/alone; cd $LATTICE_DEV_CLUSTER/alone; chown 65533 .; chmod 711 ..
        own() { setpriv --reuid 65533 --regid nogroup --clear-groups "$@"; }
        own lattice api --insecure --listen 127.0.0.1:7070 --socket '' --state $PWD/api.redb 2>api.log & api=$!
        own lattice-agent --insecure --node-id apart --listen 127.0.0.1:7071 --api 127.0.0.1:7070 --runtime-dir $PWD 2>agent.log & agent=$!
        export LATTICE_API_URL=http://127.0.0.1:7070; unset LATTICE_ALLOC_ID LATTICE_LAUNCH_ID
        until nodes_up 1; do sleep 0.05; done
        # Threads that have nothing to do end after 10 s, if they end.
        sleep 11; for daemon in $api $agent; do own prlimit --pid $daemon --nproc=1:; done
        alloc=$(own lattice alloc create -w apart)
        own lattice launch --alloc $alloc -n 2 echo served; echo "code $?"; lattice alloc release $alloc
        kill $agent $api; wait $agent $api; ! grep panicked api.log agent.log"#;
    script_on(1, script).run().exits(0).prints("served\nserved\ncode 0\n");
}

/// Other processes of the user exhaust its process limit while a launch runs. They end before the third launch.
#[test]
fn a_launch_whose_user_has_no_further_thread_ends_in_good_order() {
    assert!(geteuid().is_root(), "this test must run as root");
    let script = r#"
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null; unset LATTICE_ALLOC_ID; cd $LATTICE_DEV_CLUSTER; chmod 755 .
        alloc=$(lattice alloc create -N 1 --uid 9)
        of_user() { setpriv --reuid news --regid news --init-groups lattice launch --alloc $alloc --overcommit "$@"; }
        forks=$(pgrep -P $(daemon node0)); for pid in $forks $(pgrep -P $forks); do prlimit --pid $pid --nproc=20:20; done
        # Ranks leave a process and a file, which go with their end; the tools' file is there after a second.
        of_user -n 2 --tmpdir bash -c 'setsid sleep 1000 & touch "$TMPDIR/file"; echo "$TMPDIR" >&2; exec sleep 6' 2>made & launch=$!
        launch_with 2 >/dev/null; sleep 1.5
        others=(); for i in {1..25}; do setpriv --reuid news --regid news --init-groups sleep 1000 & others+=($!); done
        wait $launch; echo "code $?"
        of_user -n 1 true 2>err; echo "code $?"; cat err
        kill ${others[@]}; wait ${others[@]} 2>/dev/null
        of_user -n 2 echo served
        pgrep -u news; ls -d $(sort -u made); ! grep panicked node0.log"#;
    let outcome = script_on(1, script).run();
    outcome
        .exits(0)
        .prints("code 0\ncode 125\n")
        .prints("cannot start ranks: the limit of processes and threads of the user");
    outcome.prints("served\nserved\n");
}

//! Daemons with a log that is not read.

use lattice_tests::script_on;

#[test]
fn daemons_whose_log_stands_still_go_on() {
    // The log pipes are full. Each daemon logs its listening address at its start. The log messages appear when the
    // pipes are read.
    let script = r#"
        mkdir $LATTICE_DEV_CLUSTER/full; cd $LATTICE_DEV_CLUSTER/full; mkfifo api agent; exec 8<>api 9<>agent
        head -c 65536 /dev/zero >&8; head -c 65536 /dev/zero >&9
        lattice api --insecure --listen 127.0.0.1:7070 --socket '' --state state 2>&8 8>&- 9>&- &
        api=$!
        lattice-agent --insecure --allow-root --node-id apart --listen 127.0.0.1:7071 --api 127.0.0.1:7070 \
            --runtime-dir $PWD 2>&9 8>&- 9>&- &
        agent=$!
        export LATTICE_API_URL=http://127.0.0.1:7070
        until lattice nodes --json 2>/dev/null | grep -q apart; do sleep 0.05; done
        lattice launch --alloc $(lattice alloc create -w apart) -n 2 echo done
        cat <&8 >api.log 8>&- 9>&- & readers=$!; cat <&9 >agent.log 8>&- 9>&- & readers+=" $!"
        until grep -qa listening api.log && grep -qa INFO agent.log; do sleep 0.05; done
        kill $api $agent; wait $agent; echo $?; wait $api; echo $?; kill $readers"#;
    script_on(1, script).run().exits(0).prints_lines(["done", "done", "0", "0"]);
}

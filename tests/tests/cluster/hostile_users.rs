//! Users that open connections in an endless loop at a listener for all users. Other users must be served in the meantime. Each test has more
//! than 1,000 hostile connections, together with 20 valid commands of another user.

use lattice_tests::script_on;

/// `hostile UID WORDS...` starts a process of this user, in Perl, that ends with the script. `storm` connects and closes as fast as possible,
/// in three processes. `hold` keeps a number of connections open, without sending a byte, and opens closed ones again.
const HOSTILE: &str = include_str!("../../scripts/hostile_users.sh");

fn script(nodes: u32, script: &str) -> lattice_tests::Command {
    script_on(nodes, &format!("{HOSTILE}{script}"))
}

#[test]
fn connections_of_a_user_keep_no_other_from_the_api_server() {
    let words = r#"
        hostile 60001 hold 1000 $PWD/api.sock; hostile 60002 storm 3 $PWD/api.sock
        twenty setpriv --reuid 60003 --regid 65534 --clear-groups lattice nodes
        twenty lattice launch -n 1 true
        # One line a second for each user and kind, after the first 16.
        [ $(stat -c %s api.log) -lt 100000 ] && echo "a short log""#;
    script(1, words).run().exits(0).prints_lines(["20 of 20", "20 of 20", "a short log"]);
}

#[test]
fn connections_of_users_keep_no_other_from_the_socket_of_an_agent() {
    let words = r#"
        sed -i "1i socket = '$PWD/node0.sock'" node0.toml; kill_agent node0; start_agent node0; until nodes_up 1; do sleep 0.05; done
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null; lattice alloc create -N 1 --uid 60003 >/dev/null
        for uid in {60010..60025}; do hostile $uid hold 64 $PWD/node0.sock; done; hostile 60002 storm 3 $PWD/node0.sock
        # The API server accepts no call for a while. The agent's connection to it must outlast the calls that end meanwhile.
        kill -STOP $(daemon api); sleep 2; kill -CONT $(daemon api)
        LATTICE_API_URL=unix:$PWD/node0.sock twenty setpriv --reuid 60003 --regid 65534 --clear-groups lattice nodes
        [ $(stat -c %s node0.log) -lt 400000 ] && echo "a short log"; grep -c 'pending-accept streams reached' api.log"#;
    script(1, words).run().exits(1).prints_lines(["20 of 20", "a short log", "0"]);
}

#[test]
fn connections_without_the_key_keep_no_invitation_away() {
    let words = r#"
        export LATTICE_JOIN_KEY_FILE=$PWD/key; (umask 077; openssl rand -hex 32 >key)
        keep_namespaces node0; on="nsenter $namespaces_node0"
        $on lattice-agent listen 2>listen.log & listener=$!
        until grep -q 'waits for invitations' listen.log; do sleep 0.05; done
        at=$($on getent hosts node0 | cut -d' ' -f1)
        hostile 60001 hold 1000 $at 50053; hostile 60002 hold 100 $at 50053
        # The agent of an invitation without a membership ends at once.
        for _ in {1..20}; do $on lattice-agent invite --within 20 node0 </dev/null 2>>said; done
        grep -c 'has invited node0' listen.log; grep 'has not accepted' said
        kill $listener; wait $listener; [ $(stat -c %s listen.log) -lt 100000 ] && echo "a short log""#;
    script(1, words).run().exits(0).prints_lines(["20", "a short log"]);
}

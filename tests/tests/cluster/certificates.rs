//! Certificates of nodes while a cluster runs: the API server renews them, and an administrator revokes them.

use lattice_tests::script_on;

/// A revoked key is useless for an attacker: its open connection ends, and no new one is accepted. The API server notifies the other
/// nodes, which are not affected otherwise.
#[test]
fn a_revoked_node_is_out_at_once() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null; alloc=$(lattice alloc create -w node0) || exit
        lattice launch --alloc $alloc -n 1 bash -c 'until [ -e over ]; do sleep 0.05; done; echo "goes on"' & launch=$!
        launch_with 1 >/dev/null
        lattice pki revoke pki agent-node1
        cp pki/crl.pem pki/api/
        until cmp -s pki/crl.pem pki/agent-node0/crl.pem; do sleep 0.05; done
        address=$(sed -nE 's/^listen = "(.*)"/\1/p' node0.toml) with=pki/agent-node1
        stranger="openssl s_client -ign_eof -connect $address -alpn h2 -cert $with/cert.pem -key $with/key.pem"
        nsenter -t $(daemon api) -n timeout 60 $stranger </dev/null 2>&1 | grep -om1 'alert certificate revoked'
        until grep -q 'its certificate was revoked' api.log; do sleep 0.05; done
        until lattice nodes --json | field state | grep lost; do sleep 0.1; done
        touch over; wait $launch"#;
    let outcome = script_on(2, script).run();
    let revoked = "pki/crl.pem: 1 revoked certificate; copy it beside the ca.pem of the API server";
    outcome.exits(0).prints_lines([revoked, "alert certificate revoked", "lost", "goes on"]);
}

/// A launch that tolerates lost nodes continues on the other nodes, without the revoked node. The session of this node has the launch's
/// key, runs until its lease expires, and its ranks call the other nodes.
#[test]
fn a_revoked_node_has_no_link_to_launches_any_more() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        barrier() { lattice pmi barrier >/dev/null 2>&1; }; export -f barrier
        lattice launch -N 3 -n 3 --no-kill bash -c 'barrier; touch in.$LATTICE_RANK
            until [ -e revoked ]; do sleep 0.05; done; barrier && touch through.$LATTICE_RANK; touch after.$LATTICE_RANK' 2>told & launch=$!
        until [ -e in.0 ] && [ -e in.1 ] && [ -e in.2 ]; do sleep 0.05; done
        # Connections of node2 with other nodes, whose addresses end with 1 and 2.
        linked() { awk '$4 == "01" && $3 ~ /^0[12]00140A:/' /proc/$(daemon node2)/net/tcp | wc -l; }
        [ $(linked) -gt 0 ] && echo "linked"
        lattice pki revoke pki agent-node2 >/dev/null; cp pki/crl.pem pki/api/
        until lattice nodes --json | field state | grep -q lost; do sleep 0.02; done
        # The other nodes receive the notice from the API server a little later.
        until [ $(linked) = 0 ]; do sleep 0.02; done; echo "cut off"
        touch revoked; until [ -e after.0 ] && [ -e after.1 ]; do sleep 0.05; done
        wait $launch; echo "code $?"; ls through.*
        grep -o 'node node2 was lost: .*' told"#;
    let outcome = script_on(3, script).run();
    let lost = "node node2 was lost: its certificate was revoked";
    outcome.exits(0).prints_lines(["linked", "cut off", "code 1", "through.0", "through.1", lost]);
}

/// Launches that were started with a user's key end when the key is revoked, even if no client follows them. Other launches of the same
/// user continue.
#[test]
fn launches_of_a_revoked_user_end() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"; lattice alloc release $LATTICE_ALLOC_ID >/dev/null
        alloc=$(lattice alloc create -N 2 --uid 65534) || exit; lattice pki issue pki --user 65534 >/dev/null
        user=$PWD/pki/user-65534; mkdir $user/lattice
        printf '%s
' 'api = "https://10.20.0.254:50051"' '[tls]' "ca = '$user/ca.pem'" "cert = '$user/cert.pem'" "key = '$user/key.pem'" >$user/lattice/config.toml
        by_key() { XDG_CONFIG_HOME=$user nsenter --net=/proc/$(daemon node0)/ns/net env -u LATTICE_API_URL lattice "$@"; }
        long="launch --alloc $alloc -N 2 -n 2 --chdir / --detach"
        launch=$(by_key $long sleep 1000)
        other=$(setpriv --reuid nobody --regid nogroup --init-groups lattice $long bash -c "while sleep 0.2; do echo up; done")
        restart_api :
        by_key attach $other >seen 2>&1 & attached=$!; until grep -q up seen; do sleep 0.05; done
        lattice pki revoke pki user-65534 >/dev/null; cp pki/crl.pem pki/api/
        lattice attach $launch; echo "code $?"
        wait $attached; echo "code $?"; grep -o 'our certificate was revoked' seen | head -1; grep -o 'try: a new certificate' seen
        [ "$(lattice launches --json | field launch_id)" = $other ] && echo "goes on"
        by_key launch --alloc $alloc -n 1 true; echo "code $?""#;
    let outcome = script_on(2, script).run();
    outcome.exits(0).prints_lines([
        "code 143",
        "code 125",
        "our certificate was revoked",
        "try: a new certificate",
        "goes on",
        "code 125",
    ]);
    outcome.says("the certificate of user 65534 by which it was started was revoked");
}

/// If a key is revoked, its allocations are released, with their launches. A batch job of the key never begins, even if a new API server
/// loads it from the store.
#[test]
fn allocations_and_waiting_jobs_of_a_revoked_user_end() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"; lattice alloc release $LATTICE_ALLOC_ID >/dev/null
        lattice pki issue pki --user 65534 >/dev/null; user=$PWD/pki/user-65534; mkdir $user/lattice
        printf '%s\n' 'api = "https://10.20.0.254:50051"' '[tls]' "ca = '$user/ca.pem'" "cert = '$user/cert.pem'" "key = '$user/key.pem'" >$user/lattice/config.toml
        by_key() { XDG_CONFIG_HOME=$user nsenter --net=/proc/$(daemon node0)/ns/net env -u LATTICE_API_URL lattice "$@"; }
        printf '#!/bin/bash\ntouch %s/begun\n' "$PWD" >job.sh; chmod 777 . job.sh
        alloc=$(by_key alloc create -N 2) || exit
        by_key batch -N 2 --chdir / $PWD/job.sh >/dev/null || exit
        launch=$(lattice launch --alloc $alloc -N 2 -n 2 --chdir / --detach sleep 1000)
        lattice queue --json | field state | sort | uniq -c | sed 's/^ *//'
        lattice pki revoke pki user-65534 >/dev/null; cp pki/crl.pem pki/api/
        lattice attach $launch; echo "code $?"
        until [ -z "$(lattice queue --json | field allocation_id)" ]; do sleep 0.05; done
        restart_api :; lattice alloc create -N 2 >/dev/null && echo "nodes are free"; ls begun"#;
    let outcome = script_on(2, script).run();
    outcome.prints_lines(["1 pending", "1 running", "code 143", "nodes are free"]);
    outcome.says("the certificate of user 65534 by which it was made was revoked").says("'begun': No such file");
}

/// The API server receives the authority. Agents with certificates that last longer than a day get new ones at once, for their own new
/// keys. Running launches are not affected. A revocation of the first certificate also revokes the certificates that were requested with
/// it.
#[test]
fn nodes_get_certificates_for_a_day_from_the_api_server() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"; cp -r pki/agent-node0 old
        lattice launch -N 2 -n 2 bash -c 'until [ -e renewed ]; do sleep 0.05; done; echo "goes on"' & launch=$!
        launch_with 2 >/dev/null
        printf '[renewal]\nauthority = "%s"\n' "$PWD/pki" >>api.toml
        sed -i "s|pki/api/ca.pem|pki/ca.pem|" api.toml; restart_api :
        for node in node0 node1; do until grep -q 'the certificate was renewed' $node.log; do sleep 0.05; done; done
        for file in cert key; do cmp -s {old,pki/agent-node0}/$file.pem || echo "another $file"; done
        stat -c 'key.pem: %a' pki/agent-node0/key.pem; ls pki/agent-node0
        touch renewed; wait $launch || exit
        kill_agent node0; start_agent node0
        lattice launch -N 2 -n 2 echo again || exit
        grep -c 'action="renew certificate" on="" outcome="done"' api.log
        lattice pki revoke pki old/cert.pem
        until cmp -s pki/crl.pem pki/agent-node1/crl.pem; do sleep 0.05; done
        until lattice nodes --json | field state | grep lost; do sleep 0.1; done"#;
    let outcome = script_on(2, script).run();
    let revoked = "pki/crl.pem: 2 revoked certificates; copy it beside the ca.pem of the API server";
    outcome.exits(0).prints_lines([
        "another cert",
        "another key",
        "key.pem: 600",
        "ca.pem",
        "cert.pem",
        "key.pem",
        "goes on",
        "goes on",
        "again",
        "again",
        "2",
        revoked,
        "lost",
    ]);
}

/// If a site lists its programs, users can start only these programs.
#[test]
fn users_start_entry_points_only() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"; NOBODY="setpriv --reuid nobody --regid nogroup --init-groups"
        sed -i '1i entry_points = ["/usr/bin/env"]' api.toml; restart_api :
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null; alloc=$(lattice alloc create -N 1 --uid 65534) || exit
        $NOBODY lattice launch --alloc $alloc -n 1 /usr/bin/env echo allowed; echo "code $?"
        for program in "bash -c id" /usr/bin/id /usr/bin/../bin/env; do
            $NOBODY lattice launch --alloc $alloc -n 1 $program; echo "code $?"
        done
        lattice launch --alloc $alloc -n 1 echo "an administrator""#;
    let outcome = script_on(1, script).run();
    let refused = ["code 125"; 3];
    outcome.exits(0).prints_lines(["allowed", "code 0", "an administrator"].into_iter().chain(refused));
    outcome.says("\"bash\" is no entry point of this cluster; programs are started by their paths, of /usr/bin/env");
}

/// A copied list is from another CA. The agent continues with its present list, and does not start with the wrong one.
#[test]
fn a_list_of_another_ca_is_told_before_a_launch_is_refused() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        lattice pki init other >/dev/null; lattice pki issue other --agents node9 >/dev/null; lattice pki revoke other agent-node9 >/dev/null
        strange='the list of revoked certificates in .*/pki/agent-node1/crl.pem is not signed by the CA with a certificate in that directory'
        cp other/crl.pem pki/agent-node1/
        until grep -q "$strange" node1.log; do sleep 0.05; done; echo "told"
        lattice launch -w node1 -n 1 true; echo "code $?"
        lattice-agent --config node1.toml --check-config; echo "code $?"
        rm pki/agent-node1/crl.pem
        lattice-agent --config node1.toml --check-config >/dev/null && lattice launch -w node1 -n 1 echo "mended""#;
    let outcome = script_on(2, script).run();
    outcome.exits(0).prints_lines(["told", "code 0", "code 125", "mended"]);
    outcome.says("put that CA's list in its place, or remove it");
}

/// The directory of the CA was moved without the list.
#[test]
fn a_server_without_the_list_that_agents_have_says_so() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        lattice pki revoke pki agent-node1 >/dev/null; cp pki/crl.pem pki/agent-node0/
        until grep -o 'agents have a list of revoked certificates, and this server has none' api.log; do sleep 0.05; done"#;
    let outcome = script_on(2, script).run();
    outcome.exits(0).prints_lines(["agents have a list of revoked certificates, and this server has none"]);
}

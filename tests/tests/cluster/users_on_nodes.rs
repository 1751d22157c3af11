//! Users on compute nodes without a certificate. They reach the API server through their node's agent, for objects of their allocation.

use lattice_tests::mpi::Flavour;
use lattice_tests::script_on;

/// A launch in a rank, as in a batch script. The same by another user, outside of the allocation, and after its end.
#[test]
fn a_rank_launches_in_its_allocation_without_a_certificate() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"; lattice alloc release $LATTICE_ALLOC_ID >/dev/null
        sed -i "1i socket = '$PWD/node0.sock'" node0.toml; kill_agent node0; start_agent node0
        until nodes_up 3; do sleep 0.05; done
        alloc=$(lattice alloc create -w node0,node1 --uid 65534) other=$(lattice alloc create -w node2 --uid 65534) || exit
        # By the socket of node0's agent, as this user.
        as() { local uid=$1; shift; LATTICE_API_URL=unix:$PWD/node0.sock setpriv --reuid $uid --regid 65534 --clear-groups lattice "$@" </dev/null; echo "code $?"; }
        setpriv --reuid nobody --regid nogroup --init-groups lattice launch --alloc $alloc -n 1 --chdir / --env LATTICE_API_URL=unix:$PWD/node0.sock bash -c '
            lattice launch -N 2 -n 2 hostname; lattice launch -n 1 bash -c "cat; exit 7" <<<"input"; echo "code $?"; lattice launches --json | grep -c "\"launch_id\""'
        as 65534 launch --alloc $other --chdir / true
        as 65534 alloc create -N 1
        as 1 launch --alloc $alloc --chdir / true
        as 0 launch --alloc $alloc --chdir / true
        lattice alloc release $alloc >/dev/null
        as 65534 launch --alloc $alloc --chdir / true"#;
    let outcome = script_on(3, script).run();
    let refused = ["code 125"; 5];
    outcome.exits(0).prints_lines(["node0", "node1", "input", "code 7", "1"].into_iter().chain(refused));
    outcome.says("is not the one that this node belongs to");
    outcome.says("no job queued, from within another one by the socket of its node");
    for uid in [1, 0, 65534] {
        outcome.says(&format!("node0 belongs to no running allocation of user {uid}"));
    }
}

/// A script on a node continues without the API server, and its agent delays the script's next launch until the server is back.
#[test]
fn calls_by_an_agent_wait_for_an_api_server_that_is_away() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        sed -i "1i socket = '$PWD/node0.sock'" node0.toml; kill_agent node0; start_agent node0
        meanwhile() {
            LATTICE_API_URL=unix:$PWD/node0.sock lattice launch -n 1 --chdir / echo "by the socket" </dev/null & launch=$!
            sleep 1; kill -0 $launch && echo "it waits"
        }
        restart_api meanwhile; wait $launch; echo "code $?""#;
    script_on(1, script).run().exits(0).prints_lines(["it waits", "by the socket", "code 0"]);
}

/// One connection of an agent has at most 256 streams. Users' connections are streams, and so are the reports of a launch.
#[test]
fn connections_of_many_users_leave_room_for_launches() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"; chmod 755 .
        sed -i "1i socket = '$PWD/node0.sock'" node0.toml; kill_agent node0; start_agent node0
        open='$path = sockaddr_un(shift);
            for (1..60) { socket($to[$_], PF_UNIX, SOCK_STREAM, 0) and connect($to[$_], $path) or die $! }
            # HTTP/2 begins, and asks for nothing.
            syswrite $_, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0" for grep { $_ } @to;
            $| = 1; print "open\n"; 1 while sysread $to[1], $_, 999; print "closed\n"; sleep 1000'
        for uid in 60001 60002 60003 60004 60005; do
            setpriv --reuid $uid --regid 65534 --clear-groups perl -MSocket -e "$open" "$PWD/node0.sock" >$uid & users+=($!)
            until grep -qs open $uid; do sleep 0.05; done
        done
        lattice launch -n 2 echo x; echo "code $?"
        # A connection without a request is closed after some time; the launch has not waited for that.
        grep closed 6000?; kill ${users[@]}"#;
    script_on(1, script).run().exits(0).prints_lines(["x", "x", "code 0"]);
}

/// Nodes that start only programs that users requested elsewhere: no calls through an agent's socket, and no `MPI_Comm_spawn`. The
/// program that calls it continues.
#[test]
fn nodes_that_may_not_spawn_start_nothing_by_themselves() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        sed -i "1i socket = '$PWD/node0.sock'" node0.toml; kill_agent node0; start_agent node0
        lattice launch -N 2 -n 1 "$1" "${1%/*}" node1
        by_socket() { LATTICE_API_URL=unix:$PWD/node0.sock lattice launch -n 1 --chdir / echo "by the socket" </dev/null; echo "code $?"; }
        by_socket
        restart_api sed -i '1i spawning = false' api.toml
        lattice launch -N 2 -n 1 "$1" "${1%/*}" node1; echo "code $?"
        by_socket
        lattice launch -N 2 -n 2 echo "by its user""#;
    let outcome = script_on(2, script).arg(Flavour::WheelMpich.program("spawn_hosts")).run();
    let spawned = ["child 0 on node 1", "by the socket", "code 0"];
    let refused = ["the spawn fails", "code 0", "code 125", "by its user", "by its user"];
    outcome.exits(0).prints_lines(spawned.into_iter().chain(refused));
    outcome.says("users of this cluster do not call from nodes (spawning = false)");
    outcome.says(
        "rank 0 asked for new processes (MPI_Comm_spawn) and got none: jobs of this cluster start no further ones",
    );
}

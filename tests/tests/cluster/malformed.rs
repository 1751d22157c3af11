//! Malformed bytes at every port of a cluster, beside a launch that must not notice: the ports of API server and agents, and the PMI
//! and PMIx servers of the attacker's own launch.
//!
//! `LATTICE_BAD_FRAMES=10000 cargo test -p lattice-tests --test cluster malformed` sends so many to each.

use lattice_tests::{built, script_on, turn};

/// `$1` pieces for each port.
const SCRIPT: &str = r#"
    cd "$LATTICE_DEV_CLUSTER"
    # Opens so many connections to host and port, and writes on each what is no message, or the beginning of one.
    export ATTACK='
        use IO::Socket::INET; my ($host, $port, $count) = @ARGV; srand(7); $SIG{PIPE} = "IGNORE";
        my @openings = ("", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x16\x03\x01\xff\xff", "LTLK", "\0\0\0\x01", "\xff" x 80, "cmd=", "999999");
        my ($sent, @open) = (0);
        while ($sent < $count) {
            my $socket = IO::Socket::INET->new(PeerAddr => $host, PeerPort => $port, Timeout => 5);
            if (!$socket) { shift @open; select(undef, undef, undef, 0.01); last if ++$failed > 200; next }
            my $bytes = $openings[rand @openings] . join("", map { chr(rand 256) } 1 .. rand 300);
            $socket->autoflush(1); print $socket $bytes; $sent++;
            # Some stay open, and say nothing more.
            push @open, $socket if rand() < 0.2; shift @open if @open > 50;
        }
        print "sent $sent\n";'
    # The same into the descriptor of the PMI socket, from so many ranks: each may offend once.
    export OFFEND='srand($$); my $bytes = join("", map { chr(rand 256) } 1 .. 2000) . "\n";
        open(my $pmi, ">&=", $ENV{PMI_FD}) or exit 1; syswrite($pmi, $bytes); sleep 20;'
    # Into the network of the daemons, where that is another one.
    network=(); [ "$(readlink /proc/$(daemon api)/ns/net)" = "$(readlink /proc/self/ns/net)" ] || network=(nsenter --net=/proc/$(daemon api)/ns/net)
    memory() { sed -n 's/^VmRSS:[ \t]*\([0-9]*\) kB/\1/p' /proc/$1/status; }
    daemons="api node0 node1"
    for name in $daemons; do declare before_$name=$(memory $(daemon $name)); done

    rm -f stop; lattice launch -n 4 bash -c "until [ -e $PWD/stop ]; do :; sleep 0.05; done; exec $2 pmi exchange" >undisturbed 2>&1 & undisturbed=$!
    until [ "$(lattice launches --json | field id)" ]; do sleep 0.05; done
    for address in $(lattice nodes --json | field grpc_address) $(sed -nE 's/^listen = \["([^"]*)".*/\1/p' api.toml); do
        echo "port: $("${network[@]}" perl -e "$ATTACK" ${address%:*} ${address##*:} $1)"
    done
    # A rank against its own PMIx server: the user is who owns it.
    lattice launch -n 1 bash -c 'uri=${PMIX_SERVER_URI41:-$PMIX_SERVER_URI2}; uri=${uri#*://}; echo "pmix: $(perl -e "$ATTACK" ${uri%:*} ${uri##*:} '$1')"'
    for ((round = 0; round < 4; round++)); do
        lattice launch -n 8 --timeout 30s perl -e "$OFFEND" 2>offended; echo "pmi: $? $(grep -c 'broke the PMI protocol\|message' offended)"
    done
    touch stop; wait $undisturbed; echo "undisturbed: $? $(grep -c 'exchange: 4 ranks' undisturbed)"
    for name in $daemons; do
        grown=$(($(memory $(daemon $name)) - before_$name))
        [ $grown -lt 32768 ] && echo "$name: bounded" || echo "$name: grown by $grown KiB"
    done
    lattice launch -n 4 true; echo "next: $?"
"#;

#[test]
fn malformed_bytes_at_every_port_disturb_nobody() {
    let _machine = turn::heavy();
    let count: usize = std::env::var("LATTICE_BAD_FRAMES").map_or(300, |text| text.parse().expect("a number"));
    let script = script_on(2, SCRIPT).arg(count.to_string()).arg(built::lattice());
    let outcome = script.within(std::time::Duration::from_secs(90 + count as u64 / 10)).run();
    let sent = |who: &str| format!("{who}: sent {count}");
    let (port, pmix) = (sent("port"), sent("pmix"));
    let mut expected = vec![port.as_str(); 3];
    expected.extend([pmix.as_str(), "pmi: 1 1", "pmi: 1 1", "pmi: 1 1", "pmi: 1 1", "undisturbed: 0 1"]);
    expected.extend(["api: bounded", "node0: bounded", "node1: bounded", "next: 0"]);
    outcome.exits(0);
    let lines: Vec<&str> = outcome.text().lines().collect();
    assert_eq!(lines, expected, "{}", outcome.errors());
}

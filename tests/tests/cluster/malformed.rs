//! Malformed input at every interface of a cluster, during a launch that must not be affected. The input is frames of real exchanges and calls
//! from the protocol's descriptors, damaged by a seed (`tests/src/malformed.rs`).
//!
//! `LATTICE_BAD_FRAMES=10000 cargo test -p lattice-tests --test cluster malformed` sends this number of frames to each interface.

use std::env;
use std::time::Duration;

use lattice_tests::mpi::Flavour;
use lattice_tests::{built, script_on, turn};

/// Starts a launch on node0 and node1 that waits for the end of the attack, and a launch of user 65534 on node2. `$1` is the number of frames,
/// `$2` the program that sends them.
const BEFORE: &str = include_str!("../../scripts/malformed.sh");

/// Checks that the attack had no effect.
const AFTER: &str = r#"
    touch stop; wait $undisturbed; echo "undisturbed: $? $(grep -c 'exchange: 4 ranks' undisturbed)"
    for name in $daemons; do
        grown=$(($(memory $(daemon $name)) - before_$name))
        [ $grown -lt 32768 ] || echo "$name: grown by $grown KiB"
        peak=$(sed -n 's/^VmHWM:[ \t]*\([0-9]*\) kB/\1/p' /proc/$(daemon $name)/status)
        [ $peak -lt 262144 ] || echo "$name: had $peak KiB"
    done
    lattice launch -n 4 true; echo "next: $?"
    # No session and no daemon has ended for it.
    grep -h panicked *.log; ls | grep '^attack' | xargs -r grep -h 'was lost\|panicked'; true
"#;

#[track_caller]
fn check(attack: &str) {
    let _machine = turn::heavy();
    let count: usize = env::var("LATTICE_BAD_FRAMES").map_or(300, |text| text.parse().expect("a number"));
    let script = script_on(3, &format!("{BEFORE}{attack}{AFTER}"));
    let script = script.arg(count.to_string()).arg(built::attacker()).arg(built::lattice());
    let outcome = script.within(Duration::from_secs(300 + count as u64 / 20)).run();
    let lines: Vec<&str> = outcome.text().lines().filter(|line| !line.starts_with("sent ")).collect();
    assert_eq!(lines, ["undisturbed: 0 1", "next: 0"], "{}", outcome.errors());
    let sent = outcome.text().lines().count() - lines.len();
    assert!(sent >= 1, "nothing was sent");
}

#[test]
#[ignore = "second tier"]
fn malformed_requests_of_pmi1_disturb_nobody() {
    check("attackers pmi pmi1");
}

#[test]
fn malformed_requests_of_pmi2_disturb_nobody() {
    check("attackers pmi pmi2");
}

#[test]
#[ignore = "second tier"]
fn malformed_messages_of_pmix_disturb_nobody() {
    check("attackers pmix pmix");
}

/// A stolen key of an agent, and one of the API server, used at an agent.
#[test]
#[ignore = "second tier"]
fn malformed_calls_of_an_agent_disturb_nobody() {
    check("calls node2 agent/node2 agent-node0 NodeAgentService; calls node2 agent/node2 api NodeAgentService");
}

/// A stolen key of an agent.
#[test]
#[ignore = "second tier"]
fn malformed_calls_by_an_agent_to_the_api_server_disturb_nobody() {
    check("calls api api agent-node2 'NodeService InventoryService'");
}

/// Calls, including the calls with which a client follows a launch, and the bytes of a command at the socket.
#[test]
#[ignore = "second tier"]
fn malformed_calls_by_a_user_to_the_api_server_disturb_nobody() {
    check(
        r#"lattice pki issue pki --user 65534 >/dev/null; calls api api user-65534 'AllocationService LaunchService NodeService'
        place=$(mktemp -u) sent=$(mktemp); chown nobody $sent
        LATTICE_API_URL=unix:$place $nobody $malformed $count 7 unix $PWD/api.sock $place $sent ${exchange% pmi*} nodes; rm $place $sent"#,
    );
}

/// Attacks of a user on an HTTP/2 server before any call is complete, at the socket for all users:
///
/// - streams that are reset immediately after they are opened (CVE-2023-44487)
/// - headers that never end (CVE-2024-27316)
/// - thousands of settings and pings with answers that are not read
/// - connections that send a byte from time to time
#[test]
#[ignore = "second tier"]
fn floods_of_http2_disturb_nobody() {
    check(
        r#"
        flood='
            use IO::Socket::UNIX; use POSIX (); my ($path, $kind, $count) = @ARGV; $SIG{PIPE} = "IGNORE"; $| = 1;
            # An exit in good order would wait until all is written.
            $SIG{ALRM} = sub { print STDOUT "sent $kind\n"; POSIX::_exit(0) }; alarm 20;
            sub frame { my ($type, $flags, $stream, $body) = @_; substr(pack("N", length $body), 1) . pack("CCN", $type, $flags, $stream) . $body }
            my $hello = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" . frame(4, 0, 0, "");
            my ($headers, $stream) = ("\x83\x86\x84", 1);
            for my $connection (1 .. 10) {
                my $socket = IO::Socket::UNIX->new(Peer => $path) or next; $socket->autoflush(1); print $socket $hello;
                print $socket frame(1, 0, 1, $headers) if $kind eq "headers";
                for (1 .. $count * 30) {
                    my $bytes = $kind eq "resets" ? frame(1, 4, $stream, $headers) . frame(3, 0, $stream, pack("N", 8))
                        : $kind eq "headers" ? frame(9, 0, 1, "\x40\x04name\x7f\x80\x01" . "v" x 255)
                        : $kind eq "settings" ? frame(4, 0, 0, "") . frame(6, 0, 0, "8 bytes!") : "";
                    $stream += 2;
                    print $socket $bytes or last;
                }
                if ($kind eq "slow") { push @open, $socket; for my $byte (split //, frame(1, 0, 1, $headers x 20)) { print $socket $byte or last; select(undef, undef, undef, 0.02) } }
            }
            print "sent $kind\n"; POSIX::_exit(0);'
        for kind in resets headers settings slow; do $nobody perl -e "$flood" $PWD/api.sock $kind $count & floods+=" $!"; done; wait $floods
        timeout 10 $nobody lattice nodes --api unix:$PWD/api.sock >/dev/null || echo "no answer: $?""#,
    );
}

/// Ranks that write nonsense to the memory of their job, to the memory of the node and to their descriptors. They also create links where their
/// session removes files.
#[test]
#[ignore = "second tier"]
fn hostile_ranks_disturb_nobody() {
    let attack = r#"
        mkdir kept tmp; echo kept >kept/file
        for round in 1 2 3 4; do
            TMPDIR=$PWD/tmp lattice launch -n 4 --node-memory=1M --timeout 30s --kill-wait 1s bash -c \
                'LATTICE pmi --method pmix barrier >/dev/null; exec SCRIBBLER all $1' bash $PWD/kept >attack.$round 2>&1
        done
        # A change that got through is a line too many.
        grep -h 'changes got through' attack.* | sed 's/^0 /sent 0 /'; grep -hL 'broke the PMI protocol' attack.*
        [ $(cat kept/file) = kept ] || echo lost; ls tmp"#;
    let scribbler = Flavour::Plain.program("scribbler").display().to_string();
    let attack = attack.replace("SCRIBBLER", &scribbler).replace("LATTICE", &built::lattice().display().to_string());
    check(&attack);
}

/// All openings of TLS, of HTTP/2 and of links between sessions, and malformed ones.
#[test]
fn malformed_openings_at_every_port_disturb_nobody() {
    check(
        r#"
        # Opens so many connections to host and port, and writes on each what is no message, or the beginning of one.
        attack='
            use IO::Socket::INET; my ($host, $port, $count) = @ARGV; srand(7); $SIG{PIPE} = "IGNORE";
            my @openings = ("", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x16\x03\x01\xff\xff", "LATLINK1", "LATLINK2", "\xff" x 80, "cmd=", "999999");
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
        for name in $daemons; do address=$(port_of $name); "${network[@]}" perl -e "$attack" ${address%:*} ${address##*:} $count; done"#,
    );
}

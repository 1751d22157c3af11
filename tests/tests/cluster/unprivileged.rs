//! Agents with daemons that drop root before they listen. Launches, restarts, renewals and revocations work as with other agents.

use lattice_tests::mpi::Flavour;
use lattice_tests::{Outcome, script_on, turn};
use nix::unistd::geteuid;

/// Makes the agents of both nodes drop root, with the files of docs/operate/set-up.md.
pub(super) const GIVE_UP_ROOT: &str = r#"
    cd "$LATTICE_DEV_CLUSTER"; chmod 711 pki
    for node in node0 node1; do
        chown root:daemon pki/agent-$node; chmod 1770 pki/agent-$node
        chown daemon:daemon pki/agent-$node/{cert,key}.pem
        sed -i -e '1i user = "daemon"' -e 's/^when_stopped.*/when_stopped = "keep"/' $node.toml
        kill_agent $node; start_agent $node
    done
    # What listens on a node, and what it may do: its user, and all capabilities together.
    listeners() {
        local pid
        for pid in $(nsenter -t $(daemon $1) -n ss -ltnpH 'sport = :50052' | grep -o 'pid=[0-9]*' | cut -d= -f2 | sort -u); do
            awk '/^Uid/ { print "uid", $2, $3, $4, $5 } /^Cap/ { all = all $2 } /^NoNewPrivs/ { print "no new privileges", $2 }
                END { gsub("0", "", all); print "capabilities <" all ">" }' /proc/$pid/status
        done
    }
"#;

/// Output of `listeners` for a process without privileges.
const NO_PRIVILEGES: [&str; 3] = ["uid 1 1 1 1", "no new privileges 1", "capabilities <>"];

#[track_caller]
fn run(script: &str, flavour: Flavour, program: &'static str) -> Outcome {
    assert!(geteuid().is_root(), "this test must run as root");
    script_on(2, &format!("{GIVE_UP_ROOT}\n{script}")).arg(flavour.program(program)).run()
}

/// Programs of both libraries run as another user. In the meantime no listening process is root, and agents are killed in turn.
#[track_caller]
fn agents_without_root_are_replaced_below(flavour: Flavour) {
    let _machine = turn::heavy();
    let script = r#"lattice alloc release $LATTICE_ALLOC_ID >/dev/null
        alloc=$(lattice alloc create -N 2 --uid 65534) || exit
        setpriv --reuid nobody --regid nogroup --init-groups lattice launch --alloc $alloc -n 4 "$1" "$PWD/go" >out & launch=$!
        id=$(launch_with 4)
        steps() { grep -c '^step' out; }
        more_steps() { local before=$(steps); until [ $(steps) -gt $((before + 10)) ]; do sleep 0.05; done; }
        more_steps; listeners node0; listeners node1
        for rank in 0 3; do awk '/^Uid/ { print "rank", $2, $3, $4, $5 }' /proc/$(pid_of_rank $id $rank)/status; done
        for node in node0 node1; do kill_agent $node; start_agent $node; more_steps; listeners $node; done
        touch go; wait $launch; echo "code $?"
        grep '^step' out | awk '$2 != NR - 1 { print "step " NR - 1 " is missing"; exit }'
        grep -c 'took some steps' out"#;
    let ranks = ["rank 65534 65534 65534 65534"; 2];
    let lines = NO_PRIVILEGES.repeat(4).into_iter().chain(ranks).chain(["code 0", "4"]);
    run(script, flavour, "steps").exits(0).prints_lines(lines);
}

/// The effective and the permitted capabilities of the fork server and of a waiting child: where root may launch, and where it may not. A
/// user's session has none.
#[test]
fn a_fork_server_has_the_capabilities_in_force_that_it_needs() {
    assert!(geteuid().is_root(), "this test must run as root");
    let script = r#"cd "$LATTICE_DEV_CLUSTER"
        of() { awk -v name=$2: '$1 == name { print $2 }' /proc/$1/status; }
        ours=$((0x$(of $$ CapPrm))) needed=$((0x010801e4))
        is() { [ $((0x$1)) = $(($2)) ] && echo "$3" || echo "$3: 0x$1 is not $(printf '%x' $(($2)))"; }
        look() {
            local forks=$(pgrep -P $(daemon node0)) spare
            until spare=$(pgrep -P $forks); do sleep 0.02; done
            for pid in $forks $spare; do is $(of $pid CapEff) "needed & ours" "in force"; is $(of $pid CapPrm) "$1" "in reach"; done
        }
        look ours
        sed -i '/allow_root/d' node0.toml; kill_agent node0; start_agent node0; until nodes_up 1; do sleep 0.05; done
        look "needed & ours"
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null; alloc=$(lattice alloc create -N 1 --uid 65534)
        setpriv --reuid nobody --regid nogroup --init-groups lattice launch --alloc $alloc -n 1 --chdir / \
            sh -c 'for pid in $PPID $$; do awk "/^Cap(Inh|Prm|Eff|Bnd)/ { all = all \$2 } END { gsub(0, \"\", all); print \"<\" all \">\" }" /proc/$pid/status; done'"#;
    let of_both = ["in force", "in reach"].repeat(2);
    let lines = of_both.repeat(2).into_iter().chain(["<>"; 2]);
    script_on(1, script).run().exits(0).prints_lines(lines);
}

#[test]
fn mpich_runs_below_agents_that_are_not_root() {
    agents_without_root_are_replaced_below(Flavour::WheelMpich);
}

#[test]
fn open_mpi_runs_below_agents_that_are_not_root() {
    agents_without_root_are_replaced_below(Flavour::WheelOpenMpi);
}

/// Renewal and revocation only need files that the daemon's user may change.
#[test]
fn an_agent_without_root_renews_its_certificate_and_takes_the_list_of_revoked_ones() {
    let script = r#"cp -r pki/agent-node0 old
        printf '[renewal]\nauthority = "%s"\n' "$PWD/pki" >>api.toml
        sed -i "s|pki/api/ca.pem|pki/ca.pem|" api.toml; restart_api :
        for node in node0 node1; do until grep -q 'the certificate was renewed' $node.log; do sleep 0.05; done; done
        for file in cert key; do cmp -s {old,pki/agent-node0}/$file.pem || echo "another $file"; done
        stat -c '%n: %U %a' pki/agent-node0/{ca,key}.pem
        kill_agent node0; start_agent node0
        lattice launch -N 2 -n 2 "$1" || exit
        lattice pki revoke pki old/cert.pem >/dev/null
        until cmp -s pki/crl.pem pki/agent-node1/crl.pem; do sleep 0.05; done
        until lattice nodes --json | field state | grep lost; do sleep 0.1; done"#;
    run(script, Flavour::WheelMpich, "hello").exits(0).prints_lines([
        "another cert",
        "another key",
        "pki/agent-node0/ca.pem: root 644",
        "pki/agent-node0/key.pem: daemon 600",
        "rank 0 of 2",
        "rank 1 of 2",
        "lost",
    ]);
}

/// The fork server starts nothing while it has no valid revocation list, and names the wrong file.
#[test]
fn a_list_of_another_ca_is_named_by_the_refusal_of_each_launch_and_healed_by_a_newer_one() {
    let script = r#"lattice pki init other >/dev/null; lattice pki issue other --agents node9 >/dev/null
        lattice pki revoke other agent-node9 >/dev/null; cp other/crl.pem pki/agent-node1/; chown daemon pki/agent-node1/crl.pem
        lattice launch -w node1 -n 1 true; echo "code $?"
        lattice pki issue pki --agents node9 >/dev/null; lattice pki revoke pki agent-node9 >/dev/null; cp pki/crl.pem pki/api/
        until cmp -s pki/crl.pem pki/agent-node1/crl.pem; do sleep 0.05; done
        lattice launch -w node1 -n 1 echo healed"#;
    let outcome = run(script, Flavour::WheelMpich, "hello");
    outcome.exits(0).prints_lines(["code 125", "healed"]);
    outcome.says("/pki/agent-node1/crl.pem is not signed by the CA with a certificate in that directory");
}

/// Both the daemon and the fork server load a new authority. Only root can have installed it.
#[test]
fn a_new_authority_needs_no_restart_of_an_agent_without_root() {
    let script = r#"lattice pki init new >/dev/null && lattice pki issue new --api 10.20.0.254 --agents 'node[0-1]' >/dev/null || exit
        for who in api agent-node0 agent-node1; do for file in new/$who/*.pem; do cat $file >pki/$who/${file##*/}; done; done
        kill -HUP $(daemon api) $(daemon node0) $(daemon node1)
        for who in api node0 node1; do until grep -q 'the certificate was read again' $who.log; do sleep 0.05; done; done
        restart_api :
        lattice launch -N 2 -n 2 "$1" || exit
        chown daemon pki/agent-node0/ca.pem
        lattice-agent --check-config --config node0.toml; echo "code $?""#;
    let outcome = run(script, Flavour::WheelMpich, "hello");
    outcome.exits(0).prints_lines(["rank 0 of 2", "rank 1 of 2", "code 125"]);
    outcome.says("pki/agent-node0/ca.pem belongs to user 1 and has mode 644, so that not only root could change");
}

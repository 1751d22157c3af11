//! Files of a private cluster, and of launches on it, in directories to which other users write as well. Root is the victim, another user
//! the attacker.

use lattice_tests::{Command, Outcome, built};
use nix::unistd::geteuid;

/// Starts a cluster of one node with its own `/tmp`, in which the script runs.
const BEGIN: &str = r#"
    mount -t tmpfs -o mode=1777 none /tmp && cd /tmp || exit
    as_other() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
    until_there() { until [ -n "$(find "$@" 2>/dev/null | head -n 1)" ]; do sleep 0.02; done; }
    export -f as_other until_there; exec "$1" dev-cluster --nodes 1 -- bash -c "$2"
"#;

fn in_a_place_for_all(script: &str) -> Outcome {
    assert!(geteuid().is_root(), "this test must run as root");
    let command = Command::new("unshare").words("--mount bash -c").arg(BEGIN).arg("bash").arg(built::lattice());
    command.arg(script).run()
}

/// With any umask: names in `mpirun/` come first in `PATH`.
#[test]
fn no_file_of_a_cluster_can_be_written_by_others_under_any_umask() {
    let script = r#"umask $1; "$0" dev-cluster --nodes 1 -- bash -c '
        cd "$LATTICE_DEV_CLUSTER"; stat -c "%n %a" . mpirun; find . ! -type l ! -type s -perm /022'"#;
    for umask in ["000", "002", "077"] {
        let outcome = Command::new("bash").arg("-c").arg(script).arg(built::lattice()).arg(umask).run();
        outcome.exits(0).prints_lines([". 711", "mpirun 755"]);
    }
}

/// The attacker watches the copy while it is written, and creates a directory, a FIFO and a link in its place. Then it replaces all files
/// that it can.
#[test]
fn copies_of_programs_are_not_exchanged_or_read_by_other_users() {
    let script = r#"
        mkdir evil; printf '#!/bin/sh\necho evil $(id -u)\n' >evil/app; cp evil/app evil/app.0; chmod -R 755 evil; chown -R 65534 evil
        mkdir -m 700 own; printf '#!/bin/sh\necho ran\nexit\n' >own/app; head -c 60000000 /dev/urandom >>own/app; chmod 700 own/app
        as_other bash -c 'touch ready; until [ -e over ] || compgen -G "/tmp/app.0" || compgen -G "/tmp/.lattice-*"; do :; done; mkdir -m 777 app
            until [ -e over ] || [ -e app/app.0 ] || [ -e app/part ]; do :; done; mv app old && mv evil app' >/dev/null 2>&1 & attacker=$!
        until_there ready; timeout 60 lattice launch -n 1 --bcast=/tmp/app own/app >said 2>&1; grep -o evil said | sort -u
        touch over; wait $attacker; rm -rf app old
        as_other mkfifo -m 666 app.0 app; as_other bash -c 'cat app.0 app >leaked' & attacker=$!
        timeout 60 lattice launch -n 1 --bcast=/tmp/app own/app; [ $? = 125 ] && echo refused
        timeout 60 lattice launch -n 1 --preload-files own/app --preload-dest-dir=/tmp true; [ $? = 125 ] && echo refused
        kill $attacker; wait $attacker 2>/dev/null; rm app; [ -s leaked ] || echo "nothing leaked"
        as_other ln -s /tmp/target app; timeout 60 lattice launch -n 1 --bcast=/tmp/app own/app; rm app; [ -e target ] || echo "no link followed"
        as_other mkdir -m 777 open; timeout 60 lattice launch -n 1 --bcast=/tmp/open/app own/app; [ $? = 125 ] && echo refused
        timeout 60 lattice launch -n 1 --bcast=/tmp/app own/app; ls -A | grep -e '^app$' -e '^[.]lattice' -e bcast"#;
    let lines = ["refused", "refused", "nothing leaked", "no link followed", "refused", "ran"];
    let outcome = in_a_place_for_all(script);
    outcome.prints_lines(lines);
    outcome.says("/tmp/app is there already").says("other users may write to /tmp/open/");
}

/// No command line contains the name of a copy's directory before the directory exists.
#[test]
fn the_place_of_a_copy_cannot_be_read_before_it_is_made() {
    let script = r#"
        cat >app <<'END'
#!/bin/bash
for line in /proc/[0-9]*/cmdline; do
    grep -a -q "Keeps files on thi[s] node" $line 2>/dev/null && grep -a -c "lattice-bcas[t]-" $line
done | sort -u
END
        chmod 755 app; lattice launch -n 1 --bcast ./app"#;
    in_a_place_for_all(script).exits(0).prints_lines(["0"]);
}

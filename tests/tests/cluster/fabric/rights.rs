//! Access rights: only ranks receive keys, and only administrators can see services.

use nix::unistd::geteuid;

use super::with_fabric_on;
use crate::unprivileged::GIVE_UP_ROOT;

/// A user with only an account is refused, and changes nothing: at the API server's socket, and with a certificate from a node.
#[test]
fn who_is_no_administrator_is_refused() {
    assert!(geteuid().is_root(), "this test must run as root");
    let script = r#"
        for words in list doctor clean "clean --dry-run" "clean --gone node1"; do
            setpriv --reuid nobody --regid nogroup --init-groups lattice cxi $words; echo "code $?"
        done
        lattice pki issue "$here/pki" --user 1000 --admin >/dev/null || exit 90
        by_certificate() {
            local pki=$here/pki/$1; mkdir -p "$pki/lattice"
            printf '%s\n' 'api = "https://10.20.0.254:50051"' '[tls]' "ca = '$pki/ca.pem'" "cert = '$pki/cert.pem'" \
                "key = '$pki/key.pem'" >"$pki/lattice/config.toml"
            XDG_CONFIG_HOME=$pki nsenter --net=/proc/$(daemon node0)/ns/net env -u LATTICE_API_URL lattice cxi list --json
        }
        by_certificate user-1000; echo "code $?"
        by_certificate admin | field state"#;
    let outcome = with_fabric_on(2, "", script).run();
    outcome.exits(0).prints_lines(["code 125", "code 125", "code 125", "code 125", "code 125", "code 125", "held"]);
    outcome.says("user 1000 may not see the credentials of the fabric; administrators may");
    let refusals = outcome.errors().matches("; administrators may").count();
    outcome
        .says("user 65534 may not see the credentials of the fabric; administrators may")
        .check(refusals == 6, || format!("{refusals} refusals in place of 6"));
}

/// The files and the output of a launch contain neither the key nor the secret, in any encoding.
#[test]
fn no_key_is_left_anywhere() {
    let script = r#"
        unset LATTICE_LOG
        lattice launch --pmi none -n 2 bash -c 'echo $FI_CXI_AUTH_KEY >"$1".$LATTICE_RANK; sleep 1000' bash "$KEYS/key" & launch=$!
        id=$(launch_with 2)
        until [ -s "$KEYS/key.0" ] && [ -s "$KEYS/key.1" ]; do sleep 0.05; done
        key=$(<"$KEYS/key.0"); secret=$(<"$here/fabric.secret")
        [ ${#key} = 32 ] && [ "$key" = "$(<"$KEYS/key.1")" ] || exit 97
        # grep sees lines, so of a key with ends of lines in it only the longest piece between them can be looked for.
        pieces=$(sed 's/../\\x&/g; s/\\x0a/\n/g' <<<"$key"); bytes=""
        for piece in $pieces; do [ ${#piece} -gt ${#bytes} ] && bytes=$piece; done
        numbers=$(for at in {0..30..2}; do printf '%d, ' 0x${key:at:2}; done); numbers=${numbers%, }
        for command in "status $id" "launches --all" "proctable $id" nodes "cxi list" "cxi doctor" "alloc list --all"; do
            lattice $command --json; lattice $command
        done >"$here/shown" 2>&1
        cat /proc/[0-9]*/cmdline >"$here/cmdlines" 2>/dev/null
        kill -TERM $launch; wait $launch 2>/dev/null
        release; all_given_back
        kill_dead fabric; alloc=$(lattice alloc create -N 1)
        lattice launch --alloc $alloc --timeout 2s --pmi none -n 1 true >>"$here/shown" 2>&1
        [ $(wc -c <"$here/api.log") -gt 10000 ] || exit 96
        leaked() { LC_ALL=C grep -rla "$@" "$here" --exclude=fabric.secret --exclude-dir=pki; }
        # Whoever looks must be able to see.
        printf "$bytes" >"$here/planted"; leaked -P "$bytes" >/dev/null || exit 91
        rm "$here/planted"
        leaked -iF "$key" && exit 95
        leaked -P "$bytes" && exit 94
        leaked -F "$numbers" && exit 93
        leaked -F "$secret" && exit 92
        echo clean"#;
    let keys = tempfile::tempdir().expect("a directory");
    let command = with_fabric_on(2, "", script).env("KEYS", keys.path()).env("LATTICE_LOG", "trace");
    command.run().exits(0).prints_lines(["all given back", "clean"]);
}

/// Services require root. Processes of fork servers create them, and remove services of earlier agents.
#[test]
fn agents_that_are_not_root_have_services_made_and_ended() {
    let script = r#"
        lattice launch --pmi none -n 2 bash -c 'echo $LATTICE_NODE $SLINGSHOT_DEVICES $SLINGSHOT_SVC_IDS $SLINGSHOT_VNIS'
        soon services_are 0
        lattice launch --pmi none -n 2 sleep 1000 & launch=$!
        launch_with 2 >/dev/null; services_are 4 || exit 9
        awk '/^Uid/ { print "uid", $2 }' /proc/$(daemon node1)/status; find nics -type f -name '[0-9]*' -printf '%u\n' | sort -u
        lattice nodes --json | field state | sort -u
        kill_agent node1; start_agent node1; services_are 4 || exit 9
        release; wait $launch; all_given_back"#;
    let outcome = with_fabric_on(2, "", &format!("{GIVE_UP_ROOT}\n{script}")).run();
    let variables = ["0 cxi0,cxi1 11,21 1024", "1 cxi0,cxi1 11,21 1024"];
    outcome.exits(0).prints_lines(variables.into_iter().chain(["uid 1", "root", "up", "all given back"]));
}

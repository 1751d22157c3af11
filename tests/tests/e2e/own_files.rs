//! Files and directories of launches in directories to which other users write as well. Launches do not remove, follow, use or execute any other
//! file. Root is the victim, another user the attacker. Each script has its own `/tmp`.

use lattice_tests::mpi::Flavour;
use lattice_tests::{Command, Outcome, built};
use nix::unistd::geteuid;

/// A directory for temporary files of all users, and functions that run commands as another user.
const BEGIN: &str = r#"
    mount -t tmpfs -o mode=1777 none /tmp && cd /tmp || exit
    unset XDG_RUNTIME_DIR TMPDIR XDG_CONFIG_HOME
    lattice=$1; shift
    as_other() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
    until_there() { until [ -n "$(find "$@" 2>/dev/null | head -n 1)" ]; do sleep 0.02; done; }
    export -f until_there
"#;

/// Runs a script as root. `$lattice` is the program, and `arguments` are its words.
fn in_a_place_for_all(script: &str, arguments: &[&std::path::Path]) -> Outcome {
    assert!(geteuid().is_root(), "this test must run as root");
    let command = Command::new("unshare").words("--mount bash -c").arg(format!("{BEGIN}{script}")).arg("bash");
    arguments.iter().fold(command.arg(built::lattice()), Command::arg).run()
}

/// Names from launches, commands and sessions of this build and of earlier ones; a program of lattice QCD has such names as well. The launch
/// creates all possible directories: for tools, for temporary files, for a topology that cannot be stored elsewhere.
#[test]
fn a_launch_removes_nothing_that_it_has_not_made() {
    let script = r#"
        mkdir scratch; export TMPDIR=/tmp/scratch place=/tmp/scratch; cd scratch; mount -t tmpfs -o ro none /run || exit
        for name in lattice-qcd.tmp lattice-qcd lattice-qcd.contact lattice-k3jq09zmf2.0.tmp lattice-k3jq09zmf2.0 lattice-k3jq09zmf2.0.contact \
            lattice-k3jq09zmf2.0-0123456789ab lattice-shell-qcd .new-lattice-shell-qcd lattice-bcast-qcd; do mkdir $name; touch $name/results $name/lock; done
        echo results >lattice-k3jq09zmf2.0.xml; chmod 600 *.xml; find . -exec touch -d '3 hours ago' {} +
        find . | sort >/tmp/before
        "$lattice" launch -n 1 --tmpdir bash -c 'until_there $place -name "pmix.*.tool.*"; touch "$TMPDIR/file"' || exit
        "$lattice" launch -n 1 --pmi-port --tmpdir bash -c 'until_there $place -name "pmix.*.tool.*"; exit 3'; echo "code $?"
        find . | sort | diff /tmp/before - && echo "nothing else""#;
    in_a_place_for_all(script, &[]).exits(0).prints_lines(["code 3", "nothing else"]);
}

/// Without a runtime directory, and with one of another user, as `su` keeps it.
#[test]
fn a_directory_of_launches_that_another_user_has_made_is_named_and_not_used() {
    let script = r#"
        mkdir precious; touch precious/passwd precious/shadow
        as_other mkdir -m 777 runtime
        for place in /tmp/lattice-0 /tmp/runtime/lattice; do
            [ $place = /tmp/lattice-0 ] || export XDG_RUNTIME_DIR=/tmp/runtime
            as_other mkdir -m 777 $place; as_other ln -s /tmp/precious $place/launches
            "$lattice" launches 2>&1 | grep -o "$place is a directory of user 65534 with mode 777"
            "$lattice" status passwd >/dev/null 2>&1; ls precious
            "$lattice" launch -n 1 bash -c 'until grep -q "do not find this launch: '$place' is a directory of user 65534" said; do sleep 0.02; done' 2>said
            echo "code $?"; ls -A precious | wc -l
        done"#;
    let place = |path: &str| {
        let of_other = format!("{path} is a directory of user 65534 with mode 777");
        [of_other, "passwd".into(), "shadow".into(), "code 0".into(), "2".into()]
    };
    let lines = [place("/tmp/lattice-0"), place("/tmp/runtime/lattice")].concat();
    in_a_place_for_all(script, &[]).exits(0).prints_lines(lines);
}

/// The id of a launch is visible in the list of sockets before a rank initializes MPI.
#[test]
fn the_session_directory_of_open_mpi_is_the_users_alone_before_a_rank_runs() {
    let script = r#"
        "$lattice" launch -n 2 bash -c 'until_there squatted; exec "$@"' bash "$1" 0 9 never >/dev/null & launch=$!
        until id=$(grep -o 'lattice-launch-[a-z0-9]*' /proc/net/unix) && [ -d /proc/$launch ]; do sleep 0.02; done
        for id in $id; do as_other mkdir -m 777 /tmp/${id/launch-/}.0; done; as_other touch squatted
        until made=$(find . -name 'kvs_*' | head -n 1) && [ -n "$made" ]; do sleep 0.02; done
        stat -c '%u %a' "$(cut -d/ -f 1-2 <<<"$made")"; kill $launch; wait $launch
        ls -A -d lattice-*.0 | xargs ls -A | grep -v : | grep -c .; ls -d lattice-*.0-* 2>/dev/null"#;
    let program = Flavour::WheelOpenMpi.program("abort");
    in_a_place_for_all(script, &[&program]).prints("0 700\n0\n");
}

/// As with `sudo` without `-H`.
#[test]
fn settings_of_another_user_are_refused() {
    let script = r#"
        export HOME=/tmp/home; as_other mkdir -p home/.config/lattice; cd home/.config/lattice
        for file in config presets containers; do as_other touch $file.toml; done
        as_other tee config.toml >/dev/null <<<'api = "unix:/tmp/evil"'
        as_other tee presets.toml >/dev/null <<<'[mine]
about = "x"
env = { LD_PRELOAD = "/tmp/evil.so" }'
        as_other tee containers.toml >/dev/null <<<'[mine]
about = "x"
command = ["/tmp/evil", "{image}"]
pmi = "socket"
memory = "own"'
        "$lattice" nodes; "$lattice" launch --preset mine true; "$lattice" launch --container i --container-profile mine true
        chown 0 *.toml; "$lattice" launch --preset mine bash -c 'echo $LD_PRELOAD'"#;
    let outcome = in_a_place_for_all(script, &[]);
    outcome.exits(0).prints("/tmp/evil.so\n");
    for file in ["config", "presets", "containers"] {
        outcome.says(&format!("/tmp/home/.config/lattice/{file}.toml: it belongs to user 65534 and has mode"));
    }
}

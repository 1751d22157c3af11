//! `--container`: ranks in containers of real runtimes, on several nodes.

use lattice_tests::mpi::Flavour;
use lattice_tests::{Command, script_on, turn};

/// Creates the directory `$image` of a root file system, from the given programs and their libraries.
const IMAGE: &str = r#"
    image=$LATTICE_DEV_CLUSTER/image
    mkdir -p $image/{dev,proc,sys,tmp,run,home,root,mnt,srv,opt,etc,usr/bin,var/tmp}
    for program in /bin/sh /bin/sleep /bin/hostname "$@"; do
        cp --parents -L $program $(ldd $program | grep -o '/[^ )]*') $image 2>/dev/null
    done
    # What Open MPI loads while it runs.
    modules=$(ldd "$1" | grep -om1 '/[^ )]*libmpi.so' | xargs -r dirname)
    [ -z "$modules" ] || cp -r --parents $modules $image 2>/dev/null
    cp --parents -L /etc/passwd /etc/group /etc/hosts /etc/nsswitch.conf $image
    touch $image/etc/resolv.conf $image/etc/hostname $image/only-in-the-image
    export USER=root; cd /tmp
"#;

/// Returns a script in a cluster of two nodes. `$image` contains the program `$1`.
fn script_with_image(script: &str, flavour: Flavour, program: &'static str) -> Command {
    script_on(2, &format!("{IMAGE}\n{script}")).arg(flavour.program(program))
}

#[test]
fn ranks_in_containers_find_each_other() {
    let _machine = turn::heavy();
    for runtime in ["bubblewrap", "charliecloud", "unshare"] {
        let script = format!(r#"lattice launch -n 4 --container $image --container-profile {runtime} "$1""#);
        for flavour in [Flavour::WheelMpich, Flavour::WheelOpenMpi] {
            let outcome = script_with_image(&script, flavour, "hello").run();
            outcome.exits(0).says_nothing().prints_lines((0..4).map(|rank| format!("rank {rank} of 4")));
        }
    }
}

#[test]
fn pmi2_passes_into_containers() {
    let script = r#"lattice launch -n 4 --container $image --container-profile charliecloud "$1""#;
    let inside = script_with_image(script, Flavour::SlurmPmi2, "pmi2_ring").run();
    let outside = script_with_image(r#"lattice launch -n 4 "$1""#, Flavour::SlurmPmi2, "pmi2_ring").run();
    inside.exits(0).prints_lines(outside.exits(0).sorted_lines());
}

#[test]
fn files_are_the_images_and_the_directory_is_ours() {
    let script = r#"cd $LATTICE_DEV_CLUSTER; for runtime in bubblewrap charliecloud unshare; do
        lattice launch -n 2 --tasks-per-node 1 --container $image --container-profile $runtime \
            sh -c '[ -e /only-in-the-image ] && [ "$PWD" = "$0" ] && hostname' $PWD || exit; done"#;
    let outcome = script_with_image(script, Flavour::Plain, "half_lines").run();
    outcome.exits(0).prints_lines(["node0", "node0", "node0", "node1", "node1", "node1"]);
}

#[test]
fn exit_codes_and_signals_pass_through() {
    let script = r#"run="lattice launch --container $image --container-profile bubblewrap"
        $run sh -c 'exit 6'; echo $?; timeout --preserve-status -s INT 2 $run sh -c 'trap "exit 9" TERM INT; while :; do sleep 0.1; done'; echo $?
        lattice launch --container /nonexistent --container-profile bubblewrap true; echo $?"#;
    let outcome = script_with_image(script, Flavour::Plain, "half_lines").run();
    assert_eq!(outcome.text(), "6\n130\n1\n", "{}", outcome.errors());
}

#[test]
fn a_runtime_that_closes_descriptors_is_reached_by_a_port() {
    let script = r#"mkdir -p $HOME/.config/lattice
        cat >$HOME/closing <<'END'
#!/bin/bash
shift
for open in /proc/self/fd/*; do [ ${open##*/} -gt 2 ] && eval "exec ${open##*/}<&-"; done 2>/dev/null
exec "$@"
END
        chmod +x $HOME/closing
        printf '%s\n' '[closing]' 'about = "closes descriptors"' "command = ['$HOME/closing', '{image}']" 'pmi = "port"' 'memory = "own"' \
            >$HOME/.config/lattice/containers.toml
        lattice launch -n 4 --container none --container-profile closing "$1""#;
    let home = tempfile::tempdir().unwrap();
    for flavour in [Flavour::WheelMpich, Flavour::WheelOpenMpi] {
        let command = script_on(2, script).arg(flavour.program("hello")).env("HOME", home.path());
        command.run().exits(0).prints_lines((0..4).map(|rank| format!("rank {rank} of 4")));
    }
}

/// Creates a profile `apart`. It runs a program in a mount namespace, with a separate network and without Lattice's descriptors.
const APART: &str = r#"mkdir -p $HOME/.config/lattice
    cat >$HOME/apart <<'END'
#!/bin/bash
shift
for open in /proc/self/fd/*; do [ ${open##*/} -gt 2 ] && eval "exec ${open##*/}<&-"; done 2>/dev/null
exec unshare --net --mount sh -c 'ip link set lo up && exec "$@"' sh "$@"
END
    chmod +x $HOME/apart
    printf '%s\n' '[apart]' 'about = "has another network"' "command = ['$HOME/apart', '{image}']" 'pmi = "file"' 'memory = "shared"' \
        >$HOME/.config/lattice/containers.toml
    run="lattice launch --container none --container-profile apart"
"#;

#[test]
fn a_runtime_with_another_network_is_reached_by_a_file() {
    let script = r#"$run -n 2 -N 1 "$1"; $run -n 4 lattice pmi exchange; $run -n 4 lattice pmi --method pmi2 exchange
        $run -n 1 sh -c 'echo $PMI_SIZE $PMI_PORT$PMI_ID$LATTICE_PMI_SOCKET; exit 4'; echo code $?"#;
    let home = tempfile::tempdir().unwrap();
    let command = script_on(2, &format!("{APART}\n{script}")).arg(Flavour::WheelMpich.program("hello"));
    let outcome = command.env("HOME", home.path()).run();
    let lines = outcome.exits(0).sorted_lines();
    let (probes, others): (Vec<&str>, Vec<&str>) =
        lines.into_iter().partition(|line| line.starts_with("exchange: 4 ranks"));
    assert_eq!((probes.len(), others), (2, vec!["1", "code 4", "rank 0 of 2", "rank 1 of 2"]), "{}", outcome.errors());
}

#[test]
fn a_key_of_nobody_and_another_users_process_are_refused_at_the_file() {
    let script = r#"lattice launch -n 1 --pmi-port sh -c 'PMI_ID=7 lattice pmi connect -- true; echo code $?
            stat -c "%a %F" $LATTICE_PMI_SOCKET ${LATTICE_PMI_SOCKET%/*}
            chmod 711 ${LATTICE_PMI_SOCKET%/*}; chmod 666 $LATTICE_PMI_SOCKET
            setpriv --reuid 4711 --clear-groups lattice pmi connect -- true; echo code $?'
        lattice pmi connect -- true; echo code $?"#;
    let outcome = script_on(1, script).run();
    assert_eq!(outcome.text(), "code 1\n600 socket\n700 directory\ncode 1\ncode 1\n", "{}", outcome.errors());
    outcome.says("does not take this rank").says("LATTICE_PMI_SOCKET is not set, so this is no rank");
}

/// Runs Podman on a machine that mounts control groups of both versions and does not allow higher limits.
const PODMAN: &str = r#"cat >$LATTICE_DEV_CLUSTER/podman <<'END'
#!/bin/bash
exec unshare --mount --pid --fork --mount-proc bash -c '
    umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup
    exec podman run --rm --cgroups=disabled --ulimit nofile=1024 --ulimit nproc=1000 --env-host "$@"' podman "$@"
END
    chmod +x $LATTICE_DEV_CLUSTER/podman
    for library in $(ldd $(command -v lattice) | grep -o '/[^ )]*'); do cp --parents -L $library $image; done
    mkdir $LATTICE_DEV_CLUSTER/hooks
    sed "s|/usr/bin/lattice-agent|$(readlink -f $(command -v lattice) | xargs dirname)/lattice-agent|" $2 >$LATTICE_DEV_CLUSTER/hooks/lattice.json
"#;

/// The output goes to files, as in the next test.
#[test]
#[ignore = "second tier"]
fn the_profile_of_podman_runs_ranks_of_mpich_and_open_mpi() {
    let _machine = turn::heavy();
    let script = r#"mkdir $LATTICE_DEV_CLUSTER/bin $LATTICE_DEV_CLUSTER/out; cd $LATTICE_DEV_CLUSTER/out
        cat >$LATTICE_DEV_CLUSTER/bin/podman <<'END'
#!/bin/bash
# The words of the profile, behind those without which Podman does not run in a test, which exclude one of them.
shift
for word do shift; [ "$word" = --pid=host ] || set -- "$@" "$word"; done
exec "${0%/bin/podman}/podman" "$@"
END
        chmod +x $LATTICE_DEV_CLUSTER/bin/podman
        sed -i "s|exec podman run|exec $(command -v podman) run|" $LATTICE_DEV_CLUSTER/podman
        export PATH=$LATTICE_DEV_CLUSTER/bin:$PATH
        lattice launch -n 4 --container $image --container-profile podman-rootfs sh -c '"$0" >$LATTICE_RANK' "$1" && cat [0-3]"#;
    let script = format!("{IMAGE}\n{PODMAN}\n{script}");
    let hook = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/oci/lattice.json");
    for flavour in [Flavour::WheelMpich, Flavour::WheelOpenMpi] {
        let command = script_on(2, &script).arg(flavour.program("hello")).arg(hook);
        command.run().exits(0).prints_lines((0..4).map(|rank| format!("rank {rank} of 4")));
    }
}

/// A real runtime calls the hook of the packages. Ranks have neither Lattice's descriptors nor the network of the node, and reach the
/// server. The output goes to files, because Podman sometimes loses a part of it at the end of a container.
#[test]
fn a_hook_brings_the_server_into_containers_of_podman() {
    let _machine = turn::heavy();
    let hook = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/oci/lattice.json");
    let script = r#"mkdir $LATTICE_DEV_CLUSTER/out
        lattice launch -n 2 -N 1 --pmi-port $LATTICE_DEV_CLUSTER/podman --hooks-dir $LATTICE_DEV_CLUSTER/hooks \
            --network=none --ipc=host --volume=$LATTICE_DEV_CLUSTER/out:/mnt --rootfs $image \
            sh -c 'exec ${LATTICE_PMI_SOCKET%/*}/lattice pmi connect -- "$0" >/mnt/$LATTICE_RANK' "$1" && cat $LATTICE_DEV_CLUSTER/out/*"#;
    let script = format!("{IMAGE}\n{PODMAN}\n{script}");
    let command = script_on(2, &script).arg(Flavour::WheelMpich.program("hello")).arg(hook);
    command.run().exits(0).prints_lines(["rank 0 of 2", "rank 1 of 2"]);
}

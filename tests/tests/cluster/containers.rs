//! `--container`: ranks in containers of real runtimes, over several nodes.

use lattice_tests::mpi::Flavour;
use lattice_tests::{Command, script_on, turn};

/// Makes the directory `$image` of a root file system, out of the programs that are named and of what they load.
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

/// A script in a cluster of two nodes, in which `$image` has the program that `$1` is.
fn script_with_image(script: &str, flavour: Flavour, program: &'static str) -> Command {
    script_on(2, &format!("{IMAGE}\n{script}")).arg(flavour.program(program))
}

#[test]
fn ranks_in_containers_find_each_other() {
    let _machine = turn::heavy();
    for runtime in ["bubblewrap", "charliecloud"] {
        let script = format!(r#"lattice launch -n 4 --container $image --container-profile {runtime} "$1""#);
        for flavour in [Flavour::WheelMpich, Flavour::WheelOpenMpi] {
            let outcome = script_with_image(&script, flavour, "hello").run();
            outcome.exits(0).prints_lines((0..4).map(|rank| format!("rank {rank} of 4")));
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
    let script = r#"cd $LATTICE_DEV_CLUSTER; for runtime in bubblewrap charliecloud; do
        lattice launch -n 2 --tasks-per-node 1 --container $image --container-profile $runtime \
            sh -c '[ -e /only-in-the-image ] && [ "$PWD" = "$0" ] && hostname' $PWD || exit; done"#;
    let outcome = script_with_image(script, Flavour::Plain, "half_lines").run();
    outcome.exits(0).prints_lines(["node0", "node0", "node1", "node1"]);
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

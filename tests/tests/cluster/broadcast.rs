//! Programs that are copied to the nodes of their launch.

use lattice_tests::mpi::MPICHS;
use lattice_tests::script_on;

/// Says where it is, and what it is.
const PROGRAM: &str = r#"
    cd "$LATTICE_DEV_CLUSTER"
    printf '#!/bin/sh\necho "$LATTICE_NODE $0 $(sha256sum <"$0" | cut -c1-64) $*"\n' >app && chmod +x app
    sum=$(sha256sum <app | cut -c1-64)
    "#;

#[test]
fn a_program_runs_from_its_copies_and_they_are_gone_with_the_launch() {
    let script = r#"
        lattice launch -n 3 -N 3 --bcast ./app x y >out || exit
        place=$(sed -n '1s/^[0-9]* \([^ ]*\) .*/\1/p' out)
        case $place in /tmp/lattice-bcast-*/app) echo "a directory of its own" ;; *) echo "ran $place" ;; esac
        sort out | sed "s|$place|COPY|; s|$sum|SUM|"
        ls -d "${place%/*}" 2>/dev/null
        lattice launch -n 1 --bcast="$LATTICE_DEV_CLUSTER/copies" ./app; lattice launch -n 1 --bcast="$LATTICE_DEV_CLUSTER/" ./app
        [ -e copies ] || echo "gone as well"; [ -x app ] && echo "the program is still there""#;
    let outcome = script_on(3, &format!("{PROGRAM}{script}")).run();
    outcome.exits(0).prints("a directory of its own\n0 COPY SUM x y\n1 COPY SUM x y\n2 COPY SUM x y\n0 /");
    outcome.prints("/copies ").prints("gone as well\nthe program is still there\n").says("app is there already");
}

#[test]
fn a_real_program_of_megabytes_is_copied_whole() {
    let program = MPICHS[1].program("hello");
    let script = r#"cat "$1" >"$LATTICE_DEV_CLUSTER/large" && chmod +x "$LATTICE_DEV_CLUSTER/large"
        head -c 20000000 /dev/urandom >>"$LATTICE_DEV_CLUSTER/large"
        lattice launch -n 4 --bcast "$LATTICE_DEV_CLUSTER/large" | sort"#;
    let outcome = script_on(2, script).arg(program).run();
    outcome.exits(0).prints("rank 0 of 4").prints("rank 3 of 4");
}

/// The second node has a file system of its own, which is too small.
#[test]
fn a_full_disk_is_told_by_its_node_and_nothing_starts() {
    let script = r#"
        mkdir disk; nsenter -t $(daemon node1) -m mount -t tmpfs -o size=64k none "$PWD/disk" || exit
        head -c 1000000 /dev/zero >>app
        lattice launch -n 2 --bcast="$PWD/disk/app" ./app; echo "code $?"
        ls disk"#;
    let outcome = script_on(2, &format!("{PROGRAM}{script}")).run();
    outcome.exits(0).prints_lines(["code 125"]);
    outcome.says("No space left on device").says("of 2 nodes; nothing was started");
}

/// Whatever ends the command ends the pipe that the copies live by.
#[test]
fn copies_go_with_a_launcher_that_is_killed() {
    let script = r#"
        printf '#!/bin/sh\necho "$0" >>ran; exec sleep 1000\n' >app
        lattice launch -n 2 --bcast ./app & launch=$!
        until [ "$(wc -l 2>/dev/null <ran)" = 2 ]; do sleep 0.05; done
        place=$(head -n 1 ran); [ -x "$place" ] && echo copied
        kill -KILL $launch; while [ -e "${place%/*}" ]; do sleep 0.05; done; echo gone"#;
    script_on(2, &format!("{PROGRAM}{script}")).run().exits(0).prints("copied\ngone\n");
}

#[test]
fn what_cannot_be_copied_is_refused_first() {
    let script =
        r#"lattice launch --bcast=here/ ./app; lattice launch --bcast ./app : ./app; lattice launch --bcast ./none"#;
    let outcome = script_on(1, &format!("{PROGRAM}{script}")).run();
    outcome
        .exits(127)
        .says("the copy needs an absolute path")
        .says("--bcast copies the one program")
        .says("cannot find program ./none");
}

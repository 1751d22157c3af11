//! Programs that are copied to the nodes of their launch.

use lattice_tests::mpi::MPICHS;
use lattice_tests::script_on;

/// A program that prints its rank, its path, its checksum and its arguments.
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

/// The second node has its own file system, which is too small.
#[test]
fn a_full_disk_is_told_by_its_node_and_nothing_starts() {
    let script = r#"
        mkdir disk; nsenter -t $(daemon node1) -m mount -t tmpfs -o size=64k none "$PWD/disk" || exit
        head -c 1000000 /dev/zero >>app
        lattice launch -n 2 --bcast="$PWD/disk/app" ./app; echo "code $?"
        while [ -e disk/app ]; do sleep 0.05; done"#;
    let outcome = script_on(2, &format!("{PROGRAM}{script}")).run();
    outcome.exits(0).prints_lines(["code 125"]);
    outcome.says("No space left on device").says("of 2 nodes; nothing was started");
}

/// Any end of the command closes the pipe on which the copies depend.
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
    let script = r#"lattice launch --bcast=here/ ./app; cp app other; lattice launch --bcast=/tmp/x ./app : ./other
            lattice launch --preload-files nothing ./app; lattice launch --bcast ./none"#;
    let outcome = script_on(1, &format!("{PROGRAM}{script}")).run();
    outcome
        .exits(127)
        .says("the copy needs an absolute path")
        .says("2 programs cannot be copied to one file")
        .says("cannot copy nothing: No such file")
        .says("cannot find program ./none");
}

/// A shared library that exists only on this node, in a directory that the program names. This library requires another one.
#[test]
fn shared_libraries_come_with_their_program() {
    let script = r#"
        mkdir lib deep; echo 'int deepest(void) { return 7; }' >deepest.c; echo 'int deepest(void); int deep(void) { return deepest(); }' >deep.c
        echo '#include <stdio.h>
            #include <stdlib.h>
            int deep(void);
            int main(int n, char **words) { printf("%s deep %d %s\n", getenv("LATTICE_NODE"), deep(), getenv("LD_LIBRARY_PATH")); }' >main.c
        cc -shared -fPIC -o lib/libdeepest.so deepest.c && cc -shared -fPIC -o lib/libdeep.so deep.c -Llib -ldeepest &&
            cc -o linked main.c -Llib -ldeep -Wl,-rpath-link,lib -Wl,-rpath,"$PWD/lib" || exit
        # Nodes have the program's directories, but not what is in this one.
        for node in 1 2; do nsenter -t $(daemon node$node) -m mount -t tmpfs none "$PWD/lib" || exit; done
        export LD_LIBRARY_PATH=$PWD/lib
        lattice launch -n 2 -N 2 -w node1,node2 --bcast ./linked 2>&1 | grep -o 'libdeep.so: cannot open' | sort -u
        for more in '' --compress; do
            lattice launch -n 2 -N 2 -w node1,node2 --bcast --send-libs $more ./linked >out || exit
            sort out | sed "s|/tmp/lattice-bcast-[^/]*/|OWN/|; s|$PWD|PWD|"
            ls -d "$(sed -n '1s/.* \([^ :]*\):.*/\1/p' out)" 2>&1 | grep -o 'No such file'
        done
        lattice launch -n 1 -w node1 --bcast --send-libs --bcast-exclude="$PWD" ./linked; echo "code $?""#;
    let outcome = script_on(3, &format!("{PROGRAM}{script}")).run();
    let ran = "0 deep 7 OWN/linked_libs:PWD/lib\n1 deep 7 OWN/linked_libs:PWD/lib\nNo such file\n";
    outcome.exits(0).prints(&format!("libdeep.so: cannot open\n{ran}{ran}code 127\n"));
}

#[test]
fn each_of_several_programs_has_its_copy() {
    let script = r#"
        mkdir other; sed s/echo/'echo other'/ app >other/app; chmod +x other/app
        printf '0 ./app a\n1-2 ./other/app b\n' >table
        shown() { sort | tee -a raw | sed 's|/tmp/lattice-bcast-[^/]*/|OWN/|; s/[0-9a-f]\{64\}/SUM/'; }
        lattice launch -n 1 --bcast ./app a : -n 2 ./other/app b : -n 1 ./app c | shown
        lattice launch -n 3 --bcast --compress --multi-prog ./table | shown
        ls -d $(grep -o '/tmp/lattice-bcast-[^/]*' raw) 2>/dev/null || echo gone"#;
    let outcome = script_on(1, &format!("{PROGRAM}{script}")).run();
    outcome.exits(0).prints(
        "0 OWN/app SUM a\n0 OWN/app SUM c\nother 0 OWN/app-1 SUM b\nother 0 OWN/app-1 SUM b\n\
         0 OWN/app SUM a\nother 0 OWN/app-1 SUM b\nother 0 OWN/app-1 SUM b\ngone\n",
    );
}

/// The nodes share a directory. It has a file that they must not change, and lacks another file.
#[test]
fn files_are_where_programs_look_for_them_and_gone_thereafter() {
    let script = r#"
        mkdir in own; echo grid >in/grid; echo state >in/state; printf '#!/bin/sh\ncat grid state' >in/tool; chmod +x in/tool; cp in/state .
        for node in 1 2; do
            nsenter -t $(daemon node$node) -m mount -t tmpfs none "$PWD/own" || exit
        done
        lattice launch -n 2 -N 2 -w node1,node2 --preload-files in/grid,in/state sh -c 'cat grid state' | sort | uniq -c
        lattice launch -n 2 -N 2 -w node1,node2 --preload-files in/tool,in/grid,in/state --preload-dest-dir "$PWD/own" \
            sh -c 'cd own && ./tool && stat -c "%n %a" *' | sort | uniq -c
        lattice launch -n 1 -w node1 ls own; ls own; [ -e grid ] || echo "no grid"; cat state
        echo another >state; lattice launch -n 2 --preload-files in/state,in/grid true; echo "code $?"; ls grid 2>&1; cat state
        # On one machine as well.
        cp in/state . ; mkdir here
        lattice launch --alloc local -n 2 --preload-files in/grid,in/state --preload-dest-dir "$PWD/here" sh -c 'cat here/*' | sort | uniq -c
        ls here; echo end"#;
    let outcome = script_on(3, &format!("{PROGRAM}{script}")).run();
    outcome.exits(0).prints_lines([
        "      2 grid",
        "      2 state",
        "      2 grid",
        "      2 grid 600",
        "      2 state",
        "      2 state 600",
        "      2 tool 700",
        "no grid",
        "state",
        "code 125",
        "ls: cannot access 'grid': No such file or directory",
        "another",
        "      2 grid",
        "      2 state",
        "end",
    ]);
    outcome.says("state is there already, and is another one").says("and 1 other file");
}

/// The slots of the nodes depend on their cores and on the nodes of each program. The files must be copied to the nodes of the
/// resulting ranks.
#[test]
fn copies_go_to_the_nodes_that_flags_about_nodes_choose() {
    let script = r#"
        cp app worker; shown() { sort | sed 's|/tmp/lattice-bcast-[^/]*/|OWN/|; s/[0-9a-f]\{64\}/SUM/'; }
        lattice srun --bcast -N1 -n1 ./app : -N2 -n2 ./worker | shown
        lattice launch --bcast --tasks-per 1:socket ./app | shown | sort -u"#;
    let outcome = script_on(3, &format!("{PROGRAM}{script}")).run();
    outcome.exits(0).prints_lines([
        "0 OWN/app SUM ",
        "1 OWN/worker SUM ",
        "2 OWN/worker SUM ",
        "0 OWN/app SUM ",
        "1 OWN/app SUM ",
        "2 OWN/app SUM ",
    ]);
}

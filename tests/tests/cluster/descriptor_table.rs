//! The tables of open files of daemons and sessions have their final size before the first thread, as on one machine.

use lattice_tests::script_on;

#[test]
fn tables_keep_their_sizes() {
    let script = r#"
        cd "$LATTICE_DEV_CLUSTER"
        size() { sed -n 's/^FDSize:[ \t]*//p' /proc/$1/status; }; export -f size
        before=; for name in api node0 node1; do before+=" $(size $(daemon $name))"; done
        lattice launch -n 40 bash -c 'sleep 1; size $PPID' | sort | uniq -c | tr -s ' '
        after=; for name in api node0 node1; do after+=" $(size $(daemon $name))"; done
        echo "before$before"; echo "after$after""#;
    script_on(2, script).run().exits(0).prints(" 40 1024\nbefore 16384 4096 4096\nafter 16384 4096 4096\n");
}

//! Limits of the user's shell in ranks on other nodes, as the kernel has them.

use lattice_tests::script_on;

/// Reads soft limits (`$1`) of a process (`$2`), and prints the rank with those that were asked about and its file mode creation mask.
const LIMITS: &str = r#"
    soft() { sed -n "s/^Max $1 *\([^ ]*\) .*/\1/p" /proc/${2:-self}/limits; }
    export -f soft
    show() {
        lattice launch "$@" -n 2 bash -c \
            'echo $LATTICE_RANK $(soft "core file size") $(soft "open files") $(soft "locked memory") $(sed -n "s/^Umask:\t//p" /proc/self/status)'
    }"#;

#[test]
fn ranks_have_the_soft_limits_and_the_mask_of_the_users_shell() {
    let script = r#"
        core=$(soft "core file size" $(daemon node0)) memlock=$(soft "locked memory" $(daemon node0))
        ulimit -Sn 300 -Sc 4 -Sl 64; umask 027
        expect() { [ "$(show $1 | sort)" = "$(printf '0 %s\n1 %s' "$2" "$2")" ] && echo ok || show $1; }
        expect "" "4096 300 $memlock 0027"
        expect --propagate "4096 300 65536 0027"
        expect --propagate=MEMLOCK,NOFILE "$core 300 65536 0027"
        [ "$(show --propagate=NONE | cut -d' ' -f2,4,5 | uniq)" = "$core $memlock 0027" ] && echo ok
        lattice srun --propagate=NOFILE -n 1 bash -c 'soft "open files"'"#;
    let outcome = script_on(2, &format!("{LIMITS}{script}")).run();
    outcome.exits(0).prints_lines(["ok", "ok", "ok", "ok", "300"]);
}

/// `limits` in agent.toml sets the hard limit as well.
#[test]
fn a_node_that_allows_less_gives_what_it_can_and_says_so_if_it_was_asked() {
    let script = r#"
        sed -i '1i limits = ["core=4096"]' "$LATTICE_DEV_CLUSTER/node1.toml"
        kill_agent node1; start_agent node1; until nodes_up 2; do sleep 0.05; done
        ulimit -Sc 8
        show | cut -d' ' -f1,2; echo no word so far >&2; show --propagate=CORE | cut -d' ' -f1,2"#;
    let outcome = script_on(2, &format!("{LIMITS}{script}")).run();
    let warning =
        "warning: the limit core of this shell is 8192, but node1 allows no more than 4096, which its ranks have";
    outcome.exits(0).prints_lines(["0 8192", "0 8192", "1 4096", "1 4096"]).says(warning);
    let before = outcome.errors().split("no word so far").next().unwrap_or_default().to_owned();
    outcome.check(!before.contains("limit core"), || "should not have warned unasked".to_owned());
    outcome.does_not_say("node0 allows");
}

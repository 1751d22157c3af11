//! Limits of the user's shell in ranks on other nodes, according to the kernel.

use lattice_tests::script_on;

/// Reads soft limits (`$1`) of a process (`$2`). Prints the rank with the requested limits and its umask.
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

/// Priority can only be lowered: ranks have the nice value of the shell, or of the agent if it is higher.
#[test]
fn ranks_are_as_nice_as_the_users_shell_and_go_as_early_when_there_is_no_memory() {
    let script = r#"
        show() { lattice launch -N 2 bash -c 'echo "$LATTICE_RANK $(nice) $(cat /proc/self/oom_score_adj)"' | sort | tr '\n' ' '; echo; }
        read -r score </proc/$(daemon node0)/oom_score_adj
        expect() { printf '%s\n' "0 $1 $2 1 $1 $2 "; }
        own=$(nice); [ "$(show)" = "$(expect $own $score)" ] && echo as before
        renice -n $((own + 4)) $BASHPID >/dev/null; [ "$(show)" = "$(expect $((own + 4)) $score)" ] && echo nice
        echo 700 >/proc/$BASHPID/oom_score_adj; [ "$(show)" = "$(expect $((own + 4)) 700)" ] && echo early || show"#;
    script_on(2, script).run().exits(0).prints_lines(["as before", "nice", "early"]);
}

/// The `/proc` files of a process that the session has just cloned belong to root. Therefore a user's session sets the score later.
#[test]
fn ranks_of_a_user_without_privileges_go_as_early_as_the_shell_asks_when_there_is_no_memory() {
    let script = r#"
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null; alloc=$(lattice alloc create -N 2 --uid 65534) || exit
        echo 700 >/proc/$BASHPID/oom_score_adj
        setpriv --reuid nobody --regid nogroup --init-groups lattice launch --alloc $alloc -N 2 --chdir / bash -c '
            for i in {1..100}; do read -r score </proc/$$/oom_score_adj; [ $score = 700 ] && break; sleep 0.01; done
            echo $LATTICE_RANK $(id -u) $score'
        echo code $?"#;
    script_on(2, script).run().exits(0).prints_lines(["0 65534 700", "1 65534 700", "code 0"]);
}

/// `--tmpdir`: a directory of the launch on each node, accessible only to its user and removed with the launch. The next launch removes a
/// directory that a killed session has left.
#[test]
fn a_directory_for_temporary_files_goes_with_its_launch() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"; mkdir scratch; left() { ls -A scratch | wc -l; }
        lattice launch -N 2 --tmpdir=scratch bash -c '
            touch "$TMPDIR/$LATTICE_RANK"; [ "${TMPDIR%/*}" = "$PWD/scratch" ] && echo $LATTICE_RANK $(stat -c %a "$TMPDIR") $(ls "$TMPDIR")'
        echo left $(left); export LATTICE_TMPDIR=$PWD/scratch
        lattice launch -N 2 bash -c 'kill -9 $$'; echo $? left $(left)
        lattice launch -N 1 bash -c 'touch "$TMPDIR/file"; ls -A "$TMPDIR" >seen; kill -9 $PPID; sleep 60'; cat seen; echo left $(left)
        until flock -n scratch/* true; do sleep 0.02; done # The killed one is still ending.
        touch -d '1 minute ago' scratch/*; export LATTICE_ALLOC_ID=local
        lattice launch true; echo left $(left)
        lattice launch --tmpdir=/nonexistent true; echo $?"#;
    let outcome = script_on(2, script).run();
    outcome.exits(0).prints_lines(["0 700 0", "1 700 1", "left 0", "137 left 0", "file", "left 1", "left 0", "125"]);
    outcome.says("cannot make the directory of temporary files /nonexistent/lattice-");
}

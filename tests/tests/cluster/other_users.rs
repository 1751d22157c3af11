//! Attacks of a user on objects of another user or of root: they are refused, recorded, or have no effect. `cluster/identity`,
//! `cluster/sets`, `cluster/keys` and `cluster/root_paths` have further attacks.

use lattice_tests::{Command, script_on};
use nix::unistd::geteuid;

/// `as_nobody WORDS...` runs a command as another user, without an allocation.
const NOBODY: &str = r#"
    as_nobody() { setpriv --reuid nobody --regid nogroup --init-groups "$@"; }
    cd "$LATTICE_DEV_CLUSTER"; chmod 755 .
"#;

#[track_caller]
fn script(nodes: u32, words: &str) -> Command {
    assert!(geteuid().is_root(), "this test must run as root");
    script_on(nodes, &format!("{NOBODY}{words}"))
}

/// Each command about another user's launch, allocation or batch job. The audit log has one line for each command that would change
/// something, and an id cannot create a further line.
#[test]
fn every_command_on_anothers_is_refused_and_recorded() {
    let words = r#"
        lattice launch -n 1 sleep 1000 & launch=$!; id=$(launch_with 1); before=$(wc -l <api.log)
        for words in "abort $id" "attach $id" "signal $id USR1" "status $id" "stacks $id" "proctable $id" "cancel $id" \
            "exec --alloc $LATTICE_ALLOC_ID node0 -- true" "launch --alloc $LATTICE_ALLOC_ID -n 1 true" \
            "alloc release $LATTICE_ALLOC_ID" "queue $LATTICE_ALLOC_ID"; do
            as_nobody lattice $words >/dev/null 2>said </dev/null && echo "$words: done"
            grep -q 'another user\|belongs to' said || { echo "$words: other words"; cat said; }
        done
        as_nobody lattice cancel $'x\nINFO audit: "forged"\e[2J' 2>/dev/null
        kill -0 $launch && echo lives; kill -TERM $launch; wait $launch; echo "code $?"
        until grep -q 'audit: .*forged' api.log; do sleep 0.05; done
        tail -n +$((before + 1)) api.log | sed -nE 's/.* audit: request=[0-9]+ caller=user 65534 action="([a-z ]*)" .* outcome="refused.*/\1/p' | sort | uniq -c
        grep -c '^INFO audit' api.log; grep -c $'\e' api.log"#;
    let outcome = script(1, words).run();
    outcome.prints("lives\ncode 143\n");
    outcome.prints_lines([
        "lives",
        "code 143",
        "      3 abort launch",
        "      2 launch",
        "      4 release allocation",
        "      1 signal launch",
        "0",
        "0",
    ]);
}

/// A rank of another user cannot become root, leave its control group, or gain a better priority or OOM score.
#[test]
fn a_rank_gains_nothing_from_its_node() {
    let words = r#"lattice alloc release $LATTICE_ALLOC_ID >/dev/null; alloc=$(lattice alloc create -N 1 --uid 65534)
        as_nobody lattice launch --alloc $alloc -n 1 --chdir / python3 -c '
import ctypes, os, signal
own = open("/proc/self/cgroup").read().split("::")[-1].strip()
def path(name): return lambda: os.write(os.open(name, os.O_WRONLY), b"0" if "procs" in name else b"-500")
tries = {
    "setuid": lambda: os.setuid(0), "setgid": lambda: os.setgid(0), "setgroups": lambda: os.setgroups([0]),
    "nice": lambda: os.setpriority(os.PRIO_PROCESS, 0, -5), "oom": path("/proc/self/oom_score_adj"),
    "own group": path("/sys/fs/cgroup%s/cgroup.procs" % own), "root group": path("/sys/fs/cgroup/cgroup.procs"),
    "session environ": lambda: open("/proc/%d/environ" % os.getppid(), "rb").read(),
    "session maps": lambda: open("/proc/%d/maps" % os.getppid()).read(),
    "session memory": lambda: open("/proc/%d/mem" % os.getppid(), "rb").read(1),
    "session files": lambda: os.listdir("/proc/%d/fd" % os.getppid()),
}
for name, deed in tries.items():
    try: deed(); print(name, "done")
    except OSError: pass
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(16, os.getppid(), 0, 0) == 0: print("traced")
# A program that sets the user id gives nothing either.
os.system("cp /usr/bin/id /tmp/.id.$$ && chmod 4755 /tmp/.id.$$ && /tmp/.id.$$ -u; rm -f /tmp/.id.$$; su -c true </dev/null 2>/dev/null && echo su")
print("tried", len(tries))'"#;
    script(1, words).run().exits(0).prints_lines(["65534", "tried 11"]);
}

/// The script of a batch job, its arguments and its environment. Other users can only see the arguments, as for any process.
#[test]
fn a_batch_job_shows_its_arguments_alone() {
    // Neither the command line of this script nor that of a search for a word contains the word.
    let words = r##"mkdir -m 777 job; cd job; for where in script arguments environment; do echo "word-in-$where" >$where; done
        (echo '#!/bin/bash'; echo "# $(cat script)"; echo 'touch begun; sleep 1000') >job; chmod 755 job
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null; unset LATTICE_ALLOC_ID
        WORD=$(cat environment) lattice batch -N 1 --output /dev/null ./job "$(cat arguments)" >id; until [ -e begun ]; do sleep 0.05; done
        as_nobody bash -c 'for file in cmdline environ; do for where in script arguments environment; do
            grep -asqf $where /proc/[0-9]*/$file && echo "$where by $file"; done; done; true'
        lattice cancel $(cat id) >/dev/null; echo "cancelled $?""##;
    script(1, words).run().exits(0).prints_lines(["arguments by cmdline", "cancelled 0"]);
}

/// Files for a user below the home directory are accessible to this user only, with any umask.
#[test]
fn files_below_the_home_directory_are_closed_whatever_the_umask() {
    let words = r#"mkdir -m 755 home; export HOME=$PWD/home; unset XDG_RUNTIME_DIR XDG_CONFIG_HOME XDG_STATE_HOME
        umask 000; env -u LATTICE_ALLOC_ID -u LATTICE_API_URL lattice launch -n 1 sleep 3; lattice launch -n 1 true
        find home -mindepth 1 \( -perm /077 -a ! -type l \) ; echo looked"#;
    script(1, words).run().exits(0).prints_lines(["looked"]);
}

/// The cluster of a user without root. Its directory and socket belong to this user, and the process that has created its keys is not
/// dumpable.
#[test]
fn the_cluster_of_a_plain_user_is_closed_to_other_users() {
    let words = r#"mkdir -m 777 other; cd other; mkfifo -m 666 go; mkdir -m 755 home; chown games . home
        as_games() { setpriv --reuid games --regid games --clear-groups env -i PATH="$PATH" HOME=$PWD/home "$@"; }
        as_games lattice dev-cluster --nodes 1 -- bash -c 'echo $PPID $LATTICE_DEV_CLUSTER >.here; mv .here here; read -r line <go' & cluster=$!
        until [ -e here ]; do sleep 0.05; done; read -r pid directory <here
        stat -c '%U %a' $directory; stat -c %U /proc/$pid/environ
        for words in nodes "alloc create -N 1" "queue"; do
            LATTICE_API_URL=unix:$directory/api.sock as_nobody lattice $words >/dev/null 2>said && echo "$words: done"
            grep -q 'Permission denied' said || { echo "$words: other words"; cat said; }
        done
        as_games LATTICE_API_URL=unix:$directory/api.sock lattice nodes --json | field state
        echo >go; wait $cluster; echo "code $?""#;
    script(1, words).run().exits(0).prints_lines(["games 700", "root", "up", "code 0"]);
}

/// A rank kills its session with the signal that writes a core file. For comparison, `sh` of the same user in the same directory leaves one.
#[test]
fn a_session_that_is_killed_leaves_no_core_file() {
    let words = r#"lattice alloc release $LATTICE_ALLOC_ID >/dev/null; alloc=$(lattice alloc create -N 1 --uid 65534)
        mkdir -m 777 cores; cd cores; [ "$(cat /proc/sys/kernel/core_pattern)" = core ] || echo "core files go elsewhere"
        ulimit -c unlimited; as_nobody sh -c 'kill -ABRT $$' 2>/dev/null; ls; rm -f core*
        as_nobody lattice launch --alloc $alloc -n 1 bash -c '
            echo $(ulimit -c) $(cat /proc/$PPID/comm) >facts; kill -ABRT $PPID; sleep 1000' 2>/dev/null; echo "code $?"; cat facts; ls"#;
    script(1, words).run().exits(0).prints_lines(["core", "code 125", "unlimited lattice-session", "facts"]);
}

/// Files and directories of another user, and files that are not sets, in the directory for the sets of a user.
#[test]
fn a_directory_of_sets_that_another_user_can_change_is_refused() {
    let words = r#"unset LATTICE_API_URL LATTICE_ALLOC_ID; mkdir -m 1777 sets; cd sets
        as_games() { setpriv --reuid games --regid games --clear-groups env -i PATH="$PATH" LATTICE_SETS=$PWD/sets "$@"; }
        try() {
            local name=$1; shift; "$@"; as_games timeout 20 lattice set list --json >shown 2>said; echo "$name: $?" \
                $(field command <shown) $(grep -oE 'is no directory|belongs to uid 65534|may be used by others' said)
            rm -rf sets elsewhere
        }
        own() { as_games mkdir -m 700 sets; "$@"; }
        link_to_anothers() { as_nobody mkdir -m 777 elsewhere; as_nobody ln -s $PWD/elsewhere sets; }
        open_to_group() { as_games mkdir sets; as_games chmod 770 sets; }
        large() { head -c 50000000 /dev/zero >sets/5; chown games sets/5; }
        try link link_to_anothers; try directory as_nobody mkdir -m 777 sets; try mode open_to_group
        try fifo own mkfifo -m 666 sets/5; try secret own ln -s /etc/shadow sets/5; try large own large
        try lock own mkfifo -m 666 sets/lock; touch file; try hard own ln file sets/5"#;
    let shows = |name: &str| format!("{name}: 0 lattice set list");
    let refused =
        ["link: 125 is no directory", "directory: 125 belongs to uid 65534", "mode: 125 may be used by others"];
    let shown = ["fifo", "secret", "large", "lock", "hard"].map(shows);
    let expected = refused.into_iter().chain(shown.iter().map(String::as_str));
    script(1, words).run().exits(0).prints_lines(expected);
}

/// Every user can bind socket names without an owner. Commands only use launches of their own user.
#[test]
fn sockets_under_names_of_launches_hide_no_launch() {
    let words = r#"unset LATTICE_API_URL LATTICE_ALLOC_ID; export LATTICE_SETS=$PWD/sets; ulimit -n 9100
        as_nobody perl -MSocket -e 'my @taken; for (1..9000) { socket(my $s, PF_UNIX, SOCK_STREAM, 0) or die;
            bind($s, pack_sockaddr_un("\0lattice-launch-squat$_")) && listen($s, 1) or die; push @taken, $s }
            $| = 1; print "taken\n"; sleep 1000' >squat & squat=$!
        until [ -s squat ]; do sleep 0.05; done; grep -c '@lattice-launch-squat' /proc/net/unix
        lattice launch -n 1 sleep 1000 & launch=$!
        until lattice launches --json 2>/dev/null | grep -q sleep; do sleep 0.05; done
        lattice launches --json | field launch_id | wc -l; lattice set list --json | field command | grep -c sleep
        kill -TERM $launch; wait $launch; echo "code $?"; kill $squat"#;
    script(1, words).run().exits(0).prints_lines(["9000", "1", "1", "code 143"]);
}

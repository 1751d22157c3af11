//! What one user tries on what is another's, or on what is root's: refused, recorded, or of no effect. `cluster/identity`, `cluster/sets`,
//! `cluster/keys` and `cluster/root_paths` have further attacks of that kind.

use lattice_tests::{Command, script_on};
use nix::unistd::geteuid;

/// `as_nobody WORDS...` runs words as another user, who has no allocation.
const NOBODY: &str = r#"
    as_nobody() { setpriv --reuid nobody --regid nogroup --init-groups "$@"; }
    cd "$LATTICE_DEV_CLUSTER"; chmod 755 .
"#;

#[track_caller]
fn script(nodes: u32, words: &str) -> Command {
    assert!(geteuid().is_root(), "this test must run as root");
    script_on(nodes, &format!("{NOBODY}{words}"))
}

/// Each command about another's launch, allocation or batch job. Those that would change something are in the audit, one line each, and an id
/// makes no line of its own there.
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
        as_nobody lattice abort $'x\nINFO audit: "forged"\e[2J' 2>/dev/null
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
        "      2 release allocation",
        "      1 signal launch",
        "0",
        "0",
    ]);
}

/// A rank of another user cannot become root, leave its control group, or take a better place than others.
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

/// The script of a batch job, its arguments and its environment: the arguments alone are seen by others, as of any process.
#[test]
fn a_batch_job_shows_its_arguments_alone() {
    // No word is in the command line of this script, nor in that of a search for it.
    let words = r##"mkdir -m 777 job; cd job; for where in script arguments environment; do echo "word-in-$where" >$where; done
        (echo '#!/bin/bash'; echo "# $(cat script)"; echo 'touch begun; sleep 1000') >job; chmod 755 job
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null; unset LATTICE_ALLOC_ID
        WORD=$(cat environment) lattice batch -N 1 --output /dev/null ./job "$(cat arguments)" >id; until [ -e begun ]; do sleep 0.05; done
        as_nobody bash -c 'for file in cmdline environ; do for where in script arguments environment; do
            grep -asqf $where /proc/[0-9]*/$file && echo "$where by $file"; done; done; true'
        lattice cancel $(cat id) >/dev/null; echo "cancelled $?""##;
    script(1, words).run().exits(0).prints_lines(["arguments by cmdline", "cancelled 0"]);
}

/// What is made for a user below the home directory is that user's alone, whatever the umask.
#[test]
fn files_below_the_home_directory_are_closed_whatever_the_umask() {
    let words = r#"mkdir -m 755 home; export HOME=$PWD/home; unset XDG_RUNTIME_DIR XDG_CONFIG_HOME XDG_STATE_HOME
        umask 000; env -u LATTICE_ALLOC_ID -u LATTICE_API_URL lattice launch -n 1 sleep 3; lattice launch -n 1 true
        find home -mindepth 1 \( -perm /077 -a ! -type l \) ; echo looked"#;
    script(1, words).run().exits(0).prints_lines(["looked"]);
}

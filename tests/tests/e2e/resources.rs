//! Resources that ranks register through Lattice's `libpmi.so.0`. They are removed after any end of the rank, and resources of
//! other processes remain.

mod random;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process;

use lattice_tests::mpi::{self, Flavour};
use lattice_tests::outcome::Outcome;
use lattice_tests::{Command, launch, processes};
use nix::sys::signal::Signal;

use crate::raw;

const PROGRAM: &str = "libpmi_resources";

/// Returns the numbers of the objects of a kind (`shm`, `sem`, `pid`) in the output of a rank.
fn printed(text: &str, rank: usize, kind: &str) -> Vec<i32> {
    let prefix = format!("{rank}: ");
    let words = text.lines().filter_map(|line| line.strip_prefix(&prefix)).flat_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        words.windows(2).filter(|pair| pair[0] == kind).map(|pair| pair[1].to_owned()).collect::<Vec<_>>()
    });
    words.map(|number| number.parse().unwrap()).collect()
}

/// Returns the numbers of all System V objects of a kind.
fn objects(kind: &str) -> Vec<i32> {
    let list = fs::read_to_string(format!("/proc/sysvipc/{kind}")).unwrap();
    list.lines().skip(1).map(|line| line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()).collect()
}

/// Returns true if a POSIX message queue with this name exists. Their list is a file system, which may not be mounted.
fn queue_exists(name: &str) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let script = r#"mount -t mqueue none "$1" && ls "$1""#;
    let mut list = process::Command::new("unshare");
    let output = list.args(["--mount", "bash", "-c", script, "list"]).arg(directory.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().any(|line| line == name)
}

/// Checks that no object in the output of a rank remains, and none of its files.
fn nothing_is_left(outcome: &Outcome, rank: usize, directory: &Path) {
    let text = outcome.text();
    for kind in ["shm", "sem", "msg"] {
        let left: Vec<i32> = printed(text, rank, kind).into_iter().filter(|id| objects(kind).contains(id)).collect();
        outcome.check(left.is_empty(), || format!("{kind} of rank {rank} should be gone: {left:?}"));
    }
    for pid in printed(text, rank, "pid") {
        outcome.check(!processes::lives(pid.cast_unsigned()), || format!("child {pid} should be gone"));
    }
    for pid in printed(text, rank, "posix") {
        let name = format!("lattice-test-{pid}");
        let paths = [format!("/dev/shm/{name}"), format!("/dev/shm/sem.{name}")];
        let left: Vec<&String> = paths.iter().filter(|path| Path::new(path).exists()).collect();
        outcome.check(left.is_empty(), || format!("should be gone: {left:?}"));
        outcome.check(!queue_exists(&name), || format!("message queue {name} should be gone"));
    }
    for name in [format!("file {rank}"), format!("tree-{rank}")] {
        outcome.check(!directory.join(&name).exists(), || format!("{name} should be gone"));
    }
}

#[test]
fn whatever_a_rank_has_registered_is_gone_whenever_it_is_killed() {
    let program = Flavour::LatticePmi.program(PROGRAM);
    for step in 0..=5 {
        let directory = tempfile::tempdir().unwrap();
        let bystander = directory.path().join("bystander");
        fs::write(&bystander, "x").unwrap();
        let outcome = launch("-n 1").arg(&program).arg(directory.path()).words(&format!("kill {step}")).run();
        outcome.exits(137).says("rank 0 on").says("killed");
        if step == 5 {
            // The rank released its file.
            assert!(directory.path().join("file 0").exists());
            fs::remove_file(directory.path().join("file 0")).unwrap();
        }
        nothing_is_left(&outcome, 0, directory.path());
        assert_eq!(printed(outcome.text(), 0, "shm").len(), usize::from(step > 0), "step {step}");
        assert!(bystander.exists());
    }
}

#[test]
fn the_others_keep_theirs_and_what_a_rank_leaves_at_its_end_goes() {
    let program = Flavour::LatticePmi.program(PROGRAM);
    let directory = tempfile::tempdir().unwrap();
    let outcome = launch("-n 2 -K0").arg(&program).arg(directory.path()).words("kill 2").run();
    outcome.exits(137).prints("1: 0 failed");
    assert!(!outcome.text().contains("are gone"), "{}", outcome.text());
    nothing_is_left(&outcome, 0, directory.path());
    // Rank 1 has released its file, and has left its semaphores, its directory and its child.
    assert!(directory.path().join("file 1").exists());
    fs::remove_file(directory.path().join("file 1")).unwrap();
    nothing_is_left(&outcome, 1, directory.path());
}

#[test]
fn what_ranks_have_registered_goes_with_a_launcher_that_is_killed() {
    let program = Flavour::LatticePmi.program(PROGRAM);
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file 0"), "older than the launch").unwrap();
    // Rank 1 waits for the end of that file; there is no step 9.
    let mut running = launch("-n 2").arg(&program).arg(directory.path()).words("kill 9").start();
    running.wait_for_stdout_times("sem ", 2);
    running.signal(Signal::SIGKILL);
    let outcome = running.finish();
    outcome.killed_by(9);
    // The keeper continues briefly after the end of the launcher.
    let is_left = || directory.path().join("tree-1").exists();
    for _ in 0..1000 {
        if !is_left() && printed(outcome.text(), 1, "sem").iter().all(|id| !objects("sem").contains(id)) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    nothing_is_left(&outcome, 1, directory.path());
}

/// The keeper keeps the registrations of a dead rank until the resources are gone. A tree of many directories takes a while to
/// remove.
#[test]
fn a_removal_goes_on_when_the_launcher_is_killed_in_its_midst() {
    const BRANCHES: u64 = 400;
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree");
    let script = r#"init
        if [ $PMI_RANK = 0 ]; then
            mkdir -p "$TREE" && (cd "$TREE" && eval "mkdir {1..$BRANCHES} && touch {1..$BRANCHES}/{1..50}")
            ask "cmd=resource_register phase=done name=dir:$TREE"; echo "$reply"; kill -9 $$
        fi
        forever"#;
    let branches = BRANCHES.to_string();
    let command = raw::script(launch("-n 2 -K0"), script).env("TREE", &tree).env("BRANCHES", branches);
    let mut running = command.start();
    running.wait_for_stdout("cmd=resource_register_result rc=0");
    // A directory has a link from each of its subdirectories.
    let links = || fs::symlink_metadata(&tree).map_or(0, |status| status.nlink());
    running.wait_until("its removal has begun", || links() < BRANCHES + 2);
    running.signal(Signal::SIGKILL);
    let begun = links();
    running
        .finish()
        .killed_by(9)
        .check(begun > 0, || "the launcher should have been killed before the tree was gone".into());
    for _ in 0..1000 {
        if tree.exists() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
    assert!(!tree.exists(), "{} of {BRANCHES} branches are left, {begun} links were there at the kill", links());
}

#[test]
fn other_launchers_are_sent_nothing() {
    let program = Flavour::LatticePmi.program(PROGRAM);
    let directory = tempfile::tempdir().unwrap();
    let codes = |command: Command| command.arg(&program).arg(directory.path()).words("codes").run();
    // Not existing; not registered; no kind, no name, no time.
    codes(launch("-n 1")).exits(0).prints_lines(["0 -1 -1 -1, 3 3 3"]);
    // Hydra ends a job that sends an unknown request.
    for hydra in ["mpiexec.hydra".into(), mpi::hydra()] {
        codes(Command::new(hydra).words("-n 1")).exits(0).prints_lines(["15 15 15 15, 3 3 3"]);
    }
    codes(Command::new("env")).exits(0).prints_lines(["15 15 15 15, 3 3 3"]);
}

#[test]
fn a_release_that_takes_too_long_is_told_or_fails_the_rank() {
    let program = Flavour::LatticePmi.program(PROGRAM);
    let directory = tempfile::tempdir().unwrap();
    let outcome = |flags: &str| launch(flags).arg(&program).arg(directory.path()).words("late").run();
    let file = format!("rank 0 has not released file:{}/file 0 within 1 s", directory.path().display());
    outcome("-n 1").exits(0).says(&file).prints_lines(["0 failed"]);
    let failed = outcome("-n 1 --resource-timeout=fail");
    failed.exits(137).says(&file).says("it is killed for that");
    assert!(!directory.path().join("file 0").exists());
}

#[test]
fn handlers_run_in_reverse_order_at_the_end_of_what_is_registered() {
    let program = Flavour::LatticePmi.program(PROGRAM);
    let directory = tempfile::tempdir().unwrap();
    let ended = |how: &str| launch("-n 1").arg(&program).arg(directory.path()).words(how).run();
    ended("finalize").exits(0).says_nothing().prints("second at exit\nfirst at exit\n").prints("0 failed\n");
    ended("abort").exits(7).prints("0 failed\nfirst at abort\n");
    assert!(!directory.path().join("file 0").exists() && directory.path().exists());
}

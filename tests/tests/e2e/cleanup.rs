//! No file or other resource of a launch remains. The harness checks for remaining processes after every command.

use std::path::Path;

use lattice_tests::mpi::{Flavour, MPICHS};
use lattice_tests::processes::{self, mpich_memory_files};
use lattice_tests::{Command, Outcome, built, launch, turn};
use nix::sys::signal::Signal;
use nix::unistd::geteuid;

#[test]
fn killed_launcher_leaves_nothing() {
    // A wrapper that ignores as many signals as possible, and a grandchild in a separate session.
    let script =
        "trap '' TERM HUP INT; setsid sleep 1000 & (setsid setsid sleep 1000 &) ; echo here; sleep 1000; sleep 1000";
    for _ in 0..5 {
        let mut running = launch("-n 2").bash(script).start();
        running.wait_for_stdout_times("here", 2);
        running.signal(Signal::SIGKILL);
        running.finish().killed_by(9);
    }
}

#[test]
fn a_launcher_killed_while_it_starts_leaves_nothing() {
    let _machine = turn::heavy();
    for milliseconds in 0..30 {
        let mut running = launch("-n 30").words("sleep 1000").start();
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
        running.signal(Signal::SIGKILL);
        running.finish().killed_by(9);
    }
}

#[test]
fn what_ranks_leave_behind_is_ended_with_the_launch() {
    let script = "setsid sleep 1000 & (sleep 1000 &) ; nohup sleep 1000 >/dev/null 2>&1 & disown; exit 0";
    launch("-n 2 --pmi none").bash(script).run().exits(0);
}

/// A daemon that closed all its files is found as well.
#[test]
fn what_ranks_leave_in_the_background_keeps_nobody_waiting() {
    let script = "setsid sleep 1000 <&- >&- 2>&- & exit 3";
    launch("-n 2 --pmi none").bash(script).run().exits(3);
}

/// The kernel shows the bytes of a name that is not UTF-8 unchanged. It cuts the second name in the middle of its last character.
#[test]
fn what_ranks_leave_behind_is_ended_whatever_the_bytes_of_its_name() {
    let script = r#"cd "$(mktemp -d)" || exit
        for name in $'sl\xffeep' simulation_abcü; do
            ln -s /bin/sleep "$name"
            setsid bash -c 'exec -a sleep "./$1" 1000' bash "$name" </dev/null >/dev/null 2>&1 & left=$!
            comm=$(printf %s "$name" | head -c 15 | od -tx1)
            until [ "$(head -c -1 /proc/$left/comm | od -tx1)" = "$comm" ]; do sleep 0.01; done
        done; rm -r "$PWD"; echo done"#;
    launch("-n 1 --pmi none").bash(script).run().exits(0).prints_lines(["done"]);
}

/// The zombies are reaped while the ranks run. Otherwise they would fill the process table during a long launch.
#[test]
fn orphans_of_ranks_that_have_ended_do_not_stay_as_zombies() {
    let script = r#"for i in {1..300}; do (setsid true &); done
        zombies() { cat /proc/[0-9]*/stat 2>/dev/null | grep -c ") Z $PPID "; }
        for i in {1..100}; do left=$(zombies); [ $left = 0 ] && break; sleep 0.1; done; echo "$left are left""#;
    launch("-n 1 --pmi none").bash(script).run().exits(0).prints_lines(["0 are left"]);
}

#[test]
fn two_launches_at_once() {
    for mpi in MPICHS {
        let program = mpi.program("allreduce");
        let start = || launch("-n 3").arg(&program).start();
        let launches = [start(), start()];
        for launch in launches {
            launch.finish().exits(0).says_nothing().prints_lines(["3 ranks, 0 wrong sums"]);
        }
    }
}

#[test]
fn the_end_of_one_launch_is_not_that_of_another() {
    let mut other = launch("-n 2 --pmi none").bash("echo here; read -r line; echo \"$line\"").input("go\n").start();
    let mut long = launch("-n 2 --pmi none").bash("echo $$; exec sleep 1000").start();
    long.wait_for_stdout_times("\n", 2);
    other.wait_for_stdout_times("here", 2);
    launch("-n 2").bash("exit 3").run().exits(3);
    other.finish().exits(0);
    assert!(processes::lives(long.pid()));
    long.signal(Signal::SIGTERM);
    let outcome = long.finish();
    outcome.exits(143).check(outcome.text().lines().count() == 2, || "should have printed two process ids".into());
}

#[test]
#[ignore = "second tier"]
fn two_hundred_launches_in_a_row_leak_nothing() {
    const LAUNCHES: usize = 200;
    let _machine = turn::heavy();
    let program = Flavour::WheelMpich.program("hello");
    let before = mpich_memory_files();
    for number in 0..LAUNCHES {
        // Most launches are small, and every tenth is a whole MPI job.
        if number % 10 == 0 {
            launch("-n 2").arg(&program).run().exits(0).says_nothing();
        } else {
            launch("-n 2 --pmi none").arg("true").run().exits(0).says_nothing();
        }
    }
    // Concurrent tests may use some files.
    let more = mpich_memory_files().saturating_sub(before);
    assert!(more < LAUNCHES / 10, "{more} more files in /dev/shm");
}

/// If no rank finalizes, MPICH leaves its shared memory, under every launcher except Lattice. Open MPI requests that its server remove its
/// files. The keeper receives these requests as well.
#[test]
#[ignore = "second tier"]
fn no_shared_memory_stays_however_a_program_ends() {
    assert!(geteuid().is_root(), "this test must run as root");
    let script = r#"
        mount -t tmpfs none /dev/shm
        launch() { "$LATTICE" launch -n 3 "$@" >/dev/null 2>&1; }
        # UCX removes its files once they are open; a process that is killed in between leaves them.
        left() { ls /dev/shm | grep -v '^ucx_'; }
        there() { until left >/dev/null; do sleep 0.02; done; }
        gone() { while left >/dev/null; do sleep 0.02; done; }
        launch "$PROGRAMS/abort" 1 9; echo "abort $?"; left
        launch "$PROGRAMS/crash" 0; echo "crash $?"; left
        launch --timeout 3s "$PROGRAMS/abort" 0 9 never; echo "time limit $?"; left
        launch "$PROGRAMS/spawn_abort" 7; echo "spawned jobs $?"; left
        exec "$LATTICE" launch -n 3 "$PROGRAMS/abort" 0 9 never >/dev/null 2>&1 &
        # What is made is told to the server a moment later.
        there; sleep 1; kill -KILL $!; gone; echo killed"#;
    for mpi in [Flavour::WheelMpich, Flavour::DebianOpenMpi, Flavour::WheelOpenMpi] {
        let programs = mpi.program("abort");
        mpi.program("crash");
        mpi.program("spawn_abort");
        let command = Command::new("unshare").words("--mount").bash(script);
        let command = command.env("LATTICE", built::lattice());
        let outcome = command.env("PROGRAMS", programs.parent().expect("it is a file in a directory")).run();
        outcome.exits(0).prints_lines(["abort 9", "crash 139", "time limit 124", "spawned jobs 7", "killed"]);
    }
}

/// Returns the names in the directory of a session, which is below this one.
fn of_session(directory: &Path) -> Vec<std::ffi::OsString> {
    let below = std::fs::read_dir(directory).unwrap().filter_map(|entry| std::fs::read_dir(entry.unwrap().path()).ok());
    below.flatten().map(|entry| entry.unwrap().file_name()).collect()
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).unwrap().next().is_none()
}

/// The directory contains the directory for files of ranks, the socket for ranks in containers and the files for tools.
#[test]
fn nothing_stays_in_the_directory_for_temporary_files() {
    let left = |outcome: &Outcome, directory: &Path, of: &str| {
        let left: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        outcome.check(left.is_empty(), || format!("{of} should leave nothing: {left:?}"));
    };
    let begun = |flags: &str, directory: &Path| launch(flags).env("TMPDIR", directory);
    let open_mpi = Flavour::WheelOpenMpi.program("abort");
    for flags in ["-n 2", "-n 2 --pmi-port"] {
        let directory = tempfile::tempdir().unwrap();
        let outcome = begun(flags, directory.path()).arg(built::lattice()).words("pmi barrier").run();
        left(outcome.exits(0), directory.path(), flags);
        let outcome = begun(flags, directory.path()).arg(&open_mpi).words("1 9").run();
        left(outcome.exits(9), directory.path(), flags);
        let mut running = begun(flags, directory.path()).arg(&open_mpi).words("0 9 never").start();
        running.wait_until("tools find it", || of_session(directory.path()).iter().any(|name| name == "contact"));
        running.signal(Signal::SIGKILL);
        running.wait_until("the keeper has removed all", || is_empty(directory.path()));
        running.finish();
    }
}

/// A launch has a file with the topology if the inventory of the node cannot be stored. An example is a control group with a part of the node.
#[test]
fn the_topology_of_a_killed_launch_is_removed() {
    assert!(geteuid().is_root(), "this test must run as root");
    let directory = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o ro none /run && exec "$@""#;
    let command = Command::new("unshare").words("--mount bash -c").arg(script).arg("bash").arg(built::lattice());
    let mut running = command.words("launch -n 1 sleep 1000").env("TMPDIR", directory.path()).start();
    running
        .wait_until("there is a topology", || of_session(directory.path()).iter().any(|name| name == "topology.xml"));
    running.signal(Signal::SIGKILL);
    running.wait_until("the keeper has removed all", || is_empty(directory.path()));
    running.finish().killed_by(9);
}

#[test]
fn no_descriptor_reaches_a_rank_but_its_own() {
    // bash has a descriptor near 255 for the script itself, and the listing has one for the directory.
    let script = r#"for fd in /proc/self/fd/*; do echo "${fd##*/} $(readlink "$fd")"; done"#;
    let outcome = launch("-n 3").words("sh -c").arg(format!("exec 2>&1; {script}")).run();
    let known = |line: &&str| {
        let (number, target) = line.split_once(' ').unwrap_or((line, ""));
        let own = ["0", "1", "2"].contains(&number) || target.is_empty();
        own || target.starts_with("socket:") || (number == "31" && target.starts_with("/memfd:lattice-job-memory"))
    };
    let strangers: Vec<&str> = outcome.sorted_lines().into_iter().filter(|line| !known(line)).collect();
    let sockets = outcome.text().lines().filter(|line| line.contains("socket:")).count();
    outcome.exits(0).check(strangers.is_empty(), || format!("strangers: {strangers:?}"));
    outcome.check(sockets == 3, || format!("each rank should have one socket, together they have {sockets}"));
}

/// As MPICH 4.0 and UCX create it at their start. A file that another process has open remains, and so does an older one.
#[test]
fn shared_memory_under_a_name_by_chance_goes_with_the_rank_that_had_it_open() {
    let chance = format!("{:x}", std::process::id());
    let path = |name: &str| std::path::PathBuf::from(format!("/dev/shm/{name}{chance}"));
    let [mpich, ucx, others] = ["mpich_shar_tmp", "ucx_shm_posix_", "mpich_shar_tmpX"].map(path);
    let holder = std::fs::File::create(&others).unwrap();
    let script = r#"
        [ $LATTICE_RANK = 0 ] || { (exec 9>"$2"; sleep 1000) & exec sleep 1000; }
        exec 9>"$1"; sleep 1; [ -e "$2" ] && echo made; [ $3 = launcher ] || kill -KILL $$; exec sleep 1000"#;
    for killed in ["rank", "launcher"] {
        let command = launch("-n 2 --pmi none").bash(script).arg(&mpich).arg(&ucx).arg(killed);
        let mut running = command.start();
        running.wait_for_stdout("made");
        std::fs::write(&others, "of ours").unwrap();
        if killed == "launcher" {
            running.signal(Signal::SIGKILL);
            running.wait_until("the keeper has removed them", || !mpich.exists() && !ucx.exists());
        }
        let outcome = running.finish();
        let left = [&mpich, &ucx].map(|path| path.exists());
        outcome.check(left == [false, false], || format!("should be gone after the {killed} was killed: {left:?}"));
        assert_eq!(std::fs::read_to_string(&others).unwrap(), "of ours", "this process has it open");
    }
    drop(holder);
    std::fs::remove_file(&others).unwrap();
}

//! Shared memory of a process that may not be inspected: its program is executable but not readable for its own user. Root can inspect all
//! processes, so as root the test runs itself as a plain user.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

use nix::unistd::Uid;
use rank_spawner::remove_orphaned_memory;

/// User without other processes.
const USER: u32 = 54_321;

#[test]
fn what_an_unreadable_program_may_use_stays() {
    if !Uid::effective().is_root() {
        return keeps_what_may_be_used();
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
    let itself = directory.path().join("itself");
    fs::copy(std::env::current_exe().unwrap(), &itself).unwrap();
    let mut again = Command::new(itself);
    again.args(["--exact", "what_an_unreadable_program_may_use_stays"]).uid(USER).gid(USER).current_dir("/");
    let output = again.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

fn keeps_what_may_be_used() {
    let begin = SystemTime::now();
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    fs::copy("/bin/sleep", &program).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o111)).unwrap();
    let memory = PathBuf::from(format!("/dev/shm/mpich_shar_tmp{}", std::process::id()));
    let held = File::create(&memory).unwrap();
    let mut user =
        Command::new(&program).arg("1000").stdin(held).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let files = format!("/proc/{}/fd", user.id());
    // The kernel continues the parent before it denies the user access to the process.
    let can_be_read = (0..1000).all(|_| {
        thread::sleep(Duration::from_millis(1));
        fs::read_dir(&files).is_ok()
    });
    assert!(!can_be_read, "{files} can be read");
    remove_orphaned_memory(begin);
    let is_there = memory.exists();
    user.kill().unwrap();
    user.wait().unwrap();
    remove_orphaned_memory(begin);
    assert!(is_there, "it was taken from a process that runs");
    assert!(!memory.exists(), "nobody is left who could use it");
}

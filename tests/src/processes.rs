//! All processes of one command, identified by a variable in their environment.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The variable with which a test finds the processes of a command. A launcher passes it on like any other.
pub(crate) const MARK: &str = "E2E_MARK";

/// Returns the living processes with the mark.
pub(crate) fn of(mark: &str) -> Vec<u32> {
    let wanted = format!("{MARK}={mark}");
    all().into_iter().filter(|&pid| has_variable(pid, |variable| variable == wanted.as_bytes())).collect()
}

/// Returns the processes with the mark that are ranks or descendants of ranks.
pub(crate) fn ranks_of(mark: &str) -> Vec<u32> {
    let is_tag = |variable: &[u8]| variable.starts_with(b"LATTICE_LAUNCH_ID=");
    of(mark).into_iter().filter(|&pid| has_variable(pid, is_tag)).collect()
}

/// Kills all processes with the mark.
pub(crate) fn kill_all(mark: &str) {
    // The next iteration finds a process that forks in the meantime.
    for _ in 0..10 {
        for pid in of(mark) {
            // It may have ended already.
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
    }
}

/// Returns one line for each process: its command, and the kernel function in which it waits.
pub(crate) fn describe(mark: &str) -> String {
    let line = |pid: u32| {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ");
        let state = status(pid, "State").unwrap_or_default();
        let waits = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
        format!("{pid} {state} in {waits}: {command}\n")
    };
    of(mark).into_iter().map(line).collect()
}

/// Returns true if the process lives. A zombie does not.
pub fn lives(pid: u32) -> bool {
    status(pid, "State").is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// Returns a field of `/proc/PID/status`, such as `VmHWM` or `Cpus_allowed_list`; `None` if the process or the field
/// does not exist.
pub fn status(pid: u32, field: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

/// Returns the number of bytes that the process has read.
pub fn bytes_read(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("rchar: ")?.trim().parse().ok())
}

/// Returns the number of shared-memory files that MPICH left or uses.
pub fn mpich_memory_files() -> usize {
    let names = fs::read_dir(Path::new("/dev/shm")).into_iter().flatten().flatten();
    names.filter(|entry| entry.file_name().to_string_lossy().starts_with("mpich")).count()
}

fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("/proc can be read").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn has_variable(pid: u32, wanted: impl Fn(&[u8]) -> bool) -> bool {
    // A process with an unreadable environment has ended, or belongs to another user.
    fs::read(format!("/proc/{pid}/environ")).is_ok_and(|text| text.split(|&byte| byte == 0).any(wanted))
}

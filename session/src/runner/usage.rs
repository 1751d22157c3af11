//! Resources that the ranks of a session used, from the kernel's counters for children of a process.

use std::fs;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use rank_spawner::CpuSet;

use crate::event::{RankUsage, Usage};
use crate::session_io::HostProcess;

/// Returns the resources of all processes that were reaped here. `None` in a process that has children outside of the launch.
pub(super) fn of_ranks(process: HostProcess) -> Option<Usage> {
    if process == HostProcess::Shared {
        return None;
    }
    let used = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?;
    // Linux counts memory in KiB (getrusage(2)).
    let peak_memory = u64::try_from(used.max_rss()).unwrap_or(0).saturating_mul(1024);
    Some(Usage { user: time(used.user_time()), system: time(used.system_time()), peak_memory })
}

/// Maximum number of threads that are inspected for one question: threads of a node's ranks and of their descendants. The session
/// does nothing else meanwhile.
pub(super) const THREADS_MAX: usize = 4096;

/// Ticks per second of the kernel's processor times: USER_HZ, which is 100 wherever Rust runs.
const TICKS: u64 = 100;

/// Returns the resources that a process and its descendants use at present. It inspects at most `room` threads. `None` if the process
/// is gone.
pub(super) fn of_process(pid: u32, room: &mut usize) -> Option<RankUsage> {
    let mut total = RankUsage::default();
    let mut processes = vec![pid];
    let mut next = 0;
    while let Some(&process) = processes.get(next) {
        match of_one_process(process) {
            Some(usage) => {
                total.cpu += usage.cpu;
                total.memory += usage.memory;
                total.read += usage.read;
                total.written += usage.written;
            }
            None if next == 0 => return None,
            // It has ended since its parent was inspected.
            None => {}
        }
        processes.extend(children(process, room));
        next += 1;
    }
    Some(total)
}

/// Returns the CPUs on which a process may run at present; `None` if it is gone.
pub(super) fn allowed_cpus(pid: u32) -> Option<CpuSet> {
    let status = read_lossy(pid, "status")?;
    text_field(&status, "Cpus_allowed_list:")?.parse().ok()
}

fn of_one_process(pid: u32) -> Option<RankUsage> {
    let stat = read_lossy(pid, "stat")?;
    // Field 3 and later fields follow the name, which is any text in parentheses (proc(5)).
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11..15)?.iter().filter_map(|field| field.parse::<u64>().ok()).sum();
    let status = read_lossy(pid, "status")?;
    // The file is not readable for a process that runs a program with other privileges.
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    Some(RankUsage {
        cpu: Duration::from_millis(ticks.saturating_mul(1000 / TICKS)),
        memory: field(&status, "VmRSS:").saturating_mul(1024),
        read: field(&io, "rchar:"),
        written: field(&io, "wchar:"),
    })
}

/// Reads a file of a process. It may contain the name of the process, which need not be UTF-8.
fn read_lossy(pid: u32, file: &str) -> Option<String> {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the number after a name at the beginning of a line; 0 if there is none.
fn field(text: &str, name: &str) -> u64 {
    text_field(text, name).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Returns the word after a name at the beginning of a line.
fn text_field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next())
}

/// Returns the bytes of memory of this node; 0 if the kernel does not report them.
pub(super) fn node_memory() -> u64 {
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    field(&memory, "MemTotal:").saturating_mul(1024)
}

/// Returns the bytes of memory that this process uses; 0 if the kernel does not report them.
pub(super) fn own_memory() -> u64 {
    of_one_process(std::process::id()).map_or(0, |usage| usage.memory)
}

/// Returns the children of a process: each thread has its own children.
fn children(pid: u32, room: &mut usize) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let looked_at = threads.take(*room).inspect(|_| *room -= 1);
    let lists = looked_at.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()).collect()
}

fn time(time: TimeVal) -> Duration {
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    let microseconds = u64::try_from(time.tv_usec()).unwrap_or(0);
    Duration::from_secs(seconds).saturating_add(Duration::from_micros(microseconds))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn what_a_process_uses_is_known_whatever_the_bytes_of_its_name() {
        let directory = tempfile::tempdir().unwrap();
        // The kernel cuts the name in the middle of its last letter.
        let program = directory.path().join("simulation_abc\u{fc}");
        symlink("/bin/sleep", &program).unwrap();
        let mut child = Command::new(&program).arg0("sleep").arg("1000").spawn().unwrap();
        assert!(of_one_process(child.id()).is_some() && allowed_cpus(child.id()).is_some());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// The program may be below a script that waits for it.
    #[test]
    fn what_a_process_and_its_descendants_use_is_added_up() {
        let busy = "i=0; while :; do i=$((i + 1)); done";
        let mut child = Command::new("sh").args(["-c", &format!("sh -c '{busy}' & echo; wait")]).spawn().unwrap();
        let pid = child.id();
        let seen = loop {
            let mut room = THREADS_MAX;
            let seen = of_process(pid, &mut room).unwrap();
            if seen.cpu >= Duration::from_millis(20) && !children(pid, &mut room).is_empty() {
                break seen;
            }
            std::thread::yield_now();
        };
        assert!(seen.memory > of_one_process(pid).unwrap().memory, "{seen:?}");
        assert!(seen.read > 0 && seen.written > 0, "{seen:?}");
        assert!(of_process(pid, &mut 0).unwrap().memory < seen.memory, "there is no room for its child");
        for process in children(pid, &mut THREADS_MAX.clone()).into_iter().chain([pid]) {
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(process as i32), nix::sys::signal::Signal::SIGKILL)
                .unwrap();
        }
        child.wait().unwrap();
        assert_eq!(of_process(pid, &mut 2), None);
    }

    #[test]
    fn what_children_used_is_counted_where_all_of_them_are_ranks() {
        let busy = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done";
        assert!(Command::new("sh").args(["-c", busy]).status().unwrap().success());
        let usage = of_ranks(HostProcess::Dedicated).unwrap();
        assert!(usage.user + usage.system > Duration::ZERO && usage.peak_memory > 0, "{usage:?}");
        assert_eq!(of_ranks(HostProcess::Shared), None);
    }
}

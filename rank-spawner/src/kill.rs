//! Kills a set of processes that may grow meanwhile. Which processes belong to the set is decided by the caller.
//!
//! Process numbers are used again, so a process is first held by a pidfd, then compared with the scan that found it, and only then
//! killed.
//!
//! A process may fork between the scan and the signal. If the set is known by descent, and orphans fall to a process that is not the
//! caller, the child would belong to no known process afterwards. So all of the set is stopped first, until a scan shows nothing new.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::process_table::{Process, ProcessTable};
use crate::stream_holders::name_of;
use crate::syscalls::{pidfd_open, pidfd_send_signal};

/// Result of [`kill_until_gone`].
pub(crate) struct KillReport {
    /// The processes that were sent SIGKILL, with their starts.
    pub(crate) killed: BTreeMap<Pid, u64>,
    /// Processes that were still there at the time limit.
    pub(crate) survivors: Vec<Survivor>,
}

/// Process that could not be killed: it has become another user's, or hangs in a system call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Survivor {
    /// Process number.
    pub pid: Pid,
    /// Process name, as `ps` shows it; empty if it cannot be read.
    pub name: String,
}

/// Greatest number of pidfds held at once; processes beyond that are killed as well, but not waited for before the next scan.
const HELD_MAX: usize = 64;

/// Shortest time between two scans, and longest.
const SCAN_PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Longest time for which processes are waited for that might be targets, while `execve` hides what they are.
const HIDDEN_MAX: Duration = Duration::from_secs(1);

/// Longest time for which targets are waited for to stop before they are killed: one in `vfork` or on a dead file system does not stop.
const HALT_MAX: Duration = Duration::from_millis(500);

/// Greatest number of scans after the time for targets to stop.
const LATE_SCANS_MAX: u32 = 3;

/// Where the children of a killed process go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fall<'a> {
    /// To the caller, so that the next scan finds them. All targets descend from children of the caller.
    ToCaller {
        /// Children of the caller that are no targets.
        spared: &'a [Pid],
    },
    /// To a process above it: the next scan may not recognise them.
    Elsewhere,
}

/// Processes in which the next targets are searched. Children of an ended process have become children of the caller, so a caller whose children have
/// all ended or are spared has no target. Then its children suffice, and the other processes of the node are not read.
fn read_below(spared: &[Pid]) -> io::Result<ProcessTable> {
    let children = ProcessTable::read_children()?;
    let no_target = children.iter().all(|child| child.zombie || spared.contains(&child.pid));
    if no_target { Ok(children) } else { ProcessTable::read() }
}

/// Kills what `find` names in the table of processes, until two scans in a row have found nothing or the time limit is over.
///
/// Two looks, because a process that forks and ends during a look can be missed by it. A look at a process of ours that was in
/// `execve`, which can take long on a busy machine, proves nothing, and is repeated. Zombies are no targets.
pub(crate) fn kill_until_gone(
    time_limit: Duration,
    fall: Fall<'_>,
    mut find: impl FnMut(&ProcessTable) -> Vec<Pid>,
) -> io::Result<KillReport> {
    let deadline = Instant::now() + time_limit;
    let within = |time_max: Duration| (Instant::now() + time_max).min(deadline);
    let mut hidden_until = within(HIDDEN_MAX);
    let mut report = KillReport { killed: BTreeMap::new(), survivors: Vec::new() };
    let mut targets_in = |table: &ProcessTable, report: &KillReport| -> Vec<Process> {
        let mut found = table.trees(report.dying(table));
        found.extend(find(table));
        found.into_iter().filter_map(|pid| table.get(pid).copied()).filter(|process| !process.zombie).collect()
    };
    let mut pause = SCAN_PAUSE;
    let mut empty_scans = 0;
    while empty_scans < 2 {
        let table = match fall {
            Fall::ToCaller { spared } => read_below(spared)?,
            Fall::Elsewhere => halt(HALT_MAX.min(time_limit), |table| {
                let is_new = |target: &Process| report.killed.get(&target.pid) != Some(&target.start);
                targets_in(table, &report).into_iter().filter(is_new).collect()
            })?,
        };
        let targets = targets_in(&table, &report);
        if targets.is_empty() && table.iter().any(is_hidden) && Instant::now() < hidden_until {
            thread::sleep(pause);
            continue;
        }
        if targets.is_empty() {
            empty_scans += 1;
            continue;
        }
        empty_scans = 0;
        hidden_until = within(HIDDEN_MAX);
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            // Stopped processes must not be left.
            kill_all(&targets, &mut report.killed);
            report.survivors = targets.iter().map(|process| Survivor::of(process.pid)).collect();
            break;
        }
        let held = kill_all(&targets, &mut report.killed);
        wait_until_ended(held, Instant::now() + left.min(pause));
        pause = (pause * 2).min(PAUSE_MAX);
    }
    Ok(report)
}

/// Stops the processes that `find` names in the table, until a scan shows that all have stopped and none is new, or the time is over. Returns the
/// table of that scan.
///
/// A scan may be older than the last children of a process that it found, even of a stopped one: it reads the numbers in order, and after the
/// greatest number the kernel goes on with small ones. So all targets must have stopped before the last scan began. After a scan that found a
/// new process there is another one, also when the time is over, but then no more than [`LATE_SCANS_MAX`]: each process of a chain of forks is
/// new.
pub(crate) fn halt(
    time_limit: Duration,
    mut find: impl FnMut(&ProcessTable) -> Vec<Process>,
) -> io::Result<ProcessTable> {
    let begin = Instant::now();
    let (mut signalled, mut late_scans) = (BTreeMap::new(), 0);
    let mut stopped_before = BTreeSet::new();
    loop {
        let table = ProcessTable::read()?;
        let mut stopped = BTreeSet::new();
        let (mut is_pending, mut is_any_new) = (false, false);
        for target in find(&table) {
            if signalled.insert(target.pid, target.start) != Some(target.start) {
                // It may have ended; that of another user runs on until the time is over.
                let stop = hold(&target).and_then(|pidfd| pidfd_send_signal(pidfd.as_fd(), Signal::SIGSTOP));
                is_any_new |= stop.is_ok();
                is_pending = true;
            }
            is_pending |= !target.stopped || !stopped_before.contains(&target.pid);
            stopped.extend(target.stopped.then_some(target.pid));
        }
        stopped_before = stopped;
        let is_late = begin.elapsed() >= time_limit;
        if !is_pending || is_late && (!is_any_new || late_scans == LATE_SCANS_MAX) {
            return Ok(table);
        }
        late_scans += u32::from(is_late);
        thread::sleep(SCAN_PAUSE);
    }
}

impl KillReport {
    /// Processes that were sent SIGKILL and have not ended yet. By now `find` may not recognise them: their parents
    /// have ended, and their environment goes before they do.
    fn dying(&self, table: &ProcessTable) -> Vec<Pid> {
        let is_same = |pid, start| table.get(pid).is_some_and(|process| process.start == start && !process.zombie);
        self.killed.iter().filter(|&(&pid, &start)| is_same(pid, start)).map(|(&pid, _)| pid).collect()
    }
}

impl Survivor {
    pub(crate) fn of(pid: Pid) -> Self {
        Self { pid, name: name_of(pid) }
    }
}

/// True for a process in `execve`, if it is one of those that this process may look into: others always seem to be there.
fn is_hidden(process: &Process) -> bool {
    process.in_exec && fs::File::open(format!("/proc/{}/environ", process.pid)).is_ok()
}

/// Kills every process of `targets` that is still the one that was seen; returns some of their pidfds to wait on.
fn kill_all(targets: &[Process], killed: &mut BTreeMap<Pid, u64>) -> Vec<OwnedFd> {
    let mut held = Vec::new();
    for process in targets {
        if let Ok(pidfd) = kill(process) {
            killed.insert(process.pid, process.start);
            if held.len() < HELD_MAX {
                held.push(pidfd);
            }
        }
    }
    held
}

fn kill(process: &Process) -> nix::Result<OwnedFd> {
    let pidfd = hold(process)?;
    pidfd_send_signal(pidfd.as_fd(), Signal::SIGKILL)?;
    Ok(pidfd)
}

/// Returns a pidfd of a process if it is still the one that was seen.
pub(crate) fn hold(process: &Process) -> nix::Result<OwnedFd> {
    let pidfd = pidfd_open(process.pid)?;
    let is_same = Process::read(process.pid).is_some_and(|now| now.start == process.start);
    if is_same { Ok(pidfd) } else { Err(Errno::ESRCH) }
}

/// Waits until all processes have ended, at most until `deadline`. With none, it waits until then.
fn wait_until_ended(mut pidfds: Vec<OwnedFd>, deadline: Instant) {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut polled: Vec<_> = pidfds.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
        match poll(&mut polled, timeout) {
            Err(Errno::EINTR) => continue,
            Err(_) | Ok(0) => return,
            Ok(_) => {}
        }
        let mut running = polled.iter().map(|fd| fd.any() == Some(false)).collect::<Vec<_>>().into_iter();
        pidfds.retain(|_| running.next() == Some(true));
        if pidfds.is_empty() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};

    use super::*;

    fn sleeper() -> (Child, Process) {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::read(Pid::from_raw(child.id() as i32)).unwrap();
        (child, process)
    }

    #[test]
    fn what_is_found_is_killed_and_a_zombie_does_not_prolong_the_clean_up() {
        let (mut child, process) = sleeper();
        let report =
            kill_until_gone(Duration::from_secs(60), Fall::ToCaller { spared: &[] }, |_| vec![process.pid]).unwrap();
        assert_eq!(report.killed, BTreeMap::from([(process.pid, process.start)]));
        assert_eq!(report.survivors, []);
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }

    #[test]
    fn another_process_of_the_same_number_is_not_killed() {
        let (mut child, process) = sleeper();
        let earlier = Process { start: process.start - 1, ..process };
        assert_eq!(kill(&earlier).unwrap_err(), Errno::ESRCH);
        assert_eq!(child.try_wait().unwrap(), None);
        assert!(kill(&process).is_ok());
        child.wait().unwrap();
    }

    #[test]
    fn what_is_there_at_the_time_limit_is_reported() {
        let (mut child, process) = sleeper();
        let report = kill_until_gone(Duration::ZERO, Fall::Elsewhere, |_| vec![process.pid]).unwrap();
        assert_eq!(report.survivors, [Survivor { pid: process.pid, name: "sleep".into() }]);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    /// A process that forks without end, whose orphans fall elsewhere.
    #[test]
    fn a_process_that_forks_while_it_is_killed_leaves_nothing() {
        for round in 0..20 {
            let mark = format!("1000.{}{round}", std::process::id());
            let script = format!("while :; do sleep {mark} >/dev/null 2>&1 & done");
            let mut forking = Command::new("sh").args(["-c", &script]).spawn().unwrap();
            let pid = Pid::from_raw(forking.id() as i32);
            thread::sleep(Duration::from_millis(round));
            kill_until_gone(Duration::from_secs(60), Fall::Elsewhere, |table| {
                // An orphan is not recognised.
                table.get(pid).map(|_| table.trees([pid]).into_iter().collect()).unwrap_or_default()
            })
            .unwrap();
            forking.wait().unwrap();
            assert_eq!(processes_with(&mark), 0, "round {round}");
        }
    }

    /// Number of processes whose command line has this word.
    fn processes_with(word: &str) -> usize {
        let lines = fs::read_dir("/proc").unwrap().flatten();
        let lines = lines.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
        lines.filter(|line| line.split('\0').any(|part| part == word)).count()
    }
}

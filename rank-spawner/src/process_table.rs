//! Snapshot of the processes of this node, read from `/proc`: identity, parent, group and state of each. `sweep`, the keeper and the
//! fork server decide on the processes.
//!
//! The crate `procfs` (0.18) was measured and rejected: a table of 1,070 processes took 20.7 ms with it and 19.2 ms without. It also
//! holds a second descriptor per process, in processes that clean up because descriptors ran out. It would replace only
//! [`Process::parse`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};

use nix::unistd::{Pid, getpid};

use crate::children::{LISTS_MAX, listed_children};

/// State of a process in the snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    pub(crate) parent: Pid,
    pub(crate) group: Pid,
    pub(crate) session: Pid,
    /// True for a process that has ended and is not reaped yet.
    pub(crate) zombie: bool,
    /// True for a process that is stopped by a signal or a tracer.
    pub(crate) stopped: bool,
    /// Start time, in clock ticks since boot; process number and start time together are unique.
    pub(crate) start: u64,
    /// True during `execve` before the new environment is in place: an empty environment then has no meaning.
    pub(crate) in_exec: bool,
}

impl Process {
    /// Reads one process; `None` if no process has this number.
    pub(crate) fn read(pid: Pid) -> Option<Self> {
        // Longer than any such line, which one read then returns.
        let mut line = [0; 1024];
        let length = fs::File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut line).ok()?;
        Self::parse(pid, &line[..length])
    }

    /// Parses a line in the format of `proc_pid_stat(5)`.
    fn parse(pid: Pid, line: &[u8]) -> Option<Self> {
        let mut fields = behind_name(line)?.split_ascii_whitespace();
        let state = fields.next()?;
        let mut number = || fields.next()?.parse().ok().map(Pid::from_raw);
        let (parent, group, session) = (number()?, number()?, number()?);
        // The start time is field 22 of the line; fields 3 to 6 have been consumed.
        let start = fields.nth(15)?.parse().ok()?;
        // Field 23 is the size of the memory, 0 for zombies and kernel threads; field 51 is the end of the environment.
        let has_memory = fields.next()? != "0";
        let in_exec = has_memory && fields.nth(27) == Some("0");
        let (zombie, stopped) = (matches!(state, "Z" | "X"), matches!(state, "T" | "t"));
        Some(Self { pid, parent, group, session, zombie, stopped, start, in_exec })
    }
}

/// Returns true for a process that a signal has stopped.
pub(crate) fn is_stopped(pid: Pid) -> bool {
    let line = fs::read(format!("/proc/{pid}/stat"));
    line.is_ok_and(|line| behind_name(&line).is_some_and(|fields| fields.starts_with(" T")))
}

/// Signal that is ending a process, or has ended it, until the reap. The kernel sets `PF_EXITING` (`include/linux/sched.h`) before it
/// closes the descriptors. `None` for a process that runs, exits by itself, or may not be inspected.
pub(crate) fn ending_signal(pid: Pid) -> Option<i32> {
    signal_in(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

fn signal_in(line: &[u8]) -> Option<i32> {
    const PF_EXITING: u32 = 4;
    /// Signal in a status of `wait(2)`; the bit above it marks a core dump.
    const SIGNAL: i32 = 0x7f;
    let mut fields = behind_name(line)?.split_ascii_whitespace();
    // Fields 9 and 52 of `proc_pid_stat(5)`: the kernel's flags, the status.
    let flags: u32 = fields.nth(6)?.parse().ok()?;
    let status: i32 = fields.nth(42)?.parse().ok()?;
    (flags & PF_EXITING != 0 && status & SIGNAL != 0).then_some(status & SIGNAL)
}

/// Fields after the name of a process. The name is the second field, in parentheses, and may itself have blanks and parentheses. It
/// is the first 15 bytes of a file name, and may be invalid UTF-8.
fn behind_name(line: &[u8]) -> Option<&str> {
    let end = line.iter().rposition(|&byte| byte == b')')?;
    str::from_utf8(&line[end + 1..]).ok()
}

/// Number of threads of this process. Fails if the process file system is missing.
pub(crate) fn own_threads() -> io::Result<usize> {
    const FILE: &str = "/proc/self/task";
    let threads = fs::read_dir(FILE).map_err(|error| {
        let text =
            format!("cannot read {FILE}: {error}\ntry: mount -t proc proc /proc; starting processes needs /proc");
        io::Error::new(error.kind(), text)
    })?;
    Ok(threads.count())
}

/// All readable processes, indexed by number and by parent.
pub(crate) struct ProcessTable {
    processes: BTreeMap<Pid, Process>,
    children: BTreeMap<Pid, Vec<Pid>>,
}

impl ProcessTable {
    /// Reads `/proc`. A process that starts during the call may be missing.
    pub(crate) fn read() -> io::Result<Self> {
        let number = |entry: fs::DirEntry| entry.file_name().to_str().and_then(|name| name.parse().ok());
        let processes = fs::read_dir("/proc")?.filter_map(|entry| match entry {
            Ok(entry) => number(entry).map(Pid::from_raw).and_then(Process::read).map(Ok),
            Err(error) => Some(Err(error)),
        });
        processes.collect()
    }

    /// Children of this process. A child that starts during the call, or follows one that is reaped during the call, may be missing.
    pub(crate) fn read_children() -> io::Result<Self> {
        let (me, mut no_limit) = (getpid(), usize::MAX);
        let Some(listed) = listed_children(me, &mut no_limit)? else {
            return Ok(Self::read()?.iter().filter(|process| process.parent == me).copied().collect());
        };
        Ok(listed.into_iter().filter_map(Process::read).collect())
    }

    /// Descendants of this process, which must be a subreaper. A process may be missing as in [`ProcessTable::read_children`]. Reads all processes
    /// if the descendants have more than [`LISTS_MAX`] threads.
    pub(crate) fn read_descendants() -> io::Result<Self> {
        let mut lists = LISTS_MAX;
        let mut found = Vec::new();
        let mut next = vec![getpid()];
        while let Some(pid) = next.pop() {
            let Some(children) = listed_children(pid, &mut lists)? else { return Self::read() };
            found.extend(children.iter().copied().filter_map(Process::read));
            next.extend(children);
        }
        Ok(found.into_iter().collect())
    }

    /// All processes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Process> {
        self.processes.values()
    }

    /// Process with this number.
    pub(crate) fn get(&self, pid: Pid) -> Option<&Process> {
        self.processes.get(&pid)
    }

    /// Children of a process.
    pub(crate) fn children_of(&self, pid: Pid) -> &[Pid] {
        self.children.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// `roots` and all their descendants.
    pub(crate) fn trees(&self, roots: impl IntoIterator<Item = Pid>) -> BTreeSet<Pid> {
        let mut found = BTreeSet::new();
        let mut next: Vec<Pid> = roots.into_iter().collect();
        while let Some(pid) = next.pop() {
            if found.insert(pid) {
                next.extend(self.children.get(&pid).into_iter().flatten());
            }
        }
        found
    }
}

impl FromIterator<Process> for ProcessTable {
    fn from_iter<T: IntoIterator<Item = Process>>(processes: T) -> Self {
        let mut table = Self { processes: BTreeMap::new(), children: BTreeMap::new() };
        for process in processes {
            table.children.entry(process.parent).or_default().push(process.pid);
            table.processes.insert(process.pid, process);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::os::unix::process::CommandExt;

    use nix::sys::signal::{Signal, kill, killpg};
    use nix::unistd::{getpgrp, getpid, getppid, getsid};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_process_is_stopped_until_it_is_let_go_on() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        for (signal, expected) in [(Signal::SIGSTOP, true), (Signal::SIGCONT, false)] {
            kill(pid, signal).unwrap();
            while is_stopped(pid) != expected {
                std::thread::yield_now();
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_stopped(pid));
    }

    #[test]
    fn a_process_that_a_signal_ends_is_told_from_all_others() {
        let sleep = |words: &str| {
            let child = std::process::Command::new("sh").args(["-c", words]).spawn().unwrap();
            let pid = Pid::from_raw(child.id() as i32);
            (child, pid)
        };
        let (mut killed, pid) = sleep("exec sleep 1000");
        assert_eq!(ending_signal(pid), None);
        kill(pid, Signal::SIGSTOP).unwrap();
        while !is_stopped(pid) {
            std::thread::yield_now();
        }
        assert_eq!(ending_signal(pid), None, "one that is stopped has a signal for its status, too");
        kill(pid, Signal::SIGKILL).unwrap();
        let is_over = |pid| Process::read(pid).is_some_and(|process| process.zombie);
        while !is_over(pid) {
            std::thread::yield_now();
        }
        assert_eq!(ending_signal(pid), Some(9));
        killed.wait().unwrap();
        assert_eq!(ending_signal(pid), None);
        let (mut failed, pid) = sleep("exit 3");
        while !is_over(pid) {
            std::thread::yield_now();
        }
        assert_eq!(ending_signal(pid), None);
        failed.wait().unwrap();
    }

    /// The sockets of an ending process close before it can be reaped: the kernel is still ending it.
    #[test]
    fn a_process_is_ending_before_it_is_a_zombie() {
        let line = |state: &str, flags: &str, status: &str| {
            let between = vec!["1"; 42].join(" ");
            format!("42 (a) {state} 7 8 9 0 -1 {flags} {between} {status}\n")
        };
        let check = |line: String, expected| assert_eq!(signal_in(line.as_bytes()), expected, "{line}");
        check(line("R", "1077961732", "9"), Some(9));
        check(line("D", "1077961732", "139"), Some(11));
        check(line("R", "1077961732", "3584"), None);
        check(line("S", "1077960704", "9"), None);
        check("42 (a) R 7 8".to_owned(), None);
    }

    #[test]
    fn a_name_with_blanks_and_parentheses_hides_nothing() {
        let line = b"42 (a) R 1) S 7 8 9 0 -1 1 2 3 4 5 6 7 8 9 20 0 1 0 4711 1000 10\n";
        let pid = Pid::from_raw;
        let expected = Process {
            pid: pid(42),
            parent: pid(7),
            group: pid(8),
            session: pid(9),
            zombie: false,
            stopped: false,
            start: 4711,
            in_exec: false,
        };
        assert_eq!(Process::parse(pid(42), line), Some(expected));
        assert_eq!(Process::parse(pid(42), b"42 (x) Z 7 8"), None);
        assert_eq!(Process::parse(pid(42), b""), None);
    }

    /// The kernel truncates the second name within its last character.
    #[test]
    fn a_process_is_seen_whatever_the_bytes_of_its_name() {
        let directory = tempfile::tempdir().unwrap();
        for name in [b"sl\xffeep".as_slice(), "simulation_abc\u{fc}".as_bytes()] {
            let program = directory.path().join(OsStr::from_bytes(name));
            symlink("/bin/sleep", &program).unwrap();
            let mut child = std::process::Command::new(&program).arg0("sleep").arg("1000").spawn().unwrap();
            let pid = Pid::from_raw(child.id() as i32);
            let parent = ProcessTable::read().unwrap().get(pid).map(|process| process.parent);
            if parent != Some(getpid()) {
                // Otherwise the child would stay after the test, with the test's streams.
                child.kill().unwrap();
            }
            assert_eq!(parent, Some(getpid()));
            kill(pid, Signal::SIGSTOP).unwrap();
            while !is_stopped(pid) {
                std::thread::yield_now();
            }
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn table(parents: &[(i32, i32)]) -> ProcessTable {
        let process = |&(pid, parent)| {
            let (pid, parent) = (Pid::from_raw(pid), Pid::from_raw(parent));
            Process { pid, parent, group: pid, session: pid, zombie: false, stopped: false, start: 1, in_exec: false }
        };
        parents.iter().map(process).collect()
    }

    proptest! {
        /// A process belongs to the trees of some roots if one of its ancestors is a root. Parents are arbitrary: processes are read
        /// at different times, and numbers are reused.
        #[test]
        fn trees_hold_those_whose_way_up_meets_a_root(
            parents in prop::collection::vec(0..12_i32, 11),
            roots in prop::collection::vec(0..12_i32, 0..4),
        ) {
            let pairs: Vec<_> = (1..).zip(parents.iter().copied()).collect();
            let found = table(&pairs).trees(roots.iter().copied().map(Pid::from_raw));
            for pid in 0..12 {
                // A longer chain is a cycle.
                let way = std::iter::successors(Some(pid), |&pid| parents.get(usize::try_from(pid - 1).ok()?).copied());
                let meets = way.take(12).any(|ancestor| roots.contains(&ancestor));
                prop_assert_eq!(found.contains(&Pid::from_raw(pid)), meets, "process {}", pid);
            }
        }

        #[test]
        fn a_process_is_read_from_a_line_that_reaches_as_far_as_its_memory(
            name in ".{0,20}", numbers in prop::collection::vec(0..i32::MAX, 0..60),
        ) {
            let words: Vec<_> = numbers.iter().map(i32::to_string).collect();
            let read = Process::parse(Pid::from_raw(1), format!("1 ({name}) S {}", words.join(" ")).as_bytes());
            let expected = (numbers.len() >= 20).then(|| (numbers[0], numbers[1], numbers[2], numbers[18] as u64));
            let read = read.map(|read| (read.parent.as_raw(), read.group.as_raw(), read.session.as_raw(), read.start));
            prop_assert_eq!(read, expected);
        }
    }

    #[test]
    fn a_tree_is_its_root_and_all_below_it() {
        let table = table(&[(2, 1), (3, 2), (4, 2), (5, 3), (6, 1)]);
        let check = |roots: &[i32], expected: &[i32]| {
            let found = table.trees(roots.iter().copied().map(Pid::from_raw));
            assert_eq!(found.into_iter().map(Pid::as_raw).collect::<Vec<_>>(), expected, "{roots:?}");
        };
        check(&[2], &[2, 3, 4, 5]);
        check(&[5], &[5]);
        check(&[3, 6], &[3, 5, 6]);
        check(&[3, 5], &[3, 5]);
        check(&[], &[]);
        // A root that has ended is included, since children may still name it as parent.
        check(&[9], &[9]);
        assert_eq!(table.iter().count(), 5);
        assert!(table.get(Pid::from_raw(9)).is_none());
    }

    #[test]
    fn processes_that_were_seen_at_different_times_make_no_endless_loop() {
        // The number of an ancestor was reused while the table was read.
        let table = table(&[(2, 3), (3, 2)]);
        assert_eq!(table.trees([Pid::from_raw(2)]).len(), 2);
    }

    #[test]
    fn a_process_in_exec_and_a_zombie_are_recognised() {
        let line = |state: &str, memory: &str, environment_end: &str| {
            let between = vec!["1"; 27].join(" ");
            format!(
                "42 (a) {state} 7 8 9 0 -1 1 2 3 4 5 6 7 8 9 20 0 1 0 4711 {memory} {between} {environment_end} 0\n"
            )
        };
        let check = |line: &str, zombie: bool, in_exec: bool| {
            let process = Process::parse(Pid::from_raw(42), line.as_bytes()).unwrap();
            assert_eq!((process.zombie, process.in_exec), (zombie, in_exec), "{line}");
        };
        check(&line("S", "1000", "140000"), false, false);
        check(&line("R", "1000", "0"), false, true);
        check(&line("Z", "0", "0"), true, false);
        // A kernel thread.
        check(&line("I", "0", "0"), false, false);
    }

    #[test]
    fn children_are_those_of_every_thread_and_no_others() {
        let sleeper =
            || std::process::Command::new("sh").args(["-c", "sleep 1000 & wait"]).process_group(0).spawn().unwrap();
        let thread = std::thread::spawn(sleeper);
        let mut started = vec![sleeper(), thread.join().unwrap()];
        let (forks, begin) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let waiting = std::thread::spawn(move || {
            forks.send(sleeper()).unwrap();
            let _ = ended.recv();
        });
        started.push(begin.recv().unwrap());
        let table = ProcessTable::read_children().unwrap();
        for child in &started {
            let pid = Pid::from_raw(child.id() as i32);
            assert_eq!(table.get(pid).map(|process| (process.parent, process.zombie)), Some((getpid(), false)));
        }
        assert!(table.iter().all(|process| process.parent == getpid()));
        // The shell of each child has a child of its own.
        let below = |pid: Pid| ProcessTable::read_descendants().unwrap().children_of(pid).len();
        for child in &started {
            while below(Pid::from_raw(child.id() as i32)) != 1 {
                std::thread::yield_now();
            }
        }
        drop(end);
        waiting.join().unwrap();
        for mut child in started {
            killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL).unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn this_process_is_in_the_table_below_its_parent() {
        let table = ProcessTable::read().unwrap();
        let me = table.get(getpid()).unwrap();
        assert_eq!((me.parent, me.group, me.session), (getppid(), getpgrp(), getsid(None).unwrap()));
        assert_eq!(Process::read(getpid()), Some(*me));
        assert!(!me.in_exec && !me.zombie);
        assert!(table.trees([getppid()]).contains(&getpid()));
        assert!(!table.trees([getpid()]).contains(&getppid()));
    }
}

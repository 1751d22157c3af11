//! Signals to the processes of ranks that depend on the handlers of each process: most signals end a process without a handler.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::kill::{halt, hold};
use crate::process::RankProcess;
use crate::process_table::{Process, ProcessTable};
use crate::stream_holders::{input_pipe, output_pipe, pipes_read};
use crate::sweep::is_subreaper;
use crate::syscalls::pidfd_send_signal;

/// Time limit for stopping a group: a process in `vfork` does not stop.
const STOP_MAX: Duration = Duration::from_millis(100);

/// Sends `signal` to each process in the groups of these ranks that has a handler for it. Reads the table of processes, which takes some
/// milliseconds.
///
/// # Errors
/// Fails if that table cannot be read.
pub fn signal_handlers<'a>(ranks: impl IntoIterator<Item = &'a RankProcess>, signal: Signal) -> io::Result<()> {
    let table = ProcessTable::read()?;
    // A rank that is not reaped yet owned its group when the table was read.
    let mut groups = BTreeSet::new();
    groups.extend(ranks.into_iter().filter(|rank| !rank.is_reaped()).map(RankProcess::pid));
    for seen in table.iter().filter(|process| groups.contains(&process.group) && !process.zombie) {
        if let Ok(pidfd) = hold(seen)
            && handles(seen.pid, signal)
        {
            // The process may have ended meanwhile.
            let _ = pidfd_send_signal(pidfd.as_fd(), signal);
        }
    }
    Ok(())
}

/// Sends `signal` to the groups of these ranks, except ranks that were reaped.
///
/// A signal that ends a process by default, SIGKILL included, is not sent to filters. A filter is a process of the group that reads a pipe from
/// another process and has no handler for the signal. An example is `tee` in `./app | tee log` or `exec > >(tee log)`. A process that holds the
/// output of a filter open for reading is a filter too. An example is a shell's child before it executes the next command of the pipeline. A
/// filter forwards output until the end of its input, then ends; [`crate::sweep()`] kills filters that do not end. Reads the table of processes,
/// which takes some milliseconds.
pub fn signal_groups<'a>(ranks: impl IntoIterator<Item = &'a RankProcess>, signal: Signal) {
    let read = || if is_subreaper() { ProcessTable::read_descendants() } else { ProcessTable::read() };
    let table = ends_by_default(signal).then(read).and_then(Result::ok);
    for rank in ranks {
        // The group may have ended meanwhile.
        match table.as_ref().is_some_and(|table| Group::of(rank, table, signal).has_filter()) {
            true => drop(signal_but_filters(rank, signal)),
            false => drop(rank.signal_group(signal)),
        }
    }
}

/// Sends `signal` to the processes of a rank's group that are not filters. The group is stopped meanwhile, so that no process can fork a child
/// that misses the signal.
fn signal_but_filters(rank: &RankProcess, signal: Signal) -> nix::Result<()> {
    let is_member = |process: &&Process| process.group == rank.pid() && !process.zombie && !rank.is_reaped();
    let Ok(table) = halt(STOP_MAX, |table| table.iter().filter(is_member).copied().collect()) else {
        rank.signal_group(signal)?;
        return rank.signal_group(Signal::SIGCONT);
    };
    let group = Group::of(rank, &table, signal);
    let send = |processes: &[OwnedFd], signal| {
        processes.iter().for_each(|process| _ = pidfd_send_signal(process.as_fd(), signal));
    };
    send(&group.others, signal);
    send(&group.others, Signal::SIGCONT);
    send(&group.filters, Signal::SIGCONT);
    // A process that was forked during the stop is stopped as well, and may be missing in the table.
    rank.signal_group(Signal::SIGCONT)
}

/// True for a signal that ends a process without a handler.
fn ends_by_default(signal: Signal) -> bool {
    use Signal::{SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH};
    !matches!(signal, SIGCHLD | SIGCONT | SIGSTOP | SIGTSTP | SIGTTIN | SIGTTOU | SIGURG | SIGWINCH)
}

/// Processes of a rank's group, each held by a pidfd.
struct Group {
    filters: Vec<OwnedFd>,
    others: Vec<OwnedFd>,
}

impl Group {
    fn of(rank: &RankProcess, table: &ProcessTable, signal: Signal) -> Self {
        let leader = rank.pid();
        let members = table.iter().filter(|process| process.group == leader && !process.zombie).copied();
        let members: Vec<Process> = members.collect();
        let filters = filters_among(&members, leader, signal);
        let (filters, others): (Vec<_>, Vec<_>) =
            members.into_iter().partition(|process| filters.contains(&process.pid));
        let held = |processes: Vec<Process>| processes.iter().filter_map(|process| hold(process).ok()).collect();
        // Until the rank is reaped, its number cannot name another group.
        match rank.is_reaped() {
            true => Self { filters: Vec::new(), others: Vec::new() },
            false => Self { filters: held(filters), others: held(others) },
        }
    }

    fn has_filter(&self) -> bool {
        !self.filters.is_empty()
    }
}

/// Filters among the processes of a group.
fn filters_among(members: &[Process], leader: Pid, signal: Signal) -> BTreeSet<Pid> {
    let own_input = (members.len() > 1).then(|| input_pipe(leader)).flatten();
    let spared = members.iter().filter(|process| process.pid != leader && !handles(process.pid, signal));
    let reads = |process: &&Process| input_pipe(process.pid).is_some_and(|input| Some(&input) != own_input.as_ref());
    let (direct, rest): (Vec<&Process>, Vec<&Process>) = spared.partition(reads);
    if direct.is_empty() {
        return BTreeSet::new();
    }
    let mut rest: Vec<_> = rest.into_iter().map(|process| (process, pipes_read(process.pid))).collect();
    let mut filters = BTreeSet::new();
    let mut new = direct;
    while let Some(filter) = new.pop() {
        filters.insert(filter.pid);
        let Some(output) = output_pipe(filter.pid) else { continue };
        // A shell that reads the output of its own child is not a filter: it continues its script.
        let follows = |(process, pipes): &(&Process, Vec<PathBuf>)| {
            pipes.contains(&output) && !is_below(filter, process.pid, members)
        };
        let (found, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(follows);
        new.extend(found.into_iter().map(|(process, _)| process));
        rest = others;
    }
    filters
}

/// Returns true if a process is a child or a later descendant of the other.
fn is_below(process: &Process, other: Pid, members: &[Process]) -> bool {
    let parents = std::iter::successors(Some(process), |process| {
        members.iter().find(|member| member.pid == process.parent && member.start <= process.start)
    });
    parents.take(members.len()).any(|process| process.parent == other)
}

/// Returns true if the process has a handler for the signal, from the mask `SigCgt` of `proc_pid_status(5)`.
fn handles(pid: Pid, signal: Signal) -> bool {
    // The process name, in the first line, may be invalid UTF-8.
    let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & (1 << (signal as u32 - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_handler_is_seen_once_it_is_there() {
        let script = "trap 'exit 7' USR1; while :; do sleep 0.01; done";
        let mut child = Command::new("bash").args(["-c", script]).spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        while !handles(pid, Signal::SIGUSR1) {
            std::thread::yield_now();
        }
        assert!(!handles(pid, Signal::SIGUSR2));
        nix::sys::signal::kill(pid, Signal::SIGUSR1).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(7));
        assert!(!handles(pid, Signal::SIGUSR1), "there is no such process");
    }
}

//! Signals for those who handle them: most signals end a process that has no handler.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::AsFd;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::kill::hold;
use crate::process::RankProcess;
use crate::process_table::ProcessTable;
use crate::syscalls::pidfd_send_signal;

/// Sends `signal` to each process in the groups of these ranks that has a handler for it. Reads the table of processes, which takes some
/// milliseconds.
///
/// # Errors
/// Fails if that table cannot be read.
pub fn signal_handlers<'a>(ranks: impl IntoIterator<Item = &'a RankProcess>, signal: Signal) -> io::Result<()> {
    let table = ProcessTable::read()?;
    // The groups of ranks that are not reaped even now were theirs when the table was read.
    let mut groups = BTreeSet::new();
    groups.extend(ranks.into_iter().filter(|rank| !rank.is_reaped()).map(RankProcess::pid));
    for seen in table.iter().filter(|process| groups.contains(&process.group) && !process.zombie) {
        if let Ok(pidfd) = hold(seen)
            && handles(seen.pid, signal)
        {
            // It may have ended this very moment.
            let _ = pidfd_send_signal(pidfd.as_fd(), signal);
        }
    }
    Ok(())
}

/// Returns true if the process has a handler for the signal, by the mask `SigCgt` of `proc_pid_status(5)`.
fn handles(pid: Pid, signal: Signal) -> bool {
    // The name of the process, in the first line, need not be UTF-8.
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

//! Process of a started rank, with our ends of its descriptors.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lattice_inventory::CpuSet;
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use pmi_core::ids::Rank;

use crate::exit::RankExit;
use crate::process_table::ending_signal;
use crate::syscalls::{self, Child};
use crate::terminal::Terminal;

/// A started rank.
///
/// Its descriptor ([`AsFd`]) is a pidfd, which becomes readable when the rank has ended; call [`RankProcess::try_wait`] then.
/// Dropping it neither kills nor reaps the rank.
#[derive(Debug)]
pub struct RankProcess {
    /// Rank number.
    pub rank: Rank,
    /// The server's end of the PMI socket, nonblocking, if one was asked for.
    pub pmi: Option<OwnedFd>,
    /// The writing end of a pipe to the rank's stdin, nonblocking, if one was asked for.
    pub stdin: Option<OwnedFd>,
    /// The reading end of a pipe from the rank's stdout, or the driving end of its terminal, nonblocking, if one was asked for.
    pub stdout: Option<OwnedFd>,
    /// The same of its stderr.
    pub stderr: Option<OwnedFd>,
    /// The driving end of the rank's pseudo-terminal, if one was asked for.
    pub terminal: Option<Terminal>,
    /// The CPUs on which the kernel had it when it executed its program, if that is known. They are fewer than it was to be bound to where a
    /// control group leaves it no others. What the program chooses by itself later does not count.
    pub given_cpus: Option<CpuSet>,
    pid: Pid,
    pidfd: OwnedFd,
    /// Locked while the process is reaped, and while its number is used: until it is reaped the number is its own.
    exit: Mutex<Option<RankExit>>,
}

impl RankProcess {
    pub(crate) fn new(rank: Rank, pid: Pid, pidfd: OwnedFd) -> Self {
        Self {
            rank,
            pmi: None,
            stdin: None,
            stdout: None,
            stderr: None,
            terminal: None,
            given_cpus: None,
            pid,
            pidfd,
            exit: Mutex::new(None),
        }
    }

    /// The number of the process, and of the process group that it leads.
    ///
    /// Once [`RankProcess::try_wait`] has told the end, the number may come to belong to another process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends `signal` to the rank alone.
    ///
    /// # Errors
    /// `ESRCH` if the rank has ended and been reaped, `EPERM` if it has become another user's.
    pub fn signal(&self, signal: Signal) -> nix::Result<()> {
        syscalls::pidfd_send_signal(self.pidfd.as_fd(), signal)
    }

    /// Sends `signal` to the rank and to all processes in its group.
    ///
    /// # Errors
    /// `ESRCH` after the rank has been reaped, even if others of its group live: the number may then name another group.
    /// [`crate::sweep()`] finds them nevertheless.
    pub fn signal_group(&self, signal: Signal) -> nix::Result<()> {
        match *self.lock_exit() {
            Some(_) => Err(Errno::ESRCH),
            None => killpg(self.pid, signal),
        }
    }

    /// Exit of the rank, or `None` while it runs. The first call that returns an exit has reaped the process. Non-blocking.
    ///
    /// # Errors
    /// `ECHILD` if somebody else has reaped it.
    pub fn try_wait(&self) -> nix::Result<Option<RankExit>> {
        let mut exit = self.lock_exit();
        if exit.is_none() {
            *exit = syscalls::try_reap(Child::Pidfd(self.pidfd.as_fd()))?;
        }
        Ok(*exit)
    }

    /// Exit of the rank as soon as it is certain: of one that has ended, as [`RankProcess::try_wait`] tells it, and of one that a signal is
    /// ending, whose sockets its peers may have found closed. `None` while it runs, and while it exits by itself. Non-blocking.
    pub fn certain_exit(&self) -> Option<RankExit> {
        if let Ok(Some(exit)) = self.try_wait() {
            return Some(exit);
        }
        // The lock keeps the number its own.
        let exit = self.lock_exit();
        let signal = || ending_signal(self.pid).map(|signal| RankExit::Signal { signal, core_dumped: false });
        exit.or_else(signal)
    }

    /// Returns true once [`RankProcess::try_wait`] has told the end: its number may belong to another process then.
    pub fn is_reaped(&self) -> bool {
        self.lock_exit().is_some()
    }

    fn lock_exit(&self) -> MutexGuard<'_, Option<RankExit>> {
        // Nothing panics while it is locked.
        self.exit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for RankProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl AsRawFd for RankProcess {
    fn as_raw_fd(&self) -> RawFd {
        self.pidfd.as_raw_fd()
    }
}

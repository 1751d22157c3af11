//! Process of a started rank, with the launcher's ends of its descriptors.

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

/// Started rank.
///
/// The descriptor ([`AsFd`]) is a pidfd. It becomes readable when the rank has ended; then call [`RankProcess::try_wait`]. Dropping the
/// value neither kills nor reaps the rank.
#[derive(Debug)]
pub struct RankProcess {
    /// Rank number.
    pub rank: Rank,
    /// The server's end of the PMI socket, nonblocking, if requested.
    pub pmi: Option<OwnedFd>,
    /// Write end of a pipe to the rank's stdin, nonblocking, if requested.
    pub stdin: Option<OwnedFd>,
    /// Read end of a pipe from the rank's stdout, or driving end of its terminal; nonblocking, if requested.
    pub stdout: Option<OwnedFd>,
    /// The same for the rank's stderr.
    pub stderr: Option<OwnedFd>,
    /// Driving end of the rank's pseudo-terminal, if requested.
    pub terminal: Option<Terminal>,
    /// CPUs that the kernel allowed when the rank executed its program, if known. They are fewer than the requested CPUs if a control group
    /// excludes some. Later changes by the program are not included.
    pub given_cpus: Option<CpuSet>,
    pid: Pid,
    pidfd: OwnedFd,
    /// Locked during the reap and during each use of the process number: before the reap the number cannot be reused.
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

    /// Number of the process, and of the process group that it leads.
    ///
    /// After [`RankProcess::try_wait`] has returned the exit, the number may be reused for another process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends `signal` to the rank only.
    ///
    /// # Errors
    /// `ESRCH` if the rank has been reaped, `EPERM` if it has changed its user.
    pub fn signal(&self, signal: Signal) -> nix::Result<()> {
        syscalls::pidfd_send_signal(self.pidfd.as_fd(), signal)
    }

    /// Sends `signal` to the rank and all processes in its group.
    ///
    /// # Errors
    /// `ESRCH` after the rank has been reaped, even if other processes of its group live: the number may then name another group.
    /// [`crate::sweep()`] finds such processes.
    pub fn signal_group(&self, signal: Signal) -> nix::Result<()> {
        match *self.lock_exit() {
            Some(_) => Err(Errno::ESRCH),
            None => killpg(self.pid, signal),
        }
    }

    /// Exit of the rank, or `None` while it runs. The first call that returns an exit reaps the process. Non-blocking.
    ///
    /// # Errors
    /// `ECHILD` if the rank has been reaped elsewhere.
    pub fn try_wait(&self) -> nix::Result<Option<RankExit>> {
        let mut exit = self.lock_exit();
        if exit.is_none() {
            *exit = syscalls::try_reap(Child::Pidfd(self.pidfd.as_fd()))?;
        }
        Ok(*exit)
    }

    /// Exit of the rank as soon as it is certain. For an ended rank, as in [`RankProcess::try_wait`]. A rank that a signal is ending is
    /// included, as its peers may already see its sockets closed. `None` while the rank runs or exits by itself. Non-blocking.
    pub fn certain_exit(&self) -> Option<RankExit> {
        if let Ok(Some(exit)) = self.try_wait() {
            return Some(exit);
        }
        // The lock prevents reuse of the number.
        let exit = self.lock_exit();
        let signal = || ending_signal(self.pid).map(|signal| RankExit::Signal { signal, core_dumped: false });
        exit.or_else(signal)
    }

    /// Returns true after [`RankProcess::try_wait`] has returned the exit: the number may then belong to another process.
    pub fn is_reaped(&self) -> bool {
        self.lock_exit().is_some()
    }

    fn lock_exit(&self) -> MutexGuard<'_, Option<RankExit>> {
        // No code panics while it holds the lock.
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

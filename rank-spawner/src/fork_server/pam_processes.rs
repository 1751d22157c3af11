//! The PAM processes of a fork server: one for each child. It closes the child's PAM session after the child has ended.
//!
//! ```text
//! at work ──child and its leftovers have ended─────> closing ──time is over──> killed
//!    └──────────────────────┴── ended <───────────────────────────────────────────┘
//! ```

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::syscalls::pidfd_send_signal;

/// PAM processes that have not been reaped, by their numbers.
#[derive(Debug, Default)]
pub(super) struct PamProcesses(BTreeMap<Pid, PamProcess>);

/// PAM process of a child.
#[derive(Debug)]
pub(super) struct PamProcess {
    pub(super) pidfd: OwnedFd,
    /// The server's end of the socket. The PAM process closes the session when all copies of this end are closed.
    pub(super) session: Option<OwnedFd>,
    /// Child that uses the PAM session.
    pub(super) child: Pid,
    /// Time at which the server kills the process.
    pub(super) killed_at: Option<Instant>,
}

impl PamProcesses {
    pub(super) fn add(&mut self, pid: Pid, process: PamProcess) {
        self.0.insert(pid, process);
    }

    /// Makes the PAM process of an ended child close its session by `deadline`.
    pub(super) fn close(&mut self, child: Pid, deadline: Instant) {
        for process in self.0.values_mut().filter(|process| process.child == child && process.session.is_some()) {
            (process.session, process.killed_at) = (None, Some(deadline));
        }
    }

    /// Kills PAM processes that have passed their deadline.
    pub(super) fn kill_overdue(&mut self, now: Instant) {
        for process in self.0.values_mut().filter(|process| process.killed_at.is_some_and(|at| at <= now)) {
            process.killed_at = None;
            // The process may have ended meanwhile.
            let _ = pidfd_send_signal(process.pidfd.as_fd(), Signal::SIGKILL);
        }
    }

    /// Time until the first PAM process must be killed.
    pub(super) fn due(&self, now: Instant) -> Option<Duration> {
        self.0.values().filter_map(|process| process.killed_at).min().map(|at| at.saturating_duration_since(now))
    }

    /// Removes a PAM process that has been reaped; false for any other process.
    pub(super) fn remove(&mut self, pid: Pid) -> bool {
        self.0.remove(&pid).is_some()
    }

    pub(super) fn contains(&self, pid: Pid) -> bool {
        self.0.contains_key(&pid)
    }

    pub(super) fn pids(&self) -> impl Iterator<Item = Pid> {
        self.0.keys().copied()
    }

    /// Process numbers, each with a poll entry that becomes ready when the process has ended.
    pub(super) fn ends(&self) -> impl Iterator<Item = (Pid, PollFd<'_>)> {
        self.0.iter().map(|(&pid, process)| (pid, PollFd::new(process.pidfd.as_fd(), PollFlags::POLLIN)))
    }

    pub(super) fn none_runs(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHILD: Pid = Pid::from_raw(7);
    const PAM: Pid = Pid::from_raw(8);

    fn descriptor() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn a_session_is_closed_once_its_child_has_ended_and_the_time_for_that_is_bounded() {
        let (mut processes, now) = (PamProcesses::default(), Instant::now());
        let process = PamProcess { pidfd: descriptor(), session: Some(descriptor()), child: CHILD, killed_at: None };
        processes.add(PAM, process);
        processes.close(Pid::from_raw(9), now);
        assert_eq!(processes.due(now), None, "another child has ended");
        let deadline = now + Duration::from_secs(5);
        processes.close(CHILD, deadline);
        assert!(processes.0[&PAM].session.is_none());
        assert_eq!(processes.due(now), Some(Duration::from_secs(5)));
        // A later child with the same number does not belong to this PAM process.
        processes.close(CHILD, deadline + Duration::from_secs(5));
        processes.kill_overdue(now);
        assert_eq!(processes.due(now), Some(Duration::from_secs(5)));
        processes.kill_overdue(deadline);
        assert_eq!(processes.due(now), None, "it is killed once");
        assert!(processes.contains(PAM) && processes.remove(PAM) && processes.none_runs());
    }
}

//! The PAM processes of a fork server: one beside each child, which closes the child's PAM session when the child has ended.
//!
//! ```text
//! at work ──child has ended, and all that it left──> closing ──time is over──> killed
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

/// Process beside a child.
#[derive(Debug)]
pub(super) struct PamProcess {
    pub(super) pidfd: OwnedFd,
    /// End of its socket. The session is to be closed when nobody has one any more.
    pub(super) session: Option<OwnedFd>,
    /// Child whose PAM session it is.
    pub(super) child: Pid,
    /// Time at which it is killed.
    pub(super) killed_at: Option<Instant>,
}

impl PamProcesses {
    pub(super) fn add(&mut self, pid: Pid, process: PamProcess) {
        self.0.insert(pid, process);
    }

    /// The child has ended: its session is to be closed by `deadline`.
    pub(super) fn close(&mut self, child: Pid, deadline: Instant) {
        for process in self.0.values_mut().filter(|process| process.child == child && process.session.is_some()) {
            (process.session, process.killed_at) = (None, Some(deadline));
        }
    }

    /// Kills those whose time is over.
    pub(super) fn kill_overdue(&mut self, now: Instant) {
        for process in self.0.values_mut().filter(|process| process.killed_at.is_some_and(|at| at <= now)) {
            process.killed_at = None;
            // It may have ended this very moment.
            let _ = pidfd_send_signal(process.pidfd.as_fd(), Signal::SIGKILL);
        }
    }

    /// Time until the first of them is to be killed.
    pub(super) fn due(&self, now: Instant) -> Option<Duration> {
        self.0.values().filter_map(|process| process.killed_at).min().map(|at| at.saturating_duration_since(now))
    }

    /// Forgets one that has been reaped; false if it is none.
    pub(super) fn remove(&mut self, pid: Pid) -> bool {
        self.0.remove(&pid).is_some()
    }

    pub(super) fn contains(&self, pid: Pid) -> bool {
        self.0.contains_key(&pid)
    }

    pub(super) fn pids(&self) -> impl Iterator<Item = Pid> {
        self.0.keys().copied()
    }

    /// Numbers of all, and what becomes ready when they have ended.
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
        // A later child of the same number is not its own.
        processes.close(CHILD, deadline + Duration::from_secs(5));
        processes.kill_overdue(now);
        assert_eq!(processes.due(now), Some(Duration::from_secs(5)));
        processes.kill_overdue(deadline);
        assert_eq!(processes.due(now), None, "it is killed once");
        assert!(processes.contains(PAM) && processes.remove(PAM) && processes.none_runs());
    }
}

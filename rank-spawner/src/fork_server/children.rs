//! Children that a fork server has handed out: running children, and ended children that a daemon may still ask for.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::label::Label;
use super::message::Message;
use crate::cgroup::SessionCgroup;
use crate::exit::RankExit;
use crate::syscalls::pidfd_send_signal;

/// Children that the server has handed out.
#[derive(Debug, Default)]
pub(super) struct Children {
    running: BTreeMap<Pid, Running>,
    /// Ended children that no daemon has forgotten.
    ended: BTreeMap<Pid, Ended>,
}

/// Child that has not been reaped.
#[derive(Debug)]
struct Running {
    pidfd: OwnedFd,
    cgroup: Option<SessionCgroup>,
    /// Data for a later daemon; `None` for a child that ends with its daemon.
    kept: Option<LaterUse>,
}

#[derive(Debug)]
struct LaterUse {
    /// Copy of the daemon's end of the door, so that the door stays open when the daemon is gone.
    door: OwnedFd,
    label: Label,
}

#[derive(Debug)]
struct Ended {
    exit: RankExit,
    label: Label,
}

impl Children {
    /// Adds a child that was just handed out.
    pub(super) fn start(&mut self, pid: Pid, pidfd: OwnedFd, cgroup: Option<SessionCgroup>) {
        self.running.insert(pid, Running { pidfd, cgroup, kept: None });
    }

    /// Keeps a child for later daemons, if it runs.
    pub(super) fn keep(&mut self, pid: Pid, door: OwnedFd, label: Label) {
        if let Some(running) = self.running.get_mut(&pid) {
            running.kept = Some(LaterUse { door, label });
        }
    }

    /// Marks a child as not needed by later daemons. If two children have this number, the ended child is meant.
    pub(super) fn forget(&mut self, pid: Pid) {
        if self.ended.remove(&pid).is_none()
            && let Some(running) = self.running.get_mut(&pid)
        {
            running.kept = None;
        }
    }

    /// Records the end of a reaped process. Returns the message for the daemon if the process was one of the children.
    pub(super) fn end(&mut self, pid: Pid, exit: RankExit) -> Option<[i32; 3]> {
        let running = self.running.remove(&pid)?;
        if let Some(LaterUse { label, .. }) = running.kept {
            self.ended.insert(pid, Ended { exit, label });
        }
        Some(news(pid, exit, [Message::EXITED, Message::KILLED]))
    }

    /// Closes all doors and keeps no child.
    pub(super) fn give_up(&mut self) {
        self.ended.clear();
        self.running.values_mut().for_each(|running| running.kept = None);
    }

    /// Process numbers of the running children.
    pub(super) fn running(&self) -> impl Iterator<Item = Pid> {
        self.running.keys().copied()
    }

    /// Process numbers of the running children, each with a poll entry that becomes ready when the child, or the rest of
    /// its control group, has ended.
    pub(super) fn ends(&self) -> impl Iterator<Item = (Pid, PollFd<'_>)> {
        self.running.iter().map(|(&pid, running)| (pid, end_of(running.pidfd.as_fd(), running.cgroup.as_ref())))
    }

    /// Control group of a running child.
    pub(super) fn cgroup(&mut self, pid: Pid) -> Option<&mut SessionCgroup> {
        self.running.get_mut(&pid)?.cgroup.as_mut()
    }

    /// Kills a child, if it runs.
    pub(super) fn kill(&self, pid: Pid) {
        if let Some(running) = self.running.get(&pid) {
            // The child may have ended meanwhile.
            let _ = pidfd_send_signal(running.pidfd.as_fd(), Signal::SIGKILL);
        }
    }

    pub(super) fn is_running(&self, pid: Pid) -> bool {
        self.running.contains_key(&pid)
    }

    pub(super) fn none_runs(&self) -> bool {
        self.running.is_empty()
    }

    /// Returns true if a later daemon would receive a child.
    pub(super) fn any_kept(&self) -> bool {
        !self.ended.is_empty() || self.running.values().any(|running| running.kept.is_some())
    }

    /// Sends all kept children to a daemon.
    pub(super) fn hand_over(&self, daemon: BorrowedFd<'_>) -> nix::Result<()> {
        for (pid, Ended { exit, label }) in &self.ended {
            let told = news(*pid, *exit, [Message::KEPT_EXITED, Message::KEPT_KILLED]);
            Message::send(daemon, told, &[label.as_fd()])?;
        }
        for (pid, running) in &self.running {
            if let Some(LaterUse { door, label }) = &running.kept {
                let descriptors = [door.as_fd(), running.pidfd.as_fd(), label.as_fd()];
                Message::send(daemon, [Message::KEPT_RUNNING, pid.as_raw(), 0], &descriptors)?;
            }
        }
        Message::send(daemon, [Message::KEPT_ALL, 0, 0], &[])
    }
}

/// Poll entry of a child: ready when the child has ended; after that, ready when its control group may be empty.
pub(super) fn end_of<'fd>(pidfd: BorrowedFd<'fd>, cgroup: Option<&'fd SessionCgroup>) -> PollFd<'fd> {
    match cgroup.filter(|cgroup| cgroup.is_ending()) {
        Some(cgroup) => PollFd::new(cgroup.as_fd(), PollFlags::POLLPRI),
        None => PollFd::new(pidfd, PollFlags::POLLIN),
    }
}

/// Message for an exit. The pair has the message kinds for a status and for a signal.
fn news(pid: Pid, exit: RankExit, [exited, killed]: [i32; 2]) -> [i32; 3] {
    match exit {
        RankExit::Code(code) => [exited, pid.as_raw(), code],
        RankExit::Signal { signal, .. } => [killed, pid.as_raw(), signal],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID: Pid = Pid::from_raw(7);

    fn descriptor() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    fn kept() -> Children {
        let mut children = Children::default();
        children.start(PID, descriptor(), None);
        children.keep(PID, descriptor(), Label::new(b"x").unwrap());
        children
    }

    #[test]
    fn a_child_that_is_kept_is_known_until_it_is_forgotten() {
        let mut children = kept();
        assert_eq!(children.end(PID, RankExit::Code(3)), Some([Message::EXITED, 7, 3]));
        assert!(children.none_runs() && children.any_kept());
        children.forget(PID);
        assert!(!children.any_kept());
        assert_eq!(children.end(PID, RankExit::Code(3)), None);
    }

    #[test]
    fn a_child_that_is_not_kept_is_unknown_when_it_has_ended() {
        let mut children = kept();
        children.forget(PID);
        assert!(children.is_running(PID) && !children.any_kept());
        children.end(PID, RankExit::Code(0));
        assert!(!children.any_kept());
        let mut children = kept();
        children.give_up();
        assert!(children.is_running(PID) && !children.any_kept());
        // Keeping a child that was not handed out has no effect.
        children.keep(Pid::from_raw(8), descriptor(), Label::new(b"y").unwrap());
        assert!(!children.any_kept());
    }

    #[test]
    fn of_two_children_with_one_number_the_first_is_forgotten_first() {
        let mut children = kept();
        children.end(PID, RankExit::Code(0));
        children.start(PID, descriptor(), None);
        children.keep(PID, descriptor(), Label::new(b"y").unwrap());
        children.forget(PID);
        assert!(children.is_running(PID) && children.any_kept());
        children.forget(PID);
        assert!(!children.any_kept());
    }
}

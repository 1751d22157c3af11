//! The fork server's own process: one thread that forks children ahead of time, hands them out, reaps them, and kills the processes
//! that they leave behind.
//!
//! ```text
//!               daemon gone, children are kept             lease over
//! with a daemon ──────────────────────────────> alone ──────────────────> ending: doors are closed, children waited for
//!      │        <──────────────────────────────   │                          ^
//!      │         a later daemon takes it up       │ no child is kept         │
//!      └── daemon gone, no child is kept ─────────┴──────────────────────────┘
//! ```
//! With a daemon that it was not forked by, the server makes no children, and ends when that daemon has forgotten all there are.

#![expect(unsafe_code, reason = "the call of `fork`, and of what follows it in the child")]

mod child;
mod leftovers;
mod orders;
mod pam;

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::unistd::{ForkResult, Pid, fork, setsid};

use self::child::run;
use super::children::{Children, end_of};
use super::gate::Gate;
use super::message::{Message, Request, VERSION};
use super::pam_processes::PamProcesses;
use super::rendezvous::{accept, is_readable};
use super::{ChildMain, PamRole, Roles};
use crate::account::Account;
use crate::capabilities::{Capabilities, confine};
use crate::cgroup::{ServerCgroup, SessionCgroup};
use crate::cpus::usable_cpus;
use crate::descriptor_socket::DescriptorSocket;
use crate::detach::{Stderr, close_all_but, ignore_signals};
use crate::exit::RankExit;
use crate::last_resort::{FORK_SERVER, owner};
use crate::limits::{Limit, raise_descriptor_limit};
use crate::syscalls::{Child, end_child, keep_ended_children, no_child_left, pidfd_open, try_reap};

/// Process name of a fork server.
const NAME: &CStr = FORK_SERVER;

/// Idle time before processes that were left behind are searched for.
const IDLE: Duration = Duration::from_millis(10);

/// Idle time before a new spare child is made: while no child runs, and while some do.
const SPARE: Duration = Duration::from_millis(50);
const SPARE_WHILE_RUNNING: Duration = Duration::from_millis(500);

/// Greatest idle time between attempts that fail: a machine without memory or processes is not to be asked a hundred times a second.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// Time limit of one clean-up, during which no request is served; what is left is searched for again later.
const CLEAN_UP_LIMIT: Duration = Duration::from_secs(1);

/// Time limit for children to end after the daemon has, and for the clean-up after them.
const FINAL_LIMIT: Duration = Duration::from_secs(60);

/// Time for a daemon that takes the server up to say so.
const GREETING_WITHIN: Duration = Duration::from_secs(2);

/// Exit status of a child: its function returned and nothing is left below it, it failed, or it leaves processes behind.
const ENDED_CLEAN: i32 = 0;
const ENDED_FAILED: i32 = 1;
const ENDED_WITH_LEFTOVERS: i32 = 2;

/// Child that waits at its door to be handed out.
struct Spare {
    pid: Pid,
    pidfd: OwnedFd,
    /// The daemon's end of its door.
    door: DescriptorSocket,
    cgroup: Option<SessionCgroup>,
}

/// Daemon of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Daemon {
    /// The one that forked it, and gets children from it.
    First,
    /// One that has taken it up.
    Later,
    Gone,
}

/// What follows when the server has carried out a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    GoOn,
    /// The daemon is gone.
    Alone,
    End,
}

/// The server's state.
struct Server {
    control: OwnedFd,
    daemon: Daemon,
    main: ChildMain,
    /// What PAM processes run; `None` where there are none.
    pam: Option<PamRole>,
    gate: Box<dyn Gate>,
    spare: Option<Spare>,
    children: Children,
    pam_processes: PamProcesses,
    /// Control group of the server, in which each child has one; `None` where there can be none.
    cgroup: Option<ServerCgroup>,
    /// Socket at which later daemons are waited for.
    survival: Option<UnixListener>,
    /// Time that children are kept without a daemon.
    lease: Duration,
    /// A child ended since the last clean-up, and may have left processes behind.
    needs_clean_up: bool,
    /// Idle time, at least, before a clean-up or fork that failed is tried again; doubles each time.
    backoff: Duration,
    /// Limit of open files that was in force before the server raised its own; children have it.
    open_files: Option<Limit>,
}

/// Main function of the server. It outlives its daemon by `lease` if children are kept.
///
/// Control groups are made in the directory `cgroups`.
pub(super) fn serve(
    control: OwnedFd,
    (roles, gate): (Roles, Box<dyn Gate>),
    lease: Duration,
    cgroups: Option<&Path>,
) -> io::Result<()> {
    setsid()?;
    ignore_signals()?;
    // To ignore SIGCHLD would mean never to hear how a child ended.
    keep_ended_children()?;
    // SAFETY: no code of the daemon, which owns the other descriptors, runs in this process again.
    let control = unsafe { close_all_but(control, Stderr::Inherit) }?;
    prctl::set_name(NAME)?;
    prctl::set_child_subreaper(true)?;
    // Once here instead of once in each child.
    Account::load_databases();
    usable_cpus();
    let cgroup = cgroups.map(ServerCgroup::new).transpose()?;
    confine(Capabilities::OF_FORK_SERVER, roles.raisable)?;
    let mut server = Server::new(control, (roles, gate), lease, cgroup);
    // A session costs several. Where that is refused there is room for fewer.
    server.open_files = raise_descriptor_limit().ok();
    server.make_spare()?;
    while server.with_daemon()? == Then::Alone && server.find_daemon()? {}
    server.end()
}

impl Server {
    fn new(
        control: OwnedFd,
        (Roles { main, pam, raisable: _ }, gate): (Roles, Box<dyn Gate>),
        lease: Duration,
        cgroup: Option<ServerCgroup>,
    ) -> Self {
        Self {
            control,
            daemon: Daemon::First,
            main,
            pam,
            gate,
            spare: None,
            children: Children::default(),
            pam_processes: PamProcesses::default(),
            cgroup,
            survival: None,
            lease,
            needs_clean_up: false,
            backoff: Duration::ZERO,
            open_files: None,
        }
    }

    /// Serves the daemon until it is gone, or wants the server to end.
    fn with_daemon(&mut self) -> io::Result<Then> {
        loop {
            let then = self.step()?;
            if then != Then::GoOn {
                return Ok(then);
            }
            let is_done = self.none_runs() && !self.children.any_kept() && !self.needs_clean_up;
            if self.daemon == Daemon::Later && is_done {
                return Ok(Then::End);
            }
        }
    }

    /// Waits for one event and handles it. Requests come before the ends of children: one that is to be kept is, also if it has ended
    /// meanwhile. But no child that has ended is handed out.
    fn step(&mut self) -> io::Result<Then> {
        let (asked, ended) = self.wait(Some(self.control.as_fd()), self.next_look())?;
        self.pam_processes.kill_overdue(Instant::now());
        if asked {
            let Ok(Some(message)) = Message::receive(self.control.as_fd()) else { return Ok(Then::Alone) };
            match message.into_request() {
                Ok(Request::Start(order)) => {
                    self.reap_all(&ended)?;
                    return Ok(self.hand_out(order));
                }
                Ok(Request::Kill(pid)) => self.children.kill(pid),
                Ok(Request::Tell(word)) => return Ok(self.answer(word)),
                Ok(Request::Keep { pid, door, label }) => self.children.keep(pid, door, label),
                Ok(Request::Forget(pid)) => self.children.forget(pid),
                Ok(Request::End) => return Ok(Then::End),
                // Said once, by who forked this process.
                Ok(Request::Listen(listener)) => drop(self.survival.get_or_insert(listener)),
                // It has been; or it was said without the descriptors that belong to it, as this process has none left.
                Ok(Request::TakeUp { .. }) | Err(_) => {}
            }
        } else if ended.is_empty() {
            self.be_idle();
        } else {
            self.reap_all(&ended)?;
        }
        Ok(Then::GoOn)
    }

    fn be_idle(&mut self) {
        let is_done = self.use_idle_time();
        self.backoff = if is_done { Duration::ZERO } else { (self.backoff * 2).clamp(IDLE, IDLE_MAX) };
    }

    /// Idle time after which deferred work is due; `None` when there is none.
    fn idle_time(&self) -> Option<Duration> {
        let idle = match self.spare {
            _ if self.needs_clean_up => IDLE,
            _ if self.daemon != Daemon::First => return None,
            None if self.children.none_runs() => SPARE,
            None => SPARE_WHILE_RUNNING,
            Some(_) => return None,
        };
        Some(idle.max(self.backoff))
    }

    /// Does the deferred work; false if the system refuses, so that it is still due.
    fn use_idle_time(&mut self) -> bool {
        if self.needs_clean_up {
            self.needs_clean_up |= self.clean_up(CLEAN_UP_LIMIT).is_err();
            return !self.needs_clean_up;
        }
        // Without one the next who asks waits for it, and hears why there is none.
        self.daemon != Daemon::First || self.spare.is_some() || self.make_spare().is_ok()
    }

    /// Waits until `source` is readable, or children have ended, for `timeout` at most; returns which.
    fn wait(&self, source: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> nix::Result<(bool, Vec<Pid>)> {
        let spare = self.spare.iter().map(|spare| (spare.pid, end_of(spare.pidfd.as_fd(), spare.cgroup.as_ref())));
        let (children, mut polled): (Vec<_>, Vec<_>) =
            self.children.ends().chain(spare).chain(self.pam_processes.ends()).unzip();
        polled.extend(source.map(|source| PollFd::new(source, PollFlags::POLLIN)));
        let timeout = timeout.map_or(PollTimeout::NONE, |time| PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX));
        match poll(&mut polled, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        let happened = |fd: &PollFd<'_>| fd.any() == Some(true);
        let ended = children.iter().zip(&polled).filter(|(_, fd)| happened(fd)).map(|(&child, _)| child).collect();
        Ok((source.is_some() && polled.last().is_some_and(happened), ended))
    }

    fn make_spare(&mut self) -> io::Result<()> {
        let (ours, theirs) = DescriptorSocket::pair()?;
        let cgroup = self.cgroup.as_mut().map(ServerCgroup::session).transpose()?;
        let directory = cgroup.as_ref().map(SessionCgroup::directory);
        let (main, open_files) = (&self.main, self.open_files);
        // SAFETY: this process has one thread and never had another.
        let forked = unsafe { cgroup.as_ref().map_or_else(|| Ok(fork()?), |cgroup| cgroup.fork()) };
        match forked? {
            ForkResult::Child => {
                let ran = catch_unwind(AssertUnwindSafe(|| run(theirs, directory, open_files, main)));
                let code = match ran {
                    // It has become a subreaper, so what it started and has not ended is still below it.
                    Ok(Ok(())) if no_child_left() => ENDED_CLEAN,
                    Ok(Ok(())) => ENDED_WITH_LEFTOVERS,
                    Ok(Err(_)) | Err(_) => ENDED_FAILED,
                };
                // SAFETY: leaves without running the exit handlers of the daemon that this is a copy of a copy of.
                unsafe { libc::_exit(code) }
            }
            ForkResult::Parent { child } => {
                // Its end could not be seen.
                let pidfd = pidfd_open(child).inspect_err(|_| end_child(child))?;
                self.spare = Some(Spare { pid: child, pidfd, door: ours, cgroup });
                Ok(())
            }
        }
    }

    fn reap_all(&mut self, ended: &[Pid]) -> io::Result<()> {
        ended.iter().try_for_each(|&pid| self.reap(pid))
    }

    /// Reaps a child that has ended, and reports it to the daemon if it was handed out; but before, all of its control group is killed,
    /// and as long as anything is left there nothing is reported, and the number of the child is nobody else's.
    fn reap(&mut self, pid: Pid) -> io::Result<()> {
        if self.pam_processes.contains(pid) {
            return self.reap_pam_process(pid);
        }
        let of_spare = self.spare.as_mut().filter(|spare| spare.pid == pid).and_then(|spare| spare.cgroup.as_mut());
        if self.children.cgroup(pid).or(of_spare).is_some_and(|cgroup| !cgroup.end()) {
            return Ok(());
        }
        // A control group leaves nothing to outrun. Once the child is reaped nobody can tell whose it was.
        let user = if self.cgroup.is_none() { owner(pid) } else { None };
        let Some(exit) = try_reap(Child::Number(pid))? else { return Ok(()) };
        let is_clean = exit == RankExit::Code(ENDED_CLEAN);
        self.needs_clean_up |= !is_clean;
        if let Some(user) = user.filter(|_| !is_clean) {
            // What fails for want of descriptors or memory is tried again; sessions of others do not end for it.
            self.needs_clean_up |= self.outrun(pid, user).is_err();
        }
        self.close_pam_session(pid);
        match self.children.end(pid, exit) {
            // A daemon that is gone is seen at the next turn.
            Some(news) if self.daemon != Daemon::Gone => drop(Message::send(self.control.as_fd(), news, &[])),
            Some(_) => {}
            None => self.spare = None,
        }
        Ok(())
    }

    /// Returns true for a child that runs, or waits to be handed out, and for a PAM process.
    fn is_ours(&self, pid: Pid) -> bool {
        let runs = self.children.is_running(pid) || self.pam_processes.contains(pid);
        runs || self.spare.as_ref().is_some_and(|spare| spare.pid == pid)
    }

    /// The daemon is gone: waits for another one to take the server up, as long as children are kept and the lease lasts; false if
    /// none has come.
    fn find_daemon(&mut self) -> io::Result<bool> {
        self.daemon = Daemon::Gone;
        self.retire_spare();
        let lease_ends = Instant::now() + self.lease;
        while self.children.any_kept() {
            let Some(listener) = &self.survival else { return Ok(false) };
            let left = lease_ends.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let timeout = self.next_look().map_or(left, |look| look.min(left));
            let (called, ended) = self.wait(Some(listener.as_fd()), Some(timeout))?;
            self.pam_processes.kill_overdue(Instant::now());
            self.reap_all(&ended)?;
            if called {
                let connection = self.survival.as_ref().and_then(accept);
                // One that breaks off is as good as none.
                if let Some(control) = connection.filter(|connection| self.is_taken_up(connection.as_fd())) {
                    (self.control, self.daemon) = (control, Daemon::Later);
                    return Ok(true);
                }
            } else if ended.is_empty() && self.needs_clean_up {
                self.be_idle();
            }
        }
        Ok(false)
    }

    /// Hands everything over to a daemon that has connected; false if it says nothing, or is gone before it has all.
    fn is_taken_up(&self, daemon: BorrowedFd<'_>) -> bool {
        let greeted = is_readable(daemon, PollTimeout::try_from(GREETING_WITHIN).unwrap_or(PollTimeout::MAX));
        let Some(Ok(Some(message))) = greeted.then(|| Message::receive(daemon)) else { return false };
        let Ok(Request::TakeUp { version }) = message.into_request() else { return false };
        // One that is too old learns from this that it is, and leaves.
        let welcomed = Message::send(daemon, [Message::WELCOME, VERSION, 0], &[]);
        version >= VERSION && welcomed.and_then(|()| self.children.hand_over(daemon)).is_ok()
    }

    /// The spare child sees that its door is closed, and ends.
    fn retire_spare(&mut self) {
        if let Some(Spare { pid, pidfd, cgroup, .. }) = self.spare.take() {
            self.children.start(pid, pidfd, cgroup);
        }
    }

    /// No daemon needs the children any more: closes their doors, waits for them, then kills what is left.
    fn end(mut self) -> io::Result<()> {
        // Nobody is listened to any more.
        self.survival = None;
        self.retire_spare();
        self.children.give_up();
        let deadline =
            Instant::now() + FINAL_LIMIT + self.pam.as_ref().map_or(Duration::ZERO, |role| role.closes_within);
        while !self.none_runs() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let within = self.pam_processes.due(Instant::now()).map_or(left, |due| due.min(left));
            let (_, ended) = self.wait(None, Some(within))?;
            self.pam_processes.kill_overdue(Instant::now());
            self.reap_all(&ended)?;
        }
        if self.needs_clean_up || !self.none_runs() {
            self.children = Children::default();
            self.pam_processes = PamProcesses::default();
            self.clean_up(FINAL_LIMIT)?;
        }
        if let Some(cgroup) = self.cgroup {
            cgroup.remove();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nix::unistd::getpid;

    use super::super::control_pair;
    use super::super::gate::Closed;
    use super::*;

    #[test]
    fn a_new_spare_child_is_not_made_while_the_one_before_begins_to_work() {
        let (control, _daemon) = control_pair().unwrap();
        let mut server = Server::new(
            control,
            (Roles::from(Box::new(|_, _| {}) as ChildMain), Box::new(Closed)),
            Duration::ZERO,
            None,
        );
        assert_eq!(server.idle_time(), Some(SPARE));
        server.children.start(getpid(), pidfd_open(getpid()).unwrap(), None);
        assert_eq!(server.idle_time(), Some(SPARE_WHILE_RUNNING));
        server.needs_clean_up = true;
        assert_eq!(server.idle_time(), Some(IDLE), "what was left behind has to go soon");
    }
}

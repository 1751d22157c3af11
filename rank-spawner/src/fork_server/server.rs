//! Process of the fork server: one thread that forks children in advance, hands them out, reaps them, and kills their leftover
//! processes.
//!
//! ```text
//!               daemon gone, children are kept             lease over
//! with a daemon ──────────────────────────────> alone ──────────────────> ending: doors are closed, children waited for
//!      │        <──────────────────────────────   │                          ^
//!      │         a later daemon takes it up       │ no child is kept         │
//!      └── daemon gone, no child is kept ─────────┴──────────────────────────┘
//! ```
//! With a daemon that did not fork it, the server makes no children. It ends when that daemon has forgotten all kept children.

#![expect(unsafe_code, reason = "the call of `fork`, and of what follows it in the child")]

mod child;
mod leftovers;
mod orders;
mod pam;

use std::collections::BTreeSet;
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

/// Idle time before the search for leftover processes.
const IDLE: Duration = Duration::from_millis(10);

/// Idle time before a new spare child is made: while no child runs, and while children run.
const SPARE: Duration = Duration::from_millis(50);
const SPARE_WHILE_RUNNING: Duration = Duration::from_millis(500);

/// Longest pause between attempts that fail: an overloaded machine must not get a hundred attempts a second.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// Time limit of one clean-up, during which the server handles no request. A later clean-up searches again.
const CLEAN_UP_LIMIT: Duration = Duration::from_secs(1);

/// Time limit for children to end after the daemon, and for the clean-up after them.
const FINAL_LIMIT: Duration = Duration::from_secs(60);

/// Time limit for the first message of a daemon that adopts the server.
const GREETING_WITHIN: Duration = Duration::from_secs(2);

/// Exit status of a child: its function returned and no process is left below it; it failed; or it leaves processes.
const ENDED_CLEAN: i32 = 0;
const ENDED_FAILED: i32 = 1;
const ENDED_WITH_LEFTOVERS: i32 = 2;

/// Child that waits at its door for an order.
struct Spare {
    pid: Pid,
    pidfd: OwnedFd,
    /// Daemon's end of its door.
    door: DescriptorSocket,
    cgroup: Option<SessionCgroup>,
}

/// Daemon of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Daemon {
    /// The daemon that forked the server, and that receives children.
    First,
    /// A daemon that adopted the server.
    Later,
    Gone,
}

/// Next step of the server after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    GoOn,
    /// The daemon is gone.
    Alone,
    End,
}

/// State of the server.
struct Server {
    control: OwnedFd,
    daemon: Daemon,
    main: ChildMain,
    /// Main function of PAM processes; `None` for none.
    pam: Option<PamRole>,
    gate: Box<dyn Gate>,
    spare: Option<Spare>,
    children: Children,
    pam_processes: PamProcesses,
    /// Control group of the server, which contains the groups of its children; `None` if the system allows no groups.
    cgroup: Option<ServerCgroup>,
    /// Socket on which the server listens for later daemons.
    survival: Option<UnixListener>,
    /// Time for which children are kept without a daemon.
    lease: Duration,
    /// A child ended after the last clean-up, and may have left processes.
    needs_clean_up: bool,
    /// Users with children that ended without a control group, and that may have left processes in no table.
    outrun_by: BTreeSet<u32>,
    /// Minimum idle time before a failed clean-up or fork is retried; doubles each time.
    backoff: Duration,
    /// Limit on open files before the server raised its own; children get it.
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
    // With SIGCHLD ignored, the kernel would discard the exit status of children.
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
    // Each session uses several descriptors. If the limit cannot be raised, fewer sessions fit.
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
            outrun_by: BTreeSet::new(),
            backoff: Duration::ZERO,
            open_files: None,
        }
    }

    /// Serves the daemon until it is gone or ends the server.
    fn with_daemon(&mut self) -> io::Result<Then> {
        loop {
            let then = self.step()?;
            if then != Then::GoOn {
                return Ok(then);
            }
            let is_done = self.none_runs() && !self.children.any_kept() && !self.is_clean_up_due();
            if self.daemon == Daemon::Later && is_done {
                return Ok(Then::End);
            }
        }
    }

    /// Waits for one event and handles it. Requests are handled before ends of children: a child that ended meanwhile can still be
    /// kept. A child that has ended is not handed out.
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
                // Sent once, by the process that forked the server.
                Ok(Request::Listen(listener)) => drop(self.survival.get_or_insert(listener)),
                // The server is already adopted, or the message lost its descriptors because this process has no free one.
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
        self.backoff = if is_done { Duration::ZERO } else { (self.backoff * 2).clamp(IDLE, self.longest_pause()) };
    }

    /// Idle time after which deferred work is due; `None` if there is none.
    fn idle_time(&self) -> Option<Duration> {
        let idle = match self.spare {
            _ if self.is_clean_up_due() => IDLE,
            _ if self.daemon != Daemon::First => return None,
            None if self.children.none_runs() => SPARE,
            None => SPARE_WHILE_RUNNING,
            Some(_) => return None,
        };
        Some(idle.max(self.backoff))
    }

    /// Does the deferred work; false if a system call fails and the work is still due.
    fn use_idle_time(&mut self) -> bool {
        if self.is_clean_up_due() {
            self.needs_clean_up |= self.clean_up(self.clean_up_limit()).is_err();
            return !self.is_clean_up_due();
        }
        // Without a spare child, the next request waits for a fork, and its answer reports a failure.
        self.daemon != Daemon::First || self.spare.is_some() || self.make_spare().is_ok()
    }

    /// Waits until `source` is readable or children have ended, for `timeout` at most. Returns true if `source` is readable, and the
    /// children that ended.
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
                    // The child is a subreaper, so all running processes that it started are still its descendants.
                    Ok(Ok(())) if no_child_left() => ENDED_CLEAN,
                    Ok(Ok(())) => ENDED_WITH_LEFTOVERS,
                    Ok(Err(_)) | Err(_) => ENDED_FAILED,
                };
                // SAFETY: exits without running the exit handlers of the daemon, of which this process is an indirect copy.
                unsafe { libc::_exit(code) }
            }
            ForkResult::Parent { child } => {
                // Without a pidfd the server could not detect the child's end.
                let pidfd = pidfd_open(child).inspect_err(|_| end_child(child))?;
                self.spare = Some(Spare { pid: child, pidfd, door: ours, cgroup });
                Ok(())
            }
        }
    }

    fn reap_all(&mut self, ended: &[Pid]) -> io::Result<()> {
        ended.iter().try_for_each(|&pid| self.reap(pid))
    }

    /// Reaps a child that has ended, and reports it to the daemon if it was handed out. Before that, kills all processes of its control
    /// group. Until the group is empty, the end is not reported, and the child keeps its process number.
    fn reap(&mut self, pid: Pid) -> io::Result<()> {
        if self.pam_processes.contains(pid) {
            return self.reap_pam_process(pid);
        }
        let of_spare = self.spare.as_mut().filter(|spare| spare.pid == pid).and_then(|spare| spare.cgroup.as_mut());
        if self.children.cgroup(pid).or(of_spare).is_some_and(|cgroup| !cgroup.end()) {
            return Ok(());
        }
        // With a control group no process can escape. The owner of the child is unknown after the reap.
        let user = if self.cgroup.is_none() { owner(pid) } else { None };
        let Some(exit) = try_reap(Child::Number(pid))? else { return Ok(()) };
        let is_clean = exit == RankExit::Code(ENDED_CLEAN);
        let news = self.children.end(pid, exit);
        if news.is_none() {
            self.spare = None;
        }
        self.needs_clean_up |= !is_clean;
        self.outrun_by.extend(user.filter(|_| !is_clean));
        if !self.outrun_by.is_empty() {
            // A failure for lack of descriptors or memory is retried, and must not end the sessions of other users.
            self.needs_clean_up |= self.clean_up(CLEAN_UP_LIMIT).is_err();
        }
        self.close_pam_session(pid);
        if let Some(news) = news.filter(|_| self.daemon != Daemon::Gone) {
            // The next step detects a daemon that is gone.
            let _ = Message::send(self.control.as_fd(), news, &[]);
        }
        Ok(())
    }

    /// Returns true for a running child, the spare child, and a PAM process.
    fn is_ours(&self, pid: Pid) -> bool {
        let runs = self.children.is_running(pid) || self.pam_processes.contains(pid);
        runs || self.spare.as_ref().is_some_and(|spare| spare.pid == pid)
    }

    /// Handles the end of the daemon: waits until another daemon adopts the server, while children are kept and the lease lasts.
    /// Returns false if none has adopted it.
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
                // A connection that breaks during adoption is ignored.
                if let Some(control) = connection.filter(|connection| self.is_taken_up(connection.as_fd())) {
                    (self.control, self.daemon) = (control, Daemon::Later);
                    return Ok(true);
                }
            } else if ended.is_empty() && self.is_clean_up_due() {
                self.be_idle();
            }
        }
        Ok(false)
    }

    /// Sends all kept children to a daemon that has connected. Returns false if the daemon sends no request, or disconnects before the
    /// end.
    fn is_taken_up(&self, daemon: BorrowedFd<'_>) -> bool {
        let greeted = is_readable(daemon, PollTimeout::try_from(GREETING_WITHIN).unwrap_or(PollTimeout::MAX));
        let Some(Ok(Some(message))) = greeted.then(|| Message::receive(daemon)) else { return false };
        let Ok(Request::TakeUp { version }) = message.into_request() else { return false };
        // A daemon of an older version detects the newer version here, and disconnects.
        let welcomed = Message::send(daemon, [Message::WELCOME, VERSION, 0], &[]);
        version >= VERSION && welcomed.and_then(|()| self.children.hand_over(daemon)).is_ok()
    }

    /// Closes the door of the spare child, which ends it.
    fn retire_spare(&mut self) {
        if let Some(Spare { pid, pidfd, cgroup, .. }) = self.spare.take() {
            self.children.start(pid, pidfd, cgroup);
        }
    }

    /// Ends the server when no daemon needs its children: closes their doors, waits for them, and kills their leftovers.
    fn end(mut self) -> io::Result<()> {
        // No further daemon can connect.
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
        if self.is_clean_up_due() || !self.none_runs() {
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

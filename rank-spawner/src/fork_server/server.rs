//! The fork server's own process: one thread that forks children ahead of time, hands them out, reaps them, and kills the processes
//! that they leave behind.

#![expect(unsafe_code, reason = "the call of `fork`, and of what follows it in the child")]

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{ForkResult, Pid, fork, getpid, setsid};

use super::ChildMain;
use super::message::Message;
use crate::account::Account;
use crate::cpus::usable_cpus;
use crate::descriptor_socket::DescriptorSocket;
use crate::detach::{Stderr, close_all_but, default_signals, ignore_signals};
use crate::exit::RankExit;
use crate::kill::kill_until_gone;
use crate::process_table::ProcessTable;
use crate::syscalls::{Child, keep_ended_children, no_child_left, pidfd_open, reap, try_reap};

/// Process name of a fork server.
const NAME: &CStr = c"lattice-forks";

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
}

/// Treatment of the daemon's requests while the server waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Requests {
    Heard,
    Ignored,
}

/// The server's state.
struct Server {
    control: OwnedFd,
    main: ChildMain,
    spare: Option<Spare>,
    /// Children that were handed out and have not been reaped, with their pidfds.
    running: BTreeMap<Pid, OwnedFd>,
    /// A child ended since the last clean-up, and may have left processes behind.
    needs_clean_up: bool,
    /// Idle time, at least, before a clean-up or fork that failed is tried again; doubles each time.
    backoff: Duration,
}

/// Main function of the server.
pub(super) fn serve(control: OwnedFd, main: ChildMain) -> io::Result<()> {
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
    let (spare, running, backoff) = (None, BTreeMap::new(), Duration::ZERO);
    let mut server = Server { control, main, spare, running, needs_clean_up: false, backoff };
    server.make_spare()?;
    while server.step()? {}
    server.end()
}

impl Server {
    /// Waits for one event and handles it; false when the daemon is gone.
    fn step(&mut self) -> io::Result<bool> {
        let timeout =
            self.idle_time().map_or(PollTimeout::NONE, |idle| PollTimeout::try_from(idle).unwrap_or(PollTimeout::MAX));
        let (asked, ended) = self.wait(Requests::Heard, timeout)?;
        for &pid in &ended {
            self.reap(pid)?;
        }
        if asked {
            return self.handle_request();
        }
        if ended.is_empty() {
            let is_done = self.use_idle_time();
            self.backoff = if is_done { Duration::ZERO } else { (self.backoff * 2).clamp(IDLE, IDLE_MAX) };
        }
        Ok(true)
    }

    /// Idle time after which deferred work is due; `None` when there is none.
    fn idle_time(&self) -> Option<Duration> {
        let idle = match self.spare {
            _ if self.needs_clean_up => IDLE,
            None if self.running.is_empty() => SPARE,
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
        self.spare.is_some() || self.make_spare().is_ok()
    }

    /// Waits for a request, unless those are ignored, or for the end of children; returns which.
    fn wait(&self, requests: Requests, timeout: PollTimeout) -> nix::Result<(bool, Vec<Pid>)> {
        let spare = self.spare.iter().map(|spare| (spare.pid, &spare.pidfd));
        let children: Vec<_> = self.running.iter().map(|(&pid, pidfd)| (pid, pidfd)).chain(spare).collect();
        let mut polled: Vec<_> = children.iter().map(|(_, fd)| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
        if requests == Requests::Heard {
            polled.push(PollFd::new(self.control.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut polled, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        let happened = |fd: &PollFd<'_>| fd.any() == Some(true);
        let ended = children.iter().zip(&polled).filter(|(_, fd)| happened(fd)).map(|(child, _)| child.0).collect();
        Ok((requests == Requests::Heard && polled.last().is_some_and(happened), ended))
    }

    /// Hands out the spare child; false when the daemon is gone.
    fn handle_request(&mut self) -> io::Result<bool> {
        let mut request = [0];
        let received = nix::unistd::read(&self.control, &mut request);
        if received.is_err() || received == Ok(0) {
            return Ok(false);
        }
        let made = if self.spare.is_none() { self.make_spare() } else { Ok(()) };
        if let Err(error) = made {
            let refusal = [Message::NOT_STARTED, error.raw_os_error().unwrap_or(libc::EAGAIN), 0];
            return Ok(Message::send(self.control.as_fd(), refusal, &[]).is_ok());
        }
        let Some(Spare { pid, pidfd, door }) = self.spare.take() else { return Ok(true) };
        let started = [Message::STARTED, pid.as_raw(), 0];
        let sent = Message::send(self.control.as_fd(), started, &[door.as_fd(), pidfd.as_fd()]);
        self.running.insert(pid, pidfd);
        Ok(sent.is_ok())
    }

    fn make_spare(&mut self) -> io::Result<()> {
        let (ours, theirs) = DescriptorSocket::pair()?;
        let main = self.main;
        // SAFETY: this process has one thread and never had another.
        match unsafe { fork() }.map_err(io::Error::from)? {
            ForkResult::Child => {
                let ran = catch_unwind(AssertUnwindSafe(|| run(theirs, main)));
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
                let pidfd = pidfd_open(child).inspect_err(|_| {
                    // Its end could not be seen. The number is its own until it is reaped, and it does not outlive the signal.
                    let _ = kill(child, Signal::SIGKILL);
                    let _ = reap(Child::Number(child));
                })?;
                self.spare = Some(Spare { pid: child, pidfd, door: ours });
                Ok(())
            }
        }
    }

    /// Reaps a child that has ended, and reports it to the daemon if it was handed out.
    fn reap(&mut self, pid: Pid) -> io::Result<()> {
        let Some(exit) = try_reap(Child::Number(pid))? else { return Ok(()) };
        self.needs_clean_up |= exit != RankExit::Code(ENDED_CLEAN);
        if self.running.remove(&pid).is_none() {
            self.spare = None;
            return Ok(());
        }
        let numbers = match exit {
            RankExit::Code(code) => [Message::EXITED, pid.as_raw(), code],
            RankExit::Signal { signal, .. } => [Message::KILLED, pid.as_raw(), signal],
        };
        // A daemon that is gone is seen at the next turn.
        let _ = Message::send(self.control.as_fd(), numbers, &[]);
        Ok(())
    }

    /// Kills and reaps what ended children left behind.
    fn clean_up(&mut self, time_limit: Duration) -> io::Result<()> {
        self.needs_clean_up = !kill_until_gone(time_limit, |table| self.left_behind(table))?.survivors.is_empty();
        let table = ProcessTable::read()?;
        let ours =
            |pid: Pid| self.running.contains_key(&pid) || self.spare.as_ref().is_some_and(|spare| spare.pid == pid);
        for orphan in table.iter().filter(|process| process.zombie && process.parent == getpid() && !ours(process.pid))
        {
            // A zombie's number is not given to another before it is reaped, and nobody but us reaps it.
            let _ = try_reap(Child::Number(orphan.pid));
        }
        Ok(())
    }

    /// Processes below this one and below none of its children.
    fn left_behind(&self, table: &ProcessTable) -> Vec<Pid> {
        let mut below = table.trees([getpid()]);
        below.remove(&getpid());
        let children = self.running.keys().copied().chain(self.spare.as_ref().map(|spare| spare.pid));
        let spared = table.trees(children);
        below.difference(&spared).copied().collect()
    }

    /// The daemon is gone, and every child's door is closed: waits for the children, then kills what is left.
    fn end(mut self) -> io::Result<()> {
        // Its child sees that its door is closed, as the others do.
        if let Some(Spare { pid, pidfd, .. }) = self.spare.take() {
            self.running.insert(pid, pidfd);
        }
        let deadline = Instant::now() + FINAL_LIMIT;
        while !self.running.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let (_, ended) = self.wait(Requests::Ignored, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX))?;
            for pid in ended {
                self.reap(pid)?;
            }
        }
        if self.needs_clean_up || !self.running.is_empty() {
            self.running.clear();
            self.clean_up(FINAL_LIMIT)?;
        }
        Ok(())
    }
}

/// Main function of a child.
fn run(door: DescriptorSocket, main: ChildMain) -> io::Result<()> {
    // SAFETY: no code of the server, which owns the other descriptors, runs in this process again.
    let door = unsafe { close_all_but(door.into(), Stderr::Inherit) }?;
    setsid()?;
    default_signals()?;
    prctl::set_child_subreaper(true)?;
    main(door.into());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::control_pair;
    use super::*;

    #[test]
    fn a_new_spare_child_is_not_made_while_the_one_before_begins_to_work() {
        let (control, _daemon) = control_pair().unwrap();
        let mut server = Server {
            control,
            main: drop,
            spare: None,
            running: BTreeMap::new(),
            needs_clean_up: false,
            backoff: Duration::ZERO,
        };
        assert_eq!(server.idle_time(), Some(SPARE));
        server.running.insert(getpid(), pidfd_open(getpid()).unwrap());
        assert_eq!(server.idle_time(), Some(SPARE_WHILE_RUNNING));
        server.needs_clean_up = true;
        assert_eq!(server.idle_time(), Some(IDLE), "what was left behind has to go soon");
    }
}

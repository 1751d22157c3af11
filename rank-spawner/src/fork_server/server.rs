//! The fork server's own side: one thread that makes children ahead of time, hands them out, reaps them, and kills what they leave
//! behind.

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
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::{ForkResult, Pid, fork, getpid, setsid};

use super::Main;
use super::message::Message;
use crate::account::Account;
use crate::cpus::usable_cpus;
use crate::exit::RankExit;
use crate::hunt::hunt;
use crate::process_table::ProcessTable;
use crate::syscalls::{Child, keep_ended_children, no_child_left, pidfd_open, reap, try_reap};
use crate::withdrawal::{default_signals, ignore_signals, keep_only};

/// What `ps` shows of a fork server.
const NAME: &CStr = c"lattice-forks";

/// How long nothing must have happened before it is looked for what was left behind.
const IDLE: Duration = Duration::from_millis(10);

/// The same before a new spare child is made: when no child is at work, and when some are.
const QUIET: Duration = Duration::from_millis(50);
const QUIET_AT_WORK: Duration = Duration::from_millis(500);

/// The same while that fails, at most: a machine that is out of something is not helped by who asks it a hundred times a second.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// How long leftovers are hunted before the server turns to other requests; what is left is looked for again later.
const TIDY_PATIENCE: Duration = Duration::from_secs(1);

/// How long children may take to end after the daemon has, and leftovers after them.
const LAST_PATIENCE: Duration = Duration::from_secs(60);

/// How a child ends: its function returned and nothing is left below it, it failed, or it leaves processes behind.
const ENDED_CLEAN: i32 = 0;
const ENDED_FAILED: i32 = 1;
const ENDED_UNTIDY: i32 = 2;

/// A child that waits at its socket to be handed out.
struct Spare {
    pid: Pid,
    pidfd: OwnedFd,
    /// The daemon's end.
    socket: OwnedFd,
}

/// The server's state.
struct Server {
    control: OwnedFd,
    main: Main,
    spare: Option<Spare>,
    /// Children that were handed out and have not been reaped.
    at_work: BTreeMap<Pid, OwnedFd>,
    /// Somebody ended, and may have left something behind, since that was last looked for.
    untidy: bool,
    /// How long nothing must happen, at least, until what failed in idle time is tried again; longer each time.
    backoff: Duration,
}

/// The life of the server.
pub(super) fn serve(control: OwnedFd, main: Main) -> io::Result<()> {
    setsid()?;
    ignore_signals()?;
    // To ignore SIGCHLD would mean never to hear how a child ended.
    keep_ended_children()?;
    // SAFETY: whoever owned the daemon's descriptors never runs in this process again.
    let control = unsafe { keep_only(control, true) }?;
    prctl::set_name(NAME)?;
    prctl::set_child_subreaper(true)?;
    // Once here instead of once in each child.
    Account::load_databases();
    usable_cpus();
    let (spare, at_work, backoff) = (None, BTreeMap::new(), Duration::ZERO);
    let mut server = Server { control, main, spare, at_work, untidy: false, backoff };
    server.make_spare()?;
    while server.turn()? {}
    server.end()
}

impl Server {
    /// Waits for one thing to happen, and deals with it; false when the daemon is gone.
    fn turn(&mut self) -> io::Result<bool> {
        let timeout = self
            .patience()
            .map_or(PollTimeout::NONE, |patience| PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX));
        let (asked, ended) = self.wait(true, timeout)?;
        for &pid in &ended {
            self.reap(pid)?;
        }
        if asked {
            return self.answer();
        }
        if ended.is_empty() {
            let is_done = self.use_idle_time();
            self.backoff = if is_done { Duration::ZERO } else { (self.backoff * 2).clamp(IDLE, IDLE_MAX) };
        }
        Ok(true)
    }

    /// How long to wait for something to happen before doing what can wait; `None` when there is nothing to do.
    fn patience(&self) -> Option<Duration> {
        let quiet = match self.spare {
            _ if self.untidy => IDLE,
            None if self.at_work.is_empty() => QUIET,
            None => QUIET_AT_WORK,
            Some(_) => return None,
        };
        Some(quiet.max(self.backoff))
    }

    /// Does what there is no hurry with; false if the system refuses, so that it is still to be done.
    fn use_idle_time(&mut self) -> bool {
        if self.untidy {
            self.untidy |= self.tidy(TIDY_PATIENCE).is_err();
            return !self.untidy;
        }
        // Without one the next who asks waits for it, and hears why there is none.
        self.spare.is_some() || self.make_spare().is_ok()
    }

    /// Waits until the daemon says something, if that is of interest, or children ended; says which.
    fn wait(&self, control: bool, timeout: PollTimeout) -> nix::Result<(bool, Vec<Pid>)> {
        let spare = self.spare.iter().map(|spare| (spare.pid, &spare.pidfd));
        let children: Vec<_> = self.at_work.iter().map(|(&pid, pidfd)| (pid, pidfd)).chain(spare).collect();
        let mut polled: Vec<_> = children.iter().map(|(_, fd)| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
        if control {
            polled.push(PollFd::new(self.control.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut polled, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        let happened = |fd: &PollFd<'_>| fd.any() == Some(true);
        let ended = children.iter().zip(&polled).filter(|(_, fd)| happened(fd)).map(|(child, _)| child.0).collect();
        Ok((control && polled.last().is_some_and(happened), ended))
    }

    /// Hands out the spare child; false when the daemon is gone.
    fn answer(&mut self) -> io::Result<bool> {
        let mut question = [0];
        let received = nix::unistd::read(&self.control, &mut question);
        if received.is_err() || received == Ok(0) {
            return Ok(false);
        }
        let made = if self.spare.is_none() { self.make_spare() } else { Ok(()) };
        if let Err(errno) = made {
            let refusal = [Message::NOT_STARTED, errno as i32, 0];
            return Ok(Message::send(self.control.as_fd(), refusal, &[]).is_ok());
        }
        let Some(Spare { pid, pidfd, socket }) = self.spare.take() else { return Ok(true) };
        let started = [Message::STARTED, pid.as_raw(), 0];
        let sent = Message::send(self.control.as_fd(), started, &[socket.as_fd(), pidfd.as_fd()]);
        self.at_work.insert(pid, pidfd);
        Ok(sent.is_ok())
    }

    fn make_spare(&mut self) -> nix::Result<()> {
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
        let main = self.main;
        // SAFETY: this process has one thread and never had another.
        match unsafe { fork() }? {
            ForkResult::Child => {
                let ran = catch_unwind(AssertUnwindSafe(|| run(theirs, main)));
                let code = match ran {
                    // It has become a subreaper, so what it started and has not ended is still below it.
                    Ok(Ok(())) if no_child_left() => ENDED_CLEAN,
                    Ok(Ok(())) => ENDED_UNTIDY,
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
                self.spare = Some(Spare { pid: child, pidfd, socket: ours });
                Ok(())
            }
        }
    }

    /// Takes in the end of a child, and tells the daemon if it was handed out.
    fn reap(&mut self, pid: Pid) -> io::Result<()> {
        let Some(exit) = try_reap(Child::Number(pid))? else { return Ok(()) };
        self.untidy |= exit != RankExit::Code(ENDED_CLEAN);
        if self.at_work.remove(&pid).is_none() {
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
    fn tidy(&mut self, patience: Duration) -> io::Result<()> {
        self.untidy = !hunt(patience, |table| self.left_behind(table))?.survivors.is_empty();
        let table = ProcessTable::read()?;
        let ours =
            |pid: Pid| self.at_work.contains_key(&pid) || self.spare.as_ref().is_some_and(|spare| spare.pid == pid);
        for orphan in table.iter().filter(|process| process.zombie && process.parent == getpid() && !ours(process.pid))
        {
            // A zombie's number is not given to another before it is reaped, and nobody but us reaps it.
            let _ = try_reap(Child::Number(orphan.pid));
        }
        Ok(())
    }

    /// Everything below this process that is below none of its children.
    fn left_behind(&self, table: &ProcessTable) -> Vec<Pid> {
        let mut below = table.trees([getpid()]);
        below.remove(&getpid());
        let children = self.at_work.keys().copied().chain(self.spare.as_ref().map(|spare| spare.pid));
        let spared = table.trees(children);
        below.difference(&spared).copied().collect()
    }

    /// The daemon is gone, and with it the other end of every child's socket: waits for the children, then kills what is left.
    fn end(mut self) -> io::Result<()> {
        // Its child sees the end of its socket, as the others do.
        if let Some(Spare { pid, pidfd, .. }) = self.spare.take() {
            self.at_work.insert(pid, pidfd);
        }
        let deadline = Instant::now() + LAST_PATIENCE;
        while !self.at_work.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let (_, ended) = self.wait(false, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX))?;
            for pid in ended {
                self.reap(pid)?;
            }
        }
        if self.untidy || !self.at_work.is_empty() {
            self.at_work.clear();
            self.tidy(LAST_PATIENCE)?;
        }
        Ok(())
    }
}

/// The life of a child.
fn run(socket: OwnedFd, main: Main) -> io::Result<()> {
    // SAFETY: the server that owned the other descriptors never runs in this process again.
    let socket = unsafe { keep_only(socket, true) }?;
    setsid()?;
    default_signals()?;
    prctl::set_child_subreaper(true)?;
    main(socket);
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
            at_work: BTreeMap::new(),
            untidy: false,
            backoff: Duration::ZERO,
        };
        assert_eq!(server.patience(), Some(QUIET));
        server.at_work.insert(getpid(), pidfd_open(getpid()).unwrap());
        assert_eq!(server.patience(), Some(QUIET_AT_WORK));
        server.untidy = true;
        assert_eq!(server.patience(), Some(IDLE), "what was left behind has to go soon");
    }
}

//! The fork server: a small process that makes others of itself for a daemon that has grown too large and too busy to fork.
//!
//! The daemon's `main` forks it first of all. Each child runs one function with its door, one end of a pair of sockets for
//! descriptors; the daemon gets the other end. One child is kept ready, so that nobody waits for a fork; the next one is made when there is
//! nothing better to do, and not while the one before is being made use of: its start would be slowed down by that.
//!
//! ```text
//!           ask                  fork              main(door)
//! daemon ───────> fork server ────────> spare ─────────────────> at work ──> ended
//!        <───────             (in idle time)                                  │
//!   Started(door)     Ended(pid, exit), what it left behind is killed <───────┘
//! ```
//!
//! The server is a subreaper: a process below it and below none of its children was left behind by one. Its children are
//! subreapers as well, so one that ends in order knows whether it leaves anything, and says so by its status: the table of
//! all processes is looked through only when something may be in it. The server ends when the daemon does, after its
//! children, which see that their doors are closed.

#![expect(unsafe_code, reason = "the call of `fork`, and of what follows it in the child")]

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod message;
mod server;

use std::fs;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, sendmsg, socketpair};
use nix::unistd::{ForkResult, Pid, fork};

use self::message::Message;
use self::server::serve;
use crate::descriptor_socket::DescriptorSocket;
use crate::exit::RankExit;
use crate::syscalls::pidfd_send_signal;

/// Main function of a child, which gets its door; the process ends when it returns.
type ChildMain = fn(DescriptorSocket);

/// The daemon's hold on its fork server. Dropping it, like any end of the daemon, lets the server and its children end.
#[derive(Debug)]
pub struct ForkServer {
    control: OwnedFd,
}

/// Error of [`ForkServer::fork`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForkServerError {
    /// A copy of a process with several threads has one thread, and whatever locks the others held.
    #[error("a fork server can be made only while the process has one thread; it has {threads}")]
    Threads {
        /// Number of threads that the process has.
        threads: usize,
    },
    /// The system refused something.
    #[error("cannot make a fork server: {0}")]
    System(#[from] io::Error),
}

/// Child of the fork server, as the daemon holds it.
#[derive(Debug)]
pub struct ForkedProcess {
    /// Process number.
    pub pid: Pid,
    /// The other end of its door: whatever is sent there reaches the child.
    pub door: DescriptorSocket,
    pidfd: OwnedFd,
}

impl ForkedProcess {
    /// Kills it, if it has not ended.
    ///
    /// # Errors
    /// `ESRCH` if it has ended; `EPERM` never for a daemon that is root or its user.
    pub fn kill(&self) -> nix::Result<()> {
        pidfd_send_signal(self.pidfd.as_fd(), Signal::SIGKILL)
    }
}

/// Message of a fork server to its daemon.
#[derive(Debug)]
#[non_exhaustive]
pub enum ForkEvent {
    /// The answer to [`ForkServer::request`].
    Started(ForkedProcess),
    /// The answer to [`ForkServer::request`] where the system has no process or descriptor left.
    NotStarted(Errno),
    /// A process ended that was started earlier: with code 0 if it left nothing behind, with 2 if it left processes, which
    /// are killed now.
    Ended {
        /// Process number.
        pid: Pid,
        /// Exit of the process.
        exit: RankExit,
    },
}

impl ForkServer {
    /// Forks the server. It is a session of its own, ignores signals, holds no descriptor but standard error and its socket,
    /// and is called `lattice-forks`. Its children run `main` with default signal actions, each in a session of its own.
    ///
    /// # Errors
    /// Refuses to fork a process that has more than one thread; fails when the system has no process or descriptor left.
    pub fn fork(main: ChildMain) -> Result<Self, ForkServerError> {
        let threads = fs::read_dir("/proc/self/task")?.count();
        if threads != 1 {
            return Err(ForkServerError::Threads { threads });
        }
        let (ours, theirs) = control_pair().map_err(io::Error::from)?;
        // SAFETY: this process has one thread, as was just seen, so no lock is held by a thread that the child lacks.
        match unsafe { fork() }.map_err(io::Error::from)? {
            ForkResult::Child => {
                let served = catch_unwind(AssertUnwindSafe(|| serve(theirs, main)));
                // SAFETY: leaves without running the daemon's exit handlers, whatever happened.
                unsafe { libc::_exit(i32::from(!matches!(served, Ok(Ok(()))))) }
            }
            ForkResult::Parent { .. } => Ok(Self { control: ours }),
        }
    }

    /// Asks for a process; the answer is the next [`ForkEvent::Started`] or [`ForkEvent::NotStarted`], in the order of the questions.
    ///
    /// # Errors
    /// `EPIPE` if the server is gone, `EAGAIN` if too many questions wait.
    pub fn request(&self) -> nix::Result<()> {
        let nothing: Option<&()> = None;
        sendmsg(self.control.as_raw_fd(), &[IoSlice::new(&[0])], &[], MsgFlags::MSG_NOSIGNAL, nothing).map(drop)
    }

    /// Next message of the server; `None` while there is none. Non-blocking.
    ///
    /// # Errors
    /// `EPIPE` if the server is gone. Then the children's doors are closed only when the daemon closes its ends.
    pub fn next_event(&self) -> nix::Result<Option<ForkEvent>> {
        match Message::receive(self.control.as_fd()) {
            Ok(Some(message)) => Ok(Some(message.into_event()?)),
            Ok(None) => Err(Errno::EPIPE),
            Err(Errno::EAGAIN) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

impl AsFd for ForkServer {
    /// Readable when there is news.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

impl AsRawFd for ForkServer {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.control.as_raw_fd()
    }
}

/// The daemon's end does not block, the server's does.
fn control_pair() -> nix::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK))?;
    Ok((ours, theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_gets_no_fork_server() {
        // The test runs on one thread and the harness waits on another.
        std::thread::scope(|scope| {
            let error = scope.spawn(|| ForkServer::fork(drop)).join().unwrap().unwrap_err();
            assert!(matches!(error, ForkServerError::Threads { threads } if threads > 1), "{error}");
        });
    }
}

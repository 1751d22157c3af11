//! The fork server: a small process that makes others of itself for a daemon that has grown too large and too busy to fork.
//!
//! The daemon's `main` forks it first of all. Each child runs one function with its door, one end of a pair of sockets for
//! descriptors; the daemon gets the other end. One child is kept ready, so that nobody waits for a fork; the next one is made when there is
//! nothing better to do, and not while the one before is being made use of: its start would be slowed down by that.
//!
//! ```text
//!         order                  fork              main(door)
//! daemon ───────> fork server ────────> spare ─────────────────> at work ──> ended
//!        <───────  its gate   (in idle time)                                  │
//!   Started(door)     Ended(pid, exit), what it left behind is killed <───────┘
//! ```
//!
//! Which orders are carried out is for the [`Gate`] to say. The order, with what the gate says of it, is the first that comes through a
//! child's door; no daemon can send anything before that. So a daemon may give up its privileges and leave them to its fork server.
//!
//! Where it can, the server puts each child into a control group of its own, and a child counts as ended when nothing in its group runs.
//! Also it is a subreaper: a process below it and below none of its children was left behind by one. Its children are
//! subreapers as well, so one that ends in order knows whether it leaves anything, and says so by its status: the table of
//! all processes is looked through only when something may be in it.
//!
//! Children whose daemon has said so by [`ForkServer::keep`] outlive it, and the server with them: it keeps an end of the door, and
//! a label, of each, and waits in a directory of the user's for a daemon to take them up ([`Survival`]). All other children end
//! with their daemon: they see that their doors are closed.

#![expect(unsafe_code, reason = "the call of `fork`, and of what follows it in the child")]

mod children;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod gate;
mod label;
mod message;
mod pam_processes;
mod rendezvous;
mod server;

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::poll::PollTimeout;
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::{ForkResult, Pid, fork, getpid};

pub use self::gate::Gate;
pub use self::label::Label;
use self::message::{Handover, Message, VERSION};
pub use self::rendezvous::RendezvousError;
use self::rendezvous::{Rendezvous, is_readable};
use self::server::serve;
use crate::capabilities::Capabilities;
use crate::cgroup::{CgroupError, OwnCgroup, usable_directory};
use crate::descriptor_socket::DescriptorSocket;
use crate::exit::RankExit;
use crate::process_table;
use crate::stdio::open_null;
use crate::syscalls::pidfd_send_signal;

/// Time for a fork server to say its next word while it is taken up. It may be cleaning up before.
const TAKE_UP_WITHIN: Duration = Duration::from_secs(5);

/// Main function of a child, which gets its door, and its control group where there is one; the process ends when it returns.
pub type ChildMain = Box<dyn Fn(DescriptorSocket, Option<OwnCgroup>)>;

/// Main function of a PAM process, which gets its connection to the child, and the bytes that the child gets with its order. See
/// [`serve_pam`](crate::serve_pam); the process ends when it returns.
pub type PamMain = Box<dyn Fn(UnixStream, &[u8])>;

/// What PAM processes are: one beside each child, forked with its order, that outlives it by as long as closing the session takes.
pub struct PamRole {
    /// Main function. It is to return when the other end of its connection is closed.
    pub main: PamMain,
    /// Time for that, after which it is killed.
    pub closes_within: Duration,
}

/// Bytes with which a child gets its connection to its PAM process at its door, right after its order.
pub const PAM_WORD: &[u8] = b"PAM";

/// What the processes of a fork server run.
pub struct Roles {
    /// Main function of a child.
    pub main: ChildMain,
    /// What PAM processes run; `None` where there are none.
    pub pam: Option<PamRole>,
    /// Capabilities that those processes can [raise](crate::raise_capabilities), beside the ones of every fork server.
    pub raisable: Capabilities,
}

impl From<ChildMain> for Roles {
    fn from(main: ChildMain) -> Self {
        Self { main, pam: None, raisable: Capabilities::ALL }
    }
}

/// The daemon's hold on a fork server. Dropping it, like any end of the daemon, lets the server end, and its children but for those that
/// are kept.
#[derive(Debug)]
pub struct ForkServer {
    control: OwnedFd,
    /// Number of its process; `None` for one that another daemon made.
    pid: Option<Pid>,
    /// Reason why its children have no control groups.
    ungrouped: Option<CgroupError>,
}

/// Terms on which children outlive their daemon.
#[derive(Clone, Debug)]
pub struct Survival {
    /// Directory in which fork servers wait for the next daemon. It is the user's alone, and made if it is not there.
    pub directory: PathBuf,
    /// Time that they wait. Then their children end.
    pub lease: Duration,
}

/// Child that has outlived its daemon.
#[derive(Debug)]
pub struct KeptProcess {
    /// Process number.
    pub pid: Pid,
    /// What its daemon left for the next one.
    pub label: Label,
    /// The process, if it still runs.
    pub state: KeptState,
}

/// State of a child that has outlived its daemon.
#[derive(Debug)]
pub enum KeptState {
    /// It runs; a later end is told by [`ForkEvent::Ended`].
    Running(ForkedProcess),
    /// It ended while no daemon was there.
    Ended(RankExit),
}

/// Fork server of an earlier daemon, with the children that it keeps.
#[derive(Debug)]
pub struct TakenUp {
    /// The server. It makes no new children, and ends when all these are forgotten.
    pub server: ForkServer,
    /// The children.
    pub children: Vec<KeptProcess>,
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
    /// It would wait for later daemons where it cannot.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The system refused something.
    #[error("cannot make a fork server: {0}")]
    System(#[from] io::Error),
}

/// Error of one fork server in [`ForkServer::take_up_all`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TakeUpError {
    /// It is of a later version.
    #[error(
        "a fork server speaks version {theirs} of the protocol, and this program {VERSION}; start the newer program again"
    )]
    Version {
        /// Version that it speaks.
        theirs: i32,
    },
    /// It says nothing.
    #[error("a fork server gives no answer; another daemon may have it")]
    Silent,
    /// It is gone, or this process has no descriptor left for what it keeps.
    #[error("a fork server cannot be taken up: {0}")]
    System(#[from] Errno),
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
    /// `ESRCH` if it has ended; `EPERM` for a daemon that is neither root nor its user, and has [`ForkServer::kill`] for that.
    pub fn kill(&self) -> nix::Result<()> {
        pidfd_send_signal(self.pidfd.as_fd(), Signal::SIGKILL)
    }

    /// Returns true if a signal has stopped it, so that it does nothing until another lets it go on.
    ///
    /// Meant for a process whose end was not told yet: its number is nobody else's before.
    pub fn is_stopped(&self) -> bool {
        process_table::is_stopped(self.pid)
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
    /// The answer to [`ForkServer::request`] where the gate refuses the order, in these words.
    Refused(Label),
    /// The answer to [`ForkServer::tell`]; `None` where there is no memory or descriptor for it.
    Told(Option<Label>),
    /// A process ended that was started earlier: with code 0 if it left nothing behind, with 2 if it left processes. With control
    /// groups nothing of it runs any more; without them, what it left is killed now.
    Ended {
        /// Process number.
        pid: Pid,
        /// Exit of the process.
        exit: RankExit,
    },
}

impl ForkServer {
    /// Forks the server. It is a session of its own, ignores signals, holds no descriptor but standard error and its sockets,
    /// and is called `lattice-forks`. Its children run `main` with default signal actions, each in a session of its own, for orders that
    /// `gate` admits. Without `survival` no child outlives this daemon.
    ///
    /// # Errors
    /// Refuses to fork a process that has more than one thread; fails when the system has no process or descriptor left, and if the
    /// directory of `survival` is not the user's own.
    pub fn fork(
        roles: impl Into<Roles>,
        gate: Box<dyn Gate>,
        survival: Option<&Survival>,
    ) -> Result<Self, ForkServerError> {
        let roles = roles.into();
        let threads = process_table::own_threads()?;
        if threads != 1 {
            return Err(ForkServerError::Threads { threads });
        }
        // The child opens it as well, and could not report a failure.
        open_null()?;
        let rendezvous = survival.map(|survival| Rendezvous::open(&survival.directory)).transpose()?;
        let lease = survival.map_or(Duration::ZERO, |survival| survival.lease);
        let (cgroups, ungrouped) = match usable_directory() {
            Ok(directory) => (Some(directory), None),
            Err(error) => (None, Some(error)),
        };
        let (ours, theirs) = control_pair().map_err(io::Error::from)?;
        // SAFETY: this process has one thread, as was just seen, so no lock is held by a thread that the child lacks.
        match unsafe { fork() }.map_err(io::Error::from)? {
            ForkResult::Child => {
                let served = catch_unwind(AssertUnwindSafe(|| serve(theirs, (roles, gate), lease, cgroups.as_deref())));
                if let Some(rendezvous) = &rendezvous {
                    // The next daemon removes what cannot be removed here.
                    let _ = fs::remove_file(rendezvous.socket_of(getpid()));
                }
                // SAFETY: leaves without running the daemon's exit handlers, whatever happened.
                unsafe { libc::_exit(i32::from(!matches!(served, Ok(Ok(()))))) }
            }
            ForkResult::Parent { child } => {
                let server = Self { control: ours, pid: Some(child), ungrouped };
                if let Some(rendezvous) = rendezvous {
                    let listener = rendezvous.listen(child)?;
                    let sent = Message::send(server.as_fd(), [Message::LISTEN, 0, 0], &[listener.as_fd()]);
                    sent.map_err(io::Error::from)?;
                }
                Ok(server)
            }
        }
    }

    /// Returns why children of this server have no control groups; `None` if they have, and for a server that was taken up.
    pub fn ungrouped(&self) -> Option<&CgroupError> {
        self.ungrouped.as_ref()
    }

    /// Takes up all fork servers that have outlived their daemons in `directory`; `own` is this daemon's fork server, which is there,
    /// too. Blocks while one of them is busy, for 5 s at most for each.
    ///
    /// # Errors
    /// Fails if the directory is not the user's own. What one fork server refuses is in its place in the list.
    pub fn take_up_all(
        directory: &Path,
        own: Option<&Self>,
    ) -> Result<Vec<Result<TakenUp, TakeUpError>>, RendezvousError> {
        let rendezvous = Rendezvous::open(directory)?;
        Ok(rendezvous.others(own.and_then(|own| own.pid))?.into_iter().map(take_up).collect())
    }

    /// Keeps a child for later daemons, which are given `label` with it, until it is forgotten. To be called before the child is told
    /// anything: then no later daemon has a child that was told something and does not know of it.
    ///
    /// # Errors
    /// `EPIPE` if the server is gone, `EAGAIN` if it is behind with reading.
    pub fn keep(&self, process: &ForkedProcess, label: &Label) -> nix::Result<()> {
        let descriptors = [process.door.as_fd(), label.as_fd()];
        Message::send(self.control.as_fd(), [Message::KEEP, process.pid.as_raw(), 0], &descriptors)
    }

    /// Forgets a child that was kept: no later daemon hears of it. If it runs it ends when this daemon closes its door, or is gone.
    ///
    /// # Errors
    /// `EPIPE` if the server is gone, `EAGAIN` if it is behind with reading.
    pub fn forget(&self, pid: Pid) -> nix::Result<()> {
        Message::send(self.control.as_fd(), [Message::FORGET, pid.as_raw(), 0], &[])
    }

    /// Ends the server: it waits for its children, whose doors it closes, and kills what is left of them.
    ///
    /// # Errors
    /// `EPIPE` if the server is gone.
    pub fn end(&self) -> nix::Result<()> {
        Message::send(self.control.as_fd(), [Message::END, 0, 0], &[])
    }

    /// Asks for a process that carries out `order`; the answer is the next [`ForkEvent::Started`], [`ForkEvent::NotStarted`] or
    /// [`ForkEvent::Refused`], in the order of the questions.
    ///
    /// # Errors
    /// `EPIPE` if the server is gone, `EAGAIN` if too many questions wait.
    pub fn request(&self, order: &Label) -> nix::Result<()> {
        Message::send(self.control.as_fd(), [Message::START, 0, 0], &[order.as_fd()])
    }

    /// Says a word to the gate; its answer is the next [`ForkEvent::Told`].
    ///
    /// # Errors
    /// `EPIPE` if the server is gone, `EAGAIN` if too many words wait.
    pub fn tell(&self, word: &Label) -> nix::Result<()> {
        Message::send(self.control.as_fd(), [Message::TELL, 0, 0], &[word.as_fd()])
    }

    /// Has the server kill a child, if it runs. Fork servers of versions that know no gate do not.
    ///
    /// # Errors
    /// `EPIPE` if the server is gone, `EAGAIN` if it is behind with reading.
    pub fn kill(&self, pid: Pid) -> nix::Result<()> {
        Message::send(self.control.as_fd(), [Message::KILL, pid.as_raw(), 0], &[])
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

/// Takes up the fork server behind a connection.
fn take_up(control: OwnedFd) -> Result<TakenUp, TakeUpError> {
    Message::send(control.as_fd(), [Message::TAKE_UP, VERSION, 0], &[])?;
    let mut children = Vec::new();
    loop {
        let timeout = PollTimeout::try_from(TAKE_UP_WITHIN).unwrap_or(PollTimeout::MAX);
        if !is_readable(control.as_fd(), timeout) {
            return Err(TakeUpError::Silent);
        }
        let message = Message::receive(control.as_fd())?.ok_or(Errno::EPIPE)?;
        match message.into_handover()? {
            Handover::Welcome { version: theirs } if theirs > VERSION => {
                return Err(TakeUpError::Version { theirs });
            }
            Handover::Welcome { .. } => {}
            Handover::Kept(child) => children.push(child),
            Handover::Done => break,
        }
    }
    fcntl(&control, FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK))?;
    Ok(TakenUp { server: ForkServer { control, pid: None, ungrouped: None }, children })
}

/// The daemon's end does not block, the server's does.
fn control_pair() -> nix::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK))?;
    Ok((ours, theirs))
}

#[cfg(test)]
mod tests {
    use super::gate::Closed;
    use super::*;

    #[test]
    fn a_process_with_threads_gets_no_fork_server() {
        // The test runs on one thread and the harness waits on another.
        std::thread::scope(|scope| {
            let error = scope
                .spawn(|| ForkServer::fork(Box::new(|_, _| {}) as ChildMain, Box::new(Closed), None))
                .join()
                .unwrap()
                .unwrap_err();
            assert!(matches!(error, ForkServerError::Threads { threads } if threads > 1), "{error}");
        });
    }
}

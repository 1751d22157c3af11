//! The fork server: a small process that forks child processes for a daemon that is too large and too busy to fork.
//!
//! The daemon's `main` forks the server before it does anything else. Each child runs one function with its door, one end of a pair of
//! sockets for descriptors; the daemon gets the other end. The server keeps one spare child ready, so that no order waits for a fork. It
//! forks the next spare when it is idle, and not while the previous one starts its work: a fork would slow that down.
//!
//! ```text
//!         order                  fork              main(door)
//! daemon ───────> fork server ────────> spare ─────────────────> at work ──> ended
//!        <───────  its gate   (in idle time)                                  │
//!   Started(door)     Ended(pid, exit), its leftovers are killed <────────────┘
//! ```
//!
//! The [`Gate`] admits or refuses orders. The first message through a child's door is the order with the gate's answer; the daemon can send
//! nothing before it. A daemon can therefore give up its privileges and leave them to its fork server.
//!
//! If the system allows it, the server puts each child into a control group of its own. A child then counts as ended when its group is
//! empty. The server is also a subreaper: a descendant that descends from none of its present children is a leftover of an earlier child.
//! Its children are subreapers as well, so a child that exits normally can report by its status if it leaves processes. The server reads
//! the table of all processes only if there may be leftovers.
//!
//! A child that the daemon marks with [`ForkServer::keep`] outlives the daemon, and the server outlives it too. The server keeps an end of
//! the door and a label of each kept child. It waits in a directory of the user for a daemon that adopts them ([`Survival`]). All other
//! children end with their daemon, when their doors close.

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
use crate::cgroup::{CgroupError, OwnCgroup, usable_cgroup};
use crate::descriptor_socket::DescriptorSocket;
use crate::exit::RankExit;
use crate::process_table;
use crate::stdio::open_null;
use crate::syscalls::pidfd_send_signal;

/// Time limit for each message of a fork server during adoption. The server may be cleaning up before it answers.
const TAKE_UP_WITHIN: Duration = Duration::from_secs(5);

/// Main function of a child. It gets the child's door, and its control group if there is one. The process exits when the function returns.
pub type ChildMain = Box<dyn Fn(DescriptorSocket, Option<OwnCgroup>)>;

/// Main function of a PAM process. It gets its connection to the child, and the bytes of the child's order. See
/// [`serve_pam`](crate::serve_pam). The process exits when the function returns.
pub type PamMain = Box<dyn Fn(UnixStream, &[u8])>;

/// PAM processes: one for each child, forked with its order. It outlives the child by the time that closing the PAM session takes.
pub struct PamRole {
    /// Main function. It must return when the other end of its connection is closed.
    pub main: PamMain,
    /// Time limit for that return; then the process is killed.
    pub closes_within: Duration,
}

/// Bytes of the packet that passes a child, right after its order, the connection to its PAM process.
pub const PAM_WORD: &[u8] = b"PAM";

/// Main functions and privileges of a fork server's processes.
pub struct Roles {
    /// Main function of a child.
    pub main: ChildMain,
    /// Main function of PAM processes; `None` for none.
    pub pam: Option<PamRole>,
    /// Capabilities that the processes can [raise](crate::raise_capabilities), in addition to the capabilities of every fork server.
    pub raisable: Capabilities,
}

impl From<ChildMain> for Roles {
    fn from(main: ChildMain) -> Self {
        Self { main, pam: None, raisable: Capabilities::ALL }
    }
}

/// The daemon's handle of a fork server. When it is dropped, or the daemon ends, the server and its children end, except kept children.
#[derive(Debug)]
pub struct ForkServer {
    control: OwnedFd,
    /// Process number; `None` for the server of another daemon.
    pid: Option<Pid>,
    /// Reason why its children have no control groups.
    ungrouped: Option<CgroupError>,
}

/// Conditions under which children outlive their daemon.
#[derive(Clone, Debug)]
pub struct Survival {
    /// Directory in which fork servers wait for the next daemon. Only the user can access it. It is made if it does not exist.
    pub directory: PathBuf,
    /// Time that servers wait. Then their children end.
    pub lease: Duration,
}

/// Child that has outlived its daemon.
#[derive(Debug)]
pub struct KeptProcess {
    /// Process number.
    pub pid: Pid,
    /// Label that its daemon set for the next one.
    pub label: Label,
    /// State of the process.
    pub state: KeptState,
}

/// State of a child that has outlived its daemon.
#[derive(Debug)]
pub enum KeptState {
    /// The process runs; [`ForkEvent::Ended`] reports its end.
    Running(ForkedProcess),
    /// The process ended while no daemon was connected.
    Ended(RankExit),
}

/// Fork server of an earlier daemon, with its kept children.
#[derive(Debug)]
pub struct TakenUp {
    /// The server. It makes no new children, and ends when all these children are forgotten.
    pub server: ForkServer,
    /// The children.
    pub children: Vec<KeptProcess>,
}

/// Error of [`ForkServer::fork`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForkServerError {
    /// The process has several threads. A forked copy has one thread, and all locks that the other threads held stay locked.
    #[error("a fork server can be made only while the process has one thread; it has {threads}")]
    Threads {
        /// Number of threads that the process has.
        threads: usize,
    },
    /// The directory for later daemons is not usable.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// A system call failed.
    #[error("cannot make a fork server: {0}")]
    System(#[from] io::Error),
}

/// Error of one fork server in [`ForkServer::take_up_all`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TakeUpError {
    /// The server has a later version of the protocol.
    #[error(
        "a fork server speaks version {theirs} of the protocol, and this program {VERSION}; start the newer program again"
    )]
    Version {
        /// Version of the server.
        theirs: i32,
    },
    /// The server does not answer.
    #[error("a fork server gives no answer; another daemon may have it")]
    Silent,
    /// The server has ended, or this process has no free descriptor for the server's children.
    #[error("a fork server cannot be taken up: {0}")]
    System(#[from] Errno),
}

/// The daemon's handle of a child of the fork server.
#[derive(Debug)]
pub struct ForkedProcess {
    /// Process number.
    pub pid: Pid,
    /// Other end of the child's door: the child receives all packets that are sent here.
    pub door: DescriptorSocket,
    pidfd: OwnedFd,
}

impl ForkedProcess {
    /// Kills the process, if it has not ended.
    ///
    /// # Errors
    /// `ESRCH` if the process has ended; `EPERM` for a daemon that is neither root nor the process's user. Such a daemon uses
    /// [`ForkServer::kill`].
    pub fn kill(&self) -> nix::Result<()> {
        pidfd_send_signal(self.pidfd.as_fd(), Signal::SIGKILL)
    }

    /// Returns true if a signal has stopped the process, until another signal continues it.
    ///
    /// Call it before the end of the process is reported: until then its number cannot belong to another process.
    pub fn is_stopped(&self) -> bool {
        process_table::is_stopped(self.pid)
    }
}

/// Message from a fork server to its daemon.
#[derive(Debug)]
#[non_exhaustive]
pub enum ForkEvent {
    /// Answer to [`ForkServer::request`].
    Started(ForkedProcess),
    /// Answer to [`ForkServer::request`] if the system has no process or descriptor left.
    NotStarted(Errno),
    /// Answer to [`ForkServer::request`] if the gate refuses the order, with the gate's reason.
    Refused(Label),
    /// Answer to [`ForkServer::tell`]; `None` if the server has no memory or descriptor for it.
    Told(Option<Label>),
    /// A process ended. Its exit code is 0 if it left no processes, and 2 if it left some. With control groups no leftover runs any more;
    /// without them, the server kills the leftovers now.
    Ended {
        /// Process number.
        pid: Pid,
        /// Exit of the process.
        exit: RankExit,
    },
}

impl ForkServer {
    /// Forks the server. It has its own session and the name `lattice-forks`, ignores signals, and holds no descriptor but standard error
    /// and its sockets. Its children have the name `lattice-session`. They run `main` with default signal actions, each in its own session,
    /// for orders that `gate` admits.
    /// Without `survival` no child outlives this daemon.
    ///
    /// # Errors
    /// Fails if the process has several threads, or the system has no process or descriptor left. Also fails if the directory of `survival`
    /// does not belong to the user.
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
        let (cgroups, ungrouped) = match usable_cgroup() {
            Ok(directory) => (Some(directory), None),
            Err(error) => (None, Some(error)),
        };
        let (ours, theirs) = control_pair().map_err(io::Error::from)?;
        // SAFETY: this process has one thread, as checked above, so no thread that the child lacks holds a lock.
        match unsafe { fork() }.map_err(io::Error::from)? {
            ForkResult::Child => {
                let served = catch_unwind(AssertUnwindSafe(|| serve(theirs, (roles, gate), lease, cgroups.as_deref())));
                if let Some(rendezvous) = &rendezvous {
                    // The next daemon removes a file that stays here.
                    let _ = fs::remove_file(rendezvous.socket_of(getpid()));
                }
                // SAFETY: exits without running the daemon's exit handlers, also after a panic.
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

    /// Returns the reason why children of this server have no control groups; `None` if they have, and for an adopted server.
    pub fn ungrouped(&self) -> Option<&CgroupError> {
        self.ungrouped.as_ref()
    }

    /// Adopts all fork servers in `directory` that have outlived their daemons. `own` is this daemon's fork server, which also waits there.
    /// Blocks while a server is busy, for 5 s at most per server.
    ///
    /// # Errors
    /// Fails if the directory does not belong to the user. The list has the error of each server that cannot be adopted.
    pub fn take_up_all(
        directory: &Path,
        own: Option<&Self>,
    ) -> Result<Vec<Result<TakenUp, TakeUpError>>, RendezvousError> {
        let rendezvous = Rendezvous::open(directory)?;
        Ok(rendezvous.others(own.and_then(|own| own.pid))?.into_iter().map(take_up).collect())
    }

    /// Keeps a child for later daemons until it is forgotten; they receive `label` with it. Call it before the first message to the child.
    /// Otherwise a later daemon could miss a child that has already received orders.
    ///
    /// # Errors
    /// `EPIPE` if the server has ended, `EAGAIN` if it has too many unread messages.
    pub fn keep(&self, process: &ForkedProcess, label: &Label) -> nix::Result<()> {
        let descriptors = [process.door.as_fd(), label.as_fd()];
        Message::send(self.control.as_fd(), [Message::KEEP, process.pid.as_raw(), 0], &descriptors)
    }

    /// Forgets a kept child: no later daemon receives it. If it runs, it ends when this daemon closes its door or ends.
    ///
    /// # Errors
    /// `EPIPE` if the server has ended, `EAGAIN` if it has too many unread messages.
    pub fn forget(&self, pid: Pid) -> nix::Result<()> {
        Message::send(self.control.as_fd(), [Message::FORGET, pid.as_raw(), 0], &[])
    }

    /// Ends the server. It closes the doors of its children, waits for them, and kills their leftovers.
    ///
    /// # Errors
    /// `EPIPE` if the server has ended.
    pub fn end(&self) -> nix::Result<()> {
        Message::send(self.control.as_fd(), [Message::END, 0, 0], &[])
    }

    /// Requests a process for `order`. The answer is the next [`ForkEvent::Started`], [`ForkEvent::NotStarted`] or [`ForkEvent::Refused`];
    /// answers have the order of the requests.
    ///
    /// # Errors
    /// `EPIPE` if the server has ended, `EAGAIN` if too many requests wait.
    pub fn request(&self, order: &Label) -> nix::Result<()> {
        Message::send(self.control.as_fd(), [Message::START, 0, 0], &[order.as_fd()])
    }

    /// Sends a message to the gate; its answer is the next [`ForkEvent::Told`].
    ///
    /// # Errors
    /// `EPIPE` if the server has ended, `EAGAIN` if too many messages wait.
    pub fn tell(&self, word: &Label) -> nix::Result<()> {
        Message::send(self.control.as_fd(), [Message::TELL, 0, 0], &[word.as_fd()])
    }

    /// Makes the server kill a child, if it runs. Fork servers of versions without a gate ignore the message.
    ///
    /// # Errors
    /// `EPIPE` if the server has ended, `EAGAIN` if it has too many unread messages.
    pub fn kill(&self, pid: Pid) -> nix::Result<()> {
        Message::send(self.control.as_fd(), [Message::KILL, pid.as_raw(), 0], &[])
    }

    /// Next message of the server; `None` if there is none. Non-blocking.
    ///
    /// # Errors
    /// `EPIPE` if the server has ended. The children's doors then close only when the daemon closes its ends.
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
    /// Readable when a message has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

impl AsRawFd for ForkServer {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.control.as_raw_fd()
    }
}

/// Adopts the fork server at the other end of a connection.
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

/// Returns the control sockets. The daemon's end does not block, the server's end does.
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
        // The test runs on one thread; the harness waits on another.
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

//! The keeper: a small process that outlives the launcher until it has killed the processes that the launcher could not kill.
//!
//! When the launcher is killed, the kernel kills the ranks (`PR_SET_PDEATHSIG`), but not their children. The keeper waits at a pipe for
//! that moment. The launcher sends the marks of its launches through the pipe, in records:
//!
//! ```text
//! byte 0        kind: 1 = tag, 2 = rank, 3 = directory, 4 = file, 5 = resource, 6 = resource to forget, 7 = socket
//! bytes 1, 2    length of the rest in native byte order, as all numbers
//! bytes 3..     the tag, or process number (4 bytes), session (4) and start (8) of a rank, or a path, or a number (4) and a pinned resource;
//!               before the path of a directory its device and inode (16), which are zero before it is made
//! ```

#![expect(unsafe_code, reason = "the call of `fork`, and of what follows it in the child")]

mod guarded;

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, pipe2, setsid, write};

use self::guarded::{
    Guarded, KIND_DIRECTORY, KIND_FILE, KIND_FORGOTTEN, KIND_RANK, KIND_RESOURCE, KIND_SOCKET, KIND_TAG, PAYLOAD_MAX,
    RankRecord, read_record, record,
};
use crate::detach::{Stderr, close_all_but, ignore_signals};
use crate::kill::{Fall, kill_until_gone};
use crate::launch_tag::LaunchTag;
use crate::orphaned_memory::remove_orphaned_memory;
use crate::own_files::{FileIdentity, OwnDirectory, remove_empty, remove_private_socket, remove_recorded};
use crate::pinned::Pinned;
use crate::process::RankProcess;
use crate::process_table::{Process, own_threads};
use crate::start::no_process;
use crate::stdio::open_null;
use crate::syscalls::{self, Child, pidfd_open, pidfd_send_signal};

/// Process name of a keeper.
const NAME: &CStr = c"lattice-keeper";

/// Time limit of the clean-up. A process that is still there then hangs in the kernel.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The launcher's handle of its keeper.
///
/// When it is dropped, or the launcher ends, the keeper kills all remaining processes of the launch.
#[derive(Debug)]
pub struct Keeper {
    pid: Pid,
    pidfd: OwnedFd,
    records: OwnedFd,
}

/// Error of [`Keeper::fork`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeeperError {
    /// The process has several threads. A forked copy has one thread, and all locks that the other threads held stay locked.
    #[error("a keeper can be made only while the process has one thread; it has {threads}")]
    Threads {
        /// Number of threads that the process has.
        threads: usize,
    },
    /// The system cannot make another process.
    #[error("cannot make the process that cleans up after this one (lattice-keeper): {}", no_process(*.0))]
    Fork(Errno),
    /// A system call failed.
    #[error("cannot make the process that cleans up after this one (lattice-keeper): {0}")]
    System(#[from] io::Error),
}

impl Keeper {
    /// Forks the keeper. It has its own session and the name `lattice-keeper`, ignores signals, and holds no descriptor but its pipe. Call
    /// this early in `main`: the keeper is a copy of the process at that time.
    ///
    /// # Errors
    /// Fails if the process has more than one thread, or the system has no process or descriptor left.
    pub fn fork() -> Result<Self, KeeperError> {
        let threads = own_threads()?;
        if threads != 1 {
            return Err(KeeperError::Threads { threads });
        }
        // The child opens it as well, and could not report a failure.
        open_null()?;
        let (reader, records) = pipe2(OFlag::O_CLOEXEC).map_err(io::Error::from)?;
        // A keeper that does not read must not block the launcher.
        fcntl(&records, FcntlArg::F_SETFL(OFlag::O_WRONLY | OFlag::O_NONBLOCK)).map_err(io::Error::from)?;
        // Room for 16,000 ranks at once. If the system refuses, the pipe has room for 1,000.
        let _ = fcntl(&records, FcntlArg::F_SETPIPE_SZ(1 << 20));
        // The keeper has its name from the start: the keeper of another launch spares it by its name, and may inspect it at once.
        let ours = prctl::get_name().map_err(io::Error::from)?;
        prctl::set_name(NAME).map_err(io::Error::from)?;
        // The keeper must not count as a child: with no other child left, nothing of a launch is left (see `sweep`).
        // SAFETY: this process has one thread, as checked above, and only that thread could make another. So no thread that the child lacks
        // holds a lock. The child reads, opens files and sends signals, and never needs its thread number.
        let forked = unsafe { syscalls::fork_quietly() };
        // Also after a failed fork: otherwise other keepers would spare this process by its name.
        if forked != Ok(0) {
            prctl::set_name(&ours).map_err(io::Error::from)?;
        }
        match forked.map_err(KeeperError::Fork)? {
            0 => {
                drop(records);
                let kept = catch_unwind(AssertUnwindSafe(|| keep(reader)));
                // SAFETY: exits without running the launcher's exit handlers, also after a panic.
                unsafe { libc::_exit(i32::from(!matches!(kept, Ok(Ok(()))))) }
            }
            child => {
                let child = Pid::from_raw(child);
                let pidfd = pidfd_open(child).map_err(io::Error::from)?;
                Ok(Self { pid: child, pidfd, records })
            }
        }
    }

    /// Process number of the keeper, for [`crate::Orphans::Claim`].
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Registers a launch of this launcher. Call it before its first rank starts.
    ///
    /// # Errors
    /// `EPIPE` if the keeper has ended, `EAGAIN` if it does not read.
    pub fn guard(&self, tag: &LaunchTag) -> nix::Result<()> {
        self.send(KIND_TAG, tag.value().as_bytes())
    }

    /// Registers a rank. Its group then belongs to the launch, with or without a tag.
    ///
    /// # Errors
    /// `ESRCH` if the rank has been reaped already; otherwise see [`Keeper::guard`].
    pub fn guard_rank(&self, rank: &RankProcess) -> nix::Result<()> {
        self.guard_leader(rank.pid())
    }

    /// Registers a process of the launch that leads a process group and has not been reaped. Its group then belongs to the launch. This
    /// includes processes with an environment, and therefore a tag, that only root may read.
    ///
    /// # Errors
    /// See [`Keeper::guard_rank`].
    pub fn guard_leader(&self, leader: Pid) -> nix::Result<()> {
        let leader = Process::read(leader).ok_or(Errno::ESRCH)?;
        self.send(KIND_RANK, &RankRecord::of(&leader).encode())
    }

    /// Registers a directory before the launcher makes it. The keeper removes it after the last process has ended, if it is empty.
    ///
    /// # Errors
    /// `ENAMETOOLONG` for a path of more than 3984 bytes; otherwise see [`Keeper::guard`].
    pub fn announce_directory(&self, path: &Path) -> nix::Result<()> {
        self.send_directory(&[0; FileIdentity::LEN], path)
    }

    /// Registers a directory that the launcher has made. The keeper removes it with its content after the last process has ended, if the
    /// path still names the same directory.
    ///
    /// # Errors
    /// See [`Keeper::announce_directory`].
    pub fn guard_directory(&self, directory: &OwnDirectory) -> nix::Result<()> {
        self.send_directory(&directory.identity().encode(), directory.path())
    }

    fn send_directory(&self, identity: &[u8; FileIdentity::LEN], path: &Path) -> nix::Result<()> {
        self.send(KIND_DIRECTORY, &[identity, path.as_os_str().as_bytes()].concat())
    }

    /// Registers a file that ranks may leave. The keeper removes it, if it exists, after the last process has ended.
    ///
    /// # Errors
    /// `ENAMETOOLONG` for a path of more than 4000 bytes; otherwise see [`Keeper::guard`].
    pub fn guard_file(&self, path: &Path) -> nix::Result<()> {
        self.send(KIND_FILE, path.as_os_str().as_bytes())
    }

    /// Registers a socket of the launcher in a directory that only its user can access. The keeper removes it, if it exists, after the last
    /// process has ended.
    ///
    /// # Errors
    /// See [`Keeper::guard_file`].
    pub fn guard_socket(&self, path: &Path) -> nix::Result<()> {
        self.send(KIND_SOCKET, path.as_os_str().as_bytes())
    }

    /// Registers a resource of a rank under a number. The keeper removes it after the last process has ended.
    ///
    /// # Errors
    /// See [`Keeper::guard_file`].
    pub fn guard_resource(&self, number: u32, resource: &Pinned) -> nix::Result<()> {
        match resource.to_record() {
            Some(record) => self.send(KIND_RESOURCE, &[&number.to_ne_bytes()[..], &record].concat()),
            None => Ok(()),
        }
    }

    /// Removes the registration of a resource.
    ///
    /// # Errors
    /// See [`Keeper::guard`].
    pub fn forget_resource(&self, number: u32) -> nix::Result<()> {
        self.send(KIND_FORGOTTEN, &number.to_ne_bytes())
    }

    fn send(&self, kind: u8, payload: &[u8]) -> nix::Result<()> {
        if payload.len() > PAYLOAD_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        write(&self.records, &record(kind, payload)).map(drop)
    }

    /// Ends the keeper and reaps it. Call it after [`crate::sweep()`] has found no more processes.
    ///
    /// # Errors
    /// `ECHILD` if the keeper has been reaped elsewhere.
    pub fn done(self) -> nix::Result<()> {
        // Kills the keeper before the pipe closes: a request to exit could arrive late, or reach a stopped keeper.
        match pidfd_send_signal(self.pidfd.as_fd(), Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => syscalls::reap(Child::Pidfd(self.pidfd.as_fd())),
            Err(errno) => Err(errno),
        }
    }
}

/// Main function of the keeper.
fn keep(pipe: OwnedFd) -> io::Result<()> {
    let mut pipe = detach(pipe)?;
    let began = SystemTime::now();
    let mut guarded = Guarded::default();
    let mut payload = Vec::new();
    while let Ok(kind) = read_record(&mut pipe, &mut payload) {
        guarded.add(kind, &payload);
    }
    kill_until_gone(TIME_LIMIT, Fall::Elsewhere, |table| guarded.find(table))?;
    for (_, resource) in std::mem::take(&mut guarded.resources) {
        resource.remove();
    }
    for file in &guarded.files {
        let _ = fs::remove_file(file);
    }
    for socket in &guarded.sockets {
        remove_private_socket(socket);
    }
    remove_orphaned_memory(began);
    for (path, identity) in &guarded.directories {
        match identity {
            Some(identity) => remove_recorded(path, *identity),
            None => remove_empty(path),
        }
    }
    Ok(())
}

/// Detaches the keeper from the launcher. Returns the pipe, the only descriptor that it keeps.
fn detach(pipe: OwnedFd) -> io::Result<fs::File> {
    setsid()?;
    ignore_signals()?;
    // SAFETY: no code of the launcher, which owns the other descriptors, runs in this process again.
    Ok(unsafe { close_all_but(pipe, Stderr::Null) }?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_gets_no_keeper() {
        // The test runs on one thread; the harness waits on another.
        std::thread::scope(|scope| {
            let error = scope.spawn(Keeper::fork).join().unwrap().unwrap_err();
            assert!(matches!(error, KeeperError::Threads { threads } if threads > 1), "{error}");
        });
    }
}

//! Control groups as the fork server uses them: it makes one for each session, kills it, and checks that it is empty.

#![expect(unsafe_code, reason = "forks")]

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{ForkResult, fork, getpid};

use super::{KILL, LEAVING, PROCESSES, Population};
use crate::syscalls::{end_child, fork_into_group};

/// Prefix of the names of fork servers' groups.
const PREFIX: &str = "lattice-forks-";

/// Group of a fork server, which contains the groups of its sessions.
#[derive(Debug)]
pub(crate) struct ServerCgroup {
    directory: PathBuf,
    /// Lock that the server keeps while it runs: a directory without a lock is abandoned.
    _lock: File,
    /// Number of session groups made so far.
    sessions: u64,
}

impl ServerCgroup {
    /// Makes the group in the directory `parent`. Removes groups there that killed servers left, as far as they are empty.
    pub(crate) fn new(parent: &Path) -> io::Result<Self> {
        remove_abandoned(parent)?;
        let mut number = 0;
        loop {
            let directory = parent.join(format!("{PREFIX}{}-{number}", getpid()));
            match fs::create_dir(&directory) {
                Ok(()) => {}
                // The name belongs to a killed server with the same process number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    number += 1;
                    continue;
                }
                Err(error) => return Err(error),
            }
            if let Some(lock) = locked(&directory) {
                fs::create_dir(directory.join(LEAVING))?;
                return Ok(Self { directory, _lock: lock, sessions: 0 });
            }
            // Another server removed the directory as abandoned before it was locked.
            number += 1;
        }
    }

    /// Makes a group for a session.
    pub(crate) fn session(&mut self) -> io::Result<SessionCgroup> {
        self.sessions += 1;
        let directory = self.directory.join(self.sessions.to_string());
        fs::create_dir(&directory)?;
        let open = || -> io::Result<_> {
            Ok((Population::of(&directory)?, File::options().write(true).open(directory.join(KILL))?))
        };
        let (population, kill) = open().inspect_err(|_| {
            // The new group is empty.
            let _ = fs::remove_dir(&directory);
        })?;
        Ok(SessionCgroup { directory, population, kill, phase: Phase::InUse })
    }

    /// Removes the group, if it is empty.
    pub(crate) fn remove(self) {
        // The next server removes a group that is not empty.
        let _ = fs::remove_dir(self.directory.join(LEAVING));
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Group of a session process, removed when it is dropped.
#[derive(Debug)]
pub(crate) struct SessionCgroup {
    directory: PathBuf,
    population: Population,
    /// Opened at the start, so that killing the group cannot fail for a missing descriptor.
    kill: File,
    phase: Phase,
}

/// Phase of a session's group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    InUse,
    /// The session process has ended, and all other processes in the group are killed.
    Ending,
}

impl SessionCgroup {
    /// Forks a child into the group.
    ///
    /// # Safety
    /// This process must have one thread.
    pub(crate) unsafe fn fork(&self) -> io::Result<ForkResult> {
        let directory = File::open(&self.directory)?;
        // SAFETY: as the caller guarantees.
        if let Ok(forked) = unsafe { fork_into_group(directory.as_fd()) } {
            return Ok(forked);
        }
        // SAFETY: as the caller guarantees.
        let forked = unsafe { fork() }?;
        if let ForkResult::Parent { child } = forked {
            // A move waits for all CPUs to pass through the kernel: 10 to 25 ms on a machine with many CPUs.
            fs::write(self.directory.join(PROCESSES), child.to_string()).inspect_err(|_| end_child(child))?;
        }
        Ok(forked)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Kills all processes that the ended session process leaves. Returns true if the group is empty. After false, the descriptor
    /// becomes ready for `POLLPRI` when that may have changed.
    pub(crate) fn end(&mut self) -> bool {
        self.phase = Phase::Ending;
        let mut ended = || -> io::Result<bool> {
            if !self.population.any()? {
                return Ok(true);
            }
            self.kill.write_all(b"1")?;
            Ok(!self.population.any()?)
        };
        // The error means that the group is removed, and a group can only be removed when it is empty.
        ended().unwrap_or(true)
    }

    /// Returns true if the session process has ended, so that the caller waits for its other processes.
    pub(crate) fn is_ending(&self) -> bool {
        self.phase == Phase::Ending
    }
}

impl AsFd for SessionCgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.population.as_fd()
    }
}

impl Drop for SessionCgroup {
    fn drop(&mut self) {
        // The next server removes a group that is not empty.
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Locks a directory, unless another process has locked or removed it.
fn locked(directory: &Path) -> Option<File> {
    let file = File::open(directory).ok()?;
    file.try_lock().ok()?;
    let (ours, now) = (file.metadata().ok()?, fs::metadata(directory).ok()?);
    ((ours.dev(), ours.ino()) == (now.dev(), now.ino())).then_some(file)
}

/// Removes the groups of servers that no longer run, except groups with processes.
fn remove_abandoned(parent: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let directory = entry.path();
        let Some(_lock) = locked(&directory) else { continue };
        for group in fs::read_dir(&directory).into_iter().flatten().flatten() {
            // Groups that are in use and the kernel's files stay.
            let _ = fs::remove_dir(group.path());
        }
        let _ = fs::remove_dir(&directory);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use nix::fcntl::{OFlag, open};
    use nix::libc;
    use nix::sys::stat::Mode;
    use nix::unistd::{pipe, read, write};

    use super::super::usable_cgroup;
    use super::*;
    use crate::syscalls::{Child, reap, thread_number_place};

    /// Reports the groups of this process, and if the C library has the right thread id. Makes system calls and nothing else.
    fn say_groups(to: &impl AsFd) -> nix::Result<()> {
        let mut groups = [0; 4096];
        let len = read(open(c"/proc/self/cgroup", OFlag::O_RDONLY, Mode::empty())?, &mut groups)?;
        write(to, &groups[..len])?;
        write(to, if thread_number_place().is_ok() { b"known" } else { b"unknown" }).map(drop)
    }

    #[test]
    fn a_child_is_born_in_its_group_and_knows_its_thread() {
        let parent = match usable_cgroup() {
            Ok(parent) => parent,
            Err(reason) => return println!("not tried, for here are no control groups: {reason}"),
        };
        let mut server = ServerCgroup::new(&parent).unwrap();
        let group = server.session().unwrap();
        let (reader, writer) = pipe().unwrap();
        let directory = File::open(group.directory()).unwrap();
        // SAFETY: other tests run in threads that may hold locks, which the child would wait for indefinitely. The child makes
        // system calls and nothing else.
        match unsafe { fork_into_group(directory.as_fd()) }.unwrap() {
            ForkResult::Child => {
                let said = say_groups(&writer);
                // SAFETY: leaves without running exit handlers.
                unsafe { libc::_exit(i32::from(said.is_err())) }
            }
            ForkResult::Parent { child } => {
                drop(writer);
                let mut said = String::new();
                File::from(reader).read_to_string(&mut said).unwrap();
                reap(Child::Number(child)).unwrap();
                let own = said.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
                let name = group.directory().strip_prefix(&parent).unwrap();
                assert!(Path::new(own).ends_with(name), "{said}");
                assert!(said.ends_with("\nknown"), "{said}");
            }
        }
        drop(group);
        server.remove();
    }
}

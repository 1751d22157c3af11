//! The control group as a session process uses it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;

use super::{KILL, LEAVING, PROCESSES, Population};
use crate::kill::Survivor;

/// Control group of this process: it has all processes that this one has started, and no other process.
///
/// The files are opened before the process becomes a user. The kernel checks a write against the process that opened the file (since
/// Linux 5.16), and the user has no right to the group. The files are closed at exec.
#[derive(Debug)]
pub struct OwnCgroup {
    directory: PathBuf,
    kill: File,
    /// File that moves processes into the sibling group `leaving`.
    leave: File,
}

impl OwnCgroup {
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        let write = |path: PathBuf| fs::OpenOptions::new().write(true).open(path);
        let leave = write(directory.with_file_name(LEAVING).join(PROCESSES))?;
        Ok(Self { directory: directory.to_owned(), kill: write(directory.join(KILL))?, leave })
    }

    /// Leaves the group permanently, kills all processes in it, and waits until it is empty, for `time_limit` at most. Returns the
    /// processes that are still there then. The parents must reap the killed processes; this process is the parent of orphans.
    ///
    /// # Errors
    /// Fails if a system call fails; then no process was killed.
    pub fn kill_others(&self, time_limit: Duration) -> io::Result<Vec<Survivor>> {
        (&self.leave).write_all(b"0")?;
        let population = Population::of(&self.directory)?;
        (&self.kill).write_all(b"1")?;
        let deadline = Instant::now() + time_limit;
        while population.any()? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return self.processes();
            }
            let mut polled = [PollFd::new(population.as_fd(), PollFlags::POLLPRI)];
            match poll(&mut polled, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(Vec::new())
    }

    fn processes(&self) -> io::Result<Vec<Survivor>> {
        let text = fs::read_to_string(self.directory.join(PROCESSES))?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).map(Pid::from_raw).map(Survivor::of).collect())
    }
}

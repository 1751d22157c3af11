//! Control groups (version 2) of session processes. Each process that a session process starts is created in its group and cannot
//! leave it. The kernel kills a group at once, and reports when it is empty. A process therefore cannot escape by forking faster than
//! a process table can be read.
//!
//! ```text
//! group of the daemon
//!   └─ lattice-forks-PID-N    of one fork server, which locks the directory
//!        ├─ 1, 2, ...         of one session each: its process, and all that this process starts
//!        └─ leaving           session processes that kill the rest of their groups
//! ```
//! No controller is enabled, so the groups can be siblings of the daemon's processes. The fork server makes and removes the groups
//! ([`session_group`]); a session process clears its own group before it reports ([`OwnCgroup`]).

mod own_group;
mod place;
mod session_group;

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

pub use self::own_group::OwnCgroup;
pub use self::place::usable_cgroup;
pub(crate) use self::session_group::{ServerCgroup, SessionCgroup};

/// File of a group: lists its processes. A process joins the group when its number is written here.
const PROCESSES: &str = "cgroup.procs";
/// File of a group: writing 1 kills all its processes.
const KILL: &str = "cgroup.kill";
/// File of a group: shows if the group has processes.
const EVENTS: &str = "cgroup.events";
/// Group of session processes that clear their session groups.
const LEAVING: &str = "leaving";

/// Reason why session processes have no control groups.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CgroupError {
    /// No cgroup2 file system is mounted at a place that shows this process's group.
    #[error("no cgroup2 file system is mounted that has this process's group")]
    NotMounted,
    /// The kernel is older than 5.14.
    #[error("the kernel has no cgroup.kill, which came with Linux 5.14")]
    NoKill,
    /// This process may not change the group.
    #[error("cannot make control groups in {}: {error}", path.display())]
    NotWritable {
        /// Directory of the group.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
}

/// Monitor of the processes of a group.
#[derive(Debug)]
struct Population(File);

impl Population {
    fn of(group: &Path) -> io::Result<Self> {
        File::open(group.join(EVENTS)).map(Self)
    }

    /// Returns true if the group has processes. A change after this call makes the descriptor ready for `POLLPRI`.
    fn any(&self) -> io::Result<bool> {
        let (mut text, mut file) = (String::new(), &self.0);
        file.rewind()?;
        file.read_to_string(&mut text)?;
        Ok(!text.lines().any(|line| line == "populated 0"))
    }
}

impl AsFd for Population {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

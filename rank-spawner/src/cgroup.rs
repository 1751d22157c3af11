//! Control groups (version 2) of session processes. Whatever a session process starts is born into its group and cannot leave it; the
//! kernel kills a group at once, and says when nothing is left in it. A process that forks faster than a table of processes is read
//! gains nothing by that.
//!
//! ```text
//! group of the daemon
//!   └─ lattice-forks-PID-N    of one fork server, which holds a lock on the directory
//!        ├─ 1, 2, ...         of a session each: its process, and all that this starts
//!        └─ leaving           session processes that kill what is left in their groups
//! ```
//! No controller is enabled, so that the groups may lie beside processes of the daemon's. The fork server makes the groups and
//! ends them ([`session_group`]); a session process clears its own before it reports ([`OwnCgroup`]).

mod own_group;
mod place;
mod session_group;

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

pub use self::own_group::OwnCgroup;
pub(crate) use self::place::usable_directory;
pub(crate) use self::session_group::{ServerCgroup, SessionCgroup};

/// File of a group: its processes; a number that is written joins it.
const PROCESSES: &str = "cgroup.procs";
/// File of a group: kills all its processes when 1 is written.
const KILL: &str = "cgroup.kill";
/// File of a group that says when it has no process any more.
const EVENTS: &str = "cgroup.events";
/// Group of session processes that clear their own.
const LEAVING: &str = "leaving";

/// Reason why session processes have no control groups.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CgroupError {
    /// No hierarchy of version 2 is mounted where this process's group can be seen.
    #[error("no cgroup2 file system is mounted that has this process's group")]
    NotMounted,
    /// The kernel is older than 5.14.
    #[error("the kernel has no cgroup.kill, which came with Linux 5.14")]
    NoKill,
    /// The group is another's to change.
    #[error("cannot make control groups in {}: {error}", path.display())]
    NotWritable {
        /// Directory of the group.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
}

/// Watch on the processes of a group.
#[derive(Debug)]
struct Population(File);

impl Population {
    fn of(group: &Path) -> io::Result<Self> {
        File::open(group.join(EVENTS)).map(Self)
    }

    /// Returns false if no process of the group runs. A change after this call makes the descriptor ready, for `POLLPRI`.
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

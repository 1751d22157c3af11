//! Size of this process's table of open files.
//!
//! Linux enlarges a table that threads share only after an RCU grace period: 8 to 25 ms on an idle machine with 16 cores. A table doubles
//! from 64 entries on, and each thread that opens a file waits meanwhile. A process therefore reserves its table before its first thread.
//! `exec` keeps the size; a forked child starts with a table that fits its open files.

use std::fs::File;
use std::io;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::c_int;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::close;

use crate::process_table::own_threads;

/// Number of descriptors that a process will have open at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DescriptorPlan {
    /// Ranks that the process starts.
    pub ranks: usize,
    /// Connections and files in addition to the ranks' descriptors.
    pub others: usize,
}

impl DescriptorPlan {
    /// Descriptors of a rank: PMI socket, three streams and the process, and the opposite ends during its start.
    const OF_RANK: usize = 8;
    /// Descriptors of the process's own.
    const OWN: usize = 128;
    /// Entries of the smallest table (8 KiB), enough for about 200 spawned ranks.
    const LEAST: usize = 1024;

    /// Number of entries of the table.
    #[must_use]
    pub const fn entries(self) -> usize {
        let planned = Self::OWN + Self::OF_RANK * self.ranks + self.others;
        if planned > Self::LEAST { planned } else { Self::LEAST }
    }

    /// Grows the table to the planned number of entries, within the hard limit on open files. The soft limit stays unchanged.
    ///
    /// Call it while the process has one thread. A failed call has no effect: the table then grows on demand.
    pub fn reserve(self) {
        debug_assert!(
            !own_threads().is_ok_and(|threads| threads > 1),
            "the table of open files grows before the first thread"
        );
        // The process also works with a small table.
        let _ = grow(self.entries());
    }
}

fn grow(entries: usize) -> io::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let entries = hard.min(entries as u64);
    let Some(last) = entries.checked_sub(1).and_then(|last| c_int::try_from(last).ok()) else { return Ok(()) };
    let file = File::open("/")?;
    if soft < entries {
        setrlimit(Resource::RLIMIT_NOFILE, entries, hard)?;
    }
    let duplicate = fcntl(&file, FcntlArg::F_DUPFD_CLOEXEC(last));
    if soft < entries {
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
    }
    close(duplicate?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_room_for_the_ranks_and_at_least_its_smallest_size() {
        let check = |ranks, others, entries| assert_eq!(DescriptorPlan { ranks, others }.entries(), entries);
        check(0, 0, 1024);
        check(1, 0, 1024);
        check(112, 0, 1024);
        check(300, 0, 2528);
        check(300, 64, 2592);
    }
}

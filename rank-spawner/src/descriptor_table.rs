//! The size of this process's table of open files.
//!
//! Linux enlarges a table that threads share only after an RCU grace period: 8 to 25 ms on an idle machine with 16 cores. A table doubles
//! from 64 entries on, and each thread that opens a file waits as long. A process therefore reserves its table before its first thread. The
//! size is kept by `exec`; a forked child begins with a table that fits its open files.

use std::fs::File;
use std::io;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::c_int;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::close;

use crate::process_table::own_threads;

/// Number of descriptors that a process will have open at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DescriptorPlan {
    /// Ranks that the process starts.
    pub ranks: usize,
    /// Connections and files beside those of ranks.
    pub others: usize,
}

impl DescriptorPlan {
    /// Descriptors of a rank: PMI socket, three streams, and the process; the other ends while it is started.
    const OF_RANK: usize = 8;
    /// Descriptors of the process itself.
    const OWN: usize = 128;
    /// Entries of the smallest table, which has 8 KiB. It has room for about 200 spawned ranks.
    const LEAST: usize = 1024;

    /// Number of entries of the table.
    #[must_use]
    pub const fn entries(self) -> usize {
        let planned = Self::OWN + Self::OF_RANK * self.ranks + self.others;
        if planned > Self::LEAST { planned } else { Self::LEAST }
    }

    /// Grows the table to the planned number of entries, within the hard limit of open files. The soft limit stays as it is.
    ///
    /// To be called while the process has one thread. A system that refuses is left as it is: the table then grows when it must.
    pub fn reserve(self) {
        debug_assert!(
            !own_threads().is_ok_and(|threads| threads > 1),
            "the table of open files grows before the first thread"
        );
        // The process works with a small table as well.
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

//! Finds and kills the leftovers of ended children: descendants of the server that descend from none of its running children.

use std::collections::BTreeSet;
use std::io;
use std::thread;
use std::time::Duration;

use nix::unistd::{Pid, getpid};

use super::{CLEAN_UP_LIMIT, IDLE_MAX, Server};
use crate::kill::{Fall, kill_until_gone};
use crate::last_resort::{LastResort, kill_all_of, owner};
use crate::process_table::ProcessTable;
use crate::syscalls::{Child, try_reap};

/// Time in which processes that still multiply become children of the server.
const FALLING: Duration = Duration::from_millis(20);

/// Longest time of an attempt to outrun processes, and longest pause between two. Ended processes fill the process table in between.
const OUTRUN_MAX: Duration = Duration::from_millis(100);

impl Server {
    /// Returns true if processes of ended children may be left.
    pub(super) fn is_clean_up_due(&self) -> bool {
        self.needs_clean_up || !self.outrun_by.is_empty()
    }

    /// Time limit of the clean-up that is due.
    pub(super) fn clean_up_limit(&self) -> Duration {
        if self.outrun_by.is_empty() { CLEAN_UP_LIMIT } else { OUTRUN_MAX }
    }

    /// Longest pause before the next attempt.
    pub(super) fn longest_pause(&self) -> Duration {
        if self.outrun_by.is_empty() { IDLE_MAX } else { OUTRUN_MAX }
    }

    /// Kills and reaps the leftovers of ended children.
    pub(super) fn clean_up(&mut self, time_limit: Duration) -> io::Result<()> {
        self.kill_listed(time_limit)?;
        if !self.outrun_by.is_empty() && self.outrun()? {
            self.kill_listed(time_limit)?;
        }
        Ok(())
    }

    /// Kills the leftovers that a table of processes shows.
    fn kill_listed(&mut self, time_limit: Duration) -> io::Result<()> {
        self.reap_leftovers()?;
        let spared: Vec<Pid> = self.spared().collect();
        let fall = Fall::ToCaller { spared: &spared };
        let report = kill_until_gone(time_limit, fall, |table| left_behind(table, &spared))?;
        self.needs_clean_up = !report.survivors.is_empty();
        self.reap_leftovers()
    }

    /// Reaps ended processes that are no children of the server's own.
    fn reap_leftovers(&self) -> io::Result<()> {
        let children = ProcessTable::read_children()?;
        for orphan in children.iter().filter(|child| child.zombie && !self.is_ours(child.pid)) {
            // A zombie keeps its number until it is reaped, and only this process reaps it.
            let _ = try_reap(Child::Number(orphan.pid));
        }
        Ok(())
    }

    /// Kills leftovers that fork and exit faster than a table is read. They are in no table, but keep becoming children of this process. One
    /// signal reaches all processes of their user. It waits until the user has no session on this node. Returns true if a signal was sent.
    fn outrun(&mut self) -> io::Result<bool> {
        thread::sleep(FALLING);
        let children = ProcessTable::read_children()?;
        let leftovers = children.iter().filter(|child| !self.is_ours(child.pid));
        let left_by: BTreeSet<u32> = leftovers.filter_map(|child| owner(child.pid)).collect();
        // Leftovers of another user that cannot be killed are no reason to kill all processes of this user.
        self.outrun_by.retain(|user| left_by.contains(user));
        if self.outrun_by.is_empty() {
            return Ok(false);
        }
        let table = ProcessTable::read()?;
        let mut is_any_sent = false;
        for user in self.outrun_by.clone() {
            match kill_all_of(user, &table, |pid| self.is_ours(pid)) {
                LastResort::Sent => is_any_sent = true,
                LastResort::Later => {}
                LastResort::Never => drop(self.outrun_by.remove(&user)),
            }
        }
        Ok(is_any_sent)
    }

    /// Children of this process that run on.
    fn spared(&self) -> impl Iterator<Item = Pid> {
        self.children.running().chain(self.spare.as_ref().map(|spare| spare.pid)).chain(self.pam_processes.pids())
    }
}

/// Descendants of this process that descend from none of its `spared` children.
fn left_behind(table: &ProcessTable, spared: &[Pid]) -> Vec<Pid> {
    let mut below = table.trees([getpid()]);
    below.remove(&getpid());
    let spared = table.trees(spared.iter().copied());
    below.difference(&spared).copied().collect()
}

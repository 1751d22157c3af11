//! Finds and kills the leftovers of ended children: descendants of the server that descend from none of its running children.

use std::io;
use std::thread;
use std::time::Duration;

use nix::unistd::{Pid, getpid};

use super::{CLEAN_UP_LIMIT, Server};
use crate::kill::{Fall, kill_until_gone};
use crate::last_resort::{kill_all_of, owner};
use crate::process_table::ProcessTable;
use crate::syscalls::{Child, try_reap};

/// Time in which processes that still multiply become children of the server.
const FALLING: Duration = Duration::from_millis(20);

impl Server {
    /// Kills and reaps the leftovers of ended children.
    pub(super) fn clean_up(&mut self, time_limit: Duration) -> io::Result<()> {
        let spared: Vec<Pid> = self.spared().collect();
        let fall = Fall::ToCaller { spared: &spared };
        let report = kill_until_gone(time_limit, fall, |table| left_behind(table, &spared))?;
        self.needs_clean_up = !report.survivors.is_empty();
        let children = ProcessTable::read_children()?;
        for orphan in children.iter().filter(|child| child.zombie && !self.is_ours(child.pid)) {
            // A zombie keeps its number until it is reaped, and only this process reaps it.
            let _ = try_reap(Child::Number(orphan.pid));
        }
        Ok(())
    }

    /// Kills the processes that an ended child of a user left, if there is no control group. Processes that fork and exit faster than
    /// a table is read are in no table, but keep becoming children of this process.
    pub(super) fn outrun(&mut self, child: Pid, user: u32) -> io::Result<()> {
        self.clean_up(CLEAN_UP_LIMIT)?;
        thread::sleep(FALLING);
        let children = ProcessTable::read_children()?;
        let runs = |pid: Pid| pid != child && self.is_ours(pid);
        // Leftovers of another user that cannot be killed are no reason to kill all processes of this user.
        let is_left = |pid: Pid| !runs(pid) && owner(pid) == Some(user);
        let falls = children.iter().any(|child| is_left(child.pid));
        if falls && kill_all_of(user, &ProcessTable::read()?, runs) {
            self.clean_up(CLEAN_UP_LIMIT)?;
        }
        Ok(())
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

//! What ended children left behind is found below the server and below none of its children, and killed.

use std::io;
use std::thread;
use std::time::Duration;

use nix::unistd::{Pid, getpid};

use super::{CLEAN_UP_LIMIT, Server};
use crate::kill::{Fall, kill_until_gone};
use crate::last_resort::{kill_all_of, owner};
use crate::process_table::ProcessTable;
use crate::syscalls::{Child, try_reap};

/// Time in which anything that still multiplies falls to the server.
const FALLING: Duration = Duration::from_millis(20);

impl Server {
    /// Kills and reaps what ended children left behind.
    pub(super) fn clean_up(&mut self, time_limit: Duration) -> io::Result<()> {
        let report = kill_until_gone(time_limit, Fall::ToCaller, |table| self.left_behind(table))?;
        self.needs_clean_up = !report.survivors.is_empty();
        let table = ProcessTable::read()?;
        let is_orphan = |pid, parent| parent == getpid() && !self.is_ours(pid);
        for orphan in table.iter().filter(|process| process.zombie && is_orphan(process.pid, process.parent)) {
            // A zombie's number is not given to another before it is reaped, and nobody but us reaps it.
            let _ = try_reap(Child::Number(orphan.pid));
        }
        Ok(())
    }

    /// Ends what an ended child of a user left, where it has no control group: what no table shows, since it forks and ends meanwhile,
    /// falls to this process all the time.
    pub(super) fn outrun(&mut self, child: Pid, user: u32) -> io::Result<()> {
        self.clean_up(CLEAN_UP_LIMIT)?;
        thread::sleep(FALLING);
        let table = ProcessTable::read()?;
        let runs = |pid: Pid| pid != child && self.is_ours(pid);
        // What other users have left and nobody can kill is no reason to kill all that this one has.
        let is_left = |pid: Pid| !runs(pid) && owner(pid) == Some(user);
        let falls = table.iter().any(|process| process.parent == getpid() && is_left(process.pid));
        if falls && kill_all_of(user, &table, runs) {
            self.clean_up(CLEAN_UP_LIMIT)?;
        }
        Ok(())
    }

    /// Processes below this one and below none of its children.
    fn left_behind(&self, table: &ProcessTable) -> Vec<Pid> {
        let mut below = table.trees([getpid()]);
        below.remove(&getpid());
        let children =
            self.children.running().chain(self.spare.as_ref().map(|spare| spare.pid)).chain(self.pam_processes.pids());
        let spared = table.trees(children);
        below.difference(&spared).copied().collect()
    }
}

//! The end of a launch: no process of it stays behind.
//!
//! Killing the ranks is not enough. A rank may have children, these may have left its process group, and their parents may
//! have ended. So the launcher becomes the one to whom orphans fall ([`become_subreaper`]), and looks through everything
//! below it ([`sweep`]). What survives the launcher itself is the [`crate::Keeper`]'s business.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use nix::sys::prctl;
use nix::unistd::{Pid, getpid};

use crate::kill::{Survivor, kill_until_gone};
use crate::launch_tag::{LaunchTag, value_of};
use crate::process_table::{Process, ProcessTable};
use crate::syscalls::{self, Child};

/// Criteria by which the processes of a launch are recognised.
///
/// A process below this one is the launch's if it carries the tag, or if it is in a rank's group and carries no other
/// launch's tag, or if it descends from such a process, or if it is an orphan that is claimed.
#[derive(Clone, Copy, Debug)]
pub struct SweepScope<'a> {
    /// The launch's mark.
    pub tag: &'a LaunchTag,
    /// The process numbers of its ranks, which are the numbers of their groups; those of ended ranks included.
    pub ranks: &'a [Pid],
    /// Treatment of processes that carry no mark.
    pub orphans: Orphans<'a>,
}

/// Treatment of a child of this process that carries no mark: say, a daemon that a rank started with an empty environment.
#[derive(Clone, Copy, Debug)]
pub enum Orphans<'a> {
    /// Not the launch's: this process serves several launches, or has children of which nothing is known here.
    Leave,
    /// The launch's, unless listed: this process serves this launch alone.
    Claim {
        /// Children of this process's own, such as the keeper.
        except: &'a [Pid],
    },
}

/// Result of [`sweep`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Swept {
    /// Number of processes that were killed, ranks included.
    pub killed: usize,
    /// Processes that were still there at the time limit.
    pub survivors: Vec<Survivor>,
}

/// Makes this process the parent of all processes below it whose parents end.
///
/// # Errors
/// Never on Linux 3.4 and later.
pub fn become_subreaper() -> nix::Result<()> {
    prctl::set_child_subreaper(true)
}

/// True if nothing is below this process, which must be a subreaper, but a keeper: all that it started has ended and was reaped,
/// and no orphan has fallen to it. Then [`sweep`] has nothing to do. A single system call.
pub fn nothing_to_sweep() -> bool {
    syscalls::no_child_left()
}

/// Kills every process of the launch, and reaps those that fell to this process; the ranks are left to be reaped by
/// [`crate::RankProcess::try_wait`].
///
/// Repeats until two scans in a row find nothing, and returns what is still there after `time_limit`. The calling process must
/// be a subreaper, and must not be starting ranks of the launch meanwhile.
///
/// # Errors
/// Fails where `/proc` cannot be read.
pub fn sweep(launch: &SweepScope<'_>, time_limit: Duration) -> io::Result<Swept> {
    if nothing_to_sweep() {
        return Ok(Swept { killed: 0, survivors: Vec::new() });
    }
    let report = kill_until_gone(time_limit, |table| launch.find(table))?;
    let ended =
        |process: &Process| report.killed.get(&process.pid) == Some(&process.start) || launch.owns_zombie(process);
    reap_children(launch.ranks, ended)?;
    Ok(Swept { killed: report.killed.len(), survivors: report.survivors })
}

/// Reaps the launch's processes that have fallen to this process and ended, and returns how many they were; a launch whose
/// ranks make many orphans would fill the process table otherwise.
///
/// Ranks are not reaped. An orphan that left its rank's group is known only by [`Orphans::Claim`], under which no start of
/// a rank may be in progress.
///
/// # Errors
/// Fails where `/proc` cannot be read.
pub fn reap_adopted(launch: &SweepScope<'_>) -> io::Result<usize> {
    // Mostly there is none, and no need to read the table.
    if !syscalls::any_child_ended() {
        return Ok(0);
    }
    reap_children(launch.ranks, |process| launch.owns_zombie(process))
}

/// Reaps those ended children of this process that `chosen` says, ranks excepted.
fn reap_children(ranks: &[Pid], chosen: impl Fn(&Process) -> bool) -> io::Result<usize> {
    let me = getpid();
    let table = ProcessTable::read()?;
    let ended = table.iter().filter(|process| process.zombie && process.parent == me && !ranks.contains(&process.pid));
    // A zombie's number is not given to another before it is reaped, and nobody but us reaps these.
    let reap = |process: &&Process| matches!(syscalls::try_reap(Child::Number(process.pid)), Ok(Some(_)));
    Ok(ended.filter(|process| chosen(process)).filter(reap).count())
}

impl SweepScope<'_> {
    /// Processes of the launch below this one.
    fn find(&self, table: &ProcessTable) -> Vec<Pid> {
        let me = getpid();
        let mut below = table.trees([me]);
        below.remove(&me);
        let roots: Vec<Pid> = match self.orphans {
            Orphans::Leave => below.into_iter().filter(|&pid| self.marks(table, pid)).collect(),
            Orphans::Claim { except } => {
                let spared = table.trees(except.iter().copied());
                below.difference(&spared).copied().collect()
            }
        };
        let family: BTreeSet<Pid> = table.trees(roots);
        family.into_iter().collect()
    }

    fn marks(&self, table: &ProcessTable, pid: Pid) -> bool {
        match value_of(pid) {
            // Another launch's process is not ours even in a rank's group: the number may have been used again.
            Some(value) => self.tag.is(&value),
            None => table.get(pid).is_some_and(|process| self.ranks.contains(&process.group)),
        }
    }

    /// True if an ended child of this process is the launch's; its environment is gone already.
    fn owns_zombie(&self, process: &Process) -> bool {
        match self.orphans {
            Orphans::Leave => self.ranks.contains(&process.group),
            Orphans::Claim { except } => !except.contains(&process.pid),
        }
    }
}

//! End of a launch: no process of it remains.
//!
//! Killing the ranks is not enough. A rank may have children that have left its process group, and their parents may have ended. The launcher
//! therefore becomes the parent of orphans ([`become_subreaper`]), and searches all its descendants ([`sweep`]). The [`crate::Keeper`] handles
//! processes that survive the launcher itself.

use std::collections::BTreeSet;
use std::io;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::unistd::{Pid, getpid};

use crate::cgroup::OwnCgroup;
use crate::kill::{Fall, Survivor, kill_until_gone};
use crate::last_resort::kill_all_of_this_user;
use crate::launch_tag::{LaunchTag, value_of};
use crate::process_table::{Process, ProcessTable};
use crate::syscalls::{self, Child};

/// Time limit for processes that multiply during the sweep.
const OUTRUN: Duration = Duration::from_secs(1);

/// Pause before killed processes are reaped again.
const REAP_PAUSE: Duration = Duration::from_millis(1);

/// Limit on the ancestors of this process that are inspected.
const DEPTH_MAX: usize = 1024;

/// Limit on the orphans that one call reaps.
const REAPED_AT_ONCE: usize = 4096;

/// Criteria that identify the processes of a launch.
///
/// Candidates are descendants of this process, and orphans that became children of one of its ancestors. A candidate belongs to the launch if it
/// has the tag, or is in a rank's group and has no other launch's tag. Descendants of such a process, and claimed orphans, belong to the launch
/// too.
#[derive(Clone, Copy, Debug)]
pub struct SweepScope<'a> {
    /// Mark of the launch.
    pub tag: &'a LaunchTag,
    /// Process numbers of its ranks, ended ranks included. They are also the numbers of the ranks' groups.
    pub ranks: &'a [Pid],
    /// Treatment of processes without a mark.
    pub orphans: Orphans<'a>,
}

/// Treatment of a child of this process without a mark, such as a daemon that a rank started with an empty environment.
#[derive(Clone, Copy, Debug)]
pub enum Orphans<'a> {
    /// The child does not belong to the launch: this process serves several launches, or has unknown children of its own.
    Leave,
    /// The child belongs to the launch, unless it is listed or existed before [`become_subreaper`]: this process serves this launch only.
    Claim {
        /// Children of this process, such as the keeper.
        except: &'a [Pid],
    },
}

/// Result of [`sweep`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Swept {
    /// Number of killed processes, ranks included.
    pub killed: usize,
    /// Processes that still existed at the time limit.
    pub survivors: Vec<Survivor>,
}

/// Children of this process from before it became a subreaper, such as those of a shell that became this process by `exec`. They are not reaped
/// here, so that their numbers are not reused.
static EARLIER_CHILDREN: OnceLock<Vec<Pid>> = OnceLock::new();

/// Makes this process the parent of its orphaned descendants. Existing children belong to no launch.
///
/// # Errors
/// Never on Linux 3.4 and later.
pub fn become_subreaper() -> nix::Result<()> {
    EARLIER_CHILDREN.get_or_init(children);
    prctl::set_child_subreaper(true)
}

/// True if orphans of this process's descendants become its children.
pub(crate) fn is_subreaper() -> bool {
    prctl::get_child_subreaper().unwrap_or(false)
}

/// Children of this process. Usually it has none or only a keeper, and the process table need not be read.
fn children() -> Vec<Pid> {
    if nothing_to_sweep() {
        return Vec::new();
    }
    ProcessTable::read_children().map(|table| table.iter().map(|child| child.pid).collect()).unwrap_or_default()
}

fn earlier_children() -> &'static [Pid] {
    EARLIER_CHILDREN.get().map(Vec::as_slice).unwrap_or_default()
}

/// True for a child of this process that belongs to no launch.
fn is_spared(pid: Pid, except: &[Pid]) -> bool {
    except.contains(&pid) || earlier_children().contains(&pid)
}

/// True if this process, which must be a subreaper, has no descendant but a keeper. All its processes have then ended and are reaped, and no
/// orphan has become its child. Then [`sweep`] has nothing to do. A single system call.
pub fn nothing_to_sweep() -> bool {
    syscalls::no_child_left()
}

/// Kills all processes of the launch, and reaps those that are children of this process. [`crate::RankProcess::try_wait`] must reap the ranks.
///
/// Repeats until two consecutive scans find nothing, and returns the processes that still exist after `time_limit`. The calling process must not
/// start ranks of the launch meanwhile. To find unmarked leftovers of ranks by their parent, it must be a subreaper. Orphans with the launch's
/// mark are also found without that, among the children of this process's ancestors.
///
/// # Errors
/// Fails if `/proc` is not readable.
pub fn sweep(launch: &SweepScope<'_>, time_limit: Duration) -> io::Result<Swept> {
    // Without a subreaper, orphans are not children of this process.
    let has_all = matches!(launch.orphans, Orphans::Claim { .. }) || is_subreaper();
    if has_all && nothing_to_sweep() {
        return Ok(Swept { killed: 0, survivors: Vec::new() });
    }
    let spared: Vec<Pid>;
    let fall = match launch.orphans {
        Orphans::Claim { except } => {
            spared = except.iter().chain(earlier_children()).copied().collect();
            Fall::ToCaller { spared: &spared }
        }
        Orphans::Leave => Fall::Elsewhere,
    };
    let report = kill_until_gone(time_limit, fall, |table| launch.find(table))?;
    let ended =
        |process: &Process| report.killed.get(&process.pid) == Some(&process.start) || launch.owns_zombie(process);
    reap_children(launch.ranks, ended)?;
    let mut survivors = report.survivors;
    if let (Orphans::Claim { except }, true) = (launch.orphans, survivors.is_empty()) {
        survivors = outrun(launch.ranks, except, Instant::now() + OUTRUN)?;
    }
    Ok(Swept { killed: report.killed.len(), survivors })
}

/// Kills processes that no table shows, because they fork and exit too fast. While any exist, this process, a subreaper, has children. Returns
/// the children that it has at the deadline. If it has other children of its own, it relies on the table.
fn outrun(ranks: &[Pid], except: &[Pid], deadline: Instant) -> io::Result<Vec<Survivor>> {
    let mut is_signalled = false;
    loop {
        reap_children(ranks, |process| !is_spared(process.pid, except))?;
        if nothing_to_sweep() {
            return Ok(Vec::new());
        }
        let children = ProcessTable::read_children()?;
        let is_ours = |child: &&Process| !ranks.contains(&child.pid) && !is_spared(child.pid, except);
        let left: Vec<Pid> = children.iter().filter(is_ours).map(|child| child.pid).collect();
        let is_explained = |child: &Process| ranks.contains(&child.pid) || earlier_children().contains(&child.pid);
        if left.is_empty() && children.iter().any(is_explained) {
            // Only unreaped ranks, or children of this process, are left.
            return Ok(Vec::new());
        }
        if Instant::now() >= deadline {
            return Ok(left.into_iter().map(Survivor::of).collect());
        }
        is_signalled = is_signalled || kill_all_of_this_user(&ProcessTable::read()?);
        thread::sleep(REAP_PAUSE);
    }
}

/// Kills all processes of this process's control group except itself, however many there are and however fast they multiply. Reaps them except
/// `ranks`. The calling process must be a subreaper that serves this launch only, and must start no process afterwards.
///
/// # Errors
/// Fails if the control group or `/proc` is not usable.
pub fn sweep_group(group: &OwnCgroup, ranks: &[Pid], time_limit: Duration) -> io::Result<Swept> {
    let deadline = Instant::now() + time_limit;
    let survivors = group.kill_others(time_limit)?;
    let mut killed = 0;
    // The kernel reports a process as gone before its parent can reap it.
    while !nothing_to_sweep() && survivors.is_empty() && Instant::now() < deadline {
        killed += reap_children(ranks, |_| true)?;
        if ProcessTable::read_children()?.iter().all(|child| ranks.contains(&child.pid)) {
            break;
        }
        thread::sleep(REAP_PAUSE);
    }
    Ok(Swept { killed, survivors })
}

/// Reaps ended processes of the launch that are children of this process, and returns their number. Otherwise a launch with many orphans would
/// fill the process table.
///
/// Does not reap ranks. An orphan that left its rank's group is found only with [`Orphans::Claim`]. In that mode no rank may be starting, and
/// `ranks` may list only the unreaped ranks. Up to 4,096 claimed orphans are reaped without reading the process table, unless a spared child has
/// ended as well.
///
/// # Errors
/// Fails if `/proc` is not readable.
pub fn reap_adopted(launch: &SweepScope<'_>) -> io::Result<usize> {
    let mut reaped = 0;
    while let Some(child) = syscalls::ended_child() {
        match launch.orphans {
            Orphans::Claim { .. } if reaped == REAPED_AT_ONCE => break,
            // The rank precedes all other ended children until its owner reaps it.
            Orphans::Claim { .. } if launch.ranks.contains(&child) => break,
            Orphans::Claim { except } if !is_spared(child, except) => {
                // No other code reaps it; after a reap elsewhere it is gone as well.
                let _ = syscalls::try_reap(Child::Number(child));
                reaped += 1;
            }
            _ => return Ok(reaped + reap_children(launch.ranks, |process| launch.owns_zombie(process))?),
        }
    }
    Ok(reaped)
}

/// Reaps the ended children of this process for which `chosen` returns true, except ranks.
fn reap_children(ranks: &[Pid], chosen: impl Fn(&Process) -> bool) -> io::Result<usize> {
    let children = ProcessTable::read_children()?;
    let ended = children.iter().filter(|child| child.zombie && !ranks.contains(&child.pid));
    // The number of a zombie is not reused before it is reaped, and only this code reaps these.
    let reap = |child: &&Process| matches!(syscalls::try_reap(Child::Number(child.pid)), Ok(Some(_)));
    Ok(ended.filter(|child| chosen(child)).filter(reap).count())
}

impl SweepScope<'_> {
    /// Processes of the launch below this one, and orphans that are children of an ancestor of this one.
    fn find(&self, table: &ProcessTable) -> Vec<Pid> {
        let me = getpid();
        let mut below = table.trees([me]);
        below.remove(&me);
        let roots: Vec<Pid> = match self.orphans {
            Orphans::Leave => {
                let own = below.into_iter().filter(|&pid| self.marks(table, pid));
                // Orphans of a subreaper are its own children.
                let above = if is_subreaper() { Vec::new() } else { orphans_above(table, me) };
                own.chain(above.into_iter().filter(|&pid| value_of(pid).is_some_and(|value| self.tag.is(&value))))
                    .collect()
            }
            Orphans::Claim { except } => {
                let spared = table.trees(except.iter().chain(earlier_children()).copied());
                below.difference(&spared).copied().collect()
            }
        };
        let family: BTreeSet<Pid> = table.trees(roots);
        family.into_iter().collect()
    }

    fn marks(&self, table: &ProcessTable, pid: Pid) -> bool {
        match value_of(pid) {
            // A process of another launch is not included even in a rank's group: the group number may have been reused.
            Some(value) => self.tag.is(&value),
            None => table.get(pid).is_some_and(|process| self.ranks.contains(&process.group)),
        }
    }

    /// True if an ended child of this process belongs to the launch; its environment is gone already.
    fn owns_zombie(&self, process: &Process) -> bool {
        match self.orphans {
            Orphans::Leave => self.ranks.contains(&process.group),
            Orphans::Claim { except } => !is_spared(process.pid, except),
        }
    }
}

/// Children of the ancestors of `me`, except `me` and these ancestors. Without a subreaper, orphans become children of one of them.
fn orphans_above(table: &ProcessTable, me: Pid) -> Vec<Pid> {
    let parent = |&pid: &Pid| table.get(pid).map(|process| process.parent).filter(|&parent| parent.as_raw() > 0);
    let above: BTreeSet<Pid> = std::iter::successors(parent(&me), parent).take(DEPTH_MAX).collect();
    let is_orphan =
        |process: &&Process| above.contains(&process.parent) && process.pid != me && !above.contains(&process.pid);
    table.iter().filter(is_orphan).map(|process| process.pid).collect()
}

#[cfg(test)]
mod tests {
    use pmi_core::ids::JobId;

    use super::*;

    /// Numbers that no process has, so that no environment can be read for them.
    const FIRST: i32 = 1 << 24;

    fn pid(number: i32) -> Pid {
        match number {
            0 => getpid(),
            number => Pid::from_raw(FIRST + number),
        }
    }

    fn pids(numbers: &[i32]) -> Vec<Pid> {
        numbers.iter().copied().map(pid).collect()
    }

    /// A process with number, parent and group; 0 is the scanning process.
    fn process(&(number, parent, group): &(i32, i32, i32)) -> Process {
        let (zombie, stopped, in_exec) = (false, false, false);
        let (pid, parent, group, session) = (pid(number), pid(parent), pid(group), pid(1));
        Process { pid, parent, group, session, zombie, stopped, start: 1, in_exec }
    }

    fn check(ranks: &[i32], claim: Option<&[i32]>, processes: &[(i32, i32, i32)], expected: &[i32]) {
        let tag = LaunchTag::new(JobId::new("launch").unwrap());
        let (ranks, except) = (pids(ranks), claim.map(pids));
        let orphans = except.as_deref().map_or(Orphans::Leave, |except| Orphans::Claim { except });
        let scope = SweepScope { tag: &tag, ranks: &ranks, orphans };
        assert_eq!(scope.find(&processes.iter().map(process).collect()), pids(expected), "{processes:?} {claim:?}");
    }

    #[test]
    fn a_rank_and_all_below_it_are_the_launchs_whatever_their_groups() {
        let family = [(1, 0, 1), (2, 1, 1), (3, 2, 3), (4, 3, 4)];
        check(&[1], None, &family, &[1, 2, 3, 4]);
        check(&[1], Some(&[]), &family, &[1, 2, 3, 4]);
    }

    #[test]
    fn an_orphan_is_known_by_the_group_of_an_ended_rank() {
        check(&[1], None, &[(2, 0, 1), (3, 2, 3)], &[2, 3]);
    }

    #[test]
    fn an_orphan_without_a_mark_is_the_launchs_where_it_is_claimed() {
        let daemon = [(5, 0, 5), (6, 5, 5)];
        check(&[1], None, &daemon, &[]);
        check(&[1], Some(&[]), &daemon, &[5, 6]);
    }

    #[test]
    fn children_of_our_own_are_spared_with_all_below_them() {
        let keeper_and_rank = [(1, 0, 1), (7, 0, 7), (8, 7, 7)];
        check(&[1], Some(&[7]), &keeper_and_rank, &[1]);
        check(&[1], None, &keeper_and_rank, &[1]);
    }

    #[test]
    fn a_process_that_is_not_below_this_one_is_another_launchs_even_in_a_ranks_group() {
        check(&[1], None, &[(9, 11, 1), (10, 9, 1)], &[]);
        check(&[1], Some(&[]), &[(9, 11, 1), (10, 9, 1)], &[]);
    }

    #[test]
    fn an_ended_child_is_the_launchs_by_its_group_or_by_the_claim() {
        let tag = LaunchTag::new(JobId::new("launch").unwrap());
        let (ranks, keeper) = (pids(&[1]), pids(&[7]));
        let owns = |orphans, ended: (i32, i32, i32)| {
            SweepScope { tag: &tag, ranks: &ranks, orphans }.owns_zombie(&process(&ended))
        };
        let claim = Orphans::Claim { except: &keeper };
        let cases =
            [((1, 0, 1), true, true), ((2, 0, 1), true, true), ((5, 0, 5), false, true), ((7, 0, 7), false, false)];
        for (ended, left, claimed) in cases {
            assert_eq!((owns(Orphans::Leave, ended), owns(claim, ended)), (left, claimed), "{ended:?}");
        }
    }
}

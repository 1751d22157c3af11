//! Removal of all remains of ranks: processes, and files that ranks registered for removal.

use std::time::SystemTime;

use nix::unistd::Pid;
use pmi_core::ids::Rank;
use rank_spawner::{
    Keeper, LaunchTag, Orphans, OwnCgroup, StreamHolder, SweepScope, nothing_to_sweep, remove_orphaned_memory, sweep,
    sweep_group,
};
use tokio::task::JoinSet;

use super::directories::Directories;
use super::pump::HeldStream;
use crate::blocking;
use crate::session_io::HostProcess;
use crate::timeouts;

/// Maximum number of output streams of a node for the search for holders, and of reported holders.
const HELD_NAMED_MAX: usize = 8;

/// Processes of a launch that must be swept.
pub(super) struct Leftovers {
    pub(super) tag: LaunchTag,
    /// The ranks that were started.
    pub(super) ranks: Vec<Pid>,
    pub(super) process: HostProcess,
    pub(super) cgroup: Option<OwnCgroup>,
    pub(super) keeper: Option<Keeper>,
    /// Output streams of ranks that processes hold.
    pub(super) held: Vec<HeldStream>,
}

/// Result of [`Leftovers::kill`].
#[derive(Default)]
pub(super) struct Killed {
    /// Processes that cannot be killed.
    pub(super) survivors: Vec<u32>,
    /// Killed processes that held an output stream of this rank.
    pub(super) holders: Vec<(Rank, StreamHolder)>,
    /// The keeper, which stays until all files are removed.
    pub(super) keeper: Option<Keeper>,
}

impl Leftovers {
    /// Kills processes that the ranks left running.
    pub(super) async fn kill(self) -> Killed {
        // Usually there is nothing to kill, and a thread would take as long as the start of a rank. Orphans of a shared process may not be the
        // launch's.
        let has_all_children = self.process == HostProcess::Dedicated;
        if self.ranks.is_empty() || has_all_children && nothing_to_sweep() {
            return Killed { keeper: self.keeper, ..Killed::default() };
        }
        blocking::begin(move || self.kill_now()).await.unwrap_or_default()
    }

    fn kill_now(self) -> Killed {
        let mut holders = self.holders();
        let except: Vec<Pid> = self.keeper.iter().map(Keeper::pid).collect();
        let orphans = match self.process {
            HostProcess::Dedicated => Orphans::Claim { except: &except },
            HostProcess::Shared => Orphans::Leave,
        };
        let by_group = self.cgroup.as_ref().and_then(|group| sweep_group(group, &self.ranks, timeouts::SWEEP).ok());
        let by_table = || sweep(&SweepScope { tag: &self.tag, ranks: &self.ranks, orphans }, timeouts::SWEEP);
        let swept = by_group.map_or_else(by_table, Ok);
        let survivors = swept.map(|swept| swept.survivors).unwrap_or_default();
        let survivors = survivors.iter().map(|survivor| survivor.pid.as_raw().unsigned_abs()).collect();
        // Processes outside of the launch may hold a stream as well. They are not killed.
        holders.retain(|(_, holder)| holder.has_ended());
        Killed { survivors, holders, keeper: self.keeper }
    }

    /// Returns the processes that hold output streams of ranks, each once.
    fn holders(&self) -> Vec<(Rank, StreamHolder)> {
        let mut holders: Vec<(Rank, StreamHolder)> = Vec::new();
        for HeldStream { rank, stream } in self.held.iter().take(HELD_NAMED_MAX) {
            let found = stream.holders().unwrap_or_default();
            let is_known = |holder: &StreamHolder| holders.iter().any(|(_, known)| known == holder);
            let new: Vec<_> = found.into_iter().filter(|holder| !is_known(holder)).collect();
            holders.extend(new.into_iter().map(|holder| (*rank, holder)));
        }
        holders.truncate(HELD_NAMED_MAX);
        holders
    }
}

/// Dismisses the keeper. If the keeper has ended early, this has no effect.
pub(super) fn dismiss(keeper: Option<Keeper>) {
    if let Some(keeper) = keeper {
        let _ = keeper.done();
    }
}

/// Files and memory that ranks left; any of them may be absent.
pub(super) struct Removals {
    /// Start of a launch in which not all ranks succeeded. MPI libraries then leave memory with names that do not identify the launch.
    pub(super) orphaned_since: Option<SystemTime>,
    pub(super) directories: Directories,
}

impl Removals {
    /// Starts the removal of all of it. The search for memory reads all of `/proc`, which takes seconds on a loaded machine. A file system may
    /// not answer. So each removal has its own thread.
    pub(super) fn begin(self, removals: &mut JoinSet<()>) {
        if let Some(since) = self.orphaned_since {
            blocking::begin_in(removals, move || remove_orphaned_memory(since));
        }
        if !self.directories.is_empty() {
            blocking::begin_in(removals, || self.directories.remove());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn directories_do_not_wait_for_the_search_for_memory() {
        let parent = tempfile::tempdir().unwrap();
        let (mut directories, mut removals) = (Directories::default(), JoinSet::new());
        let own = directories.make(parent.path().join("own"), None, &format!("sweep-{}", std::process::id())).unwrap();
        directories.own = Some(own);
        Removals { orphaned_since: Some(SystemTime::now()), directories }.begin(&mut removals);
        assert_eq!(removals.len(), 2);
        while removals.join_next().await.is_some() {}
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}

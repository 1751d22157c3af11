//! Removal of all that the ranks left behind: processes, and files that they wanted removed.

use std::fs;

use nix::unistd::Pid;
use rank_spawner::{Keeper, LaunchTag, Orphans, OwnCgroup, SweepScope, nothing_to_sweep, sweep, sweep_group};

use crate::blocking;
use crate::session_io::HostProcess;
use crate::spec::SessionSpec;
use crate::timeouts;

/// Processes of a launch, as far as they are to be swept.
pub(super) struct Leftovers {
    pub(super) tag: LaunchTag,
    /// The ranks that were started.
    pub(super) ranks: Vec<Pid>,
    pub(super) process: HostProcess,
    pub(super) cgroup: Option<OwnCgroup>,
    pub(super) keeper: Option<Keeper>,
}

impl Leftovers {
    /// Kills what the ranks left behind, and returns what cannot be killed, and the keeper, for as long as there are files to be removed.
    pub(super) async fn kill(self) -> (Vec<u32>, Option<Keeper>) {
        // As a rule; a thread for nothing would take as long as a rank takes to start. Orphans of a shared process may be another's children.
        let has_all_children = self.process == HostProcess::Dedicated;
        if self.ranks.is_empty() || has_all_children && nothing_to_sweep() {
            return (Vec::new(), self.keeper);
        }
        blocking::begin(move || self.kill_now()).await.unwrap_or_default()
    }

    fn kill_now(self) -> (Vec<u32>, Option<Keeper>) {
        let except: Vec<Pid> = self.keeper.iter().map(Keeper::pid).collect();
        let orphans = match self.process {
            HostProcess::Dedicated => Orphans::Claim { except: &except },
            HostProcess::Shared => Orphans::Leave,
        };
        let by_group = self.cgroup.as_ref().and_then(|group| sweep_group(group, &self.ranks, timeouts::SWEEP).ok());
        let by_table = || sweep(&SweepScope { tag: &self.tag, ranks: &self.ranks, orphans }, timeouts::SWEEP);
        let swept = by_group.map_or_else(by_table, Ok);
        let survivors = swept.map(|swept| swept.survivors).unwrap_or_default();
        (survivors.iter().map(|survivor| survivor.pid.as_raw().unsigned_abs()).collect(), self.keeper)
    }
}

/// Dismisses the keeper. It may have gone before its time, which changes nothing now.
pub(super) fn dismiss(keeper: Option<Keeper>) {
    if let Some(keeper) = keeper {
        let _ = keeper.done();
    }
}

/// Removes the directory that ranks were told for files of theirs, if any of them made it.
pub(super) fn remove_rank_files(spec: &SessionSpec) {
    let directory = spec.rank_files();
    if directory.symlink_metadata().is_ok() {
        // What cannot be removed stays: a rank could do no more itself.
        let _ = fs::remove_dir_all(directory);
    }
}

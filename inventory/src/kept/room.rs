//! Removal of stored files when there are too many.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Limit on the files of each kind in a directory. The least recently used ones are removed.
const FILES_MAX: usize = 16;

/// Prefix of the names of topology files. Ranks receive these names, and may open the files as long as their launch runs.
pub(super) const TOPOLOGY: &str = "topology";

/// A topology that has been unused for this long is in use by no rank. Limit on the topology files before that time.
const TOLD_FOR: Duration = Duration::from_secs(30 * 24 * 3600);
const TOLD_MAX: usize = 256;

/// Files of one sort, each with its last use.
type Files = Vec<(SystemTime, PathBuf)>;

/// Removes the least recently used files of each kind, including files of killed writers.
pub(super) fn make_room(directory: &Path) {
    let mut sorts: HashMap<String, Files> = HashMap::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Some(used) = entry.metadata().ok().as_ref().and_then(last_use) else { continue };
        let name = entry.file_name().to_string_lossy().into_owned();
        let sort = name.split_once('-').map_or(name.as_str(), |(sort, _)| sort).to_owned();
        sorts.entry(sort).or_default().push((used, entry.path()));
    }
    for (sort, files) in sorts {
        for path in superfluous(&sort, files, SystemTime::now()) {
            // Another process may have removed it.
            let _ = fs::remove_file(path);
        }
    }
}

/// Files to remove.
fn superfluous(sort: &str, mut files: Files, now: SystemTime) -> impl Iterator<Item = PathBuf> + use<> {
    files.sort_unstable();
    let is_told = sort == TOPOLOGY;
    // A last use in the future is from before the clock was set back.
    let is_recent = move |used: SystemTime| now.duration_since(used).map_or(true, |unused| unused < TOLD_FOR);
    let stays =
        move |number: usize, used: SystemTime| number < FILES_MAX || (is_told && number < TOLD_MAX && is_recent(used));
    let last_first = files.into_iter().rev().enumerate();
    last_first.filter(move |(number, (used, _))| !stays(*number, *used)).map(|(_, (_, path))| path)
}

/// Time of the last write or read. Most file systems record at least one read per day.
fn last_use(metadata: &Metadata) -> Option<SystemTime> {
    [metadata.modified(), metadata.accessed()].into_iter().flatten().max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topologies_stay_for_a_month_and_other_files_while_there_is_room() {
        let day = |day: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(day * 24 * 3600);
        let gone = |sort: &str, days: &[u64]| {
            let files = days.iter().map(|&used| (day(used), format!("{used}").into())).collect();
            superfluous(sort, files, day(100)).count()
        };
        let month: Vec<u64> = (71..=100).collect();
        assert_eq!([gone(TOPOLOGY, &month), gone("inventory", &month)], [0, 14]);
        let older: Vec<u64> = (1..=100).collect();
        assert_eq!([gone(TOPOLOGY, &older), gone("inventory", &older)], [70, 84]);
        assert_eq!(gone(TOPOLOGY, &older[..20]), 4, "the last ones stay");
        let in_future: Vec<u64> = (101..=120).collect();
        assert_eq!(gone(TOPOLOGY, &in_future), 0);
        assert_eq!(gone(TOPOLOGY, &[100; 300]), 44);
    }
}

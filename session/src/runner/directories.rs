//! Directories that a session makes for its launch. Each one has an unpredictable name, and is removed by its recorded identity.
//!
//! ```text
//! TMPDIR/lattice-ID.NODE-RANDOM        of the session: pmi-JOB.sock, topology.xml, contact/ for tools, ranks/ for MPI libraries
//! DIR/lattice-ID.NODE-RANDOM.tmp       temporary files of ranks (`--tmpdir`)
//! /dev/shm/lattice-ID.NODE-RANDOM      shared memory of Open MPI 4.1
//! ```
//!
//! If this process is killed, its keeper removes them. Without a keeper, the next session of the user removes them by the records of this
//! one.

use std::io;
use std::path::{Path, PathBuf};

use lattice_overlay::directory::is_shared;
use rank_spawner::{Keeper, OwnDirectory, Records};

/// Permissions of each directory.
const MODE: u32 = 0o700;

/// Directories of one session.
#[derive(Debug, Default)]
pub(super) struct Directories {
    /// The session's own directory; `None` if it was not made, or cannot be.
    pub(super) own: Option<OwnDirectory>,
    /// For temporary files of ranks, if they get such a directory.
    pub(super) temporary: Option<OwnDirectory>,
    /// For shared memory of Open MPI 4.1, if this node needs a separate directory.
    pub(super) segments: Option<OwnDirectory>,
    records: Option<Records>,
}

impl Directories {
    /// Makes a directory under the guard of `keeper`. Without a keeper, it is recorded under the name `session`.
    ///
    /// # Errors
    /// Fails if the path exists, or if the directory cannot be made.
    pub(super) fn make(&mut self, path: PathBuf, keeper: Option<&Keeper>, session: &str) -> io::Result<OwnDirectory> {
        if let Some(keeper) = keeper {
            // A keeper that is gone removes nothing. Usually the session removes the directory itself.
            let _ = keeper.announce_directory(&path);
            let made = OwnDirectory::make(path, MODE)?;
            let _ = keeper.guard_directory(&made);
            return Ok(made);
        }
        let mut records = self.records.take().or_else(|| {
            Records::create(session)
                .inspect_err(|error| tracing::warn!("files stay if this session is killed: {error}"))
                .ok()
        });
        // Without room for a record, the directory stays if this process is killed.
        records.as_mut().map(|records| records.announce(&path));
        let made = OwnDirectory::make(path, MODE);
        made.iter().for_each(|made| drop(records.as_mut().map(|records| records.add(made))));
        self.records = records;
        made
    }

    /// Returns true if killed sessions of this user may have left records.
    pub(super) fn has_records(&self) -> bool {
        self.records.is_some()
    }

    /// Removes empty directories on local file systems, which answer at once. Most launches leave their directories empty.
    pub(super) fn remove_empty(&mut self) {
        for directory in [&mut self.own, &mut self.temporary, &mut self.segments] {
            let local = directory.take_if(|directory| !directory.path().parent().is_none_or(is_shared));
            if let Some(left) = local.and_then(|directory| directory.remove_empty().err()) {
                *directory = Some(left);
            }
        }
    }

    /// Returns true if there is nothing to remove.
    pub(super) fn is_empty(&self) -> bool {
        self.own.is_none() && self.temporary.is_none() && self.segments.is_none()
    }

    /// Removes all directories with their contents. This may block.
    pub(super) fn remove(self) {
        let Self { own, temporary, segments, records } = self;
        // Shared memory is first, because a file system that does not answer would prevent its removal.
        for directory in [segments, own, temporary].into_iter().flatten() {
            // Failures are ignored: a rank has the same rights.
            let _ = directory.remove();
        }
        drop(records);
    }

    /// Returns the path of the directory for shared memory of Open MPI 4.1.
    pub(super) fn segments(&self) -> Option<&Path> {
        self.segments.as_ref().map(OwnDirectory::path)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_empty_goes_at_once_and_the_rest_with_what_is_in_it() {
        let parent = tempfile::tempdir().unwrap();
        let mut directories = Directories::default();
        let session = format!("test-{}", std::process::id());
        let mut make = |name: &str| directories.make(parent.path().join(name), None, &session).unwrap();
        let (own, temporary) = (make("own"), make("temporary"));
        drop(temporary.create_file("results").unwrap());
        (directories.own, directories.temporary) = (Some(own), Some(temporary));
        assert!(directories.has_records());
        directories.remove_empty();
        assert!(!parent.path().join("own").exists() && parent.path().join("temporary/results").exists());
        assert!(!directories.is_empty());
        directories.remove();
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_of_the_user_is_not_taken_for_one_of_the_session() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("lattice-qcd");
        fs::create_dir(&path).unwrap();
        let made = Directories::default().make(path, None, &format!("other-{}", std::process::id()));
        assert_eq!(made.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }
}

//! Directory of a launch for temporary files of its ranks on a node (`--tmpdir`).
//!
//! The session holds a lock on it. One that nobody has locked was left by a session that was killed, and is removed by the next session of
//! the same user that makes one beside it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

/// Most entries that are looked at for directories of dead sessions.
const ENTRIES_MAX: usize = 4096;

/// A directory that is there, and is removed by [`TemporaryDirectory::remove`].
#[derive(Debug)]
pub(super) struct TemporaryDirectory {
    path: PathBuf,
    /// Locked for as long as it is open.
    lock: File,
}

impl TemporaryDirectory {
    /// Makes the directory `path`, for this user alone, which nobody has made before.
    ///
    /// # Errors
    /// Fails if it is there, or cannot be made.
    pub(super) fn make(path: PathBuf) -> io::Result<Self> {
        if let Some(parent) = path.parent() {
            remove_those_of_the_dead(parent);
        }
        DirBuilder::new().mode(0o700).create(&path)?;
        let lock = File::open(&path)?;
        lock.try_lock()?;
        Ok(Self { path, lock })
    }

    /// Removes it with all that is in it. It may block.
    pub(super) fn remove(self) {
        // What cannot be removed stays: a rank could do no more itself.
        let _ = fs::remove_dir_all(&self.path);
        drop(self.lock);
    }
}

/// Name of such a directory.
fn is_ours(name: &str) -> bool {
    name.starts_with("lattice-") && name.ends_with(".tmp")
}

fn remove_those_of_the_dead(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.take(ENTRIES_MAX).flatten() {
        let is_dead = |path: &Path| {
            let status = fs::symlink_metadata(path).ok()?;
            // One of another user is not ours to remove; a new one may not be locked yet.
            let is_own = status.is_dir() && status.uid() == geteuid().as_raw();
            let is_old = status.modified().ok()?.elapsed().ok()?.as_secs() >= 1;
            (is_own && is_old).then_some(())?;
            File::open(path).ok()?.try_lock().ok()
        };
        if entry.file_name().to_str().is_some_and(is_ours) && is_dead(&entry.path()).is_some() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    /// Makes a directory that nobody holds, begun so long ago.
    fn left(parent: &Path, name: &str, age: Duration) -> PathBuf {
        let path = parent.join(name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), "x").unwrap();
        File::open(&path).unwrap().set_modified(SystemTime::now() - age).unwrap();
        path
    }

    #[test]
    fn what_dead_sessions_have_left_is_removed_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let (old, minute) = (parent.path(), Duration::from_secs(60));
        let dead = left(old, "lattice-a.0.tmp", minute);
        let new = left(old, "lattice-b.0.tmp", Duration::ZERO);
        let other = left(old, "mine.tmp", minute);
        let held = left(old, "lattice-c.0.tmp", minute);
        let holder = File::open(&held).unwrap();
        holder.lock().unwrap();
        let made = TemporaryDirectory::make(old.join("lattice-d.0.tmp")).unwrap();
        let there = |path: &Path| path.exists();
        assert_eq!([there(&dead), there(&new), there(&other), there(&held)], [false, true, true, true]);
        assert_eq!(fs::metadata(&made.path).unwrap().mode() & 0o777, 0o700);
        assert!(TemporaryDirectory::make(made.path.clone()).is_err(), "it is there");
        let path = made.path.clone();
        fs::write(path.join("file"), "x").unwrap();
        made.remove();
        assert!(!path.exists());
    }
}

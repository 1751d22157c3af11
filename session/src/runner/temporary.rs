//! Directories that a session makes in a place for temporary files: one for temporary files of its ranks (`--tmpdir`), and one for files by
//! which tools find it. And its file with the topology.
//!
//! The session holds a lock on each. One that nobody has locked was left by a session that was killed, and is removed, together with the
//! directory that its ranks had beside it, by the next session of the same user that makes one there. Not on a file system that other
//! machines may share: locks on directories are known to one machine alone, and sessions of others would be taken for dead.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lattice_overlay::directory::is_shared;
use nix::unistd::geteuid;

use super::socket_file::make_private;
use crate::spec::TEMPORARY_END;

/// Most entries that are looked at for directories of dead sessions.
const ENTRIES_MAX: usize = 4096;

/// A directory that is there, and is removed by [`TemporaryDirectory::remove`].
#[derive(Debug)]
pub(super) struct TemporaryDirectory {
    path: PathBuf,
    /// Locked for as long as it is open. A file system that other machines may share can have no locks, and nobody looks at one there.
    lock: Option<File>,
}

impl TemporaryDirectory {
    /// Makes the directory `path`, for this user alone, which nobody has made before.
    ///
    /// # Errors
    /// Fails if it is there, or cannot be made.
    pub(super) fn make(path: PathBuf) -> io::Result<Self> {
        make_private(&path)?;
        match locked(&path) {
            Ok(lock) => Ok(Self { path, lock: Some(lock) }),
            Err(_) if is_shared(&path) => Ok(Self { path, lock: None }),
            Err(error) => {
                // Without a lock the next session would take it for a dead one's.
                let _ = fs::remove_dir(&path);
                Err(error)
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it with all that is in it. It may block.
    pub(super) fn remove(self) {
        // What cannot be removed stays: a rank could do no more itself.
        let _ = fs::remove_dir_all(&self.path);
        drop(self.lock);
    }
}

fn locked(directory: &Path) -> io::Result<File> {
    let lock = File::open(directory)?;
    lock.try_lock()?;
    Ok(lock)
}

/// End of the name of the directory for files of PMIx tools, behind that for files of ranks.
pub(super) const OF_TOOLS: &str = ".contact";

/// End of the name of the file with the topology, behind the same.
pub(super) const OF_TOPOLOGY: &str = ".xml";

/// True for a name of such a file: others may have files of a similar name.
fn is_of_topology(name: &str) -> bool {
    let of_node = name.strip_prefix("lattice-").and_then(|name| name.strip_suffix(OF_TOPOLOGY)?.rsplit_once('.'));
    of_node.is_some_and(|(launch, node)| {
        let is_of = |part: &str, is: fn(&u8) -> bool| !part.is_empty() && part.as_bytes().iter().all(is);
        is_of(launch, u8::is_ascii_alphanumeric) && is_of(node, u8::is_ascii_digit)
    })
}

/// Name of the directory for files of ranks of the session that has made a directory of this name.
fn of_session(name: &str) -> Option<&str> {
    let session = name.strip_suffix(TEMPORARY_END).or_else(|| name.strip_suffix(OF_TOOLS))?;
    session.starts_with("lattice-").then_some(session)
}

/// Removes what dead sessions have left in a place for temporary files. It may block, and take long.
pub(super) fn remove_those_of_the_dead(parent: &Path) {
    if is_shared(parent) {
        return;
    }
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.take(ENTRIES_MAX).flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let Some(name) = name.to_str() else { continue };
        if is_of_topology(name) && own_file(&path).and_then(|status| is_dead(&path, &status)).is_some() {
            let _ = fs::remove_file(&path);
        }
        let is_left = |_: &&str| own_directory(&path).and_then(|status| is_dead(&path, &status)).is_some();
        let Some(session) = of_session(name).filter(is_left) else { continue };
        let files_of_ranks = parent.join(session);
        for path in [Some(path), own_directory(&files_of_ranks).map(|_| files_of_ranks)].into_iter().flatten() {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Something if nobody has locked what has this status.
fn is_dead(path: &Path, status: &fs::Metadata) -> Option<()> {
    // A new one may not be locked yet.
    let is_old = status.modified().ok()?.elapsed().ok()?.as_secs() >= 1;
    is_old.then(|| locked(path).ok().map(drop)).flatten()
}

/// Status of a directory of this user; others' are not ours to remove.
fn own_directory(path: &Path) -> Option<fs::Metadata> {
    own(path).filter(fs::Metadata::is_dir)
}

/// Status of a file that only this user reads.
fn own_file(path: &Path) -> Option<fs::Metadata> {
    own(path).filter(|status| status.is_file() && status.mode() & 0o7777 == 0o600)
}

fn own(path: &Path) -> Option<fs::Metadata> {
    fs::symlink_metadata(path).ok().filter(|status| status.uid() == geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
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

    /// Files with a topology go as well, but none of another mode or name, and none that a session holds.
    #[test]
    fn files_of_dead_sessions_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let left = |name: &str, mode: u32| {
            let path = parent.path().join(name);
            let file = File::create(&path).unwrap();
            file.set_permissions(fs::Permissions::from_mode(mode)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
            path
        };
        let dead = left("lattice-k3jq09zmf2.0.xml", 0o600);
        let held = left("lattice-k3jq09zmf3.1.xml", 0o600);
        let others = [
            left("lattice-k3jq09zmf4.0.xml", 0o644),
            left("lattice-results.xml", 0o600),
            left("lattice-my-results.2.xml", 0o600),
            left("lattice-k3jq09zmf5.0.txt", 0o600),
        ];
        let holder = File::open(&held).unwrap();
        holder.lock().unwrap();
        remove_those_of_the_dead(parent.path());
        assert!(!dead.exists() && held.exists());
        assert!(others.iter().all(|other| other.exists()));
    }

    #[test]
    fn what_dead_sessions_have_left_is_removed_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let (old, minute) = (parent.path(), Duration::from_secs(60));
        let dead = left(old, "lattice-a.0.tmp", minute);
        let new = left(old, "lattice-b.0.tmp", Duration::ZERO);
        let other = left(old, "mine.tmp", minute);
        let held = left(old, "lattice-c.0.tmp", minute);
        let [of_tools, of_its_ranks, of_ranks_that_run] =
            ["lattice-e.0.contact", "lattice-e.0", "lattice-c.0"].map(|name| left(old, name, minute));
        let holder = File::open(&held).unwrap();
        holder.lock().unwrap();
        let made = TemporaryDirectory::make(old.join("lattice-d.0.tmp")).unwrap();
        remove_those_of_the_dead(old);
        let there = |path: &Path| path.exists();
        assert_eq!([there(&dead), there(&new), there(&other), there(&held)], [false, true, true, true]);
        assert_eq!([there(&of_tools), there(&of_its_ranks), there(&of_ranks_that_run)], [false, false, true]);
        assert_eq!(fs::metadata(&made.path).unwrap().mode() & 0o777, 0o700);
        assert!(TemporaryDirectory::make(made.path.clone()).is_err(), "it is there");
        let path = made.path.clone();
        fs::write(path.join("file"), "x").unwrap();
        made.remove();
        assert!(!path.exists());
    }
}

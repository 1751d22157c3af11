//! Lock on the runtime directory of a node. Agents share it while they run, and a command that excludes agents holds it alone. The lock is on
//! the open directory, so it ends with its process, however the process ends.

use std::fs::{self, DirBuilder, File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::unistd::geteuid;

/// Mode of the directory, which is created if it is missing.
const MODE: u32 = 0o700;

/// Reason why a lock is not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// A command holds the lock alone.
    #[error("`lattice-agent cxi clean` runs on this node ({} is locked); start the agent again when it has ended", path.display())]
    Cleaning {
        /// The directory.
        path: PathBuf,
    },
    /// An agent runs.
    #[error("an agent runs on this node ({} is locked), and ends services itself when their launch or VNI ends; stop it first", path.display())]
    AgentRuns {
        /// The directory.
        path: PathBuf,
    },
    /// Another user can replace the directory.
    #[error(
        "{} is user {owner}'s, or others can write to it, so no agent of this user keeps its sessions below it; remove it, or set another `runtime_dir`", path.display()
    )]
    Foreign {
        /// The parent directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// The directory is not usable.
    #[error("cannot lock {}: {error}", path.display())]
    System {
        /// The directory.
        path: PathBuf,
        /// Error of the system call.
        error: io::Error,
    },
}

/// Takes the shared lock of agents, which is held as long as the file is open. Does not wait.
///
/// # Errors
/// Fails while a command holds the lock alone.
pub(crate) fn of_agent(directory: &Path) -> Result<File, LockError> {
    lock(directory, File::try_lock_shared, |path| LockError::Cleaning { path })
}

/// Takes the lock for a command that must not run at the same time as an agent of this node. Does not wait.
///
/// # Errors
/// Fails while an agent or another such command runs.
pub(crate) fn without_agents(directory: &Path) -> Result<File, LockError> {
    lock(directory, File::try_lock, |path| LockError::AgentRuns { path })
}

fn lock(
    directory: &Path,
    how: impl FnOnce(&File) -> Result<(), TryLockError>,
    taken: impl FnOnce(PathBuf) -> LockError,
) -> Result<File, LockError> {
    let system = |error| LockError::System { path: directory.to_owned(), error };
    DirBuilder::new().recursive(true).mode(MODE).create(directory).map_err(system)?;
    check_above(directory)?;
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let open = File::options().read(true).custom_flags(flags).open(directory).map_err(system)?;
    match how(&open) {
        Ok(()) => Ok(open),
        Err(TryLockError::WouldBlock) => Err(taken(directory.to_owned())),
        Err(TryLockError::Error(error)) => Err(system(error)),
    }
}

/// Refuses a directory if another user can change its parent, such as an earlier one in `/tmp`. A link to the parent must be ours or root's.
fn check_above(directory: &Path) -> Result<(), LockError> {
    let Some(path) = directory.parent() else { return Ok(()) };
    let system = |error| LockError::System { path: path.to_owned(), error };
    let (named, found) = (fs::symlink_metadata(path).map_err(system)?, fs::metadata(path).map_err(system)?);
    let is_ours = |status: &Metadata| [geteuid().as_raw(), 0].contains(&status.uid());
    let is_for_all = found.mode() & 0o022 != 0 && found.mode() & 0o1000 == 0;
    let others = [&named, &found].into_iter().find(|status| !is_ours(status));
    match others.or(is_for_all.then_some(&found)) {
        Some(status) => Err(LockError::Foreign { path: path.to_owned(), owner: status.uid() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn agents_share_the_lock_and_a_command_has_it_alone() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("runtime/node0");
        let agents = [of_agent(&directory).unwrap(), of_agent(&directory).unwrap()];
        let refused = without_agents(&directory).unwrap_err().to_string();
        assert!(refused.starts_with("an agent runs on this node (") && refused.ends_with("stop it first"), "{refused}");
        drop(agents);
        let command = without_agents(&directory).unwrap();
        assert!(matches!(without_agents(&directory), Err(LockError::AgentRuns { .. })));
        assert!(matches!(of_agent(&directory), Err(LockError::Cleaning { .. })));
        drop(command);
        of_agent(&directory).unwrap();
        fs::write(parent.path().join("file"), "").unwrap();
        assert!(matches!(of_agent(&parent.path().join("file")), Err(LockError::System { .. })));
    }

    #[test]
    fn nothing_is_kept_where_others_can_change_it() {
        let parent = tempfile::tempdir().unwrap();
        let (above, node) = (parent.path().join("agent"), parent.path().join("agent/node0"));
        let lock_with = |mode| {
            fs::set_permissions(&above, PermissionsExt::from_mode(mode)).unwrap();
            of_agent(&node)
        };
        fs::create_dir(&above).unwrap();
        for mode in [0o777, 0o770] {
            let refused = lock_with(mode).unwrap_err().to_string();
            assert!(refused.contains("others can write to it") && refused.ends_with("`runtime_dir`"), "{refused}");
        }
        for mode in [0o1777, 0o755] {
            lock_with(mode).unwrap();
        }
        let other_name = parent.path().join("other-name");
        std::os::unix::fs::symlink(&above, &other_name).unwrap();
        of_agent(&other_name.join("node0")).unwrap();
        if geteuid().is_root() {
            std::os::unix::fs::lchown(&other_name, Some(7), None).unwrap();
            assert!(matches!(of_agent(&other_name.join("node0")), Err(LockError::Foreign { owner: 7, .. })));
            std::os::unix::fs::chown(&above, Some(7), None).unwrap();
            assert!(matches!(of_agent(&node), Err(LockError::Foreign { owner: 7, .. })));
        }
        let linked = parent.path().join("linked");
        std::os::unix::fs::symlink(parent.path(), &linked).unwrap();
        assert!(matches!(of_agent(&linked), Err(LockError::System { .. })));
    }
}

//! Lock on the runtime directory of a node: agents share it for as long as they run, and a command that must not run beside them has it
//! for itself. It is held on the open directory, so it ends with its process, however that ends.

use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Mode of the directory, which is made if it is not there.
const MODE: u32 = 0o700;

/// Error of a lock that is not had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// A command has it for itself.
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
    /// The directory cannot be used.
    #[error("cannot lock {}: {error}", path.display())]
    System {
        /// The directory.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
}

/// Takes the lock that agents share; it is held as long as the file is open. Waits for nobody.
///
/// # Errors
/// Fails while a command has it for itself.
pub(crate) fn of_agent(directory: &Path) -> Result<File, LockError> {
    lock(directory, File::try_lock_shared, |path| LockError::Cleaning { path })
}

/// Takes the lock for a command that must not run beside an agent of this node. Waits for nobody.
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
    let open = File::open(directory).map_err(system)?;
    match how(&open) {
        Ok(()) => Ok(open),
        Err(TryLockError::WouldBlock) => Err(taken(directory.to_owned())),
        Err(TryLockError::Error(error)) => Err(system(error)),
    }
}

#[cfg(test)]
mod tests {
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
        std::fs::write(parent.path().join("file"), "").unwrap();
        assert!(matches!(of_agent(&parent.path().join("file")), Err(LockError::System { .. })));
    }
}

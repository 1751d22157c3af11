//! A directory for the files of one command.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::mkdtemp;

use crate::environment::{self, Environment};
use crate::mpirun_setup::MpirunSetup;

/// Beginning of its name.
const PREFIX: &str = "lattice-shell-";
/// Beginning of the name of one that is being made: nobody looks for the owner of that.
const YOUNG: &str = ".new-lattice-shell-";
/// File in it that its owner holds a lock on for as long as it runs.
const LOCK: &str = "lock";

/// A directory of this process, for its user alone.
#[derive(Debug)]
pub(super) struct OwnDirectory {
    path: PathBuf,
    /// Tells others that its owner runs; none on a file system without locks.
    _lock: Option<Flock<File>>,
}

impl OwnDirectory {
    /// Makes one, in the user's home if that can be: all nodes see that one, and Open MPI's daemons look for it there. Removes those of
    /// commands that were killed.
    ///
    /// # Errors
    /// Fails as the system does.
    pub(super) fn make(environment: &Environment) -> io::Result<Self> {
        let path = |name| environment::non_empty(environment, name).map(PathBuf::from);
        let state = path("XDG_STATE_HOME").or_else(|| Some(path("HOME")?.join(".local/state")));
        let in_home = state.map(|state| state.join("lattice")).map(|parent| Self::made_in(&parent));
        match in_home {
            Some(Ok(directory)) => Ok(directory),
            Some(Err(_)) | None => {
                let parent = std::env::temp_dir();
                Self::made_in(&parent).map_err(|error| {
                    let what = format!("cannot make a directory in {}: {error}", parent.display());
                    io::Error::new(error.kind(), what)
                })
            }
        }
    }

    fn made_in(parent: &Path) -> io::Result<Self> {
        if !MpirunSetup::can_be_in(parent) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        fs::create_dir_all(parent)?;
        remove_abandoned(parent);
        let young = mkdtemp(&parent.join(format!("{YOUNG}XXXXXX")))?;
        let lock = File::create(young.join(LOCK)).and_then(locked).ok();
        let name = young.file_name().unwrap_or_default().to_string_lossy().replacen(YOUNG, PREFIX, 1);
        let path = parent.join(name);
        fs::rename(&young, &path)?;
        Ok(Self { path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it with everything in it.
    ///
    /// # Errors
    /// Fails as the system does.
    pub(super) fn remove(self) -> io::Result<()> {
        fs::remove_dir_all(&self.path)
    }
}

fn locked(file: File) -> io::Result<Flock<File>> {
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno.into())
}

/// Removes the directories in `parent` whose owner has ended: nobody holds their lock, which is one of a file, so that file servers
/// keep it for all nodes. What cannot be removed stays: it holds up nobody.
fn remove_abandoned(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())) {
        let lock = File::options().write(true).open(entry.path().join(LOCK)).and_then(locked);
        if lock.is_ok() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::{OsStr, OsString};

    use super::*;

    fn made_for(variables: &[(&str, &OsStr)]) -> OwnDirectory {
        let environment: Vec<_> =
            variables.iter().map(|&(name, value)| (OsString::from(name), value.to_owned())).collect();
        OwnDirectory::make(&environment).unwrap()
    }

    fn path_for(variables: &[(&str, &OsStr)]) -> PathBuf {
        let made = made_for(variables);
        let path = made.path().to_owned();
        made.remove().unwrap();
        path
    }

    #[test]
    fn it_is_where_all_nodes_see_it_if_it_can_be() {
        let home = tempfile::tempdir().unwrap();
        assert!(path_for(&[("HOME", home.path().as_os_str())]).starts_with(home.path().join(".local/state/lattice")));
        let state = home.path().join("state");
        let variables = [("HOME", home.path().as_os_str()), ("XDG_STATE_HOME", state.as_os_str())];
        assert!(path_for(&variables).starts_with(state.join("lattice")));
        for elsewhere in [home.path().join("a b"), PathBuf::from("/proc/none")] {
            let made = path_for(&[("HOME", elsewhere.as_os_str())]);
            assert!(made.starts_with(std::env::temp_dir()), "{}", made.display());
        }
    }

    #[test]
    fn those_of_commands_that_were_killed_are_removed_by_the_next_one() {
        let home = tempfile::tempdir().unwrap();
        let variables = [("HOME", home.path().as_os_str())];
        let (killed, running) = (made_for(&variables), made_for(&variables));
        let path = killed.path().to_owned();
        // Its lock goes with its process; the directory stays.
        drop(killed);
        fs::create_dir(path.with_file_name(".new-lattice-shell-x")).unwrap();
        fs::write(path.with_file_name(".new-lattice-shell-x").join(LOCK), "").unwrap();
        fs::create_dir(path.with_file_name("others")).unwrap();
        let next = made_for(&variables);
        assert_eq!((path.exists(), running.path().exists(), next.path().exists()), (false, true, true));
        assert!(path.with_file_name(".new-lattice-shell-x").exists() && path.with_file_name("others").exists());
    }
}

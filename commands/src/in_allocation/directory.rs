//! A directory for the files of one command.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use lattice_console::environment::{self, Environment};
use lattice_dialects::mpirun_setup::MpirunSetup;
use lattice_session::random;
use rank_spawner::{OwnDirectory, Records};

/// Prefix of its name.
const PREFIX: &str = "lattice-shell-";

/// A directory of this process. Only its user can enter it.
#[derive(Debug)]
pub(super) struct CommandDirectory {
    made: OwnDirectory,
    /// If this process is killed, the user's next command removes the directory by this record. `None` if there can be no record.
    _records: Option<Records>,
}

impl CommandDirectory {
    /// Creates a directory, if possible in the user's home: all nodes see the home, and Open MPI's daemons look for the directory there.
    /// Removes directories that killed commands of this user have recorded on this machine.
    ///
    /// # Errors
    /// Returns the error of the system call.
    pub(super) fn make(environment: &Environment) -> io::Result<Self> {
        Records::remove_those_of_killed_processes();
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
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        let name = format!("{PREFIX}{}", random::id()?);
        let path = parent.join(&name);
        let mut records = Records::create(&name).ok();
        // Without a record, the directory stays if this process is killed.
        records.as_mut().map(|records| records.announce(&path));
        let made = OwnDirectory::make(path, 0o700)?;
        records.as_mut().map(|records| records.add(&made));
        Ok(Self { made, _records: records })
    }

    pub(super) fn path(&self) -> &Path {
        self.made.path()
    }

    /// Removes the directory and its contents.
    ///
    /// # Errors
    /// Returns the error of the system call.
    pub(super) fn remove(self) -> io::Result<()> {
        self.made.remove()
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::{OsStr, OsString};
    use std::fs;

    use super::*;

    fn made_for(variables: &[(&str, &OsStr)]) -> CommandDirectory {
        let environment: Vec<_> =
            variables.iter().map(|&(name, value)| (OsString::from(name), value.to_owned())).collect();
        CommandDirectory::make(&environment).unwrap()
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

    /// The directories have names that commands use, and contents that such a directory once had.
    #[test]
    fn a_users_own_directories_of_such_names_stay() {
        let home = tempfile::tempdir().unwrap();
        let state = home.path().join(".local/state/lattice");
        let old = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
        let own = ["lattice-shell-results", ".new-lattice-shell-results"].map(|name| state.join(name));
        for directory in &own {
            fs::create_dir_all(directory).unwrap();
            fs::write(directory.join("lock"), "").unwrap();
            fs::File::open(directory).unwrap().set_modified(old).unwrap();
        }
        path_for(&[("HOME", home.path().as_os_str())]);
        assert!(own.iter().all(|directory| directory.join("lock").exists()));
    }
}

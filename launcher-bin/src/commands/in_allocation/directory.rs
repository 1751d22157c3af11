//! A directory for the files of one command.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg, OFlag, open, openat};
use nix::sys::stat::Mode;
use nix::unistd::{geteuid, mkdtemp};

use crate::environment::{self, Environment};
use crate::mpirun_setup::MpirunSetup;

/// Beginning of its name.
const PREFIX: &str = "lattice-shell-";
/// Beginning of the name of one that is being made: nobody looks for the owner of that.
const YOUNG: &str = ".new-lattice-shell-";
/// Time after which nobody makes it any more.
const MAKING_MAX: Duration = Duration::from_secs(3600);
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

/// Removes the user's directories in `parent` whose owner has ended: nobody holds their lock, which is one of a file, so that file servers
/// keep it for all nodes; and those that nobody has finished making. What cannot be removed stays: it holds up nobody.
fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let is_abandoned = match name.as_encoded_bytes() {
            name if name.starts_with(PREFIX.as_bytes()) => open_lock(&path).and_then(locked).is_ok(),
            name if name.starts_with(YOUNG.as_bytes()) => is_old(&path),
            _ => false,
        };
        if is_abandoned {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Opens the lock of a directory of this user's. `/tmp` has directories of everybody with such names, and anything may be in them.
fn open_lock(directory: &Path) -> io::Result<File> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let opened = File::from(open(directory, flags, Mode::empty())?);
    if opened.metadata()?.uid() != geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    // A FIFO would be waited for.
    let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let lock = File::from(openat(&opened, LOCK, flags, Mode::empty())?);
    if lock.metadata()?.is_file() { Ok(lock) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// True for a directory of this user's that has been in the making for longer than that takes.
fn is_old(directory: &Path) -> bool {
    let Ok(status) = fs::symlink_metadata(directory) else { return false };
    let age = status.modified().ok().and_then(|made| made.elapsed().ok());
    status.is_dir() && status.uid() == geteuid().as_raw() && age.is_some_and(|age| age > MAKING_MAX)
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
        let young = path.with_file_name(".new-lattice-shell-x");
        assert!(young.exists() && path.with_file_name("others").exists());
        let long_ago = std::time::SystemTime::now() - 2 * MAKING_MAX;
        File::open(&young).unwrap().set_modified(long_ago).unwrap();
        made_for(&variables);
        assert!(!young.exists(), "its maker was killed");
    }

    #[test]
    fn nothing_that_others_may_have_put_there_is_opened_or_waited_for() {
        let parent = tempfile::tempdir().unwrap();
        let named = |name: &str| {
            let directory = parent.path().join(format!("{PREFIX}{name}"));
            fs::create_dir(&directory).unwrap();
            directory
        };
        let (fifo, link, others) = (named("fifo"), named("link"), named("others"));
        nix::unistd::mkfifo(&fifo.join(LOCK), Mode::S_IRWXU).unwrap();
        fs::write(parent.path().join("mine"), "").unwrap();
        std::os::unix::fs::symlink(parent.path().join("mine"), link.join(LOCK)).unwrap();
        fs::write(others.join(LOCK), "").unwrap();
        std::os::unix::fs::symlink(&others, parent.path().join(format!("{PREFIX}linked"))).unwrap();
        if geteuid().is_root() {
            std::os::unix::fs::chown(&others, Some(7), None).unwrap();
        }
        remove_abandoned(parent.path());
        assert!(fifo.exists() && link.exists());
        assert_eq!(others.exists(), geteuid().is_root(), "nobody else's is removed");
    }
}

//! A directory of this user's that may be there already, and that other users can neither enter nor have made.

use std::fs::Metadata;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use crate::emptying::{is_own, look, status_of};

/// Most names that [`PrivateDirectory::names`] returns.
const NAMES_MAX: usize = 1 << 16;

/// An open directory that is this user's alone.
#[derive(Debug)]
pub struct PrivateDirectory {
    path: PathBuf,
    directory: OwnedFd,
}

/// A directory that is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotPrivate {
    /// Others own it, or can reach it, or it is something else.
    #[error(
        "{} is {what} of user {owner} with mode {mode:o}; it must be a directory of user {me} with mode 700\n\
         try: rm -r {0}, or ask that user or root to remove it", path.display()
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Its kind.
        what: &'static str,
        /// Its owner.
        owner: u32,
        /// Its permissions.
        mode: u32,
        /// User that wants to use it.
        me: u32,
    },
    /// The system refused something.
    #[error("cannot use the directory {}: {source}", path.display())]
    System {
        /// The directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

impl NotPrivate {
    /// True if the directory is not there.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::System { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

impl PrivateDirectory {
    /// Opens the directory `path`. Links above it are followed; it is none itself.
    ///
    /// # Errors
    /// Fails if it is not there, and if it is not this user's alone.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, NotPrivate> {
        let path = path.into();
        Self::open_at(AT_FDCWD, &path.clone(), path)
    }

    /// Opens the directory, after it was made if it was missing.
    ///
    /// # Errors
    /// As [`PrivateDirectory::open`]; and fails if it cannot be made.
    pub fn make(path: impl Into<PathBuf>) -> Result<Self, NotPrivate> {
        let path = path.into();
        made(AT_FDCWD, &path, &path)?;
        Self::open(path)
    }

    /// Opens the directory of this name in it.
    ///
    /// # Errors
    /// As [`PrivateDirectory::open`].
    pub fn open_below(&self, name: &str) -> Result<Self, NotPrivate> {
        Self::open_at(&self.directory, Path::new(name), self.path.join(name))
    }

    /// Opens the directory of this name in it, after it was made if it was missing.
    ///
    /// # Errors
    /// As [`PrivateDirectory::make`].
    pub fn make_below(&self, name: &str) -> Result<Self, NotPrivate> {
        made(&self.directory, Path::new(name), &self.path.join(name))?;
        self.open_below(name)
    }

    fn open_at(above: impl AsFd, name: &Path, path: PathBuf) -> Result<Self, NotPrivate> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = match openat(above.as_fd(), name, flags, Mode::empty()) {
            Ok(directory) => status_of(directory.as_fd()).map(|status| (Some(directory), status)),
            // What it is instead is in the error.
            Err(Errno::ENOTDIR | Errno::ELOOP | Errno::EACCES) => {
                look(above.as_fd(), name.as_ref()).map(|status| (None, status))
            }
            Err(errno) => Err(errno),
        };
        let system = |errno: Errno| NotPrivate::System { path: path.clone(), source: errno.into() };
        match opened.map_err(system)? {
            (Some(directory), status) if is_own(&status) && status.mode() & 0o077 == 0 => Ok(Self { path, directory }),
            (_, status) => Err(foreign(path, &status)),
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of a name in it by way of its descriptor, for system calls that take paths only.
    pub fn by_descriptor(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.directory.as_raw_fd()).into()
    }

    /// Names in it, without those that begin with a dot; 65,536 at most.
    ///
    /// # Errors
    /// Fails as the system does.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut directory = Dir::openat(&self.directory, ".", flags, Mode::empty())?;
        let names = directory.iter().flatten().filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
        Ok(names.filter(|name| !name.starts_with('.')).take(NAMES_MAX).collect())
    }

    /// Status of what has this name in it; a link is not followed.
    ///
    /// # Errors
    /// Fails as the system does.
    pub fn status(&self, name: &str) -> io::Result<Metadata> {
        Ok(look(self.directory.as_fd(), name.as_ref())?)
    }

    /// Removes the socket of this name; anything else of that name stays.
    pub fn remove_socket(&self, name: &str) {
        self.remove_if(name, |status| status.file_type().is_socket());
    }

    /// Removes the regular file of this name; anything else of that name stays.
    pub fn remove_file(&self, name: &str) {
        self.remove_if(name, Metadata::is_file);
    }

    fn remove_if(&self, name: &str, is_that: impl Fn(&Metadata) -> bool) {
        if self.status(name).is_ok_and(|status| is_own(&status) && is_that(&status)) {
            // Another process of this user may have done so.
            let _ = unlinkat(&self.directory, name, UnlinkatFlags::NoRemoveDir);
        }
    }
}

impl AsFd for PrivateDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Removes the socket at `path`, if the directory that holds it is this user's alone.
pub(crate) fn remove_private_socket(path: &Path) {
    let Some((above, name)) = path.parent().zip(path.file_name().and_then(|name| name.to_str())) else { return };
    if let Ok(directory) = PrivateDirectory::open(above) {
        directory.remove_socket(name);
    }
}

/// Makes a directory for this user alone, unless something has its name.
fn made(above: impl AsFd, name: &Path, path: &Path) -> Result<(), NotPrivate> {
    match mkdirat(above, name, Mode::S_IRWXU) {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(NotPrivate::System { path: path.to_owned(), source: errno.into() }),
    }
}

fn foreign(path: PathBuf, status: &Metadata) -> NotPrivate {
    let what = match () {
        () if status.is_dir() => "a directory",
        () if status.is_symlink() => "a link",
        () => "a file",
    };
    NotPrivate::Foreign { path, what, owner: status.uid(), mode: status.mode() & 0o7777, me: geteuid().as_raw() }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_a_directory_of_this_user_alone_is_used() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let made = PrivateDirectory::make(at("own")).unwrap();
        assert_eq!(fs::metadata(at("own")).unwrap().mode() & 0o7777, 0o700);
        made.make_below("deep").unwrap();
        assert!(PrivateDirectory::open(at("absent")).unwrap_err().is_absent());
        let refused = |name: &str, expected: &str| {
            for error in [PrivateDirectory::open(at(name)), PrivateDirectory::make(at(name))] {
                let error = error.unwrap_err().to_string();
                assert!(error.contains(expected) && error.contains("must be a directory of user"), "{error}");
            }
        };
        fs::create_dir(at("open")).unwrap();
        fs::set_permissions(at("open"), Permissions::from_mode(0o711)).unwrap();
        refused("open", "a directory of user");
        symlink(at("own"), at("link")).unwrap();
        refused("link", "a link of user");
        fs::write(at("file"), "").unwrap();
        refused("file", "a file of user");
        symlink(at("own/deep"), at("own/link")).unwrap();
        assert!(made.open_below("deep").is_ok() && made.open_below("link").is_err());
        if geteuid().is_root() {
            fs::create_dir(at("others")).unwrap();
            std::os::unix::fs::chown(at("others"), Some(65534), None).unwrap();
            refused("others", "a directory of user 65534");
        }
    }

    #[test]
    fn only_what_was_asked_for_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let private = PrivateDirectory::make(root.path().join("own")).unwrap();
        let at = |name: &str| private.path().join(name);
        drop(UnixListener::bind(at("socket")).unwrap());
        fs::write(at("file"), "x").unwrap();
        symlink(root.path().join("target"), at("link")).unwrap();
        for name in ["socket", "file", "link", "absent"] {
            private.remove_socket(name);
        }
        let mut names = private.names().unwrap();
        names.sort();
        assert_eq!(names, ["file", "link"]);
        private.remove_file("link");
        private.remove_file("file");
        assert_eq!(private.names().unwrap(), ["link"]);
    }
}

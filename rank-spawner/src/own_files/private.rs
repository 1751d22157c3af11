//! Directory of this user that may exist already. Other users can neither enter it nor have made it.

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

/// Limit on the names that [`PrivateDirectory::names`] returns.
const NAMES_MAX: usize = 1 << 16;

/// Open directory that only this user can access.
#[derive(Debug)]
pub struct PrivateDirectory {
    path: PathBuf,
    directory: OwnedFd,
}

/// Error for a directory that must not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotPrivate {
    /// Another user owns the directory or can access it, or it is not a directory.
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
        /// User of this process.
        me: u32,
    },
    /// A system call failed.
    #[error("cannot use the directory {}: {source}", path.display())]
    System {
        /// The directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

impl NotPrivate {
    /// True if the directory does not exist.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::System { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

impl PrivateDirectory {
    /// Opens the directory `path`. Follows links above the directory; the directory itself must not be a link.
    ///
    /// # Errors
    /// Fails if the directory does not exist, or another user has access to it.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, NotPrivate> {
        let path = path.into();
        Self::open_at(AT_FDCWD, &path.clone(), path)
    }

    /// Opens the directory; makes it if it does not exist.
    ///
    /// # Errors
    /// See [`PrivateDirectory::open`]. Also fails if the directory cannot be made.
    pub fn make(path: impl Into<PathBuf>) -> Result<Self, NotPrivate> {
        let path = path.into();
        made(AT_FDCWD, &path, &path)?;
        Self::open(path)
    }

    /// Opens the subdirectory `name`.
    ///
    /// # Errors
    /// See [`PrivateDirectory::open`].
    pub fn open_below(&self, name: &str) -> Result<Self, NotPrivate> {
        Self::open_at(&self.directory, Path::new(name), self.path.join(name))
    }

    /// Opens the subdirectory `name`; makes it if it does not exist.
    ///
    /// # Errors
    /// See [`PrivateDirectory::make`].
    pub fn make_below(&self, name: &str) -> Result<Self, NotPrivate> {
        made(&self.directory, Path::new(name), &self.path.join(name))?;
        self.open_below(name)
    }

    fn open_at(above: impl AsFd, name: &Path, path: PathBuf) -> Result<Self, NotPrivate> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = match openat(above.as_fd(), name, flags, Mode::empty()) {
            Ok(directory) => status_of(directory.as_fd()).map(|status| (Some(directory), status)),
            // The error names the actual kind of the file.
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

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of an entry through the directory's descriptor, for system calls that take only paths.
    pub fn by_descriptor(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.directory.as_raw_fd()).into()
    }

    /// Names of the entries, without names that start with a dot; 65,536 at most.
    ///
    /// # Errors
    /// Returns the error of the system call.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut directory = Dir::openat(&self.directory, ".", flags, Mode::empty())?;
        let names = directory.iter().flatten().filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
        Ok(names.filter(|name| !name.starts_with('.')).take(NAMES_MAX).collect())
    }

    /// Status of an entry; does not follow a link.
    ///
    /// # Errors
    /// Returns the error of the system call.
    pub fn status(&self, name: &str) -> io::Result<Metadata> {
        Ok(look(self.directory.as_fd(), name.as_ref())?)
    }

    /// Removes the socket `name`; leaves a file of any other kind.
    pub fn remove_socket(&self, name: &str) {
        self.remove_if(name, |status| status.file_type().is_socket());
    }

    /// Removes the regular file `name`; leaves a file of any other kind.
    pub fn remove_file(&self, name: &str) {
        self.remove_if(name, Metadata::is_file);
    }

    fn remove_if(&self, name: &str, is_that: impl Fn(&Metadata) -> bool) {
        if self.status(name).is_ok_and(|status| is_own(&status) && is_that(&status)) {
            // Another process of this user may have removed it.
            let _ = unlinkat(&self.directory, name, UnlinkatFlags::NoRemoveDir);
        }
    }
}

impl AsFd for PrivateDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Removes the socket at `path`, if only this user can access its directory.
pub(crate) fn remove_private_socket(path: &Path) {
    let Some((above, name)) = path.parent().zip(path.file_name().and_then(|name| name.to_str())) else { return };
    if let Ok(directory) = PrivateDirectory::open(above) {
        directory.remove_socket(name);
    }
}

/// Makes a directory that only this user can access, unless the name exists.
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

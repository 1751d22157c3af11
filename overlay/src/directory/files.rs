//! Files in one directory of a user, accessed through its descriptor, so that changes of the path have no effect.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, Flock, FlockArg, OFlag, open, openat, renameat};
use nix::sys::stat::{Mode, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, geteuid, linkat, unlinkat};

use super::{DirectoryError, random};

/// Longest file that is read, in bytes.
const FILE_MAX: u64 = 2 << 20;
/// Interval between attempts to get the lock.
const LOCK_STEP: Duration = Duration::from_millis(2);
/// Prefix of the name of a file that is being written.
const DRAFT: &str = ".new-";
const LOCK: &str = "lock";
/// Flags for opening directories.
const DIRECTORY: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_RDONLY).union(OFlag::O_CLOEXEC);

/// A directory.
#[derive(Debug)]
pub(super) struct Files {
    path: PathBuf,
    directory: OwnedFd,
}

/// The lock of a directory. It is released on drop, or at the end of the process.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "held")] Flock<OwnedFd>);

impl Files {
    /// Opens a directory; creates it if it does not exist.
    pub(super) fn open(path: &Path) -> Result<Self, DirectoryError> {
        let opened = match open(path, DIRECTORY, Mode::empty()) {
            Err(Errno::ENOENT) => {
                make(path)?;
                open(path, DIRECTORY, Mode::empty())
            }
            opened => opened,
        };
        Self::opened(path.to_owned(), opened)
    }

    /// Opens the subdirectory of this name; creates it if it does not exist.
    pub(super) fn below(&self, name: &str) -> Result<Self, DirectoryError> {
        Self::open(&self.path(name))
    }

    /// Opens the subdirectory of this name; `None` if it does not exist.
    pub(super) fn existing_below(&self, name: &str) -> Result<Option<Self>, DirectoryError> {
        let path = self.path(name);
        match open(&path, DIRECTORY, Mode::empty()) {
            Err(Errno::ENOENT) => Ok(None),
            opened => Self::opened(path, opened).map(Some),
        }
    }

    /// Checks an opened directory.
    fn opened(path: PathBuf, opened: Result<OwnedFd, Errno>) -> Result<Self, DirectoryError> {
        let directory = opened.map_err(|source| match source {
            Errno::ENOTDIR | Errno::ELOOP => DirectoryError::NoDirectory(path.clone()),
            _ => DirectoryError::Io { act: "open", path: path.clone(), source },
        })?;
        let files = Self { path, directory };
        files.check_owner()?;
        Ok(files)
    }

    fn check_owner(&self) -> Result<(), DirectoryError> {
        let path = || self.path.clone();
        let stat =
            fstat(&self.directory).map_err(|source| DirectoryError::Io { act: "look at", path: path(), source })?;
        let us = geteuid().as_raw();
        if stat.st_uid != us {
            return Err(DirectoryError::Foreign { path: path(), owner: stat.st_uid, us });
        }
        match stat.st_mode & 0o777 {
            mode if mode & 0o077 != 0 => Err(DirectoryError::Open { path: path(), mode }),
            _ => Ok(()),
        }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn failed(&self, act: &'static str, name: &str) -> impl FnOnce(Errno) -> DirectoryError {
        let path = self.path(name);
        move |source| DirectoryError::Io { act, path, source }
    }

    /// Waits for the lock.
    pub(super) fn lock(&self, timeout: Duration) -> Result<Lock, DirectoryError> {
        let flags = OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_RDWR | OFlag::O_CLOEXEC;
        let file = openat(&self.directory, LOCK, flags, Mode::S_IRUSR | Mode::S_IWUSR);
        let mut file = file.map_err(self.failed("open", LOCK))?;
        let until = Instant::now() + timeout;
        loop {
            file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(Lock(lock)),
                Err((file, Errno::EWOULDBLOCK | Errno::EINTR)) => file,
                Err((_, errno)) => return Err(self.failed("lock", LOCK)(errno)),
            };
            if Instant::now() >= until {
                return Err(DirectoryError::Locked { path: self.path(LOCK) });
            }
            std::thread::sleep(LOCK_STEP);
        }
    }

    pub(super) fn exists(&self, name: &str) -> Result<bool, DirectoryError> {
        match openat(&self.directory, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty()) {
            Ok(_) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(self.failed("look at", name)(errno)),
        }
    }

    /// Content of a file; `None` if it does not exist, or is not a file of this user.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, DirectoryError> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = match openat(&self.directory, name, flags, Mode::empty()) {
            Ok(file) => std::fs::File::from(file),
            Err(Errno::ENOENT | Errno::ELOOP | Errno::ENXIO) => return Ok(None),
            Err(errno) => return Err(self.failed("read", name)(errno)),
        };
        let mut content = Vec::new();
        let is_ours = fstat(file.as_fd()).is_ok_and(|stat| stat.st_uid == geteuid().as_raw());
        let read = file.take(FILE_MAX).read_to_end(&mut content);
        Ok((is_ours && read.is_ok()).then_some(content))
    }

    /// Creates a complete file; never replaces another one.
    pub(super) fn create(&self, name: &str, content: &[u8]) -> Result<(), DirectoryError> {
        let fd = self.directory.as_fd();
        self.write(name, content, |draft| linkat(fd, draft, fd, name, AtFlags::empty()))
    }

    /// Creates a complete file; replaces an earlier one.
    pub(super) fn replace(&self, name: &str, content: &[u8]) -> Result<(), DirectoryError> {
        let fd = self.directory.as_fd();
        self.write(name, content, |draft| renameat(fd, draft, fd, name))
    }

    /// Writes a file under another name, and gives it its own name with `rename`.
    fn write(
        &self,
        name: &str,
        content: &[u8],
        rename: impl FnOnce(&str) -> Result<(), Errno>,
    ) -> Result<(), DirectoryError> {
        let draft = format!("{DRAFT}{:016x}", u64::from_be_bytes(random()?));
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let file = openat(&self.directory, draft.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR);
        let mut file = std::fs::File::from(file.map_err(self.failed("make", name))?);
        let written =
            file.write_all(content).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or_default()));
        let renamed = written.and_then(|()| rename(&draft));
        // The draft has its final name, or is useless.
        let _ = unlinkat(&self.directory, draft.as_str(), UnlinkatFlags::NoRemoveDir);
        renamed.map_err(self.failed("write", name))
    }

    /// Removes a file if it exists.
    pub(super) fn remove(&self, name: &str) -> Result<(), DirectoryError> {
        match unlinkat(&self.directory, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(self.failed("remove", name)(errno)),
        }
    }

    /// Removes a subdirectory if it is empty.
    pub(super) fn remove_directory(&self, name: &str) -> Result<(), DirectoryError> {
        match unlinkat(&self.directory, name, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::EEXIST) => Ok(()),
            Err(errno) => Err(self.failed("remove", name)(errno)),
        }
    }

    /// Names of all complete files.
    pub(super) fn names(&self) -> Result<Vec<String>, DirectoryError> {
        let failed = || self.failed("list", "");
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let mut entries = Dir::openat(&self.directory, ".", flags, Mode::empty()).map_err(failed())?;
        let mut names = Vec::new();
        for entry in entries.iter() {
            let entry = entry.map_err(failed())?;
            names.extend(entry.file_name().to_str().ok().filter(|name| !name.starts_with('.')).map(str::to_owned));
        }
        Ok(names)
    }
}

/// Creates a directory and its missing parents, for this user only.
fn make(path: &Path) -> Result<(), DirectoryError> {
    let made = match mkdirat(AT_FDCWD, path, Mode::S_IRWXU) {
        Err(Errno::ENOENT) => {
            path.parent().filter(|above| !above.as_os_str().is_empty()).map_or(Ok(()), make)?;
            mkdirat(AT_FDCWD, path, Mode::S_IRWXU)
        }
        made => made,
    };
    match made {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(source) => Err(DirectoryError::Io { act: "make", path: path.to_owned(), source }),
    }
}

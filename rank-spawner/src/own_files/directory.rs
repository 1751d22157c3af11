//! New directory of this process.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::identity::{FileIdentity, open_above, remove_in};
use crate::emptying::{is_own, status_of};

/// Directory that this process has made. It stays until [`OwnDirectory::remove`].
#[derive(Debug)]
pub struct OwnDirectory {
    path: PathBuf,
    /// Parent directory.
    above: OwnedFd,
    directory: OwnedFd,
    identity: FileIdentity,
}

impl OwnDirectory {
    /// Makes the directory `path` with the permissions `mode`, independent of the umask.
    ///
    /// # Errors
    /// Returns the error of mkdir(2), also if the name exists. Fails if another directory takes the name meanwhile.
    pub fn make(path: impl Into<PathBuf>, mode: u32) -> io::Result<Self> {
        let path = path.into();
        let (above, name) = open_above(&path)?;
        let mode = Mode::from_bits_truncate(mode);
        mkdirat(&above, name, mode)?;
        let made = open_made(&above, name, mode);
        if made.is_err() {
            // Removes only an empty directory, so another directory of this name loses nothing.
            let _ = unlinkat(&above, name, UnlinkatFlags::RemoveDir);
        }
        let (directory, identity) = made?;
        Ok(Self { path, above, directory, identity })
    }

    /// Path, as given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Device and inode.
    pub fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// Makes a subdirectory with the permissions `mode`, independent of the umask.
    ///
    /// # Errors
    /// Returns the error of mkdir(2).
    pub fn make_directory(&self, name: &str, mode: u32) -> io::Result<PathBuf> {
        let mode = Mode::from_bits_truncate(mode);
        mkdirat(&self.directory, name, mode)?;
        open_made(&self.directory, Path::new(name), mode)?;
        Ok(self.path.join(name))
    }

    /// Creates a new file in the directory, accessible to this user only, and opens it for writing.
    ///
    /// # Errors
    /// Returns the error of open(2), also if the name exists.
    pub fn create_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        Ok(openat(&self.directory, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?.into())
    }

    /// Removes the directory if it is empty; returns it otherwise.
    pub fn remove_empty(self) -> Result<(), Self> {
        let is_there = |status: &File| status.metadata().is_ok_and(|status| status.nlink() > 0);
        match self.path.file_name().map(|name| unlinkat(&self.above, name, UnlinkatFlags::RemoveDir)) {
            Some(Ok(()) | Err(Errno::ENOENT)) => Ok(()),
            _ if !self.directory.try_clone().map(File::from).is_ok_and(|open| is_there(&open)) => Ok(()),
            _ => Err(self),
        }
    }

    /// Removes the directory with its content, if it still has its name. May block.
    ///
    /// # Errors
    /// Fails if the directory cannot be emptied or removed. Then it stays with the remaining content.
    pub fn remove(self) -> io::Result<()> {
        let name = self.path.file_name().unwrap_or_default();
        Ok(remove_in(self.above.as_fd(), Path::new(name), self.identity)?)
    }
}

/// Writes a file in a directory of this process with the permissions `mode`, independent of the umask. Does not follow a link at the end of
/// `path`.
///
/// # Errors
/// Returns the error of the system call.
pub fn write_own_file(path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
    let flags = OFlag::O_NOFOLLOW.bits();
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(mode).custom_flags(flags).open(path)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(content)
}

/// Opens a directory that was just made, and sets its permissions.
fn open_made(above: impl AsFd, name: &Path, mode: Mode) -> io::Result<(OwnedFd, FileIdentity)> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let directory = openat(above, name, flags, Mode::empty())?;
    let status = status_of(directory.as_fd())?;
    if !is_own(&status) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user has exchanged it for another one"));
    }
    if status.mode() & 0o7777 != mode.bits() {
        fchmod(&directory, mode)?;
    }
    Ok((directory, FileIdentity::of(&status)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_directory_is_new_has_its_mode_and_goes_with_what_is_in_it() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("own");
        let own = OwnDirectory::make(&path, 0o711).unwrap();
        assert_eq!(mode(&path), 0o711);
        assert_eq!(mode(&own.make_directory("below", 0o700).unwrap()), 0o700);
        drop(own.create_file("file").unwrap());
        assert_eq!(mode(&path.join("file")), 0o600);
        assert_eq!(own.create_file("file").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(OwnDirectory::make(&path, 0o711).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        symlink(root.path().join("absent"), root.path().join("link")).unwrap();
        assert!(OwnDirectory::make(root.path().join("link"), 0o700).is_err());
        for content in ["longer", "short"] {
            write_own_file(&path.join("public"), 0o646, content.as_bytes()).unwrap();
        }
        assert_eq!(
            (mode(&path.join("public")), fs::read_to_string(path.join("public")).unwrap()),
            (0o646, "short".into())
        );
        let own = own.remove_empty().unwrap_err();
        own.remove().unwrap();
        assert!(!path.exists());
        OwnDirectory::make(&path, 0o700).unwrap().remove_empty().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_directory_that_has_taken_its_name_stays() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("own");
        let own = OwnDirectory::make(&path, 0o700).unwrap();
        fs::rename(&path, root.path().join("moved")).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("results"), "x").unwrap();
        own.remove().unwrap();
        assert!(path.join("results").exists());
    }
}

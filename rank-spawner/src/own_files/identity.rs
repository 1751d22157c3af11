//! Identity of a directory that this program has made, and removal by that identity.

use std::fmt;
use std::fs::Metadata;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::str::FromStr;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::emptying::{Emptying, is_own, look};

/// Device and inode of a directory. They differ for another directory that takes its name later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
}

impl fmt::Display for FileIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.device, self.inode)
    }
}

/// Error for a text that is not an identity of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("an identity of a directory is DEVICE:INODE")]
pub struct NoIdentity;

impl FromStr for FileIdentity {
    type Err = NoIdentity;

    /// Parses the format of `Display`.
    fn from_str(text: &str) -> Result<Self, NoIdentity> {
        let (device, inode) = text.split_once(':').ok_or(NoIdentity)?;
        let number = |digits: &str| digits.parse().map_err(|_| NoIdentity);
        Ok(Self { device: number(device)?, inode: number(inode)? })
    }
}

impl FileIdentity {
    /// Length of an identity in records, in bytes.
    pub(crate) const LEN: usize = 16;

    pub(crate) fn of(status: &Metadata) -> Self {
        Self { device: status.dev(), inode: status.ino() }
    }

    pub(crate) fn encode(self) -> [u8; Self::LEN] {
        (u128::from(self.device) << 64 | u128::from(self.inode)).to_ne_bytes()
    }

    /// Identity in a record; `None` for zeros, which no file has.
    pub(crate) fn decode(bytes: [u8; Self::LEN]) -> Option<Self> {
        let both = u128::from_ne_bytes(bytes);
        (both != 0).then_some(Self { device: (both >> 64) as u64, inode: both as u64 })
    }
}

/// Removes the directory at `path` with its content, if it has this identity and belongs to this user. Does not follow a link at the end of
/// `path`, and leaves other file systems that are mounted in it. A directory that cannot be emptied stays.
pub fn remove_recorded(path: &Path, identity: FileIdentity) {
    let Ok((above, name)) = open_above(path) else { return };
    // On failure the directory stays.
    let _ = remove_in(above.as_fd(), name, identity);
}

/// Removes the directory at `path` if it belongs to this user and is empty.
pub(crate) fn remove_empty(path: &Path) {
    let Ok((above, name)) = open_above(path) else { return };
    if look(above.as_fd(), name.as_ref()).is_ok_and(|status| status.is_dir() && is_own(&status)) {
        // Fails for a directory that is not empty.
        let _ = unlinkat(&above, name, UnlinkatFlags::RemoveDir);
    }
}

/// Removes the directory `name` in `above`, as [`remove_recorded`] does.
pub(super) fn remove_in(above: BorrowedFd<'_>, name: &Path, identity: FileIdentity) -> nix::Result<()> {
    match look(above, name.as_ref()) {
        Ok(status) if status.is_dir() && is_own(&status) && FileIdentity::of(&status) == identity => {
            Emptying::own_tree(above, name.as_ref(), &status);
            unlinkat(above, name, UnlinkatFlags::RemoveDir)
        }
        Ok(_) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Opens the parent directory of `path`, and returns the last name of `path`.
pub(super) fn open_above(path: &Path) -> nix::Result<(OwnedFd, &Path)> {
    let name = path.file_name().ok_or(Errno::EINVAL)?;
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok((open(above, flags, Mode::empty())?, Path::new(name)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn identity_of(path: &Path) -> FileIdentity {
        FileIdentity::of(&fs::symlink_metadata(path).unwrap())
    }

    #[test]
    fn an_identity_can_be_written_and_read() {
        let identity = FileIdentity { device: 9, inode: u64::MAX };
        assert_eq!(identity.to_string().parse(), Ok(identity));
        for text in ["", "9", "9:", "a:b", "9:8:7"] {
            assert_eq!(text.parse::<FileIdentity>(), Err(NoIdentity), "{text}");
        }
    }

    #[test]
    fn only_the_recorded_directory_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for directory in ["made", "other"] {
            fs::create_dir_all(at(directory).join("deep")).unwrap();
            fs::write(at(directory).join("deep/file"), "x").unwrap();
        }
        let made = identity_of(&at("made"));
        remove_recorded(&at("other"), made);
        assert!(at("other/deep/file").exists(), "another directory");
        symlink(at("made"), at("link")).unwrap();
        remove_recorded(&at("link"), made);
        assert!(at("made/deep/file").exists(), "a link to it");
        symlink(at("other"), at("made/deep/link")).unwrap();
        remove_recorded(&at("made"), made);
        assert!(!at("made").exists() && at("other/deep/file").exists());
        fs::rename(at("other"), at("made")).unwrap();
        remove_recorded(&at("made"), made);
        assert!(at("made/deep/file").exists(), "its name alone");
    }

    #[test]
    fn a_directory_that_was_only_announced_is_removed_while_it_is_empty() {
        let root = tempfile::tempdir().unwrap();
        let (empty, full) = (root.path().join("empty"), root.path().join("full"));
        fs::create_dir(&empty).unwrap();
        fs::create_dir_all(full.join("results")).unwrap();
        remove_empty(&empty);
        remove_empty(&full);
        assert!(!empty.exists() && full.join("results").exists());
    }

    #[test]
    fn an_identity_is_recorded_as_it_is() {
        let identity = FileIdentity { device: u64::MAX, inode: 7 };
        assert_eq!(FileIdentity::decode(identity.encode()), Some(identity));
        assert_eq!(FileIdentity::decode([0; FileIdentity::LEN]), None);
    }
}

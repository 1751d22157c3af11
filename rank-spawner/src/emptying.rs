//! Removal of the content of a directory by descriptors, so that a link that replaces a directory meanwhile is not followed.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;
use nix::unistd::{Uid, UnlinkatFlags, unlinkat};

/// Limit on the entries that are removed from a directory, entries of its subdirectories included.
const ENTRIES_MAX: usize = 1 << 20;

/// Limit on the depth of removal: each level holds a descriptor.
const DEPTH_MAX: usize = 64;

/// Limit on the depth for a directory that this process has made.
const OWN_DEPTH_MAX: usize = 512;

/// Selection of the entries to remove, and the remaining number of entries.
pub(crate) struct Emptying<'a> {
    is_recursive: bool,
    is_spared: &'a dyn Fn(&Path) -> bool,
    owners: Owners,
    room: usize,
}

/// Owners of the entries to remove.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owners {
    /// This process's user.
    User,
    /// All users. For a directory that this process has made for itself: users of a container may own files in it.
    All,
}

/// Removes this user's files in a directory. With `is_recursive` also removes its subdirectories on the same file system, with their content.
/// Entries for which `is_spared` returns true stay; it gets the path as written here in `directory`, plus the path below. Never follows a link,
/// not even `directory` itself, but follows links above it. Removes up to 1,048,576 entries, 64 levels deep; entries that cannot be removed
/// stay.
pub fn empty_directory(directory: &Path, is_recursive: bool, is_spared: &dyn Fn(&Path) -> bool) {
    let (Some(above), Some(name)) = (directory.parent(), directory.file_name()) else { return };
    let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let Ok(parent) = open(above, flags, Mode::empty()) else { return };
    let Ok(status) = look(parent.as_fd(), name) else { return };
    if is_own(&status) && status.is_dir() && !is_spared(directory) {
        Emptying::new(is_recursive, is_spared).empty(parent.as_fd(), directory, &status, DEPTH_MAX);
    }
}

impl<'a> Emptying<'a> {
    fn new(is_recursive: bool, is_spared: &'a dyn Fn(&Path) -> bool) -> Self {
        Self { is_recursive, is_spared, owners: Owners::User, room: ENTRIES_MAX }
    }

    /// Removes all entries of any owner in a directory that this process has made, on its file system.
    pub(crate) fn own_tree(parent: BorrowedFd<'_>, name: &OsStr, seen: &Metadata) {
        let mut emptying = Emptying::new(true, &|_| false);
        (emptying.owners, emptying.room) = (Owners::All, usize::MAX);
        emptying.empty(parent, Path::new(name), seen, OWN_DEPTH_MAX);
    }

    /// Removes this user's entries in the directory `name` of `parent`, recursively; `seen` identifies the directory.
    pub(crate) fn all(parent: BorrowedFd<'_>, name: &OsStr, seen: &Metadata) {
        Emptying::new(true, &|_| false).empty(parent, Path::new(name), seen, DEPTH_MAX);
    }

    /// Empties the last directory of `path`, an entry of `parent`; `seen` identifies the directory.
    fn empty(&mut self, parent: BorrowedFd<'_>, path: &Path, seen: &Metadata, depth: usize) {
        let Some(name) = path.file_name() else { return };
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let Ok(mut directory) = Dir::openat(parent, name, flags, Mode::empty()) else { return };
        // Another directory may have replaced it.
        if !status_of(directory.as_fd()).is_ok_and(|status| is_same(&status, seen)) {
            return;
        }
        for (name, may_be_directory) in self.entries(&mut directory) {
            let path = path.join(&name);
            let Ok(status) = look(directory.as_fd(), &name) else { continue };
            let is_foreign = self.owners == Owners::User && !is_own(&status);
            if is_foreign || (self.is_spared)(&path) {
                continue;
            }
            if may_be_directory && status.is_dir() {
                if self.is_recursive && depth > 0 && status.dev() == seen.dev() {
                    self.empty(directory.as_fd(), &path, &status, depth - 1);
                    let _ = unlinkat(&directory, name.as_os_str(), UnlinkatFlags::RemoveDir);
                }
            } else {
                let _ = unlinkat(&directory, name.as_os_str(), UnlinkatFlags::NoRemoveDir);
            }
        }
    }

    /// Names in a directory, with true if the entry may be a directory. Reads all names before any removal: a directory that changes may skip
    /// entries.
    fn entries(&mut self, directory: &mut Dir) -> Vec<(OsString, bool)> {
        let mut entries = Vec::new();
        for entry in directory.iter().flatten() {
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            if name == "." || name == ".." {
                continue;
            }
            let Some(left) = self.room.checked_sub(1) else { break };
            self.room = left;
            entries.push((name, entry.file_type() != Some(Type::File)));
        }
        entries
    }
}

/// Returns the metadata of a name in a directory; does not follow a link.
pub(crate) fn look(directory: BorrowedFd<'_>, name: &OsStr) -> nix::Result<Metadata> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    status_of(openat(directory, name, flags, Mode::empty())?.as_fd())
}

/// Returns the metadata of an open file.
pub(crate) fn status_of(file: BorrowedFd<'_>) -> nix::Result<Metadata> {
    let status = file.try_clone_to_owned().and_then(|file| File::from(file).metadata());
    status.map_err(|error: io::Error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
}

/// True for a file of this process's user.
pub(crate) fn is_own(status: &Metadata) -> bool {
    Uid::from_raw(status.uid()) == Uid::effective()
}

/// True if both are the same file. The file may have been removed between the two calls, if its inode number was not reused.
fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Makes directories and files below a root. A name that ends with `/` is a directory; `a>b` is a link from `a` to `b`.
    fn tree(names: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for name in names {
            match (name.strip_suffix('/'), name.split_once('>')) {
                (Some(directory), _) => fs::create_dir_all(root.path().join(directory)).unwrap(),
                (None, Some((from, to))) => symlink(root.path().join(to), root.path().join(from)).unwrap(),
                (None, None) => fs::write(root.path().join(name), "x").unwrap(),
            }
        }
        root
    }

    #[test]
    fn links_are_removed_and_lead_nowhere() {
        let root =
            tree(&["out/", "out/kept", "in/", "in/file", "in/deep/", "in/deep/file", "in/link>out", "in/deep/up>out"]);
        let at = |name: &str| root.path().join(name);
        empty_directory(&at("in"), false, &|_| false);
        assert!(at("in/deep/file").exists() && !at("in/file").exists() && at("in/link").symlink_metadata().is_err());
        empty_directory(&at("in"), true, &|_| false);
        assert!(!at("in/deep").exists() && at("in").exists() && at("out/kept").exists());
        symlink(at("out"), at("other")).unwrap();
        empty_directory(&at("other"), true, &|_| false);
        assert!(at("out/kept").exists());
    }

    /// During the removal, one subdirectory is replaced by a link to another directory of the user.
    #[test]
    fn a_directory_that_becomes_a_link_meanwhile_saves_what_that_leads_to() {
        let root = tree(&["out/", "out/kept", "in/", "in/deep/", "in/deep/file"]);
        let at = |name: &str| root.path().join(name);
        let (deep, moved, out) = (at("in/deep"), at("moved"), at("out"));
        // The callback runs after the directory has been seen and before it is opened.
        let swap = |path: &Path| {
            if path == deep && fs::rename(&deep, &moved).is_ok() {
                symlink(&out, &deep).unwrap();
            }
            false
        };
        empty_directory(&at("in"), true, &swap);
        assert!(at("out/kept").exists() && at("moved/file").exists());
    }

    #[test]
    fn what_is_spared_stays_with_all_that_is_in_it() {
        let root = tree(&["in/", "in/a", "in/deep/", "in/deep/b", "in/other/", "in/other/c"]);
        let at = |name: &str| root.path().join(name);
        let spared = at("in/deep");
        empty_directory(&at("in"), true, &|path| path.starts_with(&spared));
        assert!(at("in/deep/b").exists() && !at("in/a").exists() && !at("in/other").exists());
    }
}

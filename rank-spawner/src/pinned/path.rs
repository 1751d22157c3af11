//! Registered path: pinned by its directory and its inode, and removed without following a link.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, open, openat2, readlink};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use pmi_core::resources::ResourceError;

use super::{FileId, refused};
use crate::emptying::{Emptying, is_own, look, status_of};

/// Kind of the file at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathKind {
    /// Any file that is not a directory.
    File,
    Directory,
}

/// A file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PinnedPath {
    kind: PathKind,
    /// Parent directory; no part of this path is a link.
    parent: PathBuf,
    parent_id: FileId,
    /// `None` for a file that was about to be made and did not exist.
    id: Option<FileId>,
    name: Vec<u8>,
}

impl PinnedPath {
    /// Pins the directory of a path, and reads the status of the file if it exists.
    pub(super) fn new(path: &Path, kind: PathKind) -> Result<(Self, Option<Metadata>), ResourceError> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return Err(refused("it is no path")) };
        let unreachable = |errno: Errno| refused(format!("cannot look at its directory: {errno}"));
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = open(above, flags, Mode::empty()).map_err(unreachable)?;
        let parent_id = FileId::of(&status_of(directory.as_fd()).map_err(unreachable)?);
        let parent = readlink(format!("/proc/self/fd/{}", directory.as_raw_fd()).as_str()).map_err(unreachable)?;
        let status = match look(directory.as_fd(), name) {
            Ok(status) => Some(status),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(refused(format!("cannot look at it: {errno}"))),
        };
        let pinned = Self { kind, parent: parent.into(), parent_id, id: None, name: name.as_bytes().to_vec() };
        // A directory that was moved or removed meanwhile has another path or none.
        if pinned.open_parent().is_none() { Err(refused("its directory has no path")) } else { Ok((pinned, status)) }
    }

    /// Pins the existing file.
    pub(super) fn made(mut self, status: &Metadata) -> Result<Self, ResourceError> {
        if kind_of(status) != self.kind {
            return Err(refused(if self.kind == PathKind::File { "it is a directory" } else { "it is no directory" }));
        }
        self.id = Some(FileId::of(status));
        Ok(self)
    }

    /// Opens the parent directory, if it is still the same.
    fn open_parent(&self) -> Option<OwnedFd> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
        let directory = openat2(AT_FDCWD, &self.parent, how).ok()?;
        (FileId::of(&status_of(directory.as_fd()).ok()?) == self.parent_id).then_some(directory)
    }

    /// Removes the file or directory, if it is still the same and belongs to the user.
    pub(super) fn remove(&self) {
        let Some(parent) = self.open_parent() else { return };
        let name = OsStr::from_bytes(&self.name);
        let Ok(status) = look(parent.as_fd(), name) else { return };
        let is_same = self.id.is_none_or(|id| id == FileId::of(&status));
        if !is_same || !is_own(&status) || kind_of(&status) != self.kind {
            return;
        }
        // After a failure the file stays.
        let _ = match self.kind {
            PathKind::File => unlinkat(&parent, name, UnlinkatFlags::NoRemoveDir),
            PathKind::Directory => {
                Emptying::all(parent.as_fd(), name, &status);
                unlinkat(&parent, name, UnlinkatFlags::RemoveDir)
            }
        };
    }

    pub(super) fn to_record(&self) -> Vec<u8> {
        let kind = if self.kind == PathKind::File { 'f' } else { 'd' };
        let id = self.id.unwrap_or(FileId::NONE);
        let numbers = format!("{kind} {} {} ", self.parent_id.to_record(), id.to_record());
        // Names have no NUL byte.
        [numbers.as_bytes(), self.parent.as_os_str().as_bytes(), b"\0", &self.name].concat()
    }

    pub(super) fn from_record(record: &[u8]) -> Option<Self> {
        let mut parts = record.splitn(8, |&byte| byte == b' ');
        let kind = match parts.next()? {
            b"f" => PathKind::File,
            b"d" => PathKind::Directory,
            _ => return None,
        };
        let mut number = || str::from_utf8(parts.next()?).ok()?.parse().ok();
        let parent_id = FileId::from_record(&mut number)??;
        let id = FileId::from_record(&mut number)?;
        let path = parts.next()?;
        let nul = path.iter().position(|&byte| byte == 0)?;
        let (parent, name) = (OsStr::from_bytes(&path[..nul]).into(), path[nul + 1..].to_vec());
        Some(Self { kind, parent, parent_id, id, name })
    }
}

fn kind_of(status: &Metadata) -> PathKind {
    if status.is_dir() { PathKind::Directory } else { PathKind::File }
}

//! Files to remove at the end of a rank: the rank registers them, and the host removes them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::wire::value::{Info, Value};

/// Files and directories that a rank leaves, and the extent of their removal. Relative paths are ignored.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CleanUp {
    /// Files to remove.
    pub files: Vec<PathBuf>,
    /// Directories to remove.
    pub directories: Vec<PathBuf>,
    /// Paths that stay, with their contents.
    pub spared: Vec<PathBuf>,
    /// Also remove the contents of the directories; else only empty directories.
    pub recursive: bool,
    /// Keep the directories themselves.
    pub leave_directory: bool,
}

impl CleanUp {
    /// Maximum number of paths that one rank may register.
    pub(crate) const PATHS_MAX: usize = 256;

    /// Decodes the directives of a job control request; `None` if one of them is for another purpose.
    pub(crate) fn from_infos(infos: &[Info<'_>]) -> Option<Self> {
        let mut clean_up = Self::default();
        for info in infos {
            match (info.key, &info.value) {
                (b"pmix.reg.cleanup", Value::Text(list)) => clean_up.files.extend(paths(list)),
                (b"pmix.reg.cleanupdir", Value::Text(list)) => clean_up.directories.extend(paths(list)),
                (b"pmix.clnup.ignore", Value::Text(list)) => clean_up.spared.extend(paths(list)),
                (b"pmix.clnup.recurse", on) => clean_up.recursive = on.is_true(),
                (b"pmix.clnup.lvtop", on) => clean_up.leave_directory = on.is_true(),
                _ => return None,
            }
        }
        Some(clean_up)
    }

    /// Files that are not spared.
    pub(crate) fn removed_files(&self) -> Vec<PathBuf> {
        let is_spared = |file: &&PathBuf| self.spared.iter().any(|spared| file.starts_with(spared));
        self.files.iter().filter(|file| !is_spared(file)).cloned().collect()
    }

    /// Returns the number of paths.
    pub(crate) fn len(&self) -> usize {
        self.files.len() + self.directories.len() + self.spared.len()
    }
}

/// The absolute paths of a list, separated by commas.
fn paths(list: &[u8]) -> impl Iterator<Item = PathBuf> + '_ {
    let paths = list.split(|&byte| byte == b',').map(|path| PathBuf::from(OsStr::from_bytes(path)));
    paths.filter(|path| path.is_absolute())
}

//! Files that a rank wants removed when it ends: registered while it lives, removed by the host.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::wire::value::{Info, Value};

/// Files and directories that a rank leaves behind, and how thorough to be. Relative paths are never kept.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CleanUp {
    /// Files.
    pub files: Vec<PathBuf>,
    /// Directories.
    pub directories: Vec<PathBuf>,
    /// Paths that stay, and what is in them.
    pub spared: Vec<PathBuf>,
    /// Also remove what is in the directories; else only empty ones go.
    pub recursive: bool,
    /// The directories themselves stay.
    pub leave_directory: bool,
}

impl CleanUp {
    /// The most paths that one rank may register.
    pub(crate) const PATHS_MAX: usize = 256;

    /// Reads the directives of a job control request; `None` if one of them asks for something else.
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

    /// The files that are not spared.
    pub(crate) fn removed_files(&self) -> Vec<PathBuf> {
        let is_spared = |file: &&PathBuf| self.spared.iter().any(|spared| file.starts_with(spared));
        self.files.iter().filter(|file| !is_spared(file)).cloned().collect()
    }

    /// Returns the number of paths.
    pub(crate) fn len(&self) -> usize {
        self.files.len() + self.directories.len() + self.spared.len()
    }
}

/// A list of paths with commas between them.
fn paths(list: &[u8]) -> impl Iterator<Item = PathBuf> + '_ {
    let paths = list.split(|&byte| byte == b',').map(|path| PathBuf::from(OsStr::from_bytes(path)));
    paths.filter(|path| path.is_absolute())
}

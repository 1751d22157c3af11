//! State of a file that shows later if the file has been written.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// State of a file before its content was read. Any write changes one of these values.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SeenFile {
    path: PathBuf,
    /// Device and inode number.
    id: (u64, u64),
    bytes: u64,
    /// Time of the last change, in seconds and nanoseconds.
    changed: (i64, i64),
}

impl SeenFile {
    /// State from metadata that was read before the content.
    pub(crate) fn of(path: &Path, metadata: &Metadata) -> Self {
        let (id, changed) = ((metadata.dev(), metadata.ino()), (metadata.ctime(), metadata.ctime_nsec()));
        Self { path: path.to_owned(), id, bytes: metadata.len(), changed }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// True if the file has been neither written nor replaced since then.
    pub(crate) fn is_as_seen(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|metadata| Self::of(&self.path, &metadata) == *self)
    }

    /// Text of the file.
    ///
    /// # Errors
    /// Fails if the file is not readable, or its state has changed.
    pub(crate) fn read(&self) -> io::Result<String> {
        let mut file = File::open(&self.path)?;
        if Self::of(&self.path, &file.metadata()?) != *self {
            return Err(io::Error::other("it was changed"));
        }
        // The additional byte detects the end without a reallocation.
        let mut text = String::with_capacity(usize::try_from(self.bytes).unwrap_or_default() + 1);
        file.read_to_string(&mut text)?;
        Ok(text)
    }
}

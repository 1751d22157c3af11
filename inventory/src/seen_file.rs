//! A file as somebody has seen it, by which others know that nobody has written it since.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A file as it was when its content was looked at: whoever writes it changes one of these.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SeenFile {
    path: PathBuf,
    /// Its device and number.
    id: (u64, u64),
    bytes: u64,
    /// Last change, in seconds and nanoseconds.
    changed: (i64, i64),
}

impl SeenFile {
    /// A file with the metadata that it had before it was looked at.
    pub(crate) fn of(path: &Path, metadata: &Metadata) -> Self {
        let (id, changed) = ((metadata.dev(), metadata.ino()), (metadata.ctime(), metadata.ctime_nsec()));
        Self { path: path.to_owned(), id, bytes: metadata.len(), changed }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// True if nobody has written it since, or put another one in its place.
    pub(crate) fn is_as_seen(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|metadata| Self::of(&self.path, &metadata) == *self)
    }

    /// Its text.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or is not as it was seen.
    pub(crate) fn read(&self) -> io::Result<String> {
        let mut file = File::open(&self.path)?;
        if Self::of(&self.path, &file.metadata()?) != *self {
            return Err(io::Error::other("it was changed"));
        }
        // One byte more, so that the end is seen without more room.
        let mut text = String::with_capacity(usize::try_from(self.bytes).unwrap_or_default() + 1);
        file.read_to_string(&mut text)?;
        Ok(text)
    }
}

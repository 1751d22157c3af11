//! A file that one rank reads as its standard input. A plan contains its path and does not open it: the open of a pipe waits for a
//! writer, possibly indefinitely.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use pmi_core::ids::Rank;

use super::PlanError;

/// File that a rank reads as its standard input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InputFile {
    pub(crate) rank: Rank,
    pub(crate) path: PathBuf,
}

impl InputFile {
    /// Opens the file. This may block indefinitely.
    pub(crate) fn open(self) -> Result<Arc<OwnedFd>, PlanError> {
        let Self { rank, path } = self;
        let file = File::open(&path).map_err(|source| PlanError::Stdin { rank, path, source })?;
        Ok(Arc::new(file.into()))
    }
}

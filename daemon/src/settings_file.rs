//! Files of settings, in TOML: of the agent, of the API server, of the commands. What may stand in one is its reader's business;
//! why it cannot be read at all is said here, the same way for all.

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// Error of a settings file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsFileError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is no TOML, or says what there is not to say.
    #[error("{}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Error, with its place in the file.
        source: Box<toml::de::Error>,
    },
}

/// Reads the settings in the file at `path`.
///
/// # Errors
/// Fails if it cannot be read, or is no TOML of a `T`.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T, SettingsFileError> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text, path),
        Err(source) => Err(SettingsFileError::Read { path: path.to_owned(), source }),
    }
}

/// Reads the settings in `text`, which came from `path`.
///
/// # Errors
/// Fails if it is no TOML of a `T`.
pub fn parse<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, SettingsFileError> {
    toml::from_str(text).map_err(|source| SettingsFileError::Parse { path: path.to_owned(), source: Box::new(source) })
}

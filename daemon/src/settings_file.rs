//! Settings files in TOML: of the agent, of the API server, of the commands. Each reader defines its settings; this module reports unreadable
//! files, in the same way for all readers.

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// Error of a settings file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsFileError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}\ntry: the path of another file, or a mode with which it can be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The file is not TOML, or contains an invalid setting.
    #[error("{}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Error, with its position in the file.
        source: Box<toml::de::Error>,
    },
}

/// Reads the settings in the file at `path`.
///
/// # Errors
/// Fails if the file cannot be read, or is not the TOML of a `T`.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T, SettingsFileError> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text, path),
        Err(source) => Err(SettingsFileError::Read { path: path.to_owned(), source }),
    }
}

/// Reads the settings in `text`, the content of `path`.
///
/// # Errors
/// Fails if the text is not the TOML of a `T`.
pub fn parse<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, SettingsFileError> {
    toml::from_str(text).map_err(|source| SettingsFileError::Parse { path: path.to_owned(), source: Box::new(source) })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Settings {
        listen: String,
        #[serde(default)]
        retries: u32,
    }

    fn parsed(text: &str) -> Result<Settings, String> {
        parse(text, Path::new("/etc/lattice/api.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_are_read_from_a_file_and_from_text_alike() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "listen = 'head'\nretries = 3\n";
        std::fs::write(file.path(), text).unwrap();
        let expected = Settings { listen: "head".to_owned(), retries: 3 };
        assert_eq!(read::<Settings>(file.path()).unwrap(), expected);
        assert_eq!(parsed(text), Ok(expected));
    }

    #[test]
    fn a_fault_is_told_with_its_file_its_line_and_its_name() {
        for (text, expected) in [
            ("listen = 'head'\nretires = 3\n", ["line 2, column 1", "unknown field `retires`"]),
            ("listen = 5\n", ["line 1, column 10", "invalid type: integer `5`, expected a string"]),
            ("\n\nretries = -1\nlisten = 'x'\n", ["line 3, column 11", "expected u32"]),
            ("listen = \n", ["line 1", "TOML parse error"]),
            ("retries = 3\n", ["TOML parse error", "missing field `listen`"]),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.starts_with("/etc/lattice/api.toml: "), "{error}");
            for part in expected {
                assert!(error.contains(part), "{part} is not in {error}");
            }
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_told_apart_from_one_that_is_wrong() {
        let error = read::<Settings>(Path::new("/nonexistent/api.toml")).unwrap_err();
        assert!(matches!(&error, SettingsFileError::Read { source, .. } if source.kind() == io::ErrorKind::NotFound));
        let text = "cannot read /nonexistent/api.toml: No such file or directory (os error 2)";
        assert!(error.to_string().starts_with(&format!("{text}\ntry: the path")), "{error}");
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(read::<Settings>(directory.path()), Err(SettingsFileError::Read { .. })));
    }

    #[test]
    fn bytes_that_are_no_text_are_no_settings() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"listen = '\xff'").unwrap();
        let error = read::<Settings>(file.path()).unwrap_err();
        assert!(
            matches!(&error, SettingsFileError::Read { source, .. } if source.kind() == io::ErrorKind::InvalidData)
        );
        assert!(error.to_string().contains("UTF-8"), "{error}");
    }
}

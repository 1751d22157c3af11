//! Data that a user can extend: tables of Lattice, and tables in a file of the user, which override tables of Lattice with the same name.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;

use lattice_console::bounded_file;
use lattice_console::environment::user_file;
use lattice_console::machine::Machine;
use serde::de::DeserializeOwned;

/// Maximum size of a file of the user, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// A file of the user cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}\ntry: another form of that entry, or the file without it", file.display())]
pub struct UserTablesError {
    /// The file.
    file: PathBuf,
    /// Reason, as text.
    reason: String,
}

/// Tables by name.
#[derive(Debug)]
pub(super) struct UserTables<T> {
    pub(super) tables: BTreeMap<String, T>,
    /// Tables of the user that cannot be parsed, with the reason.
    unusable: BTreeMap<String, String>,
    /// Path of the file of the user; the file need not exist.
    pub(super) file: Option<PathBuf>,
}

impl<T: DeserializeOwned> UserTables<T> {
    /// Reads the tables of Lattice from `ours`, and the tables of the user from the settings file `name`.
    ///
    /// # Errors
    /// Fails if the file exists but is not TOML. A table that cannot be parsed is refused on [access](Self::get).
    pub(super) fn read(ours: &str, name: &str, machine: &Machine) -> Result<Self, UserTablesError> {
        let mut tables = toml::from_str::<BTreeMap<String, T>>(ours).unwrap_or_default();
        let mut unusable = BTreeMap::new();
        let file = user_file(name, &machine.environment);
        if let Some(file) = &file {
            let failed = |reason: String| UserTablesError { file: file.clone(), reason };
            match bounded_file::trusted_text(file, BYTES_MAX) {
                Ok(text) => {
                    let theirs = toml::from_str::<toml::Table>(&text).map_err(|error| failed(error.to_string()))?;
                    for (name, table) in theirs {
                        match table.try_into() {
                            Ok(table) => drop(tables.insert(name, table)),
                            Err(error) => drop(unusable.insert(name, error.to_string())),
                        }
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
                Err(error) => return Err(failed(error.to_string())),
            }
        }
        Ok(Self { tables, unusable, file })
    }

    /// The table of this name, if there is one.
    ///
    /// # Errors
    /// Fails if the user's table with this name cannot be parsed.
    pub(super) fn get(&self, name: &str) -> Result<Option<(&String, &T)>, UserTablesError> {
        match self.unusable.get_key_value(name) {
            Some(unusable) => Err(self.refuse(unusable)),
            None => Ok(self.tables.get_key_value(name)),
        }
    }

    /// All tables.
    ///
    /// # Errors
    /// Fails if a table of the user cannot be parsed.
    pub(super) fn all(&self) -> Result<&BTreeMap<String, T>, UserTablesError> {
        self.unusable.first_key_value().map_or(Ok(&self.tables), |unusable| Err(self.refuse(unusable)))
    }

    fn refuse(&self, (name, reason): (&String, &String)) -> UserTablesError {
        UserTablesError {
            file: self.file.clone().unwrap_or_default(),
            reason: format!("[{name}]: {}", reason.trim_end()),
        }
    }
}

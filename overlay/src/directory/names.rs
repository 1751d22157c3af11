//! Names that ranks publish: a file for each, found by all launches of the user on this machine. A name goes with the set that has
//! published it, for nothing listens at its port any more.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use ring::digest;
use serde::{Deserialize, Serialize};

use super::files::Files;
use super::mark::Life;
use super::{Directory, DirectoryError, LOCK_TIMEOUT, Nonce, SetRecord};

/// Most names of a user.
pub const NAMES_MAX: usize = 4096;
/// Longest name, and longest port, in bytes.
pub const LENGTH_MAX: usize = 64 << 10;
/// Directory of the names below that of the sets.
const BELOW: &str = "names";

/// Life of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until it is withdrawn.
    Withdrawn,
    /// Until it is found.
    FirstRead,
}

/// Failure to publish, find or withdraw a name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Somebody has published it already.
    #[error("the name is already published")]
    AlreadyPublished,
    /// Nobody has published it.
    #[error("nobody published this name")]
    NotFound,
    /// There are too many.
    #[error("{NAMES_MAX} names are published, which is the most")]
    Full,
    /// The name or the port is too long.
    #[error("names and ports have at most {LENGTH_MAX} bytes")]
    TooLong,
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

/// A name as its file has it.
#[derive(Serialize, Deserialize)]
struct Entry {
    /// Number of the file of the set that has published it, and the random number in it.
    set: u16,
    nonce: Nonce,
    first_read: bool,
    service: String,
    port: String,
}

impl Directory {
    /// Publishes `port` under `service`, for as long as `set` lives.
    ///
    /// # Errors
    /// Refuses a name that a set that lives has published, one that is too long, and one too many.
    pub fn publish(&self, set: &SetRecord, service: &[u8], port: &[u8], lifetime: Lifetime) -> Result<(), NameError> {
        if service.len().max(port.len()) > LENGTH_MAX {
            return Err(NameError::TooLong);
        }
        let names = self.files.below(BELOW)?;
        let _lock = self.files.lock(LOCK_TIMEOUT)?;
        let name = file_name(service);
        if names.exists(&name)? {
            if self.entry(&names, service)?.is_some() {
                return Err(NameError::AlreadyPublished);
            }
            names.remove(&name)?;
        }
        if names.names()?.len() >= NAMES_MAX {
            self.remove_orphans(&names)?;
            if names.names()?.len() >= NAMES_MAX {
                return Err(NameError::Full);
            }
        }
        let entry = Entry {
            set: set.id().number(),
            nonce: set.nonce.clone(),
            first_read: lifetime == Lifetime::FirstRead,
            service: STANDARD_NO_PAD.encode(service),
            port: STANDARD_NO_PAD.encode(port),
        };
        let content = serde_json::to_vec(&entry).unwrap_or_default();
        Ok(names.create(&name, &content)?)
    }

    /// The port under `service`.
    ///
    /// # Errors
    /// Fails if no set that lives has published it.
    pub fn look_up(&self, service: &[u8]) -> Result<Vec<u8>, NameError> {
        let names = self.files.below(BELOW)?;
        let entry = self.entry(&names, service)?.ok_or(NameError::NotFound)?;
        let port = || STANDARD_NO_PAD.decode(&entry.port).map_err(|_| NameError::NotFound);
        if !entry.first_read {
            return port();
        }
        let _lock = self.files.lock(LOCK_TIMEOUT)?;
        // Of several who look for it, the first one gets it.
        let found = self.entry(&names, service)?.is_some_and(|now| now.first_read && now.port == entry.port);
        if !found {
            return Err(NameError::NotFound);
        }
        names.remove(&file_name(service))?;
        port()
    }

    /// Withdraws `service`, whichever set of the user has published it.
    ///
    /// # Errors
    /// Fails if none that lives has.
    pub fn unpublish(&self, service: &[u8]) -> Result<(), NameError> {
        let names = self.files.below(BELOW)?;
        let _lock = self.files.lock(LOCK_TIMEOUT)?;
        self.entry(&names, service)?.ok_or(NameError::NotFound)?;
        Ok(names.remove(&file_name(service))?)
    }

    /// Directory of the files of names.
    pub fn names_path(&self) -> std::path::PathBuf {
        self.files.path(BELOW)
    }

    /// The entry of a name whose set lives.
    fn entry(&self, names: &Files, service: &[u8]) -> Result<Option<Entry>, DirectoryError> {
        let Some(content) = names.read(&file_name(service))? else { return Ok(None) };
        let entry = serde_json::from_slice::<Entry>(&content).ok();
        let Some(entry) = entry.filter(|entry| entry.service == STANDARD_NO_PAD.encode(service)) else {
            return Ok(None);
        };
        Ok(self.has_publisher(&entry)?.then_some(entry))
    }

    /// Returns true if the set that has published a name lives.
    fn has_publisher(&self, entry: &Entry) -> Result<bool, DirectoryError> {
        let set = self.record(&entry.set.to_string())?.filter(|set| set.nonce == entry.nonce);
        Ok(set.is_some_and(|set| set.mark.life(&self.mark) != Life::Gone))
    }

    /// Removes the names of sets that were killed, and files that hold no name; under the lock.
    fn remove_orphans(&self, names: &Files) -> Result<(), DirectoryError> {
        for name in names.names()? {
            let entry = names.read(&name)?.and_then(|content| serde_json::from_slice::<Entry>(&content).ok());
            if !entry.map_or(Ok(false), |entry| self.has_publisher(&entry))? {
                names.remove(&name)?;
            }
        }
        Ok(())
    }
}

/// Removes all names of a set; under the lock.
pub(super) fn withdraw(files: &Files, set: &SetRecord) -> Result<(), DirectoryError> {
    if !files.exists(BELOW)? {
        return Ok(());
    }
    let names = files.below(BELOW)?;
    for name in names.names()? {
        let entry = names.read(&name)?.and_then(|content| serde_json::from_slice::<Entry>(&content).ok());
        if entry.is_some_and(|entry| entry.nonce == set.nonce) {
            names.remove(&name)?;
        }
    }
    Ok(())
}

/// Name of the file of a name, which may hold any bytes and be longer than names of files are.
fn file_name(service: &[u8]) -> String {
    let digest = digest::digest(&digest::SHA256, service);
    digest.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

//! Names that ranks publish, for connections between launches on this machine: a directory for each name, with a file for each launch that
//! offers it.
//!
//! ```text
//! names/4f1c.../1723     offers of the name by the set in the file 1723
//! ```
//! The publisher defines the content of an offer. Offers are removed with their set, because its ports no longer exist.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use ring::digest;
use serde::{Deserialize, Serialize};

use super::files::Files;
use super::mark::Life;
use super::{Directory, DirectoryError, LOCK_TIMEOUT, Nonce, SetRecord};

/// Subdirectory of the names.
const BELOW: &str = "names";

/// An offer of a name by a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// True if the first reader that takes the offer removes it.
    pub once: bool,
    /// Content, which only the launches interpret.
    pub content: Vec<u8>,
}

/// Offers of a live launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered {
    /// The set of the launch.
    pub set: SetRecord,
    /// Its offers of the name.
    pub offers: Vec<Offer>,
}

/// Content of the file of a name and a set.
#[derive(Serialize, Deserialize)]
struct Entry {
    /// Random number in the file of the set.
    nonce: Nonce,
    service: String,
    offers: Vec<EncodedOffer>,
}

#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct EncodedOffer {
    once: bool,
    content: String,
}

impl From<&Offer> for EncodedOffer {
    fn from(Offer { once, content }: &Offer) -> Self {
        Self { once: *once, content: STANDARD_NO_PAD.encode(content) }
    }
}

impl EncodedOffer {
    fn decode(&self) -> Option<Offer> {
        Some(Offer { once: self.once, content: STANDARD_NO_PAD.decode(&self.content).ok()? })
    }
}

impl Directory {
    /// Offers `service` while `set` lives. `change` converts the current offers to the new ones: other processes may have taken some of the
    /// earlier offers. Without offers, the name is withdrawn.
    ///
    /// # Errors
    /// Fails if the directory cannot be changed.
    pub fn offer(
        &self,
        set: &SetRecord,
        service: &[u8],
        change: impl FnOnce(&[Offer]) -> Vec<Offer>,
    ) -> Result<(), DirectoryError> {
        let _lock = self.files.lock(LOCK_TIMEOUT)?;
        let current = self.entry_of(set, service)?.map(|entry| entry.offers).unwrap_or_default();
        let current: Vec<Offer> = current.iter().filter_map(EncodedOffer::decode).collect();
        let entry = Entry {
            nonce: set.nonce.clone(),
            service: STANDARD_NO_PAD.encode(service),
            offers: change(&current).iter().map(EncodedOffer::from).collect(),
        };
        self.write(set, service, &entry)
    }

    /// The offers of `service` by all live launches.
    ///
    /// # Errors
    /// Fails if the directory cannot be read.
    pub fn offers(&self, service: &[u8]) -> Result<Vec<Offered>, DirectoryError> {
        let Some(names) = self.files.existing_below(BELOW)? else { return Ok(Vec::new()) };
        let Some(files) = names.existing_below(&file_name(service))? else { return Ok(Vec::new()) };
        let mut offered = Vec::new();
        for name in files.names()? {
            let Some(entry) = entry(&files, &name)? else { continue };
            let publisher = self.record(&name)?.filter(|set| set.nonce == entry.nonce);
            let Some(set) = publisher.filter(|set| set.mark.life(&self.mark) != Life::Gone) else { continue };
            if entry.service == STANDARD_NO_PAD.encode(service) {
                offered.push(Offered { set, offers: entry.offers.iter().filter_map(EncodedOffer::decode).collect() });
            }
        }
        Ok(offered)
    }

    /// Takes an offer of `set` that its first reader removes. Returns false if it was removed already.
    ///
    /// # Errors
    /// Fails if the directory cannot be changed.
    pub fn take(&self, set: &SetRecord, service: &[u8], offer: &Offer) -> Result<bool, DirectoryError> {
        let _lock = self.files.lock(LOCK_TIMEOUT)?;
        let Some(mut entry) = self.entry_of(set, service)? else { return Ok(false) };
        let (before, wanted) = (entry.offers.len(), EncodedOffer::from(offer));
        entry.offers.retain(|offer| *offer != wanted);
        let taken = entry.offers.len() < before;
        if taken {
            self.write(set, service, &entry)?;
        }
        Ok(taken)
    }

    /// Directory of the names.
    pub fn names_path(&self) -> std::path::PathBuf {
        self.files.path(BELOW)
    }

    /// The offers of a set under a name.
    fn entry_of(&self, set: &SetRecord, service: &[u8]) -> Result<Option<Entry>, DirectoryError> {
        let Some(names) = self.files.existing_below(BELOW)? else { return Ok(None) };
        let Some(files) = names.existing_below(&file_name(service))? else { return Ok(None) };
        Ok(entry(&files, &set.id().number().to_string())?.filter(|entry| entry.nonce == set.nonce))
    }

    /// Writes the file of a name and a set, or removes it if it has no offer; requires the lock.
    fn write(&self, set: &SetRecord, service: &[u8], entry: &Entry) -> Result<(), DirectoryError> {
        let names = self.files.below(BELOW)?;
        let (name, number) = (file_name(service), set.id().number().to_string());
        if entry.offers.is_empty() {
            let Some(files) = names.existing_below(&name)? else { return Ok(()) };
            files.remove(&number)?;
            return names.remove_directory(&name);
        }
        names.below(&name)?.replace(&number, &serde_json::to_vec(entry).unwrap_or_default())
    }
}

/// Removes all names of a set; requires the lock.
pub(super) fn withdraw(files: &Files, set: &SetRecord) -> Result<(), DirectoryError> {
    let Some(names) = files.existing_below(BELOW)? else { return Ok(()) };
    let number = set.id().number().to_string();
    for name in names.names()? {
        let Some(files) = names.existing_below(&name)? else { continue };
        if entry(&files, &number)?.is_some_and(|entry| entry.nonce == set.nonce) {
            files.remove(&number)?;
            names.remove_directory(&name)?;
        }
    }
    Ok(())
}

/// Content of a file; `None` if it does not exist, or is malformed.
fn entry(files: &Files, name: &str) -> Result<Option<Entry>, DirectoryError> {
    Ok(files.read(name)?.and_then(|content| serde_json::from_slice(&content).ok()))
}

/// Name of the directory of a name. The name itself may contain any bytes, and exceed the length of file names.
fn file_name(service: &[u8]) -> String {
    let digest = digest::digest(&digest::SHA256, service);
    digest.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

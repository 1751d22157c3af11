//! Seals the records that hold environments of ranks: running launches, and the requests of batch jobs. redb does not overwrite a page that
//! it frees, so the bytes of a removed record stay in the state file. Each record has its own random key in a second file. The key is
//! overwritten in place when the record is removed, so that the remaining page cannot be decrypted. The state file refers to the key of a
//! record by its slot.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use parking_lot::Mutex;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

/// Bytes of a key, and of a slot of the key file. A slot without a key is zero.
const KEY: usize = 32;
const NO_KEY: [u8; KEY] = [0; KEY];

/// Bytes before the ciphertext of a sealed record: its slot in little-endian order, and the nonce.
const SLOT: usize = size_of::<u32>();
const HEADER: usize = SLOT + NONCE_LEN;

/// Position of a key in the file.
pub(super) type Slot = u32;

/// The file of keys.
pub(super) struct Keys {
    file: File,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    free: Vec<Slot>,
    /// Number of slots of the file, free or not.
    count: u32,
}

/// The key does not match the record.
#[derive(Debug, thiserror::Error)]
#[error("its key is another one")]
pub(crate) struct Unsealed;

impl Keys {
    /// Keys in `file`; the caller must call [`Keys::keep`] next.
    pub(super) fn new(file: File) -> Self {
        Self { file, slots: Mutex::default() }
    }

    /// Overwrites every key except the keys in `used`, and frees their slots. They belong to records that were removed, or never written,
    /// before a crash.
    ///
    /// # Errors
    /// Fails if the file cannot be read or written, or is shorter than `used` needs.
    pub(super) fn keep(&self, used: &HashSet<Slot>) -> io::Result<()> {
        let mut slots = self.slots.lock();
        let there = u32::try_from(self.file.metadata()?.len().div_ceil(KEY as u64)).map_err(io::Error::other)?;
        if let Some(last) = used.iter().max().filter(|&&last| last >= there) {
            let short = format!("it has {there} keys, and a record names key {last}");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, short));
        }
        let free: Vec<Slot> = (0..there).rev().filter(|slot| !used.contains(slot)).collect();
        free.iter().try_for_each(|&slot| self.put(slot, &NO_KEY))?;
        self.file.sync_data()?;
        *slots = Slots { free, count: there };
        Ok(())
    }

    /// Returns true if the key of a removed record is erased. A state file that was damaged and repaired can contain the record again.
    pub(super) fn is_erased(&self, slot: Slot) -> bool {
        self.read(slot).is_ok_and(|key| key == NO_KEY)
    }

    /// Creates a key; the key is durable before this returns.
    ///
    /// # Errors
    /// Fails if the file cannot be written or the system returns no random bytes.
    pub(super) fn create(&self) -> io::Result<Slot> {
        let key = random()?;
        let mut slots = self.slots.lock();
        let slot = slots.free.last().copied().unwrap_or(slots.count);
        self.put(slot, &key)?;
        self.file.sync_data()?;
        if slots.free.pop().is_none() {
            slots.count += 1;
        }
        Ok(slot)
    }

    /// Overwrites the keys of durably removed records. If a slot cannot be overwritten, it is not reused before the next [`Keys::keep`].
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(super) fn erase(&self, erased: &[Slot]) -> io::Result<()> {
        if erased.is_empty() {
            return Ok(());
        }
        let mut slots = self.slots.lock();
        erased.iter().try_for_each(|&slot| self.put(slot, &NO_KEY))?;
        self.file.sync_data()?;
        slots.free.extend(erased);
        Ok(())
    }

    /// Seals the record `id` under the key in `slot`.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or if the slot has no key.
    pub(super) fn seal(&self, slot: Slot, id: &str, record: &[u8]) -> io::Result<Vec<u8>> {
        let nonce: [u8; NONCE_LEN] = random()?;
        let mut sealed = Vec::with_capacity(HEADER + record.len() + AES_256_GCM.tag_len());
        sealed.extend_from_slice(&slot.to_le_bytes());
        sealed.extend_from_slice(&nonce);
        let mut text = record.to_vec();
        let (key, nonce) = (self.key(slot)?, Nonce::assume_unique_for_key(nonce));
        key.seal_in_place_append_tag(nonce, Aad::from(id), &mut text).map_err(io::Error::other)?;
        sealed.extend_from_slice(&text);
        Ok(sealed)
    }

    /// Decrypts the sealed record `id`.
    ///
    /// # Errors
    /// Fails if there is no key, or if the bytes were not sealed under it for this `id`.
    pub(super) fn unseal(&self, id: &str, sealed: &[u8]) -> Result<Vec<u8>, Unsealed> {
        let slot = slot_of(sealed).ok_or(Unsealed)?;
        let (nonce, text) = sealed.get(SLOT..).and_then(|rest| rest.split_first_chunk()).ok_or(Unsealed)?;
        let mut text = text.to_vec();
        let key = self.key(slot).map_err(|_| Unsealed)?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let length = key.open_in_place(nonce, Aad::from(id), &mut text).map_err(|_| Unsealed)?.len();
        text.truncate(length);
        Ok(text)
    }

    fn read(&self, slot: Slot) -> io::Result<[u8; KEY]> {
        let mut key = NO_KEY;
        self.file.read_exact_at(&mut key, u64::from(slot) * KEY as u64)?;
        Ok(key)
    }

    fn key(&self, slot: Slot) -> io::Result<LessSafeKey> {
        let key = self.read(slot)?;
        if key == NO_KEY {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).map_err(io::Error::other)?))
    }

    fn put(&self, slot: Slot, key: &[u8; KEY]) -> io::Result<()> {
        self.file.write_all_at(key, u64::from(slot) * KEY as u64)
    }
}

/// The slot of the key under which a record is sealed; `None` for bytes that are too short for a sealed record.
pub(super) fn slot_of(sealed: &[u8]) -> Option<Slot> {
    sealed.first_chunk().copied().map(u32::from_le_bytes)
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_under_its_own_key_and_id_alone() {
        let keys = Keys::new(tempfile::tempfile().unwrap());
        let [a, b] = [0; 2].map(|_| keys.create().unwrap());
        let sealed = keys.seal(a, "a", b"TOKEN=1").unwrap();
        assert_eq!(keys.unseal("a", &sealed).unwrap(), b"TOKEN=1");
        assert!(keys.unseal("b", &sealed).is_err());
        let mut other = sealed.clone();
        other[..SLOT].copy_from_slice(&b.to_le_bytes());
        assert!(keys.unseal("a", &other).is_err());
        for length in 0..sealed.len() {
            assert!(keys.unseal("a", &sealed[..length]).is_err());
        }
        keys.erase(&[a]).unwrap();
        assert!(keys.is_erased(a) && !keys.is_erased(b));
        assert!(keys.unseal("a", &sealed).is_err() && keys.seal(a, "a", b"").is_err());
        assert_eq!(keys.create().unwrap(), a, "its slot is used again");
        assert!(keys.unseal("a", &sealed).is_err(), "under another key");
    }

    #[test]
    fn keys_without_a_record_are_overwritten_when_a_server_begins() {
        let file = tempfile::tempfile().unwrap();
        let keys = Keys::new(file.try_clone().unwrap());
        let [lost, used, last] = [0; 3].map(|_| keys.create().unwrap());
        let sealed = [lost, used, last].map(|slot| keys.seal(slot, "l", b"x").unwrap());
        let keys = Keys::new(file);
        keys.keep(&HashSet::from([used])).unwrap();
        assert_eq!(sealed.map(|sealed| keys.unseal("l", &sealed).is_ok()), [false, true, false]);
        assert_eq!([0; 2].map(|_| keys.create().unwrap()), [lost, last]);
        let missing = keys.keep(&HashSet::from([3])).unwrap_err();
        assert_eq!(missing.to_string(), "it has 3 keys, and a record names key 3");
    }
}

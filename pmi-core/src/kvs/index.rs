//! Finds the one readable pair of a key: an open-addressing table of four-byte slots, and a list of places.
//!
//! ```text
//! slots:  [ tag | number of the key ]    a power of two of them, at most three quarters taken, linear probing
//! places: [ segment, offset ]            by number; keys are numbered in the order in which they first appeared
//! ```
//! In a slot, the number takes only the bits that a table of its size needs. The other bits hold a tag from the hash, so that nearly
//! every probe ends without a comparison of keys. `nth` reads the list of places.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::hint::black_box;

/// Position of a pair in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) segment: u32,
    pub(super) offset: u32,
}

/// Result of the search for a key.
pub(super) enum Found {
    /// The key has this number.
    Number(usize),
    /// The key is absent; a new number for it belongs in this slot.
    Vacant(usize),
}

/// The table. It holds only places; its callers read the key at a place.
#[derive(Default)]
pub(super) struct Index {
    slots: Box<[u32]>,
    places: Vec<Place>,
    // SipHash with a random key: ranks choose the keys, and a rank must not learn from response times which keys collide. foldhash gives
    // no such guarantee; it merges 1e6 pairs a quarter faster (measured).
    hasher: RandomState,
}

/// No key's number has all bits set, because a quarter of the slots stays vacant.
const VACANT: u32 = u32::MAX;
const FEWEST_SLOTS: usize = 16;
const MOST_SLOTS: usize = 1 << 32;

impl Index {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// The place of the key with this number.
    pub(super) fn place(&self, number: usize) -> Option<Place> {
        self.places.get(number).copied()
    }

    /// Bytes on the heap.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.slots) + self.places.capacity() * size_of::<Place>()
    }

    #[inline]
    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    /// Loads the slot where a search for `hash` begins into the cache.
    #[inline]
    pub(super) fn touch(&self, hash: u64) {
        if let Some(&slot) = self.slots.get(self.first_slot(hash)) {
            black_box(slot);
        }
    }

    /// Searches for a key by its hash. `is_key` returns whether the key at a place is the wanted one.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_key: impl Fn(Place) -> bool) -> Found {
        let mut at = self.first_slot(hash);
        let tag = self.tag(hash);
        // A table without slots is vacant everywhere. Any other table has a vacant slot, where the search ends.
        while let Some(&slot) = self.slots.get(at)
            && slot != VACANT
        {
            let number = (slot & self.number_bits()) as usize;
            if slot & !self.number_bits() == tag && is_key(self.places[number]) {
                return Found::Number(number);
            }
            at = (at + 1) & self.number_bits() as usize;
        }
        Found::Vacant(at)
    }

    /// Numbers a new key after a search that ended at the slot `vacant`. The caller has reserved room for it.
    #[inline]
    pub(super) fn insert(&mut self, vacant: usize, hash: u64, place: Place) {
        self.slots[vacant] = self.tag(hash) | self.places.len() as u32;
        self.places.push(place);
    }

    /// Sets a new place for the key with this number.
    #[inline]
    pub(super) fn set_place(&mut self, number: usize, place: Place) {
        self.places[number] = place;
    }

    /// Reserves room for `more` new keys; `key_at` reads the key at a place.
    pub(super) fn reserve<'k>(&mut self, more: usize, key_at: impl Fn(Place) -> &'k [u8]) {
        if self.places.capacity() - self.places.len() < more {
            // Growth by an eighth copies more often than doubling, but keeps idle memory small.
            self.places.reserve_exact(more.max(self.places.len() / 8).max(FEWEST_SLOTS / 2));
        }
        let keys = self.places.len() + more;
        if keys > self.slots.len() / 4 * 3 {
            self.resize((keys + keys.div_ceil(3)).next_power_of_two().max(FEWEST_SLOTS), key_at);
        }
    }

    fn resize<'k>(&mut self, slots: usize, key_at: impl Fn(Place) -> &'k [u8]) {
        // Three billion keys: their places alone take 24 GiB, far above any limit on a job's memory.
        assert!(slots <= MOST_SLOTS, "an index of {slots} slots");
        self.slots = vec![VACANT; slots].into_boxed_slice();
        for (number, &place) in self.places.iter().enumerate() {
            let hash = self.hash(key_at(place));
            if let Found::Vacant(at) = self.find(hash, |_| false) {
                self.slots[at] = self.tag(hash) | number as u32;
            }
        }
    }

    /// The bits of a slot that hold a number; all bits in a table without slots.
    #[inline]
    fn number_bits(&self) -> u32 {
        self.slots.len().wrapping_sub(1) as u32
    }

    #[inline]
    fn first_slot(&self, hash: u64) -> usize {
        (hash as u32 & self.number_bits()) as usize
    }

    /// The tag of a hash: bits of its upper half, which does not select the slot, in the bits of a slot that hold no number.
    #[inline]
    fn tag(&self, hash: u64) -> u32 {
        (hash >> 32) as u32 & !self.number_bits()
    }
}

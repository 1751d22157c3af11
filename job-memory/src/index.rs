//! Search for a key, shared by the writer and readers: open addressing with linear probing.
//!
//! A slot never becomes free again, and a record never changes. A search that runs while the writer appends therefore finds the
//! state at its start, or a later one.

use crate::layout::{IndexPlace, KeyWords, PROBES_MAX, RecordHead, record_of};
use crate::words::Words;

/// Pair in the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    /// Word of the slot that points to it.
    pub(crate) slot: usize,
    /// First word of its value.
    pub(crate) value: usize,
    /// Length of its value in bytes.
    pub(crate) len: usize,
}

/// Result of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Search {
    /// The key exists.
    Found(Record),
    /// The key does not exist; the slot at this word is free for it.
    Absent(usize),
    /// More consecutive slots are taken than can happen with keys that were not chosen to collide.
    Crowded,
    /// The search leads outside of the given words, or to an invalid record.
    Outside,
}

pub(crate) fn search(words: Words<'_>, index: IndexPlace, key: &KeyWords) -> Search {
    search_hashed(words, index, key, key.hash())
}

pub(crate) fn search_hashed(words: Words<'_>, index: IndexPlace, key: &KeyWords, hash: u64) -> Search {
    for at in probes(index, hash) {
        match words.load_acquire(at) {
            None => return Search::Outside,
            Some(0) => return Search::Absent(at),
            Some(slot) if slot >> 32 == hash >> 32 => match record(words, at, slot, key) {
                None => return Search::Outside,
                Some(Some(record)) => return Search::Found(record),
                Some(None) => {}
            },
            Some(_) => {}
        }
    }
    Search::Crowded
}

/// First free slot for a hash; `None` if there is none within the search limit.
pub(crate) fn free_slot(words: Words<'_>, index: IndexPlace, hash: u64) -> Option<usize> {
    probes(index, hash).find(|&at| words.load(at) == Some(0))
}

/// Words of the slots in which a hash may be, in search order.
fn probes(index: IndexPlace, hash: u64) -> impl Iterator<Item = usize> {
    let IndexPlace { first, slots } = index;
    let begin = hash as u32 as usize;
    (0..slots.min(PROBES_MAX)).map(move |probe| first + (begin.wrapping_add(probe) & (slots - 1)))
}

/// Record of a slot, if it has this key; outer `None` if there is no valid record.
fn record(words: Words<'_>, at: usize, slot: u64, key: &KeyWords) -> Option<Option<Record>> {
    let record = record_of(slot);
    let head = RecordHead::from_word(words.load(record)?)?;
    if record + head.words() > words.len() {
        return None;
    }
    let is_key = head.key == key.bytes() && words.equal(record + 1, key.words())?;
    Some(is_key.then_some(Record { slot: at, value: record + head.value_at(), len: head.value }))
}

//! Search for a key, the same for the writer and for readers: open addressing with linear probing.
//!
//! A slot never becomes free again, and a record never changes. So a search that runs while the writer appends finds what was there
//! when it began, or what came since.

use crate::layout::{IndexPlace, KeyWords, PROBES_MAX, RecordHead, record_of};
use crate::words::Words;

/// A pair in the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    /// Word of the slot that names it.
    pub(crate) slot: usize,
    /// Word of its value.
    pub(crate) value: usize,
    /// Bytes of its value.
    pub(crate) len: usize,
}

/// Result of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Search {
    /// The key is there.
    Found(Record),
    /// The key is not there; the slot at this word would name it.
    Absent(usize),
    /// More slots in a row are taken than keys that nobody chose for it would take.
    Crowded,
    /// The way leads beyond the words that were given, or to something that is no record.
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

/// The first free slot of a hash; `None` if there is none near.
pub(crate) fn free_slot(words: Words<'_>, index: IndexPlace, hash: u64) -> Option<usize> {
    probes(index, hash).find(|&at| words.load(at) == Some(0))
}

/// Words of the slots in which a hash may be, in order.
fn probes(index: IndexPlace, hash: u64) -> impl Iterator<Item = usize> {
    let IndexPlace { first, slots } = index;
    let begin = hash as u32 as usize;
    (0..slots.min(PROBES_MAX)).map(move |probe| first + (begin.wrapping_add(probe) & (slots - 1)))
}

/// The record that a slot names, if it is of this key; `None` if there is no record.
fn record(words: Words<'_>, at: usize, slot: u64, key: &KeyWords) -> Option<Option<Record>> {
    let record = record_of(slot);
    let head = RecordHead::from_word(words.load(record)?)?;
    if record + head.words() > words.len() {
        return None;
    }
    let is_key = head.key == key.bytes() && words.equal(record + 1, key.words())?;
    Some(is_key.then_some(Record { slot: at, value: record + head.value_at(), len: head.value }))
}

//! Words of memory that another process may write: each access is one whole word, and stays within the bounds.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::layout::{TEXT_MAX, WORD, words};

/// Readable memory.
#[derive(Clone, Copy)]
pub(crate) struct Words<'m>(&'m [AtomicU64]);

impl<'m> Words<'m> {
    pub(crate) fn new(words: &'m [AtomicU64]) -> Self {
        Self(words)
    }

    /// Number of words.
    pub(crate) fn len(self) -> usize {
        self.0.len()
    }

    pub(crate) fn load(self, at: usize) -> Option<u64> {
        // Only relaxed loads are defined on read-only mapped memory.
        self.0.get(at).map(|word| word.load(Ordering::Relaxed))
    }

    /// Loads a word. Later loads see all writes that preceded the write of this word.
    pub(crate) fn load_acquire(self, at: usize) -> Option<u64> {
        let word = self.load(at)?;
        fence(Ordering::Acquire);
        Some(word)
    }

    /// True if the words from `at` on are equal to `expected`; `None` if they exceed the memory.
    pub(crate) fn equal(self, at: usize, expected: &[u64]) -> Option<bool> {
        let there = self.range(at, expected.len())?;
        Some(there.iter().zip(expected).all(|(word, expected)| word.load(Ordering::Relaxed) == *expected))
    }

    /// Copy of `len` bytes; `None` if they exceed the memory.
    pub(crate) fn bytes(self, at: usize, len: usize) -> Option<Vec<u8>> {
        let there = self.range(at, words(len))?;
        let mut bytes = Vec::with_capacity(there.len() * WORD);
        for word in there {
            bytes.extend_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        bytes.truncate(len);
        Some(bytes)
    }

    /// Text at an offset in bytes: its length in a word, then its bytes. `None` if there is none.
    pub(crate) fn text(self, offset: u64) -> Option<Vec<u8>> {
        let at = usize::try_from(offset).ok()?;
        let at = (at != 0 && at.is_multiple_of(WORD)).then_some(at / WORD)?;
        let len = usize::try_from(self.load(at)?).ok().filter(|&len| len <= TEXT_MAX)?;
        self.bytes(at + 1, len)
    }

    fn range(self, at: usize, len: usize) -> Option<&'m [AtomicU64]> {
        self.0.get(at..at.checked_add(len)?)
    }
}

/// Writable memory with one writer.
#[derive(Clone, Copy)]
pub(crate) struct WritableWords<'m>(&'m [AtomicU64]);

impl<'m> WritableWords<'m> {
    pub(crate) fn new(words: &'m [AtomicU64]) -> Self {
        Self(words)
    }

    pub(crate) fn reading(self) -> Words<'m> {
        Words(self.0)
    }

    /// Writes a word that no reader uses yet; false if it is outside of the memory.
    pub(crate) fn store(self, at: usize, word: u64) -> bool {
        self.0.get(at).map(|place| place.store(word, Ordering::Relaxed)).is_some()
    }

    /// Writes a word after all earlier writes; false if it is outside of the memory.
    pub(crate) fn publish(self, at: usize, word: u64) -> bool {
        self.0.get(at).map(|place| place.store(word, Ordering::Release)).is_some()
    }
}

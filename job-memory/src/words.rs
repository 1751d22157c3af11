//! Words of memory that somebody else may be writing: each is read and written whole, and none outside the bounds.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::layout::{TEXT_MAX, WORD, words};

/// Memory to be read.
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
        // Only relaxed loads are defined on memory that is mapped for reading alone.
        self.0.get(at).map(|word| word.load(Ordering::Relaxed))
    }

    /// The same, and what was written before the word was is seen by what is loaded afterwards.
    pub(crate) fn load_acquire(self, at: usize) -> Option<u64> {
        let word = self.load(at)?;
        fence(Ordering::Acquire);
        Some(word)
    }

    /// True if the words from `at` on are these; `None` if they reach beyond the memory.
    pub(crate) fn equal(self, at: usize, expected: &[u64]) -> Option<bool> {
        let there = self.range(at, expected.len())?;
        Some(there.iter().zip(expected).all(|(word, expected)| word.load(Ordering::Relaxed) == *expected))
    }

    /// A copy of so many bytes; `None` if they reach beyond the memory.
    pub(crate) fn bytes(self, at: usize, len: usize) -> Option<Vec<u8>> {
        let there = self.range(at, words(len))?;
        let mut bytes = Vec::with_capacity(there.len() * WORD);
        for word in there {
            bytes.extend_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        bytes.truncate(len);
        Some(bytes)
    }

    /// The text at an offset in bytes: its length in a word, then its bytes. `None` if there is none.
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

/// Memory to be written, by one writer.
#[derive(Clone, Copy)]
pub(crate) struct WritableWords<'m>(&'m [AtomicU64]);

impl<'m> WritableWords<'m> {
    pub(crate) fn new(words: &'m [AtomicU64]) -> Self {
        Self(words)
    }

    pub(crate) fn reading(self) -> Words<'m> {
        Words(self.0)
    }

    /// Writes a word that no reader looks at yet; false if it is beyond the memory.
    pub(crate) fn store(self, at: usize, word: u64) -> bool {
        self.0.get(at).map(|place| place.store(word, Ordering::Relaxed)).is_some()
    }

    /// Writes a word after everything that was written before it; false if it is beyond the memory.
    pub(crate) fn publish(self, at: usize, word: u64) -> bool {
        self.0.get(at).map(|place| place.store(word, Ordering::Release)).is_some()
    }
}

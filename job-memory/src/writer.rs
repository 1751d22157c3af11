//! Writer of a job's memory: the session of a node, the only process that appends to the memory.
//!
//! ```text
//! Unasked ──the first fence after a request: all pairs──> Live ──no room──> AskServer
//!    └──────────────────────────────────────────────────────┴──dropped──> Over
//! ```
//! The writer writes a pair in three steps, which readers see in this order: the record, the bytes in use, the slot of the index. A
//! newer value is another record, and the slot is switched to it. When an index is half full, the writer writes a new one of twice the
//! size, and one word of the header switches to it. Readers therefore need no lock, and a killed writer leaves nothing incomplete.

use alloc::vec::Vec;
use core::fmt;

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::facts::JobFacts;
use crate::index::{Record, Search, free_slot, search_hashed};
use crate::layout::{
    IndexPlace, KeyWords, RecordHead, State, VALUE_MAX, WORD, at, hash, record_of, slot, word_of, words,
};
use crate::mapping::{self, WriterMapping, making};
use crate::system_error::SystemError;
use crate::words::WritableWords;

/// Writer of a job's memory on one node. After it is dropped, readers query the PMI server.
pub struct JobWriter {
    file: OwnedFd,
    mapping: WriterMapping,
    capacity: usize,
    /// Number of words in use.
    used: usize,
    /// Number of bytes that the system has allocated.
    set_aside: usize,
    index: Option<IndexPlace>,
    keys: usize,
    is_over: bool,
}

/// Error after which no pairs are published. Readers then query the PMI server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotPublished {
    /// The memory is full.
    #[error("the job's memory is full: it holds {capacity} bytes at most")]
    Full {
        /// Maximum size of the memory in bytes.
        capacity: usize,
    },
    /// The system has no memory left.
    #[error("the system gives the job's memory no more room")]
    NoMemory(#[source] SystemError),
    /// Too many keys collide; they were chosen to do so.
    #[error("too many keys of the job have the same hash")]
    Crowded,
    /// The key or value is longer than any that a server accepts.
    #[error("a pair has a key of {key} and a value of {value} bytes; a record holds {key_max} and {value_max} at most",
            key_max = crate::layout::KEY_MAX, value_max = VALUE_MAX)]
    TooLong {
        /// Length of the key.
        key: usize,
        /// Length of the value.
        value: usize,
    },
}

impl JobWriter {
    /// Maximum size of a job's memory in bytes, unless the caller requests less. Only written bytes use memory.
    pub const CAPACITY: usize = if cfg!(target_pointer_width = "64") { 4 << 30 } else { 64 << 20 };

    /// Number of slots of the first index.
    const FEWEST_SLOTS: usize = 64;

    /// Minimum number of bytes to allocate at once.
    const STEP: usize = 64 * 1024;

    /// Makes a job's memory, and a read-only descriptor of it for the ranks.
    ///
    /// # Errors
    /// Fails if the system does not support such memory (Linux before 5.1, or no `/proc`), or has no memory or descriptor left. Also
    /// fails if the limit on file sizes is less than the facts need.
    pub fn create(facts: &JobFacts) -> Result<(Self, OwnedFd), SystemError> {
        Self::with_capacity(facts, Self::CAPACITY)
    }

    /// Makes the memory with another size in bytes. The size is at least that of the facts, and at most the limit on file sizes.
    ///
    /// # Errors
    /// See [`JobWriter::create`].
    pub fn with_capacity(facts: &JobFacts, capacity: usize) -> Result<(Self, OwnedFd), SystemError> {
        let image = facts.encode();
        let capacity = capacity.max(image.len()).next_multiple_of(Self::STEP).min(making::file_size_limit());
        if image.len() > capacity {
            return Err(Errno::FBIG.into());
        }
        let (file, mapping) = making::create(&image, capacity)?;
        let for_ranks = mapping::open_anew(file.as_raw_fd(), OFlags::RDONLY)?;
        let (used, set_aside) = (image.len() / WORD, image.len());
        Ok((Self { file, mapping, capacity, used, set_aside, index: None, keys: 0, is_over: false }, for_ranks))
    }

    /// Returns true if a reader has requested pairs. Then the caller must publish every fence, the first one with all pairs of the job.
    pub fn is_wanted(&self) -> bool {
        !self.is_over && making::are_pairs_wanted(&self.file)
    }

    /// Makes room for this total number of keys at once.
    ///
    /// # Errors
    /// See [`JobWriter::publish`].
    pub fn reserve(&mut self, keys: usize) -> Result<(), NotPublished> {
        let wanted = (2 * keys).next_power_of_two().max(Self::FEWEST_SLOTS);
        match self.index {
            Some(index) if index.slots >= wanted => Ok(()),
            _ => self.grow(wanted).or_else(|error| self.give_up(error)),
        }
    }

    /// Writes a pair, which replaces an older pair with the same key. Readers may see it at once, and expect it after
    /// [`JobWriter::complete`].
    ///
    /// # Errors
    /// Fails if there is no room. Then all later calls have no effect: the memory would otherwise continue to show older values.
    pub fn publish(&mut self, key: &[u8], value: &[u8]) -> Result<(), NotPublished> {
        if self.is_over {
            return Ok(());
        }
        self.write(key, value).or_else(|error| self.give_up(error))
    }

    /// Marks all pairs of the first `fences` fences as published. Call it before a rank leaves the last of these fences.
    pub fn complete(&mut self, fences: u64) {
        if !self.is_over {
            let memory = self.mapping.words();
            memory.publish(at::FENCES, fences);
            memory.publish(at::STATE, State::Live as u64);
        }
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<(), NotPublished> {
        let too_long = || NotPublished::TooLong { key: key.len(), value: value.len() };
        let key_words = KeyWords::new(key).filter(|_| value.len() <= VALUE_MAX).ok_or_else(too_long)?;
        self.reserve_one()?;
        // Always present after the previous line.
        let Some(index) = self.index else { return Ok(()) };
        let hash = key_words.hash();
        let at = match search_hashed(self.mapping.words().reading(), index, &key_words, hash) {
            Search::Found(record) if self.holds(record, value) => return Ok(()),
            Search::Found(record) => record.slot,
            Search::Absent(slot) => {
                self.keys += 1;
                slot
            }
            Search::Crowded | Search::Outside => return Err(NotPublished::Crowded),
        };
        let record = self.append(&key_words, value)?;
        let full = NotPublished::Full { capacity: self.capacity };
        let slot = slot(hash, record).ok_or(full)?;
        let memory = self.mapping.words();
        memory.publish(at, slot);
        memory.publish(at::KEYS, self.keys as u64);
        Ok(())
    }

    /// True if a record already has this value.
    fn holds(&self, record: Record, value: &[u8]) -> bool {
        let memory = self.mapping.words().reading();
        let mut chunks = value.chunks(WORD).zip(record.value..);
        record.len == value.len() && chunks.all(|(chunk, at)| memory.load(at) == Some(word_of(chunk)))
    }

    /// Appends a record, and returns its first word.
    fn append(&mut self, key: &KeyWords, value: &[u8]) -> Result<usize, NotPublished> {
        let head = RecordHead { key: key.bytes(), value: value.len() };
        let record = self.take(head.words(), 1)?;
        let memory = self.mapping.words();
        memory.store(record, head.to_word());
        for (at, word) in (record + 1..).zip(key.words()) {
            memory.store(at, *word);
        }
        // New words are zero, including the word after the value.
        for (at, chunk) in (record + head.value_at()..).zip(value.chunks(WORD)) {
            memory.store(at, word_of(chunk));
        }
        Ok(record)
    }

    fn reserve_one(&mut self) -> Result<(), NotPublished> {
        match self.index {
            Some(index) if 2 * (self.keys + 1) <= index.slots => Ok(()),
            index => self.grow(index.map_or(Self::FEWEST_SLOTS, |index| 2 * index.slots)),
        }
    }

    /// Writes a new index with this number of slots.
    fn grow(&mut self, slots: usize) -> Result<(), NotPublished> {
        let first = self.take(slots, IndexPlace::ALIGNMENT)?;
        let grown = IndexPlace { first, slots };
        let memory = self.mapping.words();
        if let Some(IndexPlace { first, slots }) = self.index {
            for slot in (first..first + slots).filter_map(|at| memory.reading().load(at)).filter(|&slot| slot != 0) {
                let hash = hash_of(memory, record_of(slot)).ok_or(NotPublished::Crowded)?;
                let free = free_slot(memory.reading(), grown, hash).ok_or(NotPublished::Crowded)?;
                memory.store(free, slot);
            }
        }
        self.index = Some(grown);
        memory.publish(at::INDEX, grown.to_word());
        Ok(())
    }

    /// Takes `len` zero words, aligned to `alignment`, and returns the first.
    fn take(&mut self, len: usize, alignment: usize) -> Result<usize, NotPublished> {
        let first = self.used.next_multiple_of(alignment);
        let end = (first + len) * WORD;
        if end > self.capacity {
            return Err(NotPublished::Full { capacity: self.capacity });
        }
        if end > self.set_aside {
            // A further eighth keeps the number of calls small.
            let wanted = (end + Self::STEP.max(self.set_aside / 8)).next_multiple_of(Self::STEP).min(self.capacity);
            let aside = making::set_aside(&self.file, self.set_aside, wanted - self.set_aside);
            aside.map_err(|error| NotPublished::NoMemory(error.into()))?;
            self.set_aside = wanted;
        }
        self.used = first + len;
        self.mapping.words().publish(at::USED, end as u64);
        Ok(first)
    }

    fn give_up(&mut self, error: NotPublished) -> Result<(), NotPublished> {
        self.is_over = true;
        self.mapping.words().publish(at::STATE, State::AskServer as u64);
        Err(error)
    }
}

impl Drop for JobWriter {
    fn drop(&mut self) {
        self.mapping.words().publish(at::STATE, State::Over as u64);
    }
}

impl fmt::Debug for JobWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, used, capacity, .. } = self;
        write!(f, "JobWriter {{ keys: {keys}, words: {used}, capacity: {capacity} }}")
    }
}

/// Hash of the key of a record.
fn hash_of(memory: WritableWords<'_>, record: usize) -> Option<u64> {
    let memory = memory.reading();
    let head = RecordHead::from_word(memory.load(record)?)?;
    let key = (record + 1..record + 1 + words(head.key)).map(|at| memory.load(at));
    Some(hash(head.key, key.collect::<Option<Vec<_>>>()?.into_iter()))
}

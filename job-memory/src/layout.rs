//! Positions in a job's memory, in words of eight bytes. `docs/embed/shared-memory.md` has the same description for readers in other
//! languages.
//!
//! ```text
//! header, 32 words: constant part | state, fences, bytes in use, index, keys
//! tables of ranks, nodes and attributes, and their texts          never change
//! indexes and records                                             only ever appended
//! ```
//! All numbers are in the byte order of the machine: no other machine can access the memory.

/// First eight bytes.
pub(crate) const MAGIC: [u8; 8] = *b"LATTJOB1";

/// Readers of another major version cannot read this layout.
pub(crate) const MAJOR: u16 = 1;

/// Increased for an addition that readers of this major version may ignore.
pub(crate) const MINOR: u16 = 0;

/// Shows the byte order.
pub(crate) const ORDER_MARK: u32 = 0x0102_0304;

/// Length of a word in bytes.
pub(crate) const WORD: usize = 8;

/// Length of the header in words.
pub(crate) const HEADER_WORDS: usize = 32;

/// Positions of the header's words.
pub(crate) mod at {
    pub(crate) const MAGIC: usize = 0;
    /// Major and minor version in two bytes each, then the order mark.
    pub(crate) const VERSION: usize = 1;
    /// Length of the header in bytes.
    pub(crate) const HEADER: usize = 2;
    /// Text: the job's id.
    pub(crate) const JOB_ID: usize = 3;
    /// Number of ranks, number of nodes.
    pub(crate) const RANKS_NODES: usize = 4;
    /// Index of this node, number of ranks on it.
    pub(crate) const NODE_LOCALS: usize = 5;
    /// Number of programs, universe size or 0.
    pub(crate) const PROGRAMS_UNIVERSE: usize = 6;
    /// Two words for each table: its offset; the length of an entry in bytes, and the number of entries.
    pub(crate) const RANK_TABLE: usize = 8;
    pub(crate) const NODE_TABLE: usize = 10;
    pub(crate) const ATTRIBUTE_TABLE: usize = 12;
    pub(crate) const STATE: usize = 24;
    pub(crate) const FENCES: usize = 25;
    /// Number of bytes from the start that readers may read.
    pub(crate) const USED: usize = 26;
    /// See [`super::IndexPlace`].
    pub(crate) const INDEX: usize = 27;
    pub(crate) const KEYS: usize = 28;
}

/// Length in bytes of an entry in the table of ranks, of nodes, of attributes.
pub(crate) const RANK_BYTES: u32 = 32;
pub(crate) const NODE_BYTES: u32 = 32;
pub(crate) const ATTRIBUTE_BYTES: u32 = 16;

/// State of the published pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(crate) enum State {
    /// No reader has requested pairs, and there are none.
    Unasked = 0,
    /// The memory has every fence that a rank of this node has left.
    Live = 1,
    /// The writer no longer publishes fences.
    AskServer = 2,
    /// The job has ended on this node.
    Over = 3,
}

/// Place and size of the index, in one word so that both change at once. The upper bits are the offset in bytes, a multiple of 64. The
/// lowest six bits are the binary logarithm of the number of slots. 0 without an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IndexPlace {
    /// First word of the slots.
    pub(crate) first: usize,
    /// Number of slots, a power of two.
    pub(crate) slots: usize,
}

impl IndexPlace {
    /// Alignment of an index, in words.
    pub(crate) const ALIGNMENT: usize = 8;
    const SIZE_BITS: u64 = 63;
    /// 32 bits of the hash select a slot.
    const MOST_SLOTS_LOG2: u64 = 32;

    pub(crate) fn to_word(self) -> u64 {
        (self.first * WORD) as u64 | u64::from(self.slots.trailing_zeros())
    }

    /// Decodes a word; `None` without an index, or for an invalid word.
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        let size = word & Self::SIZE_BITS;
        let first = usize::try_from((word & !Self::SIZE_BITS) / WORD as u64).ok()?;
        let is_index = first >= HEADER_WORDS && size <= Self::MOST_SLOTS_LOG2;
        let slots = 1_usize.checked_shl(size as u32).filter(|_| is_index)?;
        Some(Self { first, slots })
    }
}

/// Slot of the index: the upper half of a key's hash, and the word of its record in 32 bits. 0 is a free slot.
pub(crate) fn slot(hash: u64, record: usize) -> Option<u64> {
    let record = u32::try_from(record).ok()?;
    Some(hash & !u64::from(u32::MAX) | u64::from(record))
}

/// Word of a slot's record.
pub(crate) fn record_of(slot: u64) -> usize {
    slot as u32 as usize
}

/// Limit on the length of a key, in bytes.
pub(crate) const KEY_MAX: usize = 128;

/// Limit on the length of a value, in bytes.
pub(crate) const VALUE_MAX: usize = 1 << 20;

/// Limit on the length of a text (list of CPUs, name, value of an attribute), in bytes.
pub(crate) const TEXT_MAX: usize = 64 * 1024;

/// Number of slots after which a search stops. Half of all slots are free, so only keys that were chosen to collide reach this limit.
pub(crate) const PROBES_MAX: usize = 1024;

/// First word of a record: the length of its value and the length of its key, in four bytes each. Then come the key and the value, each
/// from a word boundary on. At least one zero byte follows the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordHead {
    pub(crate) key: usize,
    pub(crate) value: usize,
}

impl RecordHead {
    pub(crate) fn to_word(self) -> u64 {
        join(self.value as u32, self.key as u32)
    }

    /// Decodes a word; `None` for invalid lengths.
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        let (value, key) = split(word);
        let head = Self { key: key as usize, value: value as usize };
        ((1..=KEY_MAX).contains(&head.key) && head.value <= VALUE_MAX).then_some(head)
    }

    /// Number of words from the start of the record to its value.
    pub(crate) fn value_at(self) -> usize {
        1 + words(self.key)
    }

    /// Length of the record in words.
    pub(crate) fn words(self) -> usize {
        self.value_at() + words(self.value + 1)
    }
}

/// Number of words for this number of bytes.
pub(crate) fn words(bytes: usize) -> usize {
    bytes.div_ceil(WORD)
}

/// Word of two numbers, in four bytes each.
pub(crate) fn join(first: u32, second: u32) -> u64 {
    let mut bytes = [0; WORD];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

/// Splits a word into its two numbers.
pub(crate) fn split(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]))
}

/// Key in words, padded with zero bytes.
#[derive(Clone, Copy)]
pub(crate) struct KeyWords {
    words: [u64; KEY_MAX / WORD],
    bytes: usize,
}

impl KeyWords {
    /// Converts a key; `None` for a length that no record can have.
    pub(crate) fn new(key: &[u8]) -> Option<Self> {
        if key.is_empty() || key.len() > KEY_MAX {
            return None;
        }
        let mut words = [0; KEY_MAX / WORD];
        for (word, chunk) in words.iter_mut().zip(key.chunks(WORD)) {
            *word = word_of(chunk);
        }
        Some(Self { words, bytes: key.len() })
    }

    /// Length of the key in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.words[..words(self.bytes)]
    }

    pub(crate) fn hash(&self) -> u64 {
        hash(self.bytes, self.words().iter().copied())
    }
}

/// Word of up to eight bytes, padded with zeros.
pub(crate) fn word_of(chunk: &[u8]) -> u64 {
    let mut bytes = [0; WORD];
    bytes[..chunk.len()].copy_from_slice(chunk);
    u64::from_ne_bytes(bytes)
}

/// Hash of a key with this length in bytes. It is not secret: with keys that were chosen to collide, searches stop at their limit and
/// slow down no reader.
pub(crate) fn hash(bytes: usize, words: impl Iterator<Item = u64>) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64| {
        let product = hash.wrapping_mul(FACTOR);
        product ^ (product >> 32)
    };
    mix(words.fold(bytes as u64, |hash, word| mix(hash ^ word)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn an_index_is_named_by_one_word() {
        let place = IndexPlace { first: 4096, slots: 64 };
        assert_eq!(IndexPlace::from_word(place.to_word()), Some(place));
        let above_the_most = (4096 * 8) | 33;
        for none in [0, 6, above_the_most] {
            assert_eq!(IndexPlace::from_word(none), None, "{none:#x}");
        }
    }

    #[test]
    fn a_record_begins_with_its_lengths() {
        let head = RecordHead { key: 9, value: 16 };
        assert_eq!(RecordHead::from_word(head.to_word()), Some(head));
        assert_eq!((head.value_at(), head.words()), (3, 6), "a zero byte follows the value");
        for (key, value) in [(0, 1), (KEY_MAX + 1, 1), (1, VALUE_MAX + 1)] {
            assert_eq!(RecordHead::from_word(RecordHead { key, value }.to_word()), None, "{key} {value}");
        }
    }

    /// Typical keys of MPI libraries and launchers; they differ in the last bytes.
    #[test]
    fn keys_that_look_alike_fall_into_different_slots() {
        for name in ["k", "rank000", "P-businesscard-", "pmi-exchange-0-", "0123456701234567-"] {
            let hashes: HashSet<u64> =
                (0..4096).map(|rank| KeyWords::new(format!("{name}{rank}").as_bytes()).unwrap().hash()).collect();
            let slots = |bits: u64| hashes.iter().map(|hash| hash & bits).collect::<HashSet<_>>().len();
            let prints: HashSet<u64> = hashes.iter().map(|hash| hash >> 32).collect();
            // Of 8,192 slots, 4,096 random keys take 3,223 on average.
            assert!(slots(8191) > 3050 && prints.len() > 4090, "{name}: {} {}", slots(8191), prints.len());
        }
    }
}

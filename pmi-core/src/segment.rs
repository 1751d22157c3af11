//! A run of key-value pairs in its only format, for storage, transfer and reads: a byte string.
//!
//! ```text
//! segment = pair*
//! pair    = length of key, length of value, key, value      (lengths in LEB128: one byte below 128)
//! ```
//! A node that forwards a segment does not inspect it. A node that receives a segment from another node decodes it before use.

use std::hint::black_box;

use bytes::Bytes;

/// An immutable run of pairs; cloning it copies no pair.
///
/// Every value of this type is well formed: it is built from pairs here, or checked by [`Segment::decode`].
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Segment {
    bytes: Bytes,
    pairs: usize,
}

/// Reason why bytes from another node are not a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The segment is longer than the range of an offset.
    #[error("a segment has {len} bytes; the limit is {max}", max = Segment::MAX_LEN)]
    TooLong {
        /// The length found.
        len: usize,
    },
    /// The bytes end inside a pair.
    #[error("the pair at byte {offset} reaches beyond the segment's {len} bytes")]
    Truncated {
        /// Offset of the pair.
        offset: usize,
        /// The length of the segment.
        len: usize,
    },
    /// A length has more bytes than any valid length.
    #[error("the pair at byte {offset} has a length of more than {max} bytes", max = LONGEST_LENGTH)]
    Overlong {
        /// Offset of the pair.
        offset: usize,
    },
    /// A pair has no key.
    #[error("the pair at byte {offset} has an empty key")]
    EmptyKey {
        /// Offset of the pair.
        offset: usize,
    },
}

/// The bytes of the longest length: five groups of seven bits hold every length up to [`Segment::MAX_LEN`].
const LONGEST_LENGTH: usize = 5;

impl Segment {
    /// The longest segment, in bytes: offsets into it have 32 bits.
    pub const MAX_LEN: usize = u32::MAX as usize;

    /// Longest segment with more than one pair that [`Segment::several`] makes, in bytes.
    const SEVERAL_MAX: usize = 64 << 20;

    /// Encodes pairs in the given order, in as many segments as necessary: none without pairs. Omits pairs with an empty key.
    ///
    /// # Panics
    /// Panics when one pair alone takes more than [`Segment::MAX_LEN`] bytes.
    pub fn several<K: AsRef<[u8]>, V: AsRef<[u8]>>(pairs: impl IntoIterator<Item = (K, V)>) -> Vec<Self> {
        Self::cut(pairs, Self::SEVERAL_MAX)
    }

    /// Does the same with at most `most` bytes in a segment of more than one pair.
    fn cut<K: AsRef<[u8]>, V: AsRef<[u8]>>(pairs: impl IntoIterator<Item = (K, V)>, most: usize) -> Vec<Self> {
        let (mut segments, mut builder) = (Vec::new(), SegmentBuilder::default());
        for (key, value) in pairs {
            let (key, value) = (key.as_ref(), value.as_ref());
            if key.is_empty() {
                continue;
            }
            let longest = 2 * LONGEST_LENGTH + key.len() + value.len();
            if builder.len() > 0 && builder.len() + longest > most {
                segments.push(builder.finish());
            }
            builder.push(key, value);
            assert!(builder.len() <= Self::MAX_LEN, "one pair has {} bytes", builder.len());
        }
        if builder.len() > 0 {
            segments.push(builder.finish());
        }
        segments
    }

    /// Checks bytes from another node and counts their pairs. Copies no bytes.
    ///
    /// # Errors
    /// Refuses bytes that are not a whole number of pairs, a pair without a key, and more than [`Segment::MAX_LEN`] bytes.
    pub fn decode(bytes: Bytes) -> Result<Self, SegmentError> {
        if bytes.len() > Self::MAX_LEN {
            return Err(SegmentError::TooLong { len: bytes.len() });
        }
        let (mut offset, mut pairs) = (0, 0);
        while offset < bytes.len() {
            offset = Pair::read(&bytes, offset)?.end;
            pairs += 1;
        }
        Ok(Self { bytes, pairs })
    }

    /// The number of pairs; a key that occurs twice counts twice.
    pub fn pair_count(&self) -> usize {
        self.pairs
    }

    /// All pairs, each a key and its value, in the order of the puts.
    pub fn pairs(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.located_pairs().map(|pair| (pair.key, pair.value))
    }

    /// All pairs with their positions.
    pub(crate) fn located_pairs(&self) -> Pairs<'_> {
        Pairs { bytes: &self.bytes, offset: 0 }
    }

    /// Returns the next `count` pairs of an iteration over this segment, as a segment.
    ///
    /// It shares the bytes of this segment if it has at least half of them. A smaller one is a copy, because shared bytes keep the whole
    /// segment in memory.
    pub(crate) fn part(&self, walk: &mut Pairs<'_>, count: usize) -> Self {
        let start = walk.offset;
        let pairs = if start == 0 && count == self.pairs {
            walk.offset = self.bytes.len();
            count
        } else {
            walk.take(count).count()
        };
        let range = start..walk.offset;
        let shares = 2 * range.len() >= self.bytes.len();
        let bytes = if shares { self.bytes.slice(range) } else { Bytes::copy_from_slice(&self.bytes[range]) };
        Self { bytes, pairs }
    }

    /// The encoded pairs.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The encoded pairs, for transfer to another node.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }
}

/// Encodes pairs in the given order. Omits pairs with an empty key, because no segment holds them.
///
/// # Panics
/// Panics when the pairs take more than [`Segment::MAX_LEN`] bytes.
impl<K: AsRef<[u8]>, V: AsRef<[u8]>> FromIterator<(K, V)> for Segment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(iter: I) -> Self {
        let mut builder = SegmentBuilder::default();
        for (key, value) in iter {
            if !key.as_ref().is_empty() {
                builder.push(key.as_ref(), value.as_ref());
            }
        }
        assert!(builder.len() <= Self::MAX_LEN, "one segment was given {} bytes", builder.len());
        builder.finish()
    }
}

/// A segment under construction; its pairs are already readable.
#[derive(Default)]
pub(crate) struct SegmentBuilder {
    bytes: Vec<u8>,
    pairs: usize,
}

impl SegmentBuilder {
    /// Appends a pair with a non-empty key, and returns its offset.
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) -> usize {
        debug_assert!(!key.is_empty());
        let offset = self.bytes.len();
        write_length(&mut self.bytes, key.len());
        write_length(&mut self.bytes, value.len());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.pairs += 1;
        offset
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Returns the pairs so far as a segment, and empties the builder.
    pub(crate) fn finish(&mut self) -> Segment {
        let Self { mut bytes, pairs } = std::mem::take(self);
        bytes.shrink_to_fit();
        Segment { bytes: bytes.into(), pairs }
    }
}

/// One pair, and its bytes from `offset` to `end` in its segment.
#[derive(Clone, Copy, Default)]
pub(crate) struct Pair<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) offset: usize,
    pub(crate) end: usize,
}

impl<'a> Pair<'a> {
    /// Reads the pair that begins at `offset`, and checks every length.
    #[inline]
    pub(crate) fn read(bytes: &'a [u8], offset: usize) -> Result<Self, SegmentError> {
        let (key_len, value_len, key_at) = match bytes.get(offset..) {
            Some(&[key_len @ ..0x80, value_len @ ..0x80, ..]) => {
                (usize::from(key_len), usize::from(value_len), offset + 2)
            }
            _ => {
                let (key_len, at) = read_length(bytes, offset, offset)?;
                let (value_len, at) = read_length(bytes, offset, at)?;
                (key_len, value_len, at)
            }
        };
        if key_len == 0 {
            return Err(SegmentError::EmptyKey { offset });
        }
        // Lengths have at most 35 bits, so the sums cannot overflow.
        let value_at = key_at + key_len;
        let end = value_at + value_len;
        match (bytes.get(key_at..value_at), bytes.get(value_at..end)) {
            (Some(key), Some(value)) => Ok(Self { key, value, offset, end }),
            _ => Err(SegmentError::Truncated { offset, len: bytes.len() }),
        }
    }

    /// Number of its bytes in its segment.
    pub(crate) fn encoded_len(&self) -> usize {
        self.end - self.offset
    }
}

/// Iterates over the pairs of a segment.
pub(crate) struct Pairs<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Pairs<'a> {
    /// Loads about the next `count` pairs into the cache, all at once; an iteration waits for each pair in turn.
    pub(crate) fn touch(&self, count: usize) {
        const CACHE_LINE: usize = 64;
        // Two lines hold a pair of ordinary length.
        for line in self.bytes[self.offset..].chunks(CACHE_LINE).take(2 * count) {
            black_box(line[0]);
        }
    }
}

impl<'a> Iterator for Pairs<'a> {
    type Item = Pair<'a>;

    #[inline]
    fn next(&mut self) -> Option<Pair<'a>> {
        // The segment is well formed, so a read fails only after the last pair.
        let pair = Pair::read(self.bytes, self.offset).ok()?;
        self.offset = pair.end;
        Some(pair)
    }
}

fn write_length(bytes: &mut Vec<u8>, mut len: usize) {
    while len >= 0x80 {
        bytes.push(len as u8 | 0x80);
        len >>= 7;
    }
    bytes.push(len as u8);
}

/// Reads the length at `at` of the pair at `offset`; returns it and the position after it.
fn read_length(bytes: &[u8], offset: usize, at: usize) -> Result<(usize, usize), SegmentError> {
    let mut len = 0;
    for group in 0..LONGEST_LENGTH {
        let truncated = SegmentError::Truncated { offset, len: bytes.len() };
        let byte = *bytes.get(at + group).ok_or(truncated)?;
        len |= usize::from(byte & 0x7f) << (7 * group);
        if byte < 0x80 {
            return Ok((len, at + group + 1));
        }
    }
    Err(SegmentError::Overlong { offset })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn short_pairs_take_two_bytes_more_than_their_text() {
        let segment = Segment::from_iter([("key", "value"), ("", "nobody can ask for it"), ("k", "")]);
        assert_eq!(segment.as_bytes(), b"\x03\x05keyvalue\x01\x00k");
        assert_eq!(segment.pair_count(), 2);
    }

    #[test]
    fn many_pairs_take_several_segments_in_their_order() {
        let pair = |index: usize| (format!("key {index}"), "v".repeat(index));
        let cut = |pairs: usize, most| Segment::cut((0..pairs).map(pair), most);
        assert_eq!(cut(0, 100), []);
        assert_eq!(Segment::several([("", "nobody can ask for it")]), []);
        assert_eq!(Segment::several((0..30).map(pair)), [Segment::from_iter((0..30).map(pair))]);
        for most in [1, 60, 100, 1000] {
            let segments = cut(80, most);
            assert!(segments.iter().all(|segment| segment.pair_count() == 1 || segment.as_bytes().len() <= most));
            let joined: Vec<u8> = segments.iter().flat_map(Segment::as_bytes).copied().collect();
            assert_eq!(joined, Segment::from_iter((0..80).map(pair)).as_bytes(), "{most}");
        }
    }

    #[test]
    fn what_cannot_be_a_segment_is_refused_with_its_place() {
        use SegmentError::*;
        let check = |bytes: &'static [u8], error| {
            assert_eq!(Segment::decode(Bytes::from_static(bytes)), Err(error), "{bytes:?}");
        };
        check(b"\x01", Truncated { offset: 0, len: 1 });
        check(b"\x01\x00", Truncated { offset: 0, len: 2 });
        check(b"\x01\x00k\x01\x01k", Truncated { offset: 3, len: 6 });
        check(b"\x80", Truncated { offset: 0, len: 1 });
        check(b"\x01\x80\x80", Truncated { offset: 0, len: 3 });
        check(b"\xff\xff\xff\xff\x7f\xff\xff\xff\xff\x7f", Truncated { offset: 0, len: 10 });
        check(b"\x01\x00k\x00\x01v", EmptyKey { offset: 3 });
        check(b"\x80\x00\x00", EmptyKey { offset: 0 });
        check(b"\x80\x80\x80\x80\x80\x00\x00", Overlong { offset: 0 });
    }

    proptest! {
        #[test]
        fn decoding_undoes_encoding(pairs in vec((vec(any::<u8>(), 1..300), vec(any::<u8>(), 0..300)), 0..40)) {
            let built: Segment = pairs.iter().cloned().collect();
            let decoded = Segment::decode(built.clone().into_bytes()).unwrap();
            let read: Vec<_> = decoded.pairs().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
            prop_assert_eq!(&decoded, &built);
            prop_assert_eq!(decoded.pair_count(), pairs.len());
            prop_assert_eq!(read, pairs);
        }

        #[test]
        fn whatever_decodes_can_be_walked_to_its_end(
            // Mostly small bytes, so that many inputs begin with valid pairs.
            bytes in vec(prop_oneof![6 => 0_u8..5, 1 => any::<u8>()], 0..60),
        ) {
            if let Ok(segment) = Segment::decode(Bytes::from(bytes.clone())) {
                prop_assert_eq!(segment.located_pairs().count(), segment.pair_count());
                prop_assert_eq!(segment.located_pairs().last().map_or(0, |pair| pair.end), bytes.len());
            }
        }
    }
}

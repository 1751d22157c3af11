//! The key-value space of one job, as one node holds it.
//!
//! Each pair goes through three layers; where two have a key, the upper one is read:
//!
//! ```text
//! put ──> staged ──contribute──> in flight ──commit──> merged <──commit, absorb── what the fence brought
//!            └──share──> (a copy for a group's fence; the pairs stay staged)
//! ```
//! Pairs lie in immutable segments, which are kept as they arrive; one index over all of them knows each key's readable
//! pair. So a get is one search whatever the layer, and a value that a later one hides is never found again. Segments in
//! which little can be read any more are rewritten, so that putting one key for ever takes no more memory than once.

mod index;
#[cfg(test)]
mod model;
mod segment;
mod store;

use self::index::{Found, Index, Place};
use self::segment::{Pair, Pairs, SegmentBuilder};
pub use self::segment::{Segment, SegmentError};
use self::store::{CHUNK, Layer, Store};
use crate::fence::{Contribution, Merged};

/// One node's copy of a job's key-value space.
///
/// It sets no limit: whoever lets ranks put watches [`Kvs::memory`].
#[derive(Default)]
pub struct Kvs {
    index: Index,
    store: Store,
    /// The sealed segments of layer `Staged`, in the order of the puts.
    staged: Vec<u32>,
    /// The segments of layer `InFlight`.
    in_flight: Vec<u32>,
}

/// How many pairs of a fence's result are looked up together, so that their waits for memory overlap.
const BATCH: usize = 32;

impl Kvs {
    /// A space without pairs; it takes less than 1 KiB.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a pair readable on this node, at once, and on all others after the next world fence.
    ///
    /// A pair with an empty key is ignored: no wire format can ask for it.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        if key.is_empty() {
            return;
        }
        let place = self.store.append(key, value);
        self.reserve(1);
        self.make_readable(self.index.hash(key), key, place);
        if self.store.open_is_full() {
            self.seal();
        }
    }

    /// The value of a key: the last one put here that no fence has brought yet, else the last one that a fence brought.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        match self.find(self.index.hash(key), key) {
            Found::Number(number) => self.nth(number).map(|(_, value)| value),
            Found::Vacant(_) => None,
        }
    }

    /// The pair with this index, counted from 0 to [`Kvs::len`].
    ///
    /// Every readable key has one index, which it keeps whatever is put later.
    pub fn nth(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let pair = self.store.pair(self.index.place(index)?);
        Some((pair.key, pair.value))
    }

    /// The number of readable keys.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether no key can be read.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes held: pairs, readable or not, and the index over them.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.store.memory() + self.index.memory()
    }

    /// What this node brings to a world fence: all pairs put since the last one. They stay readable meanwhile.
    ///
    /// The result holds no segment when nothing was put.
    pub fn contribute(&mut self) -> Contribution {
        self.seal();
        let mut segments = Vec::with_capacity(self.staged.len());
        for number in std::mem::take(&mut self.staged) {
            if let Some(segment) = self.store.lower(number, Layer::InFlight) {
                segments.push(segment);
                self.in_flight.push(number);
            }
        }
        Contribution { segments }
    }

    /// What this node brings to a group's fence: the same pairs, which are still to be contributed to a world fence.
    pub fn share(&mut self) -> Contribution {
        self.seal();
        Contribution {
            segments: self.staged.iter().filter_map(|&number| self.store.segment(number)).cloned().collect(),
        }
    }

    /// Takes what a world fence brought, the pairs contributed here among it.
    ///
    /// From now on no older value is read, on any node that commits the same; only pairs put here since
    /// [`Kvs::contribute`] are newer.
    pub fn commit(&mut self, merged: Merged) {
        for number in std::mem::take(&mut self.in_flight) {
            self.store.lower(number, Layer::Merged);
        }
        self.merge(merged);
    }

    /// Takes what a group's fence brought. Pairs that were put here and are not in a complete world fence stay readable.
    pub fn absorb(&mut self, merged: Merged) {
        self.merge(merged);
    }

    /// The one function in which merged pairs change: each of `merged` replaces the merged pair of its key.
    fn merge(&mut self, merged: Merged) {
        let pairs: usize = merged.segments.iter().map(Segment::pair_count).sum();
        // Either the keys are new, or most of them were there before: both cases end with room for all and little more.
        self.reserve(pairs.saturating_sub(self.len()));
        for segment in merged.segments {
            self.merge_segment(&segment);
        }
        if self.store.is_wasteful(Layer::Merged) {
            self.rewrite(self.store.numbers(Layer::Merged), Layer::Merged);
        }
    }

    fn merge_segment(&mut self, segment: &Segment) {
        if segment.pair_count() == 0 {
            return;
        }
        let number = self.store.hold(segment.clone(), Layer::Merged);
        let mut pairs = segment.located_pairs();
        let mut batch = [(0, Pair::default()); BATCH];
        loop {
            let batch = self.look_ahead(&mut pairs, &mut batch);
            if batch.is_empty() {
                return;
            }
            self.reserve(batch.len());
            for (hash, pair) in batch {
                self.make_readable(*hash, pair.key, Place { segment: number, offset: pair.offset as u32 });
            }
        }
    }

    /// Reads and hashes the next pairs, and brings what is needed to index them into the cache.
    fn look_ahead<'b, 'p>(
        &self,
        pairs: &mut Pairs<'p>,
        batch: &'b mut [(u64, Pair<'p>); BATCH],
    ) -> &'b [(u64, Pair<'p>)] {
        pairs.touch(BATCH);
        let mut filled = 0;
        for (slot, pair) in batch.iter_mut().zip(pairs) {
            *slot = (self.index.hash(pair.key), pair);
            filled += 1;
        }
        let batch = &batch[..filled];
        for (hash, _) in batch {
            self.index.touch(*hash);
        }
        batch
    }

    /// Points the index at the pair of `key` at `place`, unless a higher layer has the key; releases the pair that is
    /// not readable thereby.
    fn make_readable(&mut self, hash: u64, key: &[u8], place: Place) {
        match self.find(hash, key) {
            Found::Vacant(slot) => self.index.insert(slot, hash, place),
            Found::Number(number) => {
                let before = self.index.place(number);
                match before.filter(|&before| self.store.layer(before) <= self.store.layer(place)) {
                    Some(before) => {
                        self.index.set_place(number, place);
                        self.store.release(before);
                    }
                    None => self.store.release(place),
                }
            }
        }
    }

    #[inline]
    fn find(&self, hash: u64, key: &[u8]) -> Found {
        self.index.find(hash, |place| self.store.pair(place).key == key)
    }

    fn reserve(&mut self, keys: usize) {
        self.index.reserve(keys, |place| self.store.pair(place).key);
    }

    /// Ends the open segment.
    fn seal(&mut self) {
        self.staged.extend(self.store.seal());
        if self.store.is_wasteful(Layer::Staged) {
            let staged = std::mem::take(&mut self.staged);
            self.staged = self.rewrite(staged, Layer::Staged);
        }
    }

    /// Copies the readable pairs of some segments, in order, into new segments, removes the old and returns the new.
    fn rewrite(&mut self, numbers: Vec<u32>, layer: Layer) -> Vec<u32> {
        let mut rewritten = Vec::new();
        let mut copied = Copied::default();
        for &segment in &numbers {
            let pairs = self.store.segment(segment).cloned().unwrap_or_default();
            for pair in pairs.located_pairs() {
                let place = Place { segment, offset: pair.offset as u32 };
                if let Found::Number(number) = self.find(self.index.hash(pair.key), pair.key)
                    && self.index.place(number) == Some(place)
                {
                    copied.keys.push((number, copied.pairs.push(pair.key, pair.value)));
                }
                if copied.pairs.len() >= CHUNK {
                    rewritten.push(self.keep(&mut copied, layer));
                }
            }
        }
        if copied.pairs.len() > 0 {
            rewritten.push(self.keep(&mut copied, layer));
        }
        for number in numbers {
            self.store.remove(number);
        }
        rewritten
    }

    fn keep(&mut self, copied: &mut Copied, layer: Layer) -> u32 {
        let segment = self.store.hold(copied.pairs.finish(), layer);
        for (number, offset) in copied.keys.drain(..) {
            self.index.set_place(number, Place { segment, offset: offset as u32 });
        }
        segment
    }
}

/// Pairs on their way from old segments into a new one, and the numbers and new offsets of their keys.
#[derive(Default)]
struct Copied {
    pairs: SegmentBuilder,
    keys: Vec<(usize, usize)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence_of(contributions: impl IntoIterator<Item = Contribution>) -> Merged {
        Merged { segments: contributions.into_iter().flat_map(|contribution| contribution.segments).collect() }
    }

    fn brought(pairs: &[(&str, &str)]) -> Merged {
        Merged { segments: vec![pairs.iter().copied().collect()] }
    }

    fn value<'a>(kvs: &'a Kvs, key: &str) -> Option<&'a str> {
        kvs.get(key.as_bytes()).map(|value| std::str::from_utf8(value).unwrap())
    }

    #[test]
    fn a_put_is_read_at_once_and_through_every_step_of_its_fence() {
        let mut kvs = Kvs::new();
        kvs.put(b"k", b"1");
        assert_eq!(value(&kvs, "k"), Some("1"), "staged");
        let contribution = kvs.contribute();
        assert_eq!(value(&kvs, "k"), Some("1"), "in flight");
        kvs.commit(fence_of([contribution]));
        assert_eq!(value(&kvs, "k"), Some("1"), "merged");
        assert!(kvs.contribute().segments.is_empty(), "a pair was contributed twice");
    }

    #[test]
    fn a_fence_without_puts_brings_no_segment() {
        let mut kvs = Kvs::new();
        assert!(kvs.contribute().segments.is_empty());
        assert!(kvs.share().segments.is_empty());
    }

    #[test]
    fn after_a_commit_its_last_value_is_read_on_every_node() {
        let (mut first, mut second) = (Kvs::new(), Kvs::new());
        first.put(b"k", b"of the first node");
        second.put(b"k", b"of the second node");
        let merged = fence_of([first.contribute(), second.contribute()]);
        first.commit(merged.clone());
        second.commit(merged);
        assert_eq!(value(&first, "k"), Some("of the second node"));
        assert_eq!(value(&second, "k"), Some("of the second node"));
    }

    #[test]
    fn a_put_during_a_fence_is_newer_than_what_the_fence_brings() {
        let mut kvs = Kvs::new();
        kvs.put(b"k", b"before");
        let before = kvs.contribute();
        kvs.put(b"k", b"meanwhile");
        kvs.commit(fence_of([before, Contribution { segments: brought(&[("k", "foreign")]).segments }]));
        assert_eq!(value(&kvs, "k"), Some("meanwhile"));
        let meanwhile = kvs.contribute();
        kvs.commit(fence_of([meanwhile]));
        assert_eq!(value(&kvs, "k"), Some("meanwhile"));
    }

    #[test]
    fn shared_pairs_are_contributed_again_and_hide_what_their_group_brings() {
        let mut kvs = Kvs::new();
        kvs.put(b"k", b"own");
        let shared = kvs.share();
        kvs.absorb(fence_of([
            shared.clone(),
            Contribution { segments: brought(&[("k", "foreign"), ("l", "new")]).segments },
        ]));
        assert_eq!((value(&kvs, "k"), value(&kvs, "l")), (Some("own"), Some("new")));
        assert_eq!(kvs.contribute().segments, shared.segments);
    }

    #[test]
    fn a_key_keeps_its_index_and_occurs_once() {
        let mut kvs = Kvs::new();
        kvs.commit(brought(&[("a", "1"), ("b", "2"), ("a", "3")]));
        kvs.put(b"c", b"4");
        kvs.put(b"b", b"5");
        let all: Vec<_> = (0..kvs.len()).map(|index| kvs.nth(index).unwrap()).collect();
        assert_eq!(all, [(&b"a"[..], &b"3"[..]), (b"b", b"5"), (b"c", b"4")]);
        assert_eq!(kvs.nth(3), None);
    }

    #[test]
    fn an_empty_key_is_never_there() {
        let mut kvs = Kvs::new();
        kvs.put(b"", b"value");
        assert_eq!((kvs.get(b""), kvs.len()), (None, 0));
    }

    #[test]
    fn a_small_job_takes_little_memory() {
        let mut kvs = Kvs::new();
        assert!(kvs.memory() < 512, "an empty space takes {} bytes", kvs.memory());
        for key in [b"a", b"b", b"c", b"d"] {
            kvs.put(key, &[b'v'; 80]);
        }
        assert!(kvs.memory() < 1024, "four pairs take {} bytes", kvs.memory());
    }

    #[test]
    fn many_pairs_take_a_quarter_more_than_their_text() {
        const NODES: usize = 20;
        const PAIRS: usize = 1000;
        let pair = |node, rank| (format!("key-{node:06}-{rank:09}"), [b'v'; 71]);
        let segments: Vec<Segment> = (0..NODES).map(|node| (0..PAIRS).map(|rank| pair(node, rank)).collect()).collect();
        let mut kvs = Kvs::new();
        for round in 1..=5 {
            kvs.commit(Merged { segments: segments.clone() });
            let text = NODES * PAIRS * (20 + 71);
            assert!(kvs.memory() * 4 <= text * 5, "{} bytes for {text} in round {round}", kvs.memory());
        }
        assert_eq!(kvs.len(), NODES * PAIRS);
    }

    #[test]
    fn putting_the_same_keys_for_ever_takes_no_more_memory() {
        let mut kvs = Kvs::new();
        for round in 0..2000_u32 {
            for key in 0..10_u8 {
                kvs.put(&[b'k', key], &round.to_be_bytes().repeat(10));
            }
            // Now and then a key of its own, so that no segment becomes quite unreadable.
            kvs.put(&(round / 50).to_be_bytes(), b"kept");
            match round % 5 {
                0 => drop(kvs.share()),
                1 if round > 1000 => {
                    let contribution = kvs.contribute();
                    kvs.commit(fence_of([contribution]));
                }
                _ => {}
            }
            assert!(kvs.memory() < 16 * 1024, "{} bytes in round {round}", kvs.memory());
        }
        assert_eq!(kvs.len(), 10 + 40);
        assert_eq!(kvs.get(&[b'k', 9]), Some(&*1999_u32.to_be_bytes().repeat(10)));
    }
}

//! The key-value space of one job, as stored on one node.
//!
//! Each pair passes through three layers. If two layers hold a key, a read returns the pair of the upper one.
//!
//! ```text
//! put ──> staged ──contribute──> in flight ──commit──> merged <──commit, absorb── result of the fence
//!            └──share──> (a copy for a group's fence; the pairs stay staged)
//! ```
//! Within the merged layer a read returns the newer pair, as `age.rs` defines it.
//!
//! Pairs are stored in immutable segments, as they arrive. One index over all segments points to each key's readable pair. So a get is
//! one search in any layer, and a hidden value is never found. Segments with few readable pairs are rewritten: repeated puts of one key
//! take no more memory than one put.

mod age;
mod index;
#[cfg(test)]
mod model;
mod store;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use self::age::Unlabelled;
use self::age::{Age, Label, Labelled};
use self::index::{Found, Index, Place};
use self::store::{CHUNK, Layer, Store};
use crate::fence::{Contribution, Merged};
use crate::segment::{Pair, Pairs, SegmentBuilder};
pub use crate::segment::{Segment, SegmentError};

/// One node's copy of a job's key-value space.
///
/// The space sets no limit. A server must limit puts by [`Kvs::memory`].
#[derive(Default)]
pub struct Kvs {
    index: Index,
    store: Store,
    /// The sealed segments of layer `Staged`, in the order of the puts.
    staged: Vec<u32>,
    /// The segments of layer `InFlight`.
    in_flight: Vec<u32>,
    /// Number of world fences begun here.
    begun: u64,
    /// Number of complete world fences.
    complete: u64,
    /// See [`Age`].
    clock: u64,
    /// Merged pairs that are newer than the local pair of their key, where the local pair is in no complete world fence. Reads return the
    /// local pair until it is, and these pairs afterwards.
    overtaking: BTreeMap<Vec<u8>, (Age, Vec<u8>)>,
}

/// Number of pairs of a fence's result that are looked up together, so that their memory latencies overlap.
const BATCH: usize = 32;

impl Kvs {
    /// Creates a space without pairs, of less than 1 KiB.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a pair readable on this node at once, and on all other nodes after the next world fence.
    ///
    /// Ignores a pair with an empty key: no wire format can request it.
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

    /// Adds pairs that every node of the job has from the start. They are in no contribution, and older than any put.
    pub fn preput<K: AsRef<[u8]>, V: AsRef<[u8]>>(&mut self, pairs: impl IntoIterator<Item = (K, V)>) {
        let segment: Segment = pairs.into_iter().collect();
        self.merge(std::iter::once((Age::OLDEST, &segment)));
    }

    /// Returns the value of a key: the last local put that no fence has returned yet, else the last value that a fence returned.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        match self.find(self.index.hash(key), key) {
            Found::Number(number) => self.nth(number).map(|(_, value)| value),
            Found::Vacant(_) => None,
        }
    }

    /// Returns the pair with this index, from 0 to below [`Kvs::len`].
    ///
    /// Every readable key has one index, which later puts do not change.
    pub fn nth(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let pair = self.store.pair(self.index.place(index)?);
        Some((pair.key, pair.value))
    }

    /// The number of readable keys.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns true if no key can be read.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory in bytes: all pairs, readable or not, and the index.
    pub fn memory(&self) -> usize {
        let overtaking: usize = self.overtaking.iter().map(|(key, (_, value))| key.len() + value.len()).sum();
        size_of::<Self>() + self.store.memory() + self.index.memory() + overtaking
    }

    /// Returns this node's contribution to a world fence: all pairs put since the last one. They stay readable during the fence.
    ///
    /// The result has no segment when nothing was put.
    pub fn contribute(&mut self) -> Contribution {
        self.seal();
        self.begun += 1;
        let mut segments = Vec::with_capacity(self.staged.len());
        for number in std::mem::take(&mut self.staged) {
            if let Some(segment) = self.store.lower(number, Layer::InFlight) {
                segments.push(segment);
                self.in_flight.push(number);
            }
        }
        segments.into()
    }

    /// Returns this node's contribution to a group's fence: the pairs that are still to be contributed to a world fence, and their ages.
    pub fn share(&mut self) -> Contribution {
        self.seal();
        if self.staged.is_empty() && self.clock == 0 {
            return Contribution::default();
        }
        let mut label = Label::new(self.begun, self.clock);
        // Later puts are newer.
        self.clock = self.clock.saturating_add(1);
        let mut shared = Vec::with_capacity(1 + self.staged.len());
        shared.push(Segment::default());
        for &number in &self.staged {
            if let Some(segment) = self.store.segment(number) {
                label.push(self.store.age(number).clock, segment.pair_count());
                shared.push(segment.clone());
            }
        }
        shared[0] = label.encode();
        shared.into()
    }

    /// Takes the result of a world fence, which includes the pairs contributed here.
    ///
    /// Afterwards no older value is read, on any node that commits the same result. Only pairs put here since [`Kvs::contribute`] are
    /// newer.
    pub fn commit(&mut self, merged: Merged) {
        for number in std::mem::take(&mut self.in_flight) {
            self.store.lower(number, Layer::Merged);
        }
        let age = Age::fenced(self.complete);
        self.complete += 1;
        self.merge(merged.segments.iter().map(|segment| (age, segment)));
        for (key, (age, value)) in std::mem::take(&mut self.overtaking) {
            // A pair that this fence did not return is newer than the pairs that it returned.
            if age.interval >= self.complete {
                self.merge([(age, &[(key, value)].into_iter().collect())].into_iter());
            }
        }
    }

    /// Takes the result of a group's fence, and returns its pairs. Local pairs that are in no complete world fence stay readable, and so
    /// do pairs newer than the result.
    ///
    /// # Errors
    /// Fails when the result does not come from [`Kvs::share`], and then takes nothing.
    pub fn absorb(&mut self, merged: &Merged) -> Result<Vec<Segment>, Unlabelled> {
        let Labelled { latest, segments } = Labelled::read(&merged.segments)?;
        if let Some(latest) = latest {
            // Earlier puts are not newer than this result.
            self.seal();
            self.clock = self.clock.max(latest.saturating_add(1));
        }
        let complete = self.complete;
        self.merge(segments.iter().map(|(age, segment)| (*age, segment)).filter(|(age, _)| age.interval >= complete));
        Ok(segments.into_iter().map(|(_, segment)| segment).collect())
    }

    /// The only function that changes merged pairs. Each of `brought` replaces the merged pair of its key, unless that is newer.
    fn merge<'s>(&mut self, brought: impl Iterator<Item = (Age, &'s Segment)> + Clone) {
        let pairs: usize = brought.clone().map(|(_, segment)| segment.pair_count()).sum();
        // Either the keys are new, or most of them exist already. Both cases end with room for all keys and little more.
        self.reserve(pairs.saturating_sub(self.len()));
        for (age, segment) in brought {
            self.merge_segment(age, segment);
        }
        if self.store.is_wasteful(Layer::Merged) {
            self.rewrite_merged();
        }
    }

    fn rewrite_merged(&mut self) {
        let mut numbers = self.store.numbers(Layer::Merged);
        numbers.sort_unstable_by_key(|&number| (self.settled(self.store.age(number)), number));
        self.rewrite(numbers, Layer::Merged);
    }

    fn merge_segment(&mut self, age: Age, segment: &Segment) {
        if segment.pair_count() == 0 {
            return;
        }
        let number = self.store.hold(segment.clone(), Layer::Merged, age);
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

    /// Reads and hashes the next pairs, and loads their index entries into the cache.
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

    /// Points the index at the pair of `key` at `place`, unless a higher layer or a newer pair has the key. Releases the pair that is
    /// then not readable.
    fn make_readable(&mut self, hash: u64, key: &[u8], place: Place) {
        let number = match self.find(hash, key) {
            Found::Vacant(slot) => return self.index.insert(slot, hash, place),
            Found::Number(number) => number,
        };
        let Some(before) = self.index.place(number) else { return };
        if self.store.standing(before) <= self.store.standing(place) {
            self.index.set_place(number, place);
            self.store.release(before);
        } else {
            self.remember_overtaking(before, place);
            self.store.release(place);
        }
    }

    /// Keeps the pair at `place` for later, if the pair at `hiding` hides it now but will be older in a world fence.
    fn remember_overtaking(&mut self, hiding: Place, place: Place) {
        let ((layer, hiding_age), (_, age)) = (self.store.standing(hiding), self.store.standing(place));
        if layer != Layer::Merged && hiding_age.min(self.next_age()).interval < age.interval {
            let pair = self.store.pair(place);
            let (key, value) = (pair.key.to_vec(), pair.value.to_vec());
            let known = self.overtaking.entry(key).or_default();
            if known.0 <= age {
                *known = (age, value);
            }
        }
    }

    /// The age of the next put.
    fn next_age(&self) -> Age {
        Age { interval: self.begun, clock: self.clock }
    }

    /// Removes differences of age that no longer matter: of two pairs from complete world fences, only the readable one was kept.
    fn settled(&self, age: Age) -> Age {
        self.complete.checked_sub(1).map_or(age, |last| age.max(Age::fenced(last)))
    }

    #[inline]
    fn find(&self, hash: u64, key: &[u8]) -> Found {
        self.index.find(hash, |place| self.store.pair(place).key == key)
    }

    fn reserve(&mut self, keys: usize) {
        self.index.reserve(keys, |place| self.store.pair(place).key);
    }

    /// Seals the open segment.
    fn seal(&mut self) {
        self.staged.extend(self.store.seal(self.next_age()));
        if self.store.is_wasteful(Layer::Staged) {
            let staged = std::mem::take(&mut self.staged);
            self.staged = self.rewrite(staged, Layer::Staged);
        }
    }

    /// Copies the readable pairs of some segments, in order, into new segments. Removes the old segments, and returns the new ones. No
    /// segment holds pairs of several ages.
    fn rewrite(&mut self, numbers: Vec<u32>, layer: Layer) -> Vec<u32> {
        let mut rewritten = Vec::new();
        let mut copied = Copied::default();
        for &segment in &numbers {
            let age = self.settled(self.store.age(segment));
            if age != copied.age {
                rewritten.extend(self.keep(&mut copied, layer));
                copied.age = age;
            }
            let pairs = self.store.segment(segment).cloned().unwrap_or_default();
            for pair in pairs.located_pairs() {
                let place = Place { segment, offset: pair.offset as u32 };
                if let Found::Number(number) = self.find(self.index.hash(pair.key), pair.key)
                    && self.index.place(number) == Some(place)
                {
                    copied.keys.push((number, copied.pairs.push(pair.key, pair.value)));
                }
                if copied.pairs.len() >= CHUNK {
                    rewritten.extend(self.keep(&mut copied, layer));
                }
            }
        }
        rewritten.extend(self.keep(&mut copied, layer));
        for number in numbers {
            self.store.remove(number);
        }
        rewritten
    }

    /// Stores the copied pairs, if any, as a segment.
    fn keep(&mut self, copied: &mut Copied, layer: Layer) -> Option<u32> {
        if copied.pairs.len() == 0 {
            return None;
        }
        let segment = self.store.hold(copied.pairs.finish(), layer, copied.age);
        for (number, offset) in copied.keys.drain(..) {
            self.index.set_place(number, Place { segment, offset: offset as u32 });
        }
        Some(segment)
    }
}

/// Pairs of one age during a copy from old segments into a new one, and the numbers and new offsets of their keys.
#[derive(Default)]
struct Copied {
    age: Age,
    pairs: SegmentBuilder,
    keys: Vec<(usize, usize)>,
}

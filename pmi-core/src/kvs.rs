//! The key-value space of one job, as one node holds it.
//!
//! Each pair goes through three layers; where two have a key, the upper one is read:
//!
//! ```text
//! put ──> staged ──contribute──> in flight ──commit──> merged <──commit, absorb── what the fence brought
//!            └──share──> (a copy for a group's fence; the pairs stay staged)
//! ```
//! Within the merged layer the newer is read, as `age.rs` defines it.
//!
//! Pairs lie in immutable segments, which are kept as they arrive; one index over all of them knows each key's readable
//! pair. So a get is one search whatever the layer, and a value that a later one hides is never found again. Segments in
//! which little can be read any more are rewritten, so that putting one key for ever takes no more memory than once.

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
/// The space sets no limit: whoever lets ranks put watches [`Kvs::memory`].
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
    /// Number of them that are complete.
    complete: u64,
    /// See [`Age`].
    clock: u64,
    /// Merged pairs that are newer than the pair of their key that was put here and is in no complete world fence. That one is read
    /// until then, and these are from then on.
    overtaking: BTreeMap<Vec<u8>, (Age, Vec<u8>)>,
}

/// Number of pairs of a fence's result that are looked up together, so that their waits for memory overlap.
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

    /// Takes pairs that every node of the job has from the start. They are in no contribution, and older than whatever is put.
    pub fn preput<K: AsRef<[u8]>, V: AsRef<[u8]>>(&mut self, pairs: impl IntoIterator<Item = (K, V)>) {
        let segment: Segment = pairs.into_iter().collect();
        self.merge(std::iter::once((Age::OLDEST, &segment)));
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

    /// Returns true if no key can be read.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes held: pairs, readable or not, and the index over them.
    pub fn memory(&self) -> usize {
        let overtaking: usize = self.overtaking.iter().map(|(key, (_, value))| key.len() + value.len()).sum();
        size_of::<Self>() + self.store.memory() + self.index.memory() + overtaking
    }

    /// Returns this node's contribution to a world fence: all pairs put since the last one. They stay readable meanwhile.
    ///
    /// The result holds no segment when nothing was put.
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

    /// Returns this node's contribution to a group's fence: the same pairs, which are still to be contributed to a world fence, and how old they
    /// are.
    pub fn share(&mut self) -> Contribution {
        self.seal();
        if self.staged.is_empty() && self.clock == 0 {
            return Contribution::default();
        }
        let mut label = Label::new(self.begun, self.clock);
        // What is put from now on is newer.
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

    /// Takes what a world fence brought, the pairs contributed here among it.
    ///
    /// From now on no older value is read, on any node that commits the same; only pairs put here since
    /// [`Kvs::contribute`] are newer.
    pub fn commit(&mut self, merged: Merged) {
        for number in std::mem::take(&mut self.in_flight) {
            self.store.lower(number, Layer::Merged);
        }
        let age = Age::fenced(self.complete);
        self.complete += 1;
        self.merge(merged.segments.iter().map(|segment| (age, segment)));
        for (key, (age, value)) in std::mem::take(&mut self.overtaking) {
            // What this fence did not bring is newer than what it brought.
            if age.interval >= self.complete {
                self.merge([(age, &[(key, value)].into_iter().collect())].into_iter());
            }
        }
    }

    /// Takes what a group's fence brought, and returns the pairs in it. Those that were put here and are not in a complete world fence stay
    /// readable, and so do those that are newer than what it brought.
    ///
    /// # Errors
    /// Fails when it does not come from [`Kvs::share`]; then nothing is taken.
    pub fn absorb(&mut self, merged: &Merged) -> Result<Vec<Segment>, Unlabelled> {
        let Labelled { latest, segments } = Labelled::read(&merged.segments)?;
        if let Some(latest) = latest {
            // What was put before is not newer than what comes now.
            self.seal();
            self.clock = self.clock.max(latest.saturating_add(1));
        }
        let complete = self.complete;
        self.merge(segments.iter().map(|(age, segment)| (*age, segment)).filter(|(age, _)| age.interval >= complete));
        Ok(segments.into_iter().map(|(_, segment)| segment).collect())
    }

    /// The one function in which merged pairs change: each of `brought` replaces the merged pair of its key, unless that is newer.
    fn merge<'s>(&mut self, brought: impl Iterator<Item = (Age, &'s Segment)> + Clone) {
        let pairs: usize = brought.clone().map(|(_, segment)| segment.pair_count()).sum();
        // Either the keys are new, or most of them were there before: both cases end with room for all and little more.
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

    /// Points the index at the pair of `key` at `place`, unless a higher layer or a newer pair has the key; releases the pair that is
    /// not readable thereby.
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

    /// Keeps the pair at `place` for later if the one that hides it, at `hiding`, will be older than it in a world fence.
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

    /// The age of what is put now.
    fn next_age(&self) -> Age {
        Age { interval: self.begun, clock: self.clock }
    }

    /// An age without the differences that do not matter any more: of two pairs that world fences have brought, only the one that can
    /// be read was kept.
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

    /// Ends the open segment.
    fn seal(&mut self) {
        self.staged.extend(self.store.seal(self.next_age()));
        if self.store.is_wasteful(Layer::Staged) {
            let staged = std::mem::take(&mut self.staged);
            self.staged = self.rewrite(staged, Layer::Staged);
        }
    }

    /// Copies the readable pairs of some segments, in order, into new segments, removes the old and returns the new. No segment holds
    /// pairs of several ages.
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

    /// Makes what was copied a segment, if anything was.
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

/// Pairs of one age on their way from old segments into a new one, and the numbers and new offsets of their keys.
#[derive(Default)]
struct Copied {
    age: Age,
    pairs: SegmentBuilder,
    keys: Vec<(usize, usize)>,
}

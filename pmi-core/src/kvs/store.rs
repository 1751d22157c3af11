//! Holds the segments that readable pairs lie in, and knows of each how much of it can still be read.
//!
//! A segment is in one of three layers and only ever moves down; how it does so is drawn in the parent module.

use super::age::Age;
use super::index::Place;
use crate::segment::{Pair, Segment, SegmentBuilder};

/// Layer of the pairs of a segment. Where two layers have a key, the higher one is read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Layer {
    /// A fence brought them.
    Merged,
    /// Pairs that were put on this node and are in a world fence that is not complete.
    InFlight,
    /// Pairs that were put on this node since the last world fence began.
    Staged,
}

/// The bytes at which the open segment is full. Tests meet full ones with few pairs.
pub(super) const CHUNK: usize = if cfg!(test) { 512 } else { 64 * 1024 };

/// Bytes that a segment takes beside its pairs: its entry here, and about as much for the owner of its bytes.
const OVERHEAD: usize = 2 * size_of::<Held>();

/// The segments, by number. The number of a dropped one is used again.
#[derive(Default)]
pub(super) struct Store {
    /// Vacant entries are nothing, and so is the open segment's.
    held: Vec<Option<Held>>,
    vacant: Vec<u32>,
    open: Option<Open>,
    loads: [Load; 3],
}

/// The segment that puts go into, in layer `Staged`.
struct Open {
    number: u32,
    pairs: SegmentBuilder,
    readable: usize,
}

struct Held {
    segment: Segment,
    layer: Layer,
    age: Age,
    /// The bytes of those pairs in it that can be read.
    readable: usize,
}

/// The sums over all segments of a layer except the open one, in bytes.
#[derive(Clone, Copy, Default)]
struct Load {
    cost: usize,
    readable: usize,
}

impl Held {
    fn cost(&self) -> usize {
        self.segment.as_bytes().len() + OVERHEAD
    }
}

impl Load {
    fn add(&mut self, held: &Held) {
        self.cost += held.cost();
        self.readable += held.readable;
    }

    fn remove(&mut self, held: &Held) {
        self.cost -= held.cost();
        self.readable -= held.readable;
    }
}

impl Store {
    /// Appends a pair to the open segment, where it counts as readable.
    pub(super) fn append(&mut self, key: &[u8], value: &[u8]) -> Place {
        if self.open.is_none() {
            self.open = Some(Open { number: self.allot(), pairs: SegmentBuilder::default(), readable: 0 });
        }
        let open = self.open.as_mut().expect("a segment was opened above");
        let offset = open.pairs.push(key, value);
        open.readable += open.pairs.len() - offset;
        Place { segment: open.number, offset: offset as u32 }
    }

    pub(super) fn open_is_full(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.pairs.len() >= CHUNK)
    }

    /// Ends the open segment, if there is one, and returns its number; places in it stay what they are.
    pub(super) fn seal(&mut self, age: Age) -> Option<u32> {
        let Open { number, mut pairs, readable } = self.open.take()?;
        self.fill(number, Held { segment: pairs.finish(), layer: Layer::Staged, age, readable });
        Some(number)
    }

    /// Keeps a segment, all of whose pairs count as readable until they are released. Returns its number.
    pub(super) fn hold(&mut self, segment: Segment, layer: Layer, age: Age) -> u32 {
        let number = self.allot();
        let readable = segment.as_bytes().len();
        self.fill(number, Held { segment, layer, age, readable });
        number
    }

    fn allot(&mut self) -> u32 {
        self.vacant.pop().unwrap_or_else(|| {
            self.held.push(None);
            (self.held.len() - 1) as u32
        })
    }

    fn fill(&mut self, number: u32, held: Held) {
        self.loads[held.layer as usize].add(&held);
        self.held[number as usize] = Some(held);
    }

    /// Takes a segment out; its number is free.
    pub(super) fn remove(&mut self, number: u32) -> Option<Segment> {
        let held = self.held[number as usize].take()?;
        self.loads[held.layer as usize].remove(&held);
        self.vacant.push(number);
        Some(held.segment)
    }

    /// Moves a segment to a lower layer and returns it, or nothing when no pair in it can be read: then it is removed.
    pub(super) fn lower(&mut self, number: u32, layer: Layer) -> Option<Segment> {
        let held = self.held[number as usize].as_mut()?;
        if held.readable == 0 {
            self.remove(number);
            return None;
        }
        self.loads[held.layer as usize].remove(held);
        held.layer = layer;
        self.loads[layer as usize].add(held);
        Some(held.segment.clone())
    }

    /// Says that the pair at `place` cannot be read any more. A merged segment without any other is removed.
    pub(super) fn release(&mut self, place: Place) {
        let len = self.pair(place).encoded_len();
        match (&mut self.held[place.segment as usize], &mut self.open) {
            (Some(held), _) => {
                held.readable -= len;
                self.loads[held.layer as usize].readable -= len;
                if held.readable == 0 && held.layer == Layer::Merged {
                    self.remove(place.segment);
                }
            }
            (None, Some(open)) => open.readable -= len,
            (None, None) => {}
        }
    }

    /// The pair that begins at `place`.
    #[inline]
    pub(super) fn pair(&self, place: Place) -> Pair<'_> {
        let bytes = match (&self.held[place.segment as usize], &self.open) {
            (Some(held), _) => held.segment.as_bytes(),
            (None, Some(open)) => open.pairs.as_bytes(),
            (None, None) => &[],
        };
        Pair::read(bytes, place.offset as usize).expect("a place is where a pair of a well-formed segment begins")
    }

    /// Order of a pair among others of its key: the greatest is read.
    pub(super) fn standing(&self, place: Place) -> (Layer, Age) {
        self.held[place.segment as usize].as_ref().map_or((Layer::Staged, Age::LATEST), |held| (held.layer, held.age))
    }

    /// The age of the segment with this number; that of an open or removed one is the latest.
    pub(super) fn age(&self, number: u32) -> Age {
        self.held[number as usize].as_ref().map_or(Age::LATEST, |held| held.age)
    }

    /// The segment with this number, unless it is open or was removed.
    pub(super) fn segment(&self, number: u32) -> Option<&Segment> {
        self.held[number as usize].as_ref().map(|held| &held.segment)
    }

    /// The numbers of all segments of a layer but the open one.
    pub(super) fn numbers(&self, layer: Layer) -> Vec<u32> {
        let of_layer = |held: &Option<Held>| held.as_ref().is_some_and(|held| held.layer == layer);
        (0..self.held.len() as u32).filter(|&number| of_layer(&self.held[number as usize])).collect()
    }

    /// Returns true if less than half of what a layer's segments take can be read, and enough of it to be worth a rewrite.
    pub(super) fn is_wasteful(&self, layer: Layer) -> bool {
        let Load { cost, readable } = self.loads[layer as usize];
        cost > 2 * readable + CHUNK
    }

    /// Bytes on the heap.
    pub(super) fn memory(&self) -> usize {
        let open = self.open.as_ref().map_or(0, |open| open.pairs.capacity());
        self.loads.iter().map(|load| load.cost).sum::<usize>() + open + self.vacant.capacity() * size_of::<u32>()
    }
}
